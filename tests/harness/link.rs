//! A slow, broken or moved link between agents and a master: a relay of datagrams in user space.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::wait::{self, Clock};

/// How often a thread looks whether the link has ended.
const LOOK: Duration = Duration::from_millis(100);
/// More than any datagram of QUIC.
const BYTES_MAX: usize = 2048;

/// What passes, as a test has it.
#[derive(Debug)]
struct State {
    to: Mutex<SocketAddr>,
    delay_ms: AtomicU64,
    cut: AtomicBool,
    ended: AtomicBool,
}

impl State {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn to(&self) -> SocketAddr {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A datagram on its way, and when it is to arrive on the link's own clock.
struct Parcel {
    due: Duration,
    bytes: Vec<u8>,
    from: Arc<UdpSocket>,
    to: SocketAddr,
}

/// The link; it ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    /// Where those on this side find the other.
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Link {
    /// A link to `to`, which passes everything at once.
    ///
    /// # Errors
    /// Where no socket is to be had.
    pub fn to(to: SocketAddr) -> Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
        front.set_read_timeout(Some(LOOK))?;
        let address = front.local_addr()?;
        let state = State {
            to: Mutex::new(to),
            delay_ms: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        let state = Arc::new(state);
        let relay = Relay { front, state: Arc::clone(&state), clock: Clock::start() };
        std::thread::spawn(move || relay.run());
        Ok(Self { address, state })
    }

    /// From now on each datagram takes so long, either way.
    pub fn delay(&self, one_way: Duration) {
        let ms = u64::try_from(one_way.as_millis()).unwrap_or(u64::MAX);
        self.state.delay_ms.store(ms, Ordering::Release);
    }

    /// Nothing passes while it is cut.
    pub fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::Release);
    }

    /// From now on another one is at the far end, as where an address moves.
    pub fn move_to(&self, to: SocketAddr) {
        *self.state.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Release);
    }
}

#[derive(Clone)]
struct Relay {
    front: Arc<UdpSocket>,
    state: Arc<State>,
    clock: Clock,
}

impl Relay {
    /// Takes what comes from the near side: each peer gets a socket of its own to the far side.
    fn run(self) {
        let mut backs: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
        let (there, on_the_way) = channel();
        self.carry(on_the_way);
        let mut bytes = [0; BYTES_MAX];
        while !self.state.ended() {
            let Ok((count, peer)) = self.front.recv_from(&mut bytes) else { continue };
            let back = match backs.get(&peer) {
                Some(back) => Arc::clone(back),
                None => {
                    let Ok(back) = self.back_of(peer) else { continue };
                    backs.insert(peer, Arc::clone(&back));
                    back
                }
            };
            self.pass(&bytes[..count], back, self.state.to(), &there);
        }
    }

    fn back_of(&self, peer: SocketAddr) -> Result<Arc<UdpSocket>> {
        let back = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
        back.set_read_timeout(Some(LOOK))?;
        let (relay, socket) = (self.clone(), Arc::clone(&back));
        let (there, on_the_way) = channel();
        self.carry(on_the_way);
        std::thread::spawn(move || {
            let mut bytes = [0; BYTES_MAX];
            while !relay.state.ended() {
                let Ok((count, from)) = socket.recv_from(&mut bytes) else { continue };
                // One that is not at the far end any more says nothing.
                if from == relay.state.to() {
                    relay.pass(&bytes[..count], Arc::clone(&relay.front), peer, &there);
                }
            }
        });
        Ok(back)
    }

    fn pass(&self, bytes: &[u8], from: Arc<UdpSocket>, to: SocketAddr, there: &Sender<Parcel>) {
        if self.state.cut.load(Ordering::Acquire) {
            return;
        }
        let delay = Duration::from_millis(self.state.delay_ms.load(Ordering::Acquire));
        let due = self.clock.elapsed() + delay;
        // Where its carrier has ended, so has the link.
        let _ended = there.send(Parcel { due, bytes: bytes.to_vec(), from, to });
    }

    /// Carries one way, in order.
    fn carry(&self, on_the_way: Receiver<Parcel>) {
        let relay = self.clone();
        std::thread::spawn(move || {
            while let Ok(Parcel { due, bytes, from, to }) = on_the_way.recv() {
                while let Some(left) = due.checked_sub(relay.clock.elapsed()) {
                    if relay.state.ended() {
                        return;
                    }
                    wait::pause(left.min(LOOK));
                }
                // Lost, as datagrams may be.
                let _lost = from.send_to(&bytes, to);
            }
        });
    }
}
