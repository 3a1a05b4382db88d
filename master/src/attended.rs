//! A store on a thread of its own, with a deadline for each answer.
//!
//! After an I/O error sled may wait for ever for a write that will never come, when it is used
//! and even when it is dropped. What happens here can be walked away from: the journal holds
//! everything that the store does.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use crate::store::{Content, KeyValue, Op, StoreError};

/// A batch takes some ms, the whole content of a large store some s. To give up a store that is
/// only slow costs little: the journal serves.
const ANSWER: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, StoreError>;
type Request<S> = Box<dyn FnOnce(&mut S) + Send>;

#[derive(Debug)]
pub(crate) struct Attended<S> {
    /// None only while it is dropped.
    requests: Option<Sender<Request<S>>>,
    /// Closed once the store is.
    ended: Receiver<()>,
    deadline: Duration,
}

impl<S: KeyValue + 'static> Attended<S> {
    pub(crate) fn new(store: S) -> Result<Self> {
        Self::with_deadline(store, ANSWER)
    }

    fn with_deadline(mut store: S, deadline: Duration) -> Result<Self> {
        let (requests, receiver) = mpsc::channel::<Request<S>>();
        let (alive, ended): (SyncSender<()>, _) = mpsc::sync_channel(0);
        std::thread::Builder::new().name("sled".to_owned()).spawn(move || {
            while let Ok(request) = receiver.recv() {
                request(&mut store);
            }
            drop(store);
            drop(alive);
        })?;
        Ok(Self { requests: Some(requests), ended, deadline })
    }

    fn ask<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        let request: Request<S> = Box::new(move |store| {
            // Nobody waits any more where the deadline has passed.
            let _ = reply.send(run(store));
        });
        let gone = || StoreError::Damaged("its thread has ended".to_owned());
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send(request).map_err(|_| gone())?;
        answer.recv_timeout(self.deadline).map_err(|error| match error {
            RecvTimeoutError::Disconnected => gone(),
            RecvTimeoutError::Timeout => StoreError::Damaged(format!(
                "it did not answer within {} s",
                self.deadline.as_secs_f64()
            )),
        })?
    }

    /// Leaves the store as it is, unclosed: whatever it hangs on ends with the process.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

impl<S> Drop for Attended<S> {
    fn drop(&mut self) {
        self.requests = None;
        // Ends at once when the store is closed, as the channel then is.
        if self.ended.recv_timeout(self.deadline) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the store could not be closed in time");
        }
    }
}

impl<S: KeyValue + 'static> KeyValue for Attended<S> {
    fn sequence(&self) -> Result<u64> {
        self.ask(|store| store.sequence())
    }

    fn apply(&mut self, sequence: u64, ops: &[Op]) -> Result<()> {
        let ops = ops.to_vec();
        self.ask(move |store| store.apply(sequence, &ops))
    }

    fn content(&self) -> Result<Content> {
        self.ask(|store| store.content())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes batches until number 3, at which it hangs, even in its drop.
    #[derive(Debug)]
    struct Hanging {
        sequence: u64,
        never: mpsc::Receiver<()>,
    }

    impl KeyValue for Hanging {
        fn sequence(&self) -> Result<u64> {
            Ok(self.sequence)
        }

        fn apply(&mut self, sequence: u64, _: &[Op]) -> Result<()> {
            self.sequence = sequence;
            if sequence == 3 {
                let _ = self.never.recv();
            }
            Ok(())
        }

        fn content(&self) -> Result<Content> {
            Ok(Content::new())
        }
    }

    impl Drop for Hanging {
        fn drop(&mut self) {
            let _ = self.never.recv();
        }
    }

    #[test]
    fn a_store_that_hangs_is_an_error_in_time_and_can_be_left() {
        let (_hold, never) = mpsc::channel();
        let store = Hanging { sequence: 0, never };
        let mut attended = Attended::with_deadline(store, Duration::from_millis(200)).unwrap();
        attended.apply(1, &[]).unwrap();
        attended.apply(2, &[]).unwrap();
        assert_eq!(attended.sequence().unwrap(), 2);
        for _ in 0..2 {
            let error = attended.apply(3, &[]).unwrap_err().to_string();
            assert!(error.contains("did not answer within 0.2 s"), "{error}");
        }
        attended.abandon();
    }
}
