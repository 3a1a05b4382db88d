//! Telling workers where parameter blocks lie (section 5.3), as the master assigned them.

use model::Millis;
use model::notes::{AssignmentOrder, BlockPart};

use super::Agent;
use crate::control_file;
use crate::ledger::Key;

impl Agent {
    /// Whether the workers of a generation are to wait for an assignment.
    pub(super) fn waits_for_assignment(&self, key: Key) -> bool {
        self.extras.jobs.iter().any(|extra| {
            (extra.job, extra.generation) == (key.job, key.generation)
                && extra.assignment != AssignmentOrder::Stock
        })
    }

    /// Writes each assignment that its generation's workers do not have yet. One that cannot be
    /// written is tried again with the next heartbeat.
    pub(super) fn write_assignments(&mut self, now: Millis) {
        let given: Vec<(Key, Vec<Vec<BlockPart>>)> = self
            .extras
            .jobs
            .iter()
            .filter_map(|extra| {
                let key = Key { job: extra.job, generation: extra.generation };
                let AssignmentOrder::Given(blocks) = &extra.assignment else { return None };
                let live = self.live.get(&key).filter(|live| live.telemetry.is_some())?;
                (live.assignment.as_ref() != Some(blocks)).then(|| (key, blocks.clone()))
            })
            .collect();
        for (key, blocks) in given {
            let written = control_file::write_assignment(&self.folder(key), &blocks);
            let Some(live) = self.live.get_mut(&key) else { continue };
            match written {
                Ok(()) => live.assignment = Some(blocks),
                Err(error) => {
                    tracing::warn!(%key, %error, "cannot write assignment.json; tried again soon");
                    self.urgent(now);
                }
            }
        }
    }
}
