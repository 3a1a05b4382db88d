//! What the master is told.

use model::Millis;
use model::agent::{Exit, Heartbeat, Introduction, RateReport, TaskReport, TaskState};
use model::nodes::NodeNotes;
use model::notes::{BlocksReport, Notes, TroubleReport};

use super::Agent;
use crate::clock;
use crate::ledger::{Key, State};
use crate::telemetry::printable;

/// Words of all exits together; beyond it they are cut, so that a heartbeat always fits a frame.
const REASONS_BYTES_MAX: usize = 1 << 20;

/// Parameter blocks of all jobs together, for the same reason.
const BLOCKS_TOLD_MAX: usize = 100_000;

impl Agent {
    pub(super) fn introduction(&mut self, now: Millis) -> Introduction {
        Introduction {
            incarnation: self.ledger.incarnation,
            boot_id: self.boot.clone(),
            software: format!("optimus-agent {}", env!("CARGO_PKG_VERSION")),
            unix_ms: clock::unix_ms(),
            task_address: self.settings.task_address.clone(),
            beat_ms: self.settings.beat_ms,
            first: self.heartbeat(now),
        }
    }

    /// The node as it is now. The session numbers it.
    pub(super) fn heartbeat(&mut self, now: Millis) -> Heartbeat {
        let usable = u64::try_from(self.gpus.usable(&self.settings.capacity, now).len());
        let gpus = usable.unwrap_or(u64::MAX);
        let telemetry = || self.live.values().filter_map(|live| live.telemetry.as_ref());
        Heartbeat {
            sequence: 0,
            obeyed: self.ledger.obeyed,
            capacity: self.host.capacity(&self.settings.capacity, gpus),
            gpus: self.gpus.reports(now),
            tasks: self.task_reports(),
            workers: telemetry().flat_map(|t| t.worker_reports()).collect(),
            epochs: telemetry().flat_map(|t| t.epoch_reports()).collect(),
            checkpoints: telemetry().flat_map(|t| t.checkpoint_reports()).collect(),
            reports_dropped: self.reports_dropped,
            load: self.host.load(),
        }
    }

    /// The newest learning rate of each job that tells one.
    pub(super) fn rates(&self) -> Vec<RateReport> {
        let telemetry = self.live.values().filter_map(|live| live.telemetry.as_ref());
        telemetry.flat_map(|t| t.rate_reports()).collect()
    }

    /// What this node knows of its jobs beside their progress.
    pub(super) fn notes(&self) -> Notes {
        let telemetry = self.live.values().filter_map(|live| live.telemetry.as_ref());
        Notes {
            blocks: self.blocks_told(),
            arrivals: self.arrival_reports(),
            links: self.link_reports(),
            troubles: self.troubles(),
            data: self.data_told(),
            waits: self.waits_told(),
            begun: telemetry.flat_map(|t| t.begun_reports()).collect(),
        }
    }

    /// What this node knows of itself.
    pub(super) fn node_notes(&self) -> NodeNotes {
        let mut notes = NodeNotes::default();
        self.tell_isolated(&mut notes);
        self.tell_ports(&mut notes);
        self.tell_outputs(&mut notes);
        self.note_gpus(&mut notes);
        notes
    }

    /// The parameter blocks of jobs whose rank 0 is here, as far as they fit a frame.
    fn blocks_told(&self) -> Vec<BlocksReport> {
        let telemetry = self.live.values().filter_map(|live| live.telemetry.as_ref());
        let mut room = BLOCKS_TOLD_MAX;
        let mut blocks: Vec<BlocksReport> =
            telemetry.filter_map(|telemetry| telemetry.blocks_report()).collect();
        blocks.retain(|report| {
            let fits = report.blocks.len() <= room;
            room -= if fits { report.blocks.len() } else { 0 };
            fits
        });
        blocks
    }

    /// Why checkpoints cannot be completed here.
    fn troubles(&self) -> Vec<TroubleReport> {
        let troubles = self.live.iter().filter_map(|(&Key { job, generation }, live)| {
            let (checkpoint, words) = live.trouble.clone()?;
            Some(TroubleReport { job, generation, checkpoint, words: printable(&words, 500) })
        });
        troubles.collect()
    }

    fn task_reports(&self) -> Vec<TaskReport> {
        let mut reports = Vec::new();
        let mut room = REASONS_BYTES_MAX;
        for (&key, held) in &self.ledger.generations {
            let Key { job, generation } = key;
            for (&task, held) in &held.tasks {
                let state = match &held.state {
                    // No number yet: it is being started.
                    State::Intent => TaskState::Running { pid: 0, ready: false },
                    State::Running { pid, ready, .. } => {
                        // The process that is still there, where the first one is not.
                        let live = self.live.get(&key).and_then(|live| live.tasks.get(&task));
                        let pid = live.and_then(|live| live.survivor).unwrap_or(*pid);
                        let pid = u32::try_from(pid).unwrap_or(0);
                        TaskState::Running { pid, ready: *ready }
                    }
                    State::Exited(exit) => {
                        let bytes_max = if exit.reason.len() <= room { usize::MAX } else { 80 };
                        let reason = printable(&exit.reason, bytes_max);
                        room = room.saturating_sub(reason.len());
                        TaskState::Exited(Exit { reason, ..exit.clone() })
                    }
                };
                reports.push(TaskReport { job, generation, task, state });
            }
        }
        reports
    }
}
