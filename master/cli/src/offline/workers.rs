//! Pieces of work on several threads, with the answers in the order of the work.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often progress is told while no piece ends.
const TICK: Duration = Duration::from_millis(200);

/// Threads for so many pieces of work, where nobody said how many.
#[must_use]
pub(super) fn threads(wanted: Option<u16>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    wanted.map_or_else(cores, usize::from)
}

/// Does pieces 0 to `count` − 1, and tells after each, and now and then between, how many are
/// done.
///
/// # Errors
/// The failure of the piece with the lowest number; work that was not begun then is left.
pub(super) fn each<T: Send, E: Send>(
    count: u32,
    threads: usize,
    work: &(dyn Fn(u32) -> Result<T, E> + Sync),
    told: &mut dyn FnMut(u32),
) -> Result<Vec<T>, E> {
    let (next, failed) = (AtomicU32::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let mut done: Vec<Option<Result<T, E>>> = (0..count).map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(done.len()) {
            let (sender, next, failed) = (sender.clone(), &next, &failed);
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    // Numbers are given out in order, so none below a failed one is left.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = work(number);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    if sender.send((number, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut finished = 0;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok((number, result)) => {
                    let place = usize::try_from(number).ok().and_then(|at| done.get_mut(at));
                    *place.expect("only numbers below the count are sent") = Some(result);
                    finished += 1;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            told(finished);
        }
    });
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_work_whoever_did_it() {
        for threads in [1, 2, 7, 64] {
            let mut told = Vec::new();
            let square = |number: u32| Ok::<u32, ()>(number * number);
            let squares = each(50, threads, &square, &mut |done| told.push(done)).unwrap();
            assert_eq!(squares, (0..50).map(|number| number * number).collect::<Vec<_>>());
            told.dedup();
            told.retain(|done| *done > 0);
            assert_eq!(told, (1..=50).collect::<Vec<_>>());
        }
        assert_eq!(each(0, 4, &|_| Ok::<u32, ()>(1), &mut |_| ()), Ok(Vec::new()));
    }

    #[test]
    fn the_first_failure_by_number_is_told() {
        for threads in [1, 3, 16] {
            let work = |number: u32| if number >= 5 { Err(number) } else { Ok(number) };
            assert_eq!(each(1000, threads, &work, &mut |_| ()), Err(5));
        }
    }
}
