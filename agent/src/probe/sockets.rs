//! What the kernel counts of the machine's TCP sockets, asked for through its own diagnostics
//! (`sock_diag`, as `ss` does): no process is touched, and no right is needed.
//!
//! Messages are written and read by hand, as they are a few fixed fields each: 16 bytes of
//! `nlmsghdr`, then `inet_diag_req_v2` (56 bytes) on the way there and `inet_diag_msg` (72 bytes)
//! with attributes on the way back, of which `tcp_info` is one. All of it is kernel interface and
//! grows only at its ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Of a request, for all that fits.
const NLM_F_DUMP: u16 = 0x301;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_INFO: u16 = 2;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const MESSAGE_BYTES: usize = 72;
/// In `tcp_info`: ms since data came last, and bytes that came in all.
const QUIET_AT: usize = 52;
const RECEIVED_AT: usize = 128;
/// More sockets than this are not looked at: the rest of a machine is not ours.
const SOCKETS_MAX: usize = 65_536;
/// One datagram of the kernel's answer.
const BUFFER_BYTES: usize = 65_536;

/// TCP states, as bits of a request.
pub(crate) const ESTABLISHED: u32 = 1 << 1;
pub(crate) const LISTEN: u32 = 1 << 10;

/// A TCP socket at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) listens: bool,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) inode: u64,
    /// Bytes received since it was opened, and ms since the last of them came; none where the
    /// kernel does not say.
    pub(crate) received: Option<(u64, u32)>,
}

/// A line to the kernel.
#[derive(Debug)]
pub(crate) struct Sockets {
    line: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Sockets {
    /// # Errors
    /// Where the kernel has no such diagnostics, or forbids them.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let line = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            flags,
            SockProtocol::NetlinkSockDiag,
        )?;
        Ok(Self { line, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// The sockets of the machine in some states, of one local port or of any; those over IPv6
    /// where asked for. The kernel walks its whole table for each family, about 0.8 ms of CPU.
    ///
    /// # Errors
    /// Where the kernel does not answer, or not in full.
    pub(crate) fn list(
        &mut self,
        states: u32,
        port: Option<u16>,
        v6: bool,
    ) -> io::Result<Vec<Socket>> {
        let mut found = Vec::new();
        let families = [AddressFamily::Inet, AddressFamily::Inet6];
        for family in families.into_iter().take(if v6 { 2 } else { 1 }) {
            let family = u8::try_from(family as i32).map_err(io::Error::other)?;
            self.sequence = self.sequence.wrapping_add(1);
            let request = request(family, states, port.unwrap_or(0), self.sequence);
            let kernel = NetlinkAddr::new(0, 0);
            sendto(self.line.as_raw_fd(), &request, &kernel, MsgFlags::empty())?;
            // The kernel writes its answer as it is read: nothing is waited for.
            while !self.read(&mut found)? {}
        }
        Ok(found)
    }

    /// Reads one datagram; true at the end of the answer.
    fn read(&mut self, found: &mut Vec<Socket>) -> io::Result<bool> {
        let bytes = recv(self.line.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
        let mut rest = self.buffer.get(..bytes).unwrap_or_default();
        let cut = || io::Error::new(io::ErrorKind::InvalidData, "a message of the kernel is cut");
        while let Some(length) = u32_at(rest, 0) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let message = rest.get(HEADER_BYTES..length).ok_or_else(cut)?;
            let ours = u32_at(rest, 8) == Some(self.sequence);
            match u16_at(rest, 4).filter(|_| ours) {
                Some(NLMSG_DONE) => return Ok(true),
                Some(NLMSG_ERROR) => {
                    let code = u32_at(message, 0).unwrap_or(0).cast_signed().wrapping_neg();
                    return Err(io::Error::from_raw_os_error(code));
                }
                Some(SOCK_DIAG_BY_FAMILY) if found.len() < SOCKETS_MAX => {
                    found.extend(read_socket(message));
                }
                // The rest of an answer that was given up before.
                Some(_) | None => {}
            }
            rest = rest.get(aligned(length)..).unwrap_or_default();
        }
        Ok(false)
    }
}

fn request(family: u8, states: u32, port: u16, sequence: u32) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    let length = u32::try_from(REQUEST_BYTES).unwrap_or(0);
    let info = 1_u8 << (INET_DIAG_INFO - 1);
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &length.to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_DUMP.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(16, &[family, IPPROTO_TCP, info, 0]);
    put(20, &states.to_ne_bytes());
    put(24, &port.to_be_bytes());
    request
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Reads an `inet_diag_msg` and its attributes.
fn read_socket(message: &[u8]) -> Option<Socket> {
    let v6 = i32::from(*message.first()?) == AddressFamily::Inet6 as i32;
    let listens = 1_u32.checked_shl(u32::from(*message.get(1)?)) == Some(LISTEN);
    let port = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        // A connection over IPv4 to a socket that takes both is told as one over IPv4.
        Some(if v6 {
            Ipv6Addr::from(bytes).to_canonical()
        } else {
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        })
    };
    let local = SocketAddr::new(address(8)?, port(4)?);
    let remote = SocketAddr::new(address(24)?, port(6)?);
    let inode = u64::from(u32_at(message, 68)?);
    let mut received = None;
    let mut rest = message.get(MESSAGE_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let Some(body) = rest.get(4..length) else { break };
        if kind == INET_DIAG_INFO {
            received = u64_at(body, RECEIVED_AT).zip(u32_at(body, QUIET_AT));
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Some(Socket { listens, local, remote, inode, received })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    fn inode(socket: &impl AsRawFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino()
    }

    #[test]
    fn the_kernel_tells_what_a_connection_received_and_when() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may be without IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            near.write_all(&[7; 1000]).unwrap();
            far.read_exact(&mut [0; 1000]).unwrap();
            let mut sockets = Sockets::open().unwrap();
            let found = sockets.list(ESTABLISHED | LISTEN, Some(port), true).unwrap();
            let of = |inode: u64| found.iter().find(|socket| socket.inode == inode).unwrap();
            let (listening, accepted) = (of(inode(&listener)), of(inode(&far)));
            assert!(listening.listens && listening.local == listener.local_addr().unwrap());
            assert_eq!(accepted.remote, near.local_addr().unwrap());
            let (bytes, quiet_ms) = accepted.received.unwrap();
            assert!(bytes == 1000 && quiet_ms < 60_000 && !accepted.listens, "{accepted:?}");
            assert_eq!(found.len(), 2, "only this port: {found:?}");
            let all = sockets.list(ESTABLISHED, None, true).unwrap();
            assert!(all.iter().any(|socket| socket.inode == inode(&near)));
            assert!(all.iter().all(|socket| !socket.listens));
        }
    }

    proptest! {
        #[test]
        fn any_message_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _read = read_socket(&bytes);
        }
    }
}
