//! Which worker the servers of a synchronous job wait for (section 5.2), from the kernel's counters
//! of the servers' connections.
//!
//! All workers of a synchronous job push their gradients once a step; the servers answer when the
//! last one's are there, and all ask for the new parameters at once. So at any moment either all
//! are computing, and their connections have been quiet for the same time; or the servers wait
//! for some: those whose connection has been quiet for longer than the others', or is the only
//! one on which something still comes. A worker that takes twice the time of the others is found
//! so in half of the looks, whatever the length of a step. What the kernel cannot tell: steps of
//! a few ms (its clock ticks every 1 to 10 ms), and workers behind an address translation, whose
//! connections have another name here than on their own node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::probe::sockets::Socket;

/// A connection that carries less than this share of what the busiest one does is no worker's: the
/// PS scheduler's, and the server's own.
const CARRIES_SHARE: u64 = 10;
/// Differences that the kernel's clock cannot tell, in ms.
const TICK_MS: u32 = 8;
/// Of the time since a worker's gradients came, the part that is no difference either: workers
/// are never quite equal.
const SLACK_PERCENT: u32 = 20;
/// Something is coming right now where the last of it came within this time, in ms; and the others
/// are done where theirs came this long ago.
const COMING_MS: u32 = 12;
const DONE_MS: u32 = 60;
/// Connections to one server that are looked at.
pub(crate) const CONNECTIONS_MAX: usize = 4_096;

/// What is known of one server's connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    /// Bytes at the first look, by far end.
    first: BTreeMap<SocketAddr, u64>,
    pub(crate) looks: u64,
    /// Far ends that were waited for, and how often.
    pub(crate) behind: BTreeMap<SocketAddr, u64>,
}

impl Arrivals {
    /// Looks at the connections to a server of a job of so many workers. Nothing is counted while
    /// these cannot all be told from others.
    pub(crate) fn look<'a>(&mut self, sockets: impl Iterator<Item = &'a Socket>, workers: u32) {
        let mut grown: Vec<(u64, u32, SocketAddr)> = Vec::new();
        for socket in sockets.take(CONNECTIONS_MAX) {
            let Some((bytes, quiet_ms)) = socket.received else { return };
            let first = *self.first.entry(socket.remote).or_insert(bytes);
            grown.push((bytes.saturating_sub(first), quiet_ms, socket.remote));
        }
        let most = grown.iter().map(|(bytes, ..)| *bytes).max().unwrap_or(0);
        grown.retain(|(bytes, ..)| *bytes > most / CARRIES_SHARE);
        if most == 0 || u32::try_from(grown.len()) != Ok(workers) || workers < 2 {
            return;
        }
        self.looks = self.looks.saturating_add(1);
        let quiet: Vec<u32> = grown.iter().map(|(_, quiet_ms, _)| *quiet_ms).collect();
        for (at, (.., remote)) in grown.iter().enumerate() {
            if is_behind(&quiet, at) {
                *self.behind.entry(*remote).or_insert(0) += 1;
            }
        }
    }
}

/// Whether the servers wait for the worker at this place, by how long ago each one's gradients
/// came, in ms.
fn is_behind(quiet_ms: &[u32], at: usize) -> bool {
    let own = quiet_ms[at];
    let mut others: Vec<u32> = quiet_ms.to_vec();
    others.swap_remove(at);
    others.sort_unstable();
    // The lower of two middle ones: a worker must be behind half of the others at least.
    let Some(middle) = others.get(others.len().saturating_sub(1) / 2).copied() else {
        return false;
    };
    let least = others.first().copied().unwrap_or(0);
    let slack = TICK_MS.max(own / 100 * SLACK_PERCENT);
    own > middle.saturating_add(slack) || (own <= COMING_MS && least >= DONE_MS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(worker: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 40_000 + u16::try_from(worker).unwrap()))
    }

    fn socket(worker: usize, received: (u64, u32)) -> Socket {
        let local = SocketAddr::from(([10, 0, 0, 2], 5_000));
        let (remote, received) = (end(worker), Some(received));
        Socket { listens: false, local, remote, inode: 1, received }
    }

    /// Shares of 1,000 looks in which each worker was waited for: each computes for so long, and
    /// sends for so long.
    fn shares(compute_ms: &[u64], send_ms: &[u64]) -> Vec<f64> {
        let step_ms = compute_ms.iter().zip(send_ms).map(|(c, s)| c + s).max().unwrap();
        let mut arrivals = Arrivals::default();
        for look in 0..1_000_u64 {
            // A prime, so that looks meet every part of a step.
            let now = 10_000 + look * 211;
            let connections: Vec<Socket> = (0..compute_ms.len())
                .map(|worker| {
                    let (begins, sends) = (compute_ms[worker], send_ms[worker]);
                    let phase = now % step_ms;
                    // It asks for the parameters as the step begins.
                    let quiet_ms =
                        if phase < begins { phase } else { phase.saturating_sub(begins + sends) };
                    let bytes = 1_000 * (now / step_ms);
                    socket(worker, (bytes, u32::try_from(quiet_ms).unwrap()))
                })
                // The PS scheduler's.
                .chain([socket(99, (100, 1))])
                .collect();
            arrivals.look(connections.iter(), u32::try_from(compute_ms.len()).unwrap());
        }
        assert!(arrivals.looks > 900, "{}", arrivals.looks);
        let of = |worker| arrivals.behind.get(&end(worker)).copied().unwrap_or(0);
        (0..compute_ms.len()).map(|worker| of(worker) as f64 / arrivals.looks as f64).collect()
    }

    #[test]
    fn a_worker_at_two_fifths_is_waited_for_in_three_of_five_looks() {
        for team in [vec![100, 100, 250, 100], vec![100, 250], vec![90, 100, 110, 250, 95, 100]] {
            let slow = team.iter().position(|ms| *ms == 250).unwrap();
            let shares = shares(&team, &vec![5; team.len()]);
            assert!((0.5..0.7).contains(&shares[slow]), "{team:?} {shares:?}");
            assert!(shares.iter().enumerate().all(|(at, share)| at == slow || *share < 0.45));
        }
        let two_of_six = shares(&[100, 250, 100, 100, 250, 100], &[5; 6]);
        assert!(two_of_six[1] > 0.5 && two_of_six[4] > 0.5, "{two_of_six:?}");
    }

    #[test]
    fn a_worker_that_sends_for_long_is_waited_for_while_it_does() {
        let shares = shares(&[200, 200, 200, 200], &[20, 500, 20, 20]);
        assert!(shares[1] > 0.5 && shares[0] < 0.3, "{shares:?}");
    }

    #[test]
    fn nothing_is_counted_while_not_all_workers_are_there() {
        let mut arrivals = Arrivals::default();
        for bytes in 1..50 {
            let connections = [socket(0, (bytes * 1000, 1)), socket(1, (bytes * 1000, 90))];
            arrivals.look(connections.iter(), 3);
            arrivals.look(connections[..1].iter(), 1);
        }
        let none = Socket { received: None, ..socket(0, (0, 0)) };
        arrivals.look([none, socket(1, (9, 9))].iter(), 2);
        assert_eq!((arrivals.looks, arrivals.behind.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn workers_that_differ_little_are_waited_for_in_less_than_half_of_the_looks(
            step_ms in 60_u64..3_000, parts in proptest::collection::vec(85_u64..115, 2..9),
        ) {
            let compute_ms: Vec<u64> = parts.iter().map(|part| step_ms * part / 100).collect();
            let shares = shares(&compute_ms, &vec![step_ms / 20; parts.len()]);
            prop_assert!(shares.iter().all(|share| *share < 0.5), "{:?} {:?}", compute_ms, shares);
        }
    }
}
