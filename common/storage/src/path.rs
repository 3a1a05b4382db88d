//! Paths within a storage: plain names with `/` between.

use crate::{Error, Result};

/// Shown of a refused path: a client may send a long one.
const SHOWN_CHARS: usize = 200;

pub(crate) fn refuse(path: &str, problem: &'static str) -> Error {
    Error::Path { path: path.chars().take(SHOWN_CHARS).collect(), problem }
}

/// Refuses what is not a path below the root or the root itself, before anything is touched.
pub(crate) fn check(path: &str) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    for part in path.split('/') {
        let problem = match part {
            "" => "a part of it is empty; use plain names with '/' between",
            "." | ".." => "'.' and '..' are not followed",
            name if name.contains('\0') => "it contains a NUL byte",
            _ => continue,
        };
        return Err(refuse(path, problem));
    }
    Ok(())
}

/// The same where the root itself is refused too.
pub(crate) fn check_file(path: &str) -> Result<()> {
    if path.is_empty() {
        return Err(refuse(path, "it is the root itself"));
    }
    check(path)
}
