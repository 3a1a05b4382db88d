//! Ports that tasks listen at.
//!
//! ps-lite takes the port of `PORT`, and any other one where that is busy. So each server and
//! worker gets a port of its own, which nobody holds at that moment and which stays reserved until
//! the task is proved gone: a server that takes 30 s to die still has its port. Which ports are
//! held is in the ledger; this module chooses, and keeps other programs away.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket,
    sockopt::ReuseAddr,
};

/// Chooses ports of a range, one after the other, so that one comes round again late.
#[derive(Debug)]
pub(crate) struct Ports {
    address: IpAddr,
    range: (u16, u16),
    next: u16,
    /// Sockets bound to the ports of tasks, so that no other agent or program of the machine gets
    /// one before its task listens there.
    reserved: BTreeMap<u16, OwnedFd>,
}

impl Ports {
    /// `seed` tells where in the range the first one lies: agents of one machine should not begin
    /// with the same.
    pub(crate) fn new(address: IpAddr, range: (u16, u16), seed: u32) -> Self {
        let (first, last) = range;
        let span = u32::from(last.saturating_sub(first)) + 1;
        let next = first.saturating_add(u16::try_from(seed % span).unwrap_or(0));
        Self { address, range, next, reserved: BTreeMap::new() }
    }

    /// A port that nobody holds.
    ///
    /// # Errors
    /// In words, where there is none.
    pub(crate) fn take(&mut self, held: impl Fn(u16) -> bool) -> Result<u16, String> {
        let (first, last) = self.range;
        for _ in first..=last {
            let port = self.next;
            self.next = if port < last { port + 1 } else { first };
            if held(port) || self.reserved.contains_key(&port) {
                continue;
            }
            match reserve(SocketAddr::new(self.address, port)) {
                Ok(socket) => {
                    self.reserved.insert(port, socket);
                    return Ok(port);
                }
                Err(Errno::EADDRINUSE) => {}
                Err(error) => {
                    let address = self.address;
                    return Err(format!("cannot start: task_address {address}: {error}"));
                }
            }
        }
        Err(format!(
            "cannot start: every port of task_ports, {first} to {last}, is in use at {}: widen \
             task_ports, or see what listens there",
            self.address
        ))
    }

    pub(crate) fn free(&mut self, port: u16) {
        self.reserved.remove(&port);
    }
}

/// Binds a port that no socket at all is bound to. It lets one in that listens, as ps-lite's does,
/// beside it: both must allow the reuse of addresses for that, and this one does from then on.
fn reserve(address: SocketAddr) -> nix::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    setsockopt(&socket, ReuseAddr, &true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    /// A loopback address of this run's own.
    fn address(last: u8) -> IpAddr {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        Ipv4Addr::new(127, high, low, last).into()
    }

    #[test]
    fn no_port_is_given_twice_until_it_is_free() {
        let mut ports = Ports::new(address(201), (15_000, 15_003), 2);
        let taken: Vec<u16> = (0..3).map(|_| ports.take(|_| false).unwrap()).collect();
        assert_eq!(taken, [15_002, 15_003, 15_000]);
        assert_eq!(ports.take(|port| port == 15_001).unwrap_err().matches("task_ports").count(), 2);
        assert_eq!(ports.take(|_| false), Ok(15_001));
        ports.free(15_003);
        assert_eq!(ports.take(|_| false), Ok(15_003));
    }

    #[test]
    fn what_others_hold_is_passed_by_and_a_task_listens_at_its_own() {
        let (own, range) = (address(202), (15_000, 15_002));
        let listening = TcpListener::bind((own, 15_000)).unwrap();
        let mut one = Ports::new(own, range, 0);
        assert_eq!(one.take(|_| false), Ok(15_001));
        let mut other = Ports::new(own, range, 0);
        assert_eq!(other.take(|_| false), Ok(15_002), "15000 is listened at, 15001 reserved");
        // As ps-lite does: reuse of addresses is allowed.
        let task = TcpListener::bind((own, 15_001)).unwrap();
        TcpStream::connect((own, 15_001)).unwrap();
        assert!(task.accept().is_ok());
        let abroad = Ports::new("192.0.2.77".parse().unwrap(), range, 0).take(|_| false);
        assert!(abroad.unwrap_err().contains("task_address 192.0.2.77"));
        // At another address the same number is another port.
        assert_eq!(Ports::new(address(203), range, 1).take(|_| false), Ok(15_001));
        drop(listening);
    }
}
