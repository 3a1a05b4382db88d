use std::io::{self, Read};
use std::sync::LazyLock;
use std::time::Duration;

use storage::{HdfsSettings, Storage, open_with};

use crate::hdfs::{Hdfs, HdfsOptions};

/// One file system for all tests that do not hurt it.
static HEALTHY: LazyLock<Hdfs> =
    LazyLock::new(|| Hdfs::start(&HdfsOptions::default()).expect("HDFS starts"));

pub(crate) fn healthy() -> &'static Hdfs {
    &HEALTHY
}

pub(crate) fn settings(hdfs: &Hdfs) -> HdfsSettings {
    HdfsSettings { conf_dir: Some(hdfs.conf_dir()), ..HdfsSettings::default() }
}

/// A storage that does not wait for anybody.
pub(crate) fn hasty(hdfs: &Hdfs, path: &str) -> Box<dyn Storage> {
    let settings = HdfsSettings { patience: Duration::ZERO, ..settings(hdfs) };
    open_with(&hdfs.url(path), &settings).unwrap()
}

pub(crate) fn storage(hdfs: &Hdfs, path: &str) -> Box<dyn Storage> {
    open_with(&hdfs.url(path), &settings(hdfs)).unwrap()
}

pub(crate) fn names(storage: &dyn Storage, path: &str) -> Vec<String> {
    storage.list(path).unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Bytes that differ from place to place, with no memory of their own.
pub(crate) struct Pattern {
    at: u64,
    end: u64,
    hasher: crc32fast::Hasher,
}

impl Pattern {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { at: 0, end: bytes, hasher: crc32fast::Hasher::new() }
    }

    /// Of all that was read so far.
    pub(crate) fn crc32(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    pub(crate) fn byte(at: u64) -> u8 {
        at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[0]
    }
}

impl Read for Pattern {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        for byte in &mut buffer[..count] {
            *byte = Self::byte(self.at);
            self.at += 1;
        }
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
