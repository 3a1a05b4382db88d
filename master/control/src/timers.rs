//! Deadlines: what is due when. One deadline for each key.

use std::collections::{BTreeMap, BTreeSet};

use model::{JobId, Millis, NodeId};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Round,
    /// A plan that never came back.
    PlanLost,
    /// A node's age is to be judged again.
    Node(NodeId),
    /// Jobs on a node that is drained are to be looked at.
    Drain(NodeId),
    Job(JobId, JobTimer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobTimer {
    Start,
    Checkpoint,
    Stop,
    BackOff,
    Stall,
    Periodic,
    /// A reserved place did not become free.
    Room,
    /// Measurements are to be looked at.
    Look,
    /// Storage that was away may be back.
    Storage,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Millis, Timer)>,
    armed: BTreeMap<Timer, Millis>,
}

impl Timers {
    /// Arms or moves a timer.
    pub(crate) fn set(&mut self, timer: Timer, at: Millis) {
        self.cancel(&timer);
        self.due.insert((at, timer.clone()));
        self.armed.insert(timer, at);
    }

    /// Arms a timer, or brings it forward; never postpones it.
    pub(crate) fn set_earliest(&mut self, timer: Timer, at: Millis) {
        if self.armed.get(&timer).is_none_or(|armed| at < *armed) {
            self.set(timer, at);
        }
    }

    pub(crate) fn cancel(&mut self, timer: &Timer) {
        if let Some(at) = self.armed.remove(timer) {
            self.due.remove(&(at, timer.clone()));
        }
    }

    /// Every timer of a job, so that nothing of an earlier phase can fire in a later one.
    pub(crate) fn cancel_job(&mut self, job: JobId) {
        let from = Timer::Job(job, JobTimer::Start);
        let to = Timer::Job(job, JobTimer::Storage);
        let timers: Vec<_> = self.armed.range(from..=to).map(|(timer, _)| timer.clone()).collect();
        for timer in timers {
            self.cancel(&timer);
        }
    }

    pub(crate) fn armed(&self, timer: &Timer) -> Option<Millis> {
        self.armed.get(timer).copied()
    }

    pub(crate) fn next(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The first timer that is due, taken out.
    pub(crate) fn pop(&mut self, now: Millis) -> Option<Timer> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.armed.remove(&timer);
        Some(timer)
    }

    pub(crate) fn len(&self) -> usize {
        self.armed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_has_one_deadline_and_fires_in_order() {
        let mut timers = Timers::default();
        let stall = Timer::Job(JobId(1), JobTimer::Stall);
        timers.set(stall.clone(), Millis(50));
        timers.set(stall.clone(), Millis(20));
        timers.set_earliest(stall.clone(), Millis(90));
        timers.set(Timer::Round, Millis(10));
        timers.set(Timer::Job(JobId(2), JobTimer::Look), Millis(15));
        assert_eq!(timers.next(), Some(Millis(10)));
        timers.cancel_job(JobId(2));
        assert_eq!(timers.pop(Millis(20)), Some(Timer::Round));
        assert_eq!(timers.pop(Millis(20)), Some(stall));
        assert_eq!(timers.pop(Millis(20)), None);
        assert_eq!(timers.len(), 0);
    }
}
