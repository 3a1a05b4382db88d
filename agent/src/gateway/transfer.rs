//! Bringing files to storage and back. Everything here blocks.

use std::fs::File;
use std::io::{Read, Write};

use storage::{Error, Storage, Sum};

use super::{Kind, Trouble};

/// What an error of storage means to a task, with storage's own words.
pub(super) fn trouble(error: &Error) -> Trouble {
    let kind = match error {
        Error::NotFound { .. } | Error::NotAFile { .. } => Kind::Missing,
        Error::Unsupported { .. }
        | Error::Path { .. }
        | Error::AlreadyExists { .. }
        | Error::TooLarge { .. } => Kind::Refused,
        Error::NoSpace { .. } | Error::Io { .. } => Kind::Unavailable,
    };
    Trouble::new(kind, storage::chain(error))
}

/// Size and checksum of a file, from where it is read on.
///
/// # Errors
/// The disk's own.
pub(super) fn sum(file: &mut File) -> std::io::Result<Sum> {
    let (mut bytes, mut crc) = (0_u64, crc32fast::Hasher::new());
    let mut piece = vec![0; 256 << 10];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(Sum { bytes, crc32: crc.finalize() });
        }
        crc.update(&piece[..read]);
        bytes += u64::try_from(read).unwrap_or(0);
    }
}

/// Stores a file under a path where nothing is yet.
///
/// # Errors
/// Where storage or the disk refuses.
pub(super) fn upload(storage: &dyn Storage, path: &str, file: &mut File) -> Result<Sum, Trouble> {
    let mut content = Vec::new();
    let read = file.read_to_end(&mut content);
    read.map_err(|error| Trouble::new(Kind::Unavailable, format!("cannot read {path}: {error}")))?;
    let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
    let sum = Sum { bytes, crc32: crc32fast::hash(&content) };
    match storage.publish(path, &content) {
        Ok(()) => Ok(sum),
        // An earlier try may have come further than was told.
        Err(Error::AlreadyExists { .. })
            if storage.size_and_crc32(path).is_ok_and(|s| s == sum) =>
        {
            Ok(sum)
        }
        Err(error) => Err(trouble(&error)),
    }
}

/// Brings a file from storage.
///
/// # Errors
/// Where storage or the disk refuses.
pub(super) fn download(storage: &dyn Storage, path: &str, to: &mut File) -> Result<Sum, Trouble> {
    let content = storage.read(path).map_err(|error| trouble(&error))?;
    let written = to.write_all(&content);
    written
        .map_err(|error| Trouble::new(Kind::Unavailable, format!("cannot keep {path}: {error}")))?;
    let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
    Ok(Sum { bytes, crc32: crc32fast::hash(&content) })
}
