//! Planning on a thread of its own: a round of thousands of jobs must not hold up heartbeats, and
//! a fault in the planner must not end the master.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};

use scheduler::plan::Plan;
use scheduler::snapshot::{Policy, Snapshot};

use crate::clock::Clock;
use crate::store::panic_words;

/// What came of a round.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// The checker's findings; a plan with any is not applied.
    pub(crate) refused: Vec<String>,
    pub(crate) elapsed_s: f64,
}

#[derive(Debug)]
pub(crate) struct Planner {
    rounds: Sender<(Box<Snapshot>, Policy)>,
}

impl Planner {
    /// Starts the thread, which ends with the handle. `done` is called from it.
    pub(crate) fn start(clock: Clock, done: impl Fn(Planned) + Send + 'static) -> io::Result<Self> {
        let (rounds, receiver) = mpsc::channel::<(Box<Snapshot>, Policy)>();
        std::thread::Builder::new().name("planner".to_owned()).spawn(move || {
            let mut cache = scheduler::Cache::default();
            while let Ok((snapshot, policy)) = receiver.recv() {
                let started = clock.mono();
                let outcome = guarded(&snapshot, || {
                    let plan = scheduler::plan(&snapshot, &policy, &mut cache);
                    let refused = scheduler::check(&snapshot, &plan);
                    (plan, refused)
                });
                let (plan, refused) = outcome.unwrap_or_else(|failed| {
                    // A cache that was left halfway is not to be trusted.
                    cache = scheduler::Cache::default();
                    failed
                });
                done(Planned { plan, refused, elapsed_s: clock.mono().seconds_since(started) });
            }
        })?;
        Ok(Self { rounds })
    }

    /// Queues a round. Never waits: the state machine asks for one at a time.
    pub(crate) fn request(&self, snapshot: Box<Snapshot>, policy: Policy) {
        // The thread outlives the handle and catches every panic of its work.
        let _ = self.rounds.send((snapshot, policy));
    }
}

/// Runs one round. A panic becomes a refused plan of this snapshot's revision that decides
/// nothing.
fn guarded(
    snapshot: &Snapshot,
    round: impl FnOnce() -> (Plan, Vec<String>),
) -> Result<(Plan, Vec<String>), (Plan, Vec<String>)> {
    catch_unwind(AssertUnwindSafe(round)).map_err(|panic| {
        let words = format!("the planner failed: {}", panic_words(panic.as_ref()));
        tracing::error!("{words}");
        let plan = Plan { revision: snapshot.revision, decisions: Vec::new() };
        (plan, vec![words])
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_panic_is_a_refused_plan_of_the_same_revision() {
        let snapshot = Snapshot { revision: 7, ..Snapshot::default() };
        let (plan, refused) = guarded(&snapshot, || panic!("node {} twice", 3)).unwrap_err();
        assert_eq!(plan, Plan { revision: 7, decisions: vec![] });
        assert_eq!(refused, ["the planner failed: node 3 twice"]);
        let fine = guarded(&snapshot, || (Plan::default(), vec![])).unwrap();
        assert_eq!(fine, (Plan::default(), vec![]), "the next round is as ever");
    }

    #[test]
    fn rounds_come_back_with_their_revision() {
        let (sender, receiver) = mpsc::channel();
        let planner =
            Planner::start(Clock::start(), move |planned| sender.send(planned).unwrap()).unwrap();
        for revision in 1..=3 {
            let snapshot = Snapshot { revision, ..Snapshot::default() };
            planner.request(Box::new(snapshot), Policy::default());
            let planned = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(planned.plan.revision, revision);
            assert_eq!(planned.refused, Vec::<String>::new());
        }
    }
}
