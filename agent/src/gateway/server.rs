//! The stream socket of a generation: who is let in, and one task for each connection.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::AtFlags;
use nix::unistd::{Gid, Uid, fchownat};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use super::{Request, Service, frame};
use crate::procfs::descriptor_path;

pub(crate) const SOCKET: &str = "files.sock";

/// Connections of one generation's tasks here at a time: each process needs one or two.
const CONNECTIONS_MAX: usize = 256;
/// Rest after an accept that failed, as for want of descriptors: it would fail again at once.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// Binds the socket in a generation's folder, in place of one that an earlier life of the agent
/// left, and serves it until the handle is aborted. The folder belongs to the task's user, who
/// may put anything there: nothing is followed.
///
/// # Errors
/// Where the file system or the runtime refuses.
pub(super) fn serve(
    folder: &Path,
    uid: Uid,
    gid: Gid,
    service: Service,
) -> io::Result<AbortHandle> {
    let folder = File::open(folder)?;
    // Through the descriptor: the whole path may be longer than a socket's address.
    let path = descriptor_path(folder.as_raw_fd(), SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = StdListener::bind(&path)?;
    listener.set_nonblocking(true)?;
    fchownat(&folder, SOCKET, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let listener = UnixListener::from_std(listener)?;
    Ok(tokio::spawn(accept(listener, uid, Arc::new(service))).abort_handle())
}

/// Takes connections. They end with this task, which owns them.
async fn accept(listener: UnixListener, uid: Uid, service: Arc<Service>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(key = %service.key, %error, "cannot take a connection of a task");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        // As the kernel saw the peer when it connected: nothing that it says itself counts.
        // Those that ended while nobody came hold no place.
        while connections.try_join_next().is_some() {}
        let ours = stream.peer_cred().is_ok_and(|peer| peer.uid() == uid.as_raw());
        if ours && connections.len() < CONNECTIONS_MAX {
            connections.spawn(converse(stream, Arc::clone(&service)));
        }
    }
}

/// Answers one peer until it leaves or sends nonsense.
async fn converse(mut stream: UnixStream, service: Arc<Service>) {
    loop {
        let frame = match frame::read(&mut stream).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(key = %service.key, %error, "a request was not understood");
                return;
            }
        };
        let sent = match service.answer(Request::new(frame)).await {
            Ok(answer) => {
                let mut header = answer.header;
                header.insert("ok".to_owned(), true.into());
                frame::write(&mut stream, &header.into(), &answer.body).await
            }
            Err(trouble) => {
                let header =
                    json!({"ok": false, "kind": trouble.kind.name(), "error": trouble.words});
                frame::write(&mut stream, &header, &[]).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
