//! What the master says to a generation's workers, in files that are replaced by rename:
//! `control.json` with its orders, `assignment.json` with the servers of parameter blocks, and
//! what there is to know of the data set.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use model::agent::CheckpointOrder;
use model::notes::BlockPart;
use serde::Serialize;

use crate::task::environment::reachable;

const FILE: &str = "control.json";
const TEMPORARY: &str = ".control.json.new";
const ASSIGNMENT_FILE: &str = "assignment.json";
const ASSIGNMENT_TEMPORARY: &str = ".assignment.json.new";
const DATA_TEMPORARY: &str = ".data.new";
const ASSIGNMENT_SCHEMA: &str = "optimus.layout/1";

#[derive(Serialize)]
struct Control<'a> {
    checkpoint: Option<Checkpoint<'a>>,
}

#[derive(Serialize)]
struct Checkpoint<'a> {
    id: u64,
    at_step: Option<u64>,
    directory: &'a str,
    then: &'static str,
    released: bool,
}

/// Puts an order, or none, before the workers of the generation that has this folder.
///
/// The folder belongs to the task's user, who may have put a link there: the temporary file is
/// made anew and never followed, and the rename replaces whatever has the name.
///
/// # Errors
/// Where the file system refuses, or the order's folder is not on this machine.
pub(crate) fn write(folder: &Path, order: Option<&CheckpointOrder>) -> io::Result<()> {
    let directory = order.map(|order| reachable(&order.directory)).transpose();
    let directory = directory.map_err(io::Error::other)?.unwrap_or_default();
    let checkpoint = order.map(|order| Checkpoint {
        id: order.checkpoint.0,
        at_step: order.at_step,
        directory: &directory,
        then: if order.hold { "hold" } else { "continue" },
        released: order.released,
    });
    let text = serde_json::to_vec(&Control { checkpoint })?;
    replace(folder, FILE, TEMPORARY, &text)
}

#[derive(Serialize)]
struct Assignment {
    schema: &'static str,
    /// Of each block the server and the parameters of its parts.
    blocks: Vec<Vec<(u32, u64)>>,
}

/// Tells the workers of the generation that has this folder where parameter blocks lie.
///
/// # Errors
/// Where the file system refuses.
pub(crate) fn write_assignment(folder: &Path, blocks: &[Vec<BlockPart>]) -> io::Result<()> {
    let parts = |parts: &Vec<BlockPart>| {
        parts.iter().map(|part| (part.server, part.parameters)).collect::<Vec<_>>()
    };
    let blocks = blocks.iter().map(parts).collect();
    let text = serde_json::to_vec(&Assignment { schema: ASSIGNMENT_SCHEMA, blocks })?;
    replace(folder, ASSIGNMENT_FILE, ASSIGNMENT_TEMPORARY, &text)
}

/// Puts a file before the workers of the generation that has this folder.
///
/// # Errors
/// Where the file system refuses.
pub(crate) fn write_data(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    replace(folder, name, DATA_TEMPORARY, text)
}

fn replace(folder: &Path, name: &str, temporary: &str, text: &[u8]) -> io::Result<()> {
    let temporary = folder.join(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Not synced: after a power cut there is nobody left to read it.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
    file.write_all(text)?;
    fs::rename(&temporary, folder.join(name))
}

#[cfg(test)]
mod tests {
    use model::CheckpointId;

    use super::*;

    #[test]
    fn orders_are_written_as_the_package_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let read = || fs::read_to_string(dir.path().join(FILE)).unwrap();
        write(dir.path(), None).unwrap();
        assert_eq!(read(), r#"{"checkpoint":null}"#);
        let mut order = CheckpointOrder {
            checkpoint: CheckpointId(7),
            at_step: Some(1234),
            directory: "file:///srv/c/j1/g00000001-c00000007".to_owned(),
            hold: true,
            released: false,
        };
        write(dir.path(), Some(&order)).unwrap();
        assert_eq!(
            read(),
            concat!(
                r#"{"checkpoint":{"id":7,"at_step":1234,"#,
                r#""directory":"/srv/c/j1/g00000001-c00000007","then":"hold","released":false}}"#
            )
        );
        order.at_step = None;
        order.hold = false;
        order.released = true;
        write(dir.path(), Some(&order)).unwrap();
        assert!(read().contains(r#""at_step":null"#) && read().contains("continue"), "{}", read());
        order.directory = "hdfs://x/y".to_owned();
        write(dir.path(), Some(&order)).unwrap();
        assert!(read().contains(r#""directory":"hdfs://x/y""#), "{}", read());
        order.directory = "file://host/y".to_owned();
        assert!(write(dir.path(), Some(&order)).is_err());
    }

    #[test]
    fn assignments_are_written_as_the_package_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let part = |server, parameters| BlockPart { server, parameters };
        write_assignment(dir.path(), &[vec![part(1, 30), part(0, 4)], vec![part(2, 5)]]).unwrap();
        let read = fs::read_to_string(dir.path().join(ASSIGNMENT_FILE)).unwrap();
        let expected = r#"{"schema":"optimus.layout/1","blocks":[[[1,30],[0,4]],[[2,5]]]}"#;
        assert_eq!(read, expected);
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for name in [TEMPORARY, FILE] {
            std::os::unix::fs::symlink(&victim, dir.path().join(name)).unwrap();
        }
        write(dir.path(), None).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(fs::symlink_metadata(dir.path().join(FILE)).unwrap().is_file());
    }
}
