//! Bugs that can be planted in agents and in the master's hands, to see that they are found.

use control::Record;
use model::agent::{Heartbeat, Order, TaskState};

use super::World;
use super::agent::{Action, Held};
use crate::faults::Plant;

/// A planted bug does its harm once in so many chances.
const HARM: f64 = 0.2;

impl World {
    /// The planted bug that forgets an order to stop.
    pub(super) fn loses_stop(&mut self) -> bool {
        self.watch.plant == Some(Plant::LoseStop) && self.watch.draws(HARM)
    }

    /// The planted bug that starts what is started.
    pub(super) fn starts_again(&mut self, node: usize) -> Option<Action> {
        if self.watch.plant != Some(Plant::StartTwice) {
            return None;
        }
        let agent = &self.agents[node];
        let wanted = agent.desired.iter().find(|wanted| {
            let held = agent.ledger.get(&(wanted.job, wanted.generation));
            wanted.order == Order::Start && held.is_some_and(Held::is_live)
        })?;
        let wanted = Box::new(wanted.clone());
        let tasks = wanted.launch.tasks.clone();
        self.watch.draws(HARM).then_some(Action::Start { wanted, tasks })
    }

    /// The planted bug by which tasks outlive the contact with the master.
    pub(super) fn outlives_contact(&self) -> bool {
        self.watch.plant == Some(Plant::OutliveContact)
    }

    /// The planted bug that loses the first record of an accepted job.
    pub(super) fn loses_write(&mut self, record: &Record) -> bool {
        let Record::JobV1(job) = record else { return false };
        if self.watch.plant != Some(Plant::LoseWrite) || self.watch.lost.is_some() {
            return false;
        }
        let first = !self.store.contains_key(&record.key());
        let loses = first && self.watch.draws(HARM);
        self.watch.lost = loses.then_some(job.id);
        loses
    }

    /// The planted bug by which computing times are told of other workers.
    pub(super) fn misreport(&self, beat: &mut Heartbeat) {
        if self.watch.plant != Some(Plant::MisreportComputing) {
            return;
        }
        for report in beat.workers.iter_mut().filter(|report| report.worker != 1) {
            report.compute_s *= 0.2;
        }
    }

    /// The planted bug that never lets the end of one task through.
    pub(super) fn leak(&mut self, _node: usize, beat: &mut Heartbeat) {
        if self.watch.plant != Some(Plant::LeakTask) {
            return;
        }
        for report in &mut beat.tasks {
            let TaskState::Exited(_) = report.state else { continue };
            let name = (report.job, report.generation);
            if self.watch.leaked.is_none() && self.watch.draws(HARM) {
                self.watch.leaked = Some((name, report.task));
            }
            if self.watch.leaked == Some((name, report.task)) {
                report.state = TaskState::Running { pid: 1, ready: true };
            }
        }
    }
}
