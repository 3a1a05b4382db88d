//! Waiting for reports on a generation's socket.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Event;
use crate::ledger::Key;
use crate::telemetry;

/// The task that reads a generation's socket, ended with it.
#[derive(Debug, Default)]
pub(super) struct Reader(Option<AbortHandle>);

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

/// Reads a generation's socket for as long as the handle lives. After a burst it rests, so that a
/// process that sends without end is held back by its full socket rather than heats a core.
///
/// # Errors
/// Where the runtime cannot watch the socket.
pub(super) fn read_socket(
    key: Key,
    socket: UnixDatagram,
    events: mpsc::Sender<Event>,
) -> io::Result<Reader> {
    const BURST: u32 = 256;
    const REST: Duration = Duration::from_millis(50);
    let socket = tokio::net::UnixDatagram::from_std(socket)?;
    let task = tokio::spawn(async move {
        let mut taken = 0;
        loop {
            let Ok(()) = socket.readable().await else { return };
            match socket.try_io(Interest::READABLE, || telemetry::receive(&socket)) {
                Ok(datagram) => {
                    if events.send(Event::Report { key, datagram }).await.is_err() {
                        return;
                    }
                    taken += 1;
                    if BURST <= taken {
                        taken = 0;
                        tokio::time::sleep(REST).await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => taken = 0,
                Err(error) => {
                    tracing::error!(%key, %error, "a report socket failed; its reports are lost");
                    return;
                }
            }
        }
    });
    Ok(Reader(Some(task.abort_handle())))
}
