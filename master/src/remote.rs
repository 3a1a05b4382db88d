//! Checkpoints and data on HDFS: whether this master can ask for them at all.
//!
//! A nameservice that this host cannot resolve, a configuration that cannot be read or a folder
//! that the master may not enter would show only with the job's first checkpoint, hours of
//! training later. A NameNode that does not answer for now refuses no job: it may be back long
//! before anybody asks it.

use std::time::Duration;

use model::client::{Change, ErrorKind, Refusal};
use storage::{Error, HdfsSettings};
use tokio::sync::Semaphore;

use crate::door::Door;
use crate::shared::submitted;

/// For one look, with all of the client's own tries.
const LIMIT: Duration = Duration::from_secs(8);
/// Looks at a time: each may hold a thread for longer than it is waited for.
static LOOKS: Semaphore = Semaphore::const_new(4);

const REMEDY: &str = "give hadoop_conf_dir in master.toml, the folder of core-site.xml and \
                      hdfs-site.xml, correct the URL, or let the master's user read there";

/// Why a submission cannot be taken: what it names on HDFS can never be asked for from here.
pub(crate) async fn unreached(door: &Door, change: &Change) -> Option<Refusal> {
    let (spec, options) = submitted(change)?;
    let data = options.and_then(|options| options.data.as_ref()).map(|data| data.url.as_str());
    let urls = [("checkpoint", Some(spec.checkpoint.as_str())), ("data.url", data)];
    for (field, url) in urls {
        let Some(url) = url.filter(|url| url.starts_with("hdfs://")) else { continue };
        let Ok(place) = LOOKS.try_acquire() else { return None };
        let (asked, hdfs) = (url.to_owned(), door.hdfs.clone());
        let look = tokio::task::spawn_blocking(move || {
            let _place = place;
            look(&asked, &hdfs)
        });
        match tokio::time::timeout(LIMIT, look).await {
            Ok(Ok(Err(words))) => {
                let words = format!("{field}: {words}");
                return Some(Refusal::new(ErrorKind::Conflict, words, REMEDY));
            }
            Ok(Ok(Ok(true))) => {}
            Ok(Ok(Ok(false)) | Err(_)) | Err(_) => {
                tracing::warn!(field, url, "takes a job although its storage does not answer now");
            }
        }
    }
    None
}

/// Whether a NameNode answers; false where none does for now. Blocks.
///
/// # Errors
/// In words, where none ever will as things are.
fn look(url: &str, hdfs: &HdfsSettings) -> Result<bool, String> {
    // A fault of the URL itself is told with the job's others.
    let Ok(storage) = storage::open_with(url, hdfs) else { return Ok(true) };
    match storage.length(".optimus-look") {
        Ok(_) | Err(Error::NotFound { .. } | Error::NotAFile { .. }) => Ok(true),
        Err(error) if error.is_temporary() => Ok(false),
        Err(error) => Err(storage::chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_cannot_be_read_shows_before_the_first_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["core-site.xml", "hdfs-site.xml"] {
            std::fs::write(folder.path().join(file), "<configuration><prop").unwrap();
        }
        let conf_dir = Some(folder.path().to_owned());
        let hdfs = HdfsSettings { conf_dir, ..HdfsSettings::default() };
        let words = look("hdfs://lab/checkpoints", &hdfs).unwrap_err();
        assert!(words.contains("hdfs://lab/checkpoints"), "{words}");
        assert_eq!(look("hdfs://lab", &hdfs), Ok(true), "told with the job's other faults");
    }
}
