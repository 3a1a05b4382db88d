//! What a CA has issued: a line for each certificate in the file `issued.tsv` of its folder, so
//! that a certificate can be taken back by the name of its holder.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::PkiError;
use crate::files::{self, PRIVATE};
use crate::identity::{Identity, Role};

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// In hexadecimal.
    pub serial: String,
    pub identity: Identity,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

fn path(folder: &Path) -> PathBuf {
    folder.join("issued.tsv")
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Adds a line. One write of a short line: two commands at once do not mix theirs.
pub(crate) fn append(folder: &Path, issued: &Issued) -> Result<(), PkiError> {
    let path = path(folder);
    let failed = |source| PkiError::Write { path: path.clone(), source };
    let Issued { serial, identity, not_before, not_after } = issued;
    let line = format!(
        "{serial}\t{}\t{}\t{}\t{}\n",
        identity.role,
        identity.name,
        unix_s(*not_before),
        unix_s(*not_after)
    );
    let mut file =
        OpenOptions::new().append(true).create(true).mode(PRIVATE).open(&path).map_err(failed)?;
    file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// All lines that read; none where nothing was ever written. The last one may be cut by a crash:
/// its certificate was not handed out.
///
/// # Errors
/// Where the file is there and cannot be read.
pub(crate) fn read(folder: &Path) -> Result<Vec<Issued>, PkiError> {
    let path = path(folder);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let bytes = files::read_long(&path, "look at its rights")?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Issued> {
    let mut fields = line.split('\t');
    let serial = fields.next()?.to_owned();
    let role: Role = fields.next()?.parse().ok()?;
    let identity = Identity::new(role, fields.next()?).ok()?;
    let mut instant = || {
        let seconds = fields.next()?.parse().ok()?;
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    Some(Issued { serial, identity, not_before: instant()?, not_after: instant()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_a_cut_one_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
        let at = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let issued = |name: &str| Issued {
            serial: "4f00aa".to_owned(),
            identity: Identity::new(Role::Agent, name).unwrap(),
            not_before: at,
            not_after: at + Duration::from_secs(60),
        };
        append(folder.path(), &issued("n1")).unwrap();
        append(folder.path(), &issued("n2")).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [issued("n1"), issued("n2")]);
        let path = path(folder.path());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 25]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [issued("n1")]);
    }
}
