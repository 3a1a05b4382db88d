//! What a client asks for is taken only where the disk has room for it: a change that was begun
//! and cannot be stored would be seen by everyone and be gone with the next restart.

use std::sync::Arc;
use std::time::Duration;

use model::access::Deed;
use model::client::{Call, Change, ErrorKind, Refusal};
use model::nodes::{CertificateCall, Holder};

use crate::disk::Disk;
use crate::keeper::Health;
use crate::shared::submitted;

/// For the file system to say what is free. One that hangs is the store's own to tell.
const LOOK: Duration = Duration::from_secs(2);

/// What must be set aside for a job that is told to stop and for what comes of it, of all who ask
/// at a time.
const STOP_BYTES: u64 = 256 << 10;
/// For a list of revoked certificates, or one of the master's own.
const FILE_BYTES: u64 = 256 << 10;

/// What a request needs of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Room for a whole life.
    Job,
    Change,
    /// It ends work: taken as long as at all possible.
    Stop,
    /// A small file beside the store.
    File,
}

/// What a request that would write needs; none where it only reads.
fn need(call: &Call) -> Option<Need> {
    match call {
        Call::Read(_)
        | Call::Certificate(
            CertificateCall::Status
            | CertificateCall::Ask { holder: Holder::Agent(_) }
            | CertificateCall::Install { holder: Holder::Agent(_), .. },
        ) => None,
        Call::Certificate(
            CertificateCall::Ask { holder: Holder::Master }
            | CertificateCall::Install { holder: Holder::Master, .. }
            | CertificateCall::Revocations { .. },
        ) => Some(Need::File),
        Call::Change(Change::Cancel { .. } | Change::Pause { .. }) => Some(Need::Stop),
        Call::Change(change) if submitted(change).is_some() => Some(Need::Job),
        Call::Change(_) => Some(Need::Change),
    }
}

/// The state folder's disk as the sessions see it.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    disk: Arc<Disk>,
    health: Arc<Health>,
}

impl Room {
    pub(crate) const fn new(disk: Arc<Disk>, health: Arc<Health>) -> Self {
        Self { disk, health }
    }

    /// Why a request cannot be taken now, from a look at the disk at this moment: what was free
    /// some seconds ago says nothing.
    pub(crate) async fn refusal(&self, call: &Call) -> Option<Refusal> {
        let need = need(call)?;
        let disk = Arc::clone(&self.disk);
        let look = tokio::task::spawn_blocking(move || (disk.free_bytes(), disk.has_ballast()));
        // Where nothing is known the store's own thread will say what is wrong.
        let Ok(Ok((Ok(free), ballast))) = tokio::time::timeout(LOOK, look).await else {
            return None;
        };
        self.judge(need, free, ballast).map(|words| {
            let name = Deed::of(call).row().name;
            tracing::info!(request = name, free, words, "refused a request");
            let message = format!("the master cannot take this ({name}): {words}");
            Refusal::new(ErrorKind::Unavailable, message, self.disk.remedy())
        })
    }

    /// Why nothing can be stored at all, as the loop must know it.
    pub(crate) fn stall(&self) -> Option<Refusal> {
        self.health.is_stalled().then(|| {
            let words = "nothing can be stored: the disk of the master's state folder is full";
            Refusal::new(ErrorKind::Unavailable, words, self.disk.remedy())
        })
    }

    fn judge(&self, need: Need, free: u64, ballast: bool) -> Option<String> {
        let (low, reserve) = (self.disk.low_bytes(), self.disk.reserve_bytes());
        let stalled = self.health.is_stalled();
        let aside = ballast || STOP_BYTES <= self.health.aside_bytes();
        let (taken, wanted) = match need {
            Need::Job => (low <= free, low),
            Need::Change => (reserve <= free, reserve),
            Need::Stop => (reserve <= free || aside, reserve),
            Need::File => return (free < FILE_BYTES).then(|| full(free, FILE_BYTES)),
        };
        if taken && !stalled {
            return None;
        }
        if reserve <= free && !stalled {
            return Some(format!(
                "the disk of its state folder is nearly full ({free} bytes free, new jobs want \
                 {wanted})"
            ));
        }
        Some(full(free, wanted))
    }
}

fn full(free: u64, wanted: u64) -> String {
    format!("the disk of its state folder is full ({free} bytes free, this wants {wanted})")
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
