//! Bringing files to storage and back. Everything here blocks.

use std::fs::File;
use std::io::{Read, Write};

use storage::{Error, Storage, Sum, UploadOptions, block_bytes_for};

use super::{Kind, Trouble};

const PIECE_BYTES: usize = 256 << 10;

/// What an error of storage means to a task, with storage's own words.
pub(super) fn trouble(error: &Error) -> Trouble {
    let words = storage::chain(error);
    match error {
        Error::NotFound { .. } | Error::NotAFile { .. } => Trouble::new(Kind::Missing, words),
        Error::PastEnd { .. } => Trouble::new(Kind::Damaged, words),
        Error::Unsupported { .. }
        | Error::ConfDir { .. }
        | Error::Keytab { .. }
        | Error::Path { .. }
        | Error::AlreadyExists { .. }
        | Error::TooLarge { .. } => Trouble::new(Kind::Refused, words),
        // Also one that somebody has to mend: permissions, say. Training goes on until then.
        Error::Unavailable { .. } | Error::Io { .. } => Trouble::away(words),
        Error::NoSpace { .. } => Trouble { kind: Kind::Full, ..Trouble::away(words) },
    }
}

/// Size and checksum of a file, from where it is read on.
///
/// # Errors
/// The disk's own.
pub(super) fn sum(file: &mut File) -> std::io::Result<Sum> {
    copy(file, &mut std::io::sink())
}

fn copy(from: &mut dyn Read, to: &mut dyn Write) -> std::io::Result<Sum> {
    let (mut bytes, mut crc) = (0_u64, crc32fast::Hasher::new());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return Ok(Sum { bytes, crc32: crc.finalize() });
        }
        to.write_all(&piece[..read])?;
        crc.update(&piece[..read]);
        bytes = bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
}

/// Stores a file of so many bytes under a path where nothing is yet.
///
/// # Errors
/// Where storage or the disk refuses.
pub(super) fn upload(
    storage: &dyn Storage,
    path: &str,
    (file, bytes): (&mut File, u64),
) -> Result<Sum, Trouble> {
    let options =
        UploadOptions { block_bytes: Some(block_bytes_for(bytes)), ..UploadOptions::default() };
    match storage.upload(path, file, options) {
        Ok(sum) => Ok(sum),
        Err(error @ Error::AlreadyExists { .. }) => {
            // An earlier try may have come further than was told.
            let same = rewound(file).and_then(|()| sum(file)).ok();
            let there = storage.size_and_crc32(path).map_err(|error| trouble(&error))?;
            same.filter(|same| *same == there).ok_or_else(|| trouble(&error))
        }
        Err(error) => Err(trouble(&error)),
    }
}

fn rewound(file: &mut File) -> std::io::Result<()> {
    std::io::Seek::rewind(file)
}

/// Brings a file from storage.
///
/// # Errors
/// Where storage or the disk refuses.
pub(super) fn download(storage: &dyn Storage, path: &str, to: &mut File) -> Result<Sum, Trouble> {
    let reader = storage.reader(path, 0, u64::MAX);
    let mut reader = reader.map_err(|error| trouble(&error))?;
    copy(&mut reader, to)
        .map_err(|error| trouble(&Error::from_stream("read", storage.url(path), error)))
}
