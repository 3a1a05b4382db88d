//! Small files that must never be half-written or readable by others for an instant.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::PkiError;

/// For the owner alone.
pub(crate) const PRIVATE: u32 = 0o600;
/// Certificates are public; the folder around them is not.
pub(crate) const PUBLIC: u32 = 0o644;

fn write_error(path: &Path) -> impl Fn(io::Error) -> PkiError + '_ {
    move |source| PkiError::Write { path: path.to_owned(), source }
}

/// Makes a folder of mode 0700 with its missing parents; leaves an existing one as it is.
pub(crate) fn make_folder(path: &Path) -> Result<(), PkiError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(write_error(path))
}

/// Writes the whole file under a temporary name beside it, down to the disk.
fn write_temporary(path: &Path, bytes: &[u8], mode: u32) -> io::Result<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    // Left by a killed process of the same number.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(temporary)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Writes a file that must not exist yet.
pub(crate) fn write_new(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    remedy: &'static str,
) -> Result<(), PkiError> {
    let temporary = write_temporary(path, bytes, mode).map_err(write_error(path))?;
    // A rename would replace what another process wrote meanwhile; a link refuses.
    let linked = fs::hard_link(&temporary, path);
    let removed = fs::remove_file(&temporary);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(PkiError::Exists { path: path.to_owned(), remedy })
        }
        other => other.and(removed).and_then(|()| sync_folder(path)).map_err(write_error(path)),
    }
}

/// Writes a file in the place of whatever was there: readers see the old one or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiError> {
    write_temporary(path, bytes, mode)
        .and_then(|temporary| fs::rename(temporary, path))
        .and_then(|()| sync_folder(path))
        .map_err(write_error(path))
}

/// Moves a file into the place of another.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), PkiError> {
    fs::rename(from, to).and_then(|()| sync_folder(to)).map_err(write_error(to))
}

/// Text of one block of PEM.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for at in 0..4 {
                let index = usize::try_from(bits >> (18 - 6 * at) & 63).expect("six bits fit");
                text.push(if at <= three.len() { char::from(ALPHABET[index]) } else { '=' });
            }
        }
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

/// Reads a file that grows with the cluster's life: some 200,000 certificates.
pub(crate) fn read_long(path: &Path, remedy: &'static str) -> Result<Vec<u8>, PkiError> {
    read_up_to(path, remedy, 32 << 20)
}

/// Reads a small file. The limit keeps a wrong path, such as a device, from filling memory.
pub(crate) fn read(path: &Path, remedy: &'static str) -> Result<Vec<u8>, PkiError> {
    read_up_to(path, remedy, 1 << 20)
}

fn read_up_to(path: &Path, remedy: &'static str, bytes_max: u64) -> Result<Vec<u8>, PkiError> {
    let wrong = |source| PkiError::Read { path: path.to_owned(), source, remedy };
    let file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, bytes_max), &mut bytes).map_err(wrong)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn pem_reads_back() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        for length in 1..200_u8 {
            let der: Vec<u8> = (0..length).map(|at| at.wrapping_mul(89)).collect();
            let read = CertificateDer::from_pem_slice(pem("CERTIFICATE", &der).as_bytes()).unwrap();
            assert_eq!(read.as_ref(), der);
        }
    }

    #[test]
    fn files_are_private_whole_and_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/pki");
        make_folder(&inner).unwrap();
        make_folder(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
        let path = inner.join("ca.key");
        write_new(&path, b"first", PRIVATE, "remove it").unwrap();
        assert_eq!(mode(&path), 0o600);
        let error = write_new(&path, b"second", PRIVATE, "remove it").unwrap_err();
        assert!(matches!(error, PkiError::Exists { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        replace(&path, b"third", PRIVATE).unwrap();
        assert_eq!(read(&path, "look").unwrap(), b"third");
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "no temporary file is left");
    }
}
