//! The Unix datagram socket of a generation, and whose datagrams it takes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use model::{Millis, Task};
use nix::fcntl::AtFlags;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt::PassCred,
};
use nix::unistd::{Gid, Uid, fchownat};

use super::report::DATAGRAM_BYTES_MAX;
use crate::procfs::{self, Mark, descriptor_path};

pub(crate) const SOCKET: &str = "report.sock";

/// Senders that are remembered; more processes than this do not report in one generation.
const SENDERS_MAX: usize = 1024;
/// How long a sender that is not ours stays refused without being looked at again.
const REFUSED_MS: u64 = 1000;

/// A datagram with what the kernel says of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// None where it was longer than a report may be.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Binds the socket in a generation's folder, in place of one that an earlier life of the agent
/// left. The folder belongs to the task's user, who may put anything there: nothing is followed.
///
/// # Errors
/// Where the file system refuses.
pub(crate) fn bind(folder: &Path, uid: Uid, gid: Gid) -> io::Result<UnixDatagram> {
    let folder = File::open(folder)?;
    // Through the descriptor: the whole path may be longer than a socket's address.
    let path = descriptor_path(folder.as_raw_fd(), SOCKET);
    match fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = UnixDatagram::bind(&path)?;
    setsockopt(&socket, PassCred, &true)?;
    socket.set_nonblocking(true)?;
    fchownat(&folder, SOCKET, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(socket)
}

/// The next datagram.
///
/// # Errors
/// `WouldBlock` where there is none now; anything else where the socket fails.
pub(crate) fn receive(socket: &impl AsRawFd) -> io::Result<Datagram> {
    let mut bytes = vec![0_u8; DATAGRAM_BYTES_MAX];
    let mut control = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut sender = None;
    // Descriptors that someone sent along do not fit the buffer, and the kernel closes them.
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmCredentials(credentials) = part {
            sender = Some((credentials.pid(), credentials.uid()));
        }
    }
    let (pid, uid) = sender.unwrap_or((0, u32::MAX));
    let (length, whole) = (message.bytes, !message.flags.contains(MsgFlags::MSG_TRUNC));
    bytes.truncate(length);
    Ok(Datagram { pid, uid, bytes: whole.then_some(bytes) })
}

/// The tasks of one generation as senders.
#[derive(Debug)]
pub(crate) struct Senders {
    uid: u32,
    /// The mark of any task of the generation; the task itself is set in it to compare.
    of: Mark,
    /// First process of each task, which also names its group.
    leaders: BTreeMap<i32, Task>,
    known: BTreeMap<i32, Task>,
    refused: BTreeMap<i32, Millis>,
}

impl Senders {
    pub(crate) fn new(uid: u32, of: Mark) -> Self {
        let (leaders, known, refused) = Default::default();
        Self { uid, of, leaders, known, refused }
    }

    pub(crate) fn add(&mut self, pid: i32, task: Task) {
        self.leaders.insert(pid, task);
    }

    pub(crate) fn remove(&mut self, task: Task) {
        self.leaders.retain(|_, other| *other != task);
        self.known.retain(|_, other| *other != task);
    }

    /// The task whose process sent a datagram: its first process, one of its group, one that
    /// carries its mark. None for anybody else.
    pub(crate) fn task_of(&mut self, datagram: &Datagram, now: Millis) -> Option<Task> {
        let pid = datagram.pid;
        if datagram.uid != self.uid || pid <= 0 {
            return None;
        }
        if let Some(task) = self.leaders.get(&pid).or_else(|| self.known.get(&pid)) {
            return Some(*task);
        }
        if self.refused.get(&pid).is_some_and(|at| now.since(*at) < REFUSED_MS) {
            return None;
        }
        // Whoever fills these up forks without end; the sums must not pay for it.
        if SENDERS_MAX <= self.known.len() {
            self.known.clear();
        }
        if SENDERS_MAX <= self.refused.len() {
            self.refused.clear();
        }
        let found = self.look_up(pid);
        match found {
            Some(task) => drop(self.known.insert(pid, task)),
            None => drop(self.refused.insert(pid, now)),
        }
        found
    }

    fn look_up(&self, pid: i32) -> Option<Task> {
        let process = procfs::process(pid)?;
        let of_group = self.leaders.get(&process.group).copied();
        of_group.or_else(|| {
            // Whoever reaches this socket has its folder: nothing more to compare.
            let mark = procfs::mark(pid, Path::new("/"))?;
            (mark.node == self.of.node && mark.key == self.of.key).then_some(mark.task)
        })
    }
}
