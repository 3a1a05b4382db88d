//! Who is connected with which certificate, and which certificates may not be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::event::SessionId;
use net::{Close, Connection, PeerCertificate, Revocations};

#[derive(Debug, Default)]
struct Inner {
    revocations: Arc<Revocations>,
    connections: BTreeMap<SessionId, Connection>,
}

/// Both under one lock, so that nobody slips in between the list and the look at who is there.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    inner: Arc<Mutex<Inner>>,
    /// One list at a time; nobody waits at the door for the disk.
    writing: Arc<Mutex<()>>,
    /// Where the list is kept over restarts.
    kept: Arc<PathBuf>,
}

/// What became of a newer list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revoked {
    /// Sessions that were closed.
    pub(crate) closed: usize,
    /// Why it is in use and yet will be forgotten at the next start.
    pub(crate) unkept: Option<String>,
}

/// A session's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    present: Present,
    session: SessionId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.present.lock().connections.remove(&self.session);
    }
}

impl Present {
    pub(crate) fn new(kept: PathBuf, revocations: Revocations) -> Self {
        let inner = Inner { revocations: Arc::new(revocations), connections: BTreeMap::new() };
        let writing = Arc::default();
        Self { inner: Arc::new(Mutex::new(inner)), writing, kept: Arc::new(kept) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn revocations(&self) -> Arc<Revocations> {
        Arc::clone(&self.lock().revocations)
    }

    /// Counts a session as present, where its certificate is not revoked meanwhile.
    pub(crate) fn enter(
        &self,
        session: SessionId,
        connection: &Connection,
    ) -> Result<Place, String> {
        let mut inner = self.lock();
        if let Some(words) = inner.revocations.refusal(connection.certificate()) {
            return Err(words);
        }
        inner.connections.insert(session, connection.clone());
        Ok(Place { present: self.clone(), session })
    }

    /// The certificates of all sessions, each once.
    pub(crate) fn certificates(&self) -> Vec<PeerCertificate> {
        let inner = self.lock();
        let all = inner.connections.values().map(Connection::certificate);
        let by_serial: BTreeMap<&str, &PeerCertificate> =
            all.map(|certificate| (certificate.serial.as_str(), certificate)).collect();
        by_serial.into_values().cloned().collect()
    }

    /// Puts a newer list into use, sends away whom it names, and keeps it on the disk.
    ///
    /// # Errors
    /// In words, where the list is older than what is in use.
    pub(crate) fn revoke(&self, newer: &Revocations) -> Result<Revoked, String> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let lists = self.revocations().updated(newer)?;
        self.lock().revocations = Arc::new(lists.clone());
        let closed = self.sweep();
        let unkept = lists.store(&self.kept).err().map(|error| error.to_string());
        Ok(Revoked { closed, unkept })
    }

    /// Closes the sessions of revoked certificates.
    fn sweep(&self) -> usize {
        let mut inner = self.lock();
        let revocations = Arc::clone(&inner.revocations);
        let mut closed = 0;
        inner.connections.retain(|session, connection| {
            let Some(words) = revocations.refusal(connection.certificate()) else { return true };
            tracing::warn!(session = session.0, words, "closed a session");
            connection.close(Close::Refused, &words);
            closed += 1;
            false
        });
        closed
    }
}
