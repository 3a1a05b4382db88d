//! What agents note of a job beside its progress.

use model::notes::{ArrivalReport, LinkReport, Notes, TroubleReport, WaitReport};
use model::{Generation, JobId, Mode, NodeId, Task};

use crate::event::SessionId;
use crate::job::live::Live;
use crate::job::phase::Phase;
use crate::step::Control;

impl Control {
    pub(crate) fn on_notes(&mut self, id: &NodeId, session: SessionId, notes: Notes) {
        if self.nodes.get(id).is_none_or(|node| node.session != Some(session)) {
            self.count("notes of an old connection");
            return;
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.tells_notes = true;
        }
        let Notes { blocks, arrivals, links, troubles, data, begun, waits } = notes;
        for report in blocks {
            self.on_blocks(id, report);
        }
        for report in links {
            self.on_links(id, &report);
        }
        for report in arrivals {
            self.on_arrivals(id, report);
        }
        for trouble in troubles {
            self.on_trouble(id, &trouble);
        }
        for report in data {
            // All agents of a job have the same index, in all generations.
            match self.jobs.get_mut(&report.job) {
                Some(job) => job.data = Some(report),
                None => self.count("data set of an unknown job"),
            }
        }
        self.on_waits(id, &waits);
        for report in begun {
            self.on_begun(report);
        }
    }

    /// The newest reasons of a node replace those before.
    fn on_waits(&mut self, node: &NodeId, reports: &[WaitReport]) {
        let here = self.nodes.get(node).map(|node| node.lives.clone()).unwrap_or_default();
        for id in here {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(generation) = job.life().map(|life| life.generation) else { continue };
            let Some(live) = job.live.as_mut() else { continue };
            let found = reports.iter().find(|r| r.job == id && r.generation == generation);
            match found {
                Some(report) => {
                    let words = report.words.chars().take(500).collect();
                    live.waits.insert(node.clone(), words);
                }
                None => {
                    live.waits.remove(node);
                }
            }
        }
    }

    /// What is seen of a generation, where `task` of it stands on the node.
    fn noted(
        &mut self,
        node: &NodeId,
        (job, generation): (JobId, Generation),
        task: Task,
    ) -> Option<&mut Live> {
        let job = self.jobs.get_mut(&job)?;
        let life = job.record.phase.life()?;
        let here = life.generation == generation && life.placement.node_of(task) == Some(node);
        job.live.as_mut().filter(|_| here)
    }

    fn on_links(&mut self, node: &NodeId, report: &LinkReport) {
        let of = (report.job, report.generation);
        match self.noted(node, of, Task::worker(report.worker)) {
            Some(live) => live.links.link(report),
            None => self.count("notes of another generation"),
        }
    }

    fn on_arrivals(&mut self, node: &NodeId, report: ArrivalReport) {
        let of = (report.job, report.generation);
        let sync = self.jobs.get(&of.0).is_some_and(|job| job.spec().mode == Mode::Sync);
        match self.noted(node, of, Task::server(report.server)) {
            Some(live) if sync => {
                if !live.links.arrived(node, report) {
                    self.count("arrivals with impossible counts");
                }
            }
            Some(_) => {}
            None => self.count("notes of another generation"),
        }
    }

    /// A node cannot complete a checkpoint: it fails now rather than at its deadline.
    fn on_trouble(&mut self, node: &NodeId, trouble: &TroubleReport) {
        let Some(job) = self.jobs.get(&trouble.job) else { return };
        let Phase::Checkpointing { life, save, .. } = job.phase() else { return };
        let ours = life.generation == trouble.generation
            && save.order.checkpoint == trouble.checkpoint
            && life.placement.0.iter().any(|share| share.node == *node);
        if ours && !save.publishing {
            let words: String = trouble.words.chars().take(500).collect();
            self.save_failed(trouble.job, &format!("{node}: {words}"));
        }
    }
}
