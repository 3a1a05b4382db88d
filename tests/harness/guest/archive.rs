//! The archive that a kernel unpacks into memory as its first file system (cpio, "newc").

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTERS: u32 = 0o020_600;

/// Files in the order in which they are made.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    pub(super) fn folder(&mut self, path: &str) {
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, (0, 0), &[]);
        }
    }

    pub(super) fn file(&mut self, path: &str, content: &[u8], runs: bool) {
        self.entry(path, if runs { PROGRAM } else { FILE }, (0, 0), content);
    }

    /// A program or library with all folders above it.
    pub(super) fn file_with_folders(&mut self, path: &str, content: &[u8]) {
        for (at, _) in path.match_indices('/') {
            self.folder(&path[..at]);
        }
        self.file(path, content, true);
    }

    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.entry(path, LINK, (0, 0), to.as_bytes());
    }

    /// The device that the first process prints to.
    pub(super) fn console(&mut self, path: &str) {
        self.entry(path, CHARACTERS, (5, 1), &[]);
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("no program of the tests has 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("paths of the tests are short");
        // Number, mode, owner, group, links, time, size, device, device of a device file, and the
        // length of the name; no sum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(super) fn write(mut self, path: &Path) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        fs::write(path, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_form_that_kernels_read() {
        let mut archive = Archive::default();
        archive.file_with_folders("a/b", b"xyz");
        let text = String::from_utf8(archive.bytes).unwrap();
        let (folder, file) = text.split_at(110 + 2);
        assert!(folder.starts_with("070701") && folder.ends_with("a\0"), "{folder:?}");
        assert_eq!(file.len(), 110 + 4 + 2 + 4, "padded to fours: {file:?}");
        assert_eq!(&file[14..22], "000081ed");
        assert_eq!(&file[54..62], "00000003");
        assert!(file.ends_with("a/b\0\0\0xyz\0"));
    }
}
