//! Starting a generation: a place becomes processes.

use model::{Generation, JobId, NodeId};

use crate::job::phase::{JobEvent, Life, Move, Origin, Phase, Wait};
use crate::job::progress::rewind;
use crate::job::{HISTORY_MAX, push_bounded};
use crate::ports::Holder;
use crate::record::CheckpointRecord;
use crate::step::Control;

fn no_port(host: &str, (first, last): (u16, u16)) -> String {
    format!("every root port from {first} to {last} of {host} is held: widen limits.root_ports")
}

impl Control {
    /// Starts a job that holds a place, if the place is free now. It stays reserved if not.
    pub(crate) fn try_start(&mut self, id: JobId) {
        if self.is_superseded() {
            return;
        }
        let Phase::Queued { wait: Wait::Room(place), .. } = self.job(id).phase() else { return };
        let place = place.clone();
        let missing = place.placement.0.iter().find_map(|share| self.takes_nothing(&share.node));
        if let Some(missing) = missing {
            self.lose_place(id, format!("its place was lost: {missing}"));
            return;
        }
        if self.fits_now(id, &place.placement).is_err() || self.lacks_port(&place).is_some() {
            return;
        }
        match self.life(id, &place) {
            Ok(life) => self.begin(id, life, &place),
            Err(reason) => self.lose_place(id, reason),
        }
    }

    /// In words, that a place's PS scheduler would have no port now. Another round would give the
    /// same place again, so it is kept until a port is free.
    pub(crate) fn lacks_port(&self, place: &Move) -> Option<String> {
        let node = self.nodes.get(place.placement.scheduler_node()?)?;
        let (host, range) = (&node.record.task_address, self.settings.root_ports);
        let full = self.ports.get(host).is_some_and(|ports| ports.is_full(range));
        full.then(|| no_port(host, range))
    }

    /// Gives a reserved place back; the next round decides anew.
    pub(crate) fn lose_place(&mut self, id: JobId, reason: String) {
        self.tell(Some(id), None, "place", reason.clone());
        if let Phase::Running { .. } = self.job(id).phase() {
            self.job_mut(id).record.note = Some(format!("keeps its shape: {reason}"));
        }
        self.transit(id, JobEvent::Unreserved { reason });
        self.ask_round("a place was lost");
    }

    /// What the next generation's agents need.
    fn life(&mut self, id: JobId, place: &Move) -> Result<Life, String> {
        let root = place.placement.scheduler_node().cloned();
        let root = root.ok_or("its place has no server")?;
        let generation = self.job(id).next_generation();
        let host = self.nodes.get(&root).map(|node| node.record.task_address.clone());
        let host = host.ok_or_else(|| format!("{root} is not known"))?;
        let range = self.settings.root_ports;
        let root_port = self.take_port(&host, id, generation, &root);
        let root_port = root_port.ok_or_else(|| no_port(&host, range))?;
        let job = self.job(id);
        let resume = job.newest_checkpoint();
        Ok(Life {
            generation,
            placement: place.placement.clone(),
            root_host: host,
            root_port,
            resume: resume.map(|from| from.id),
            resume_directory: resume.map(|from| from.directory.clone()),
            origin: place.origin,
            base_step: resume.map_or(0, |from| from.step),
            base_work: resume.map_or(0.0, |from| from.work),
            partial: resume.and_then(|from| from.partial),
        })
    }

    fn take_port(
        &mut self,
        host: &str,
        job: JobId,
        generation: Generation,
        node: &NodeId,
    ) -> Option<u16> {
        let ports = self.ports.entry(host.to_owned()).or_default();
        let holder = Holder { job, generation, node: node.clone() };
        let port = ports.take(self.settings.root_ports, holder)?;
        self.out.ports.insert(host.to_owned());
        Some(port)
    }

    fn begin(&mut self, id: JobId, life: Life, place: &Move) {
        let unix = self.now.unix;
        let generation = life.generation;
        let shape = life.shape();
        let nodes = place.placement.0.len();
        let from = life.resume;
        let job = self.job_mut(id);
        let resume: Option<CheckpointRecord> = job.newest_checkpoint().cloned();
        let progress = &mut job.record.progress;
        match &resume {
            Some(from) => rewind(progress, from.step, from.work, from.epoch),
            None => rewind(progress, 0, 0.0, 0),
        }
        job.loss_fit_points = usize::MAX;
        job.loss_fit = None;
        self.rewind_rates(id, resume.as_ref().map_or(0.0, |from| from.work));
        let job = self.job_mut(id);
        job.record.started = job.record.started.or(Some(unix));
        if place.origin == Origin::Queue {
            // It waited for a place, which is nobody's pause.
            job.gap_since = None;
        }
        if place.origin != Origin::Rescale {
            let decision = model::view::DecisionView {
                at: unix,
                round: place.round,
                from: model::Shape::default(),
                to: shape,
                reason: place.reason.clone(),
                predicted_before: None,
                predicted_after: place.predicted.after,
                predicted_gain_s: None,
                cost_s: None,
                measured_after: None,
                loss_before: None,
                loss_before_deviation: None,
                loss_after: None,
                while_running: false,
                profiling: place.profiling,
            };
            push_bounded(&mut job.record.decisions, decision, HISTORY_MAX);
        }
        if let (Origin::Fault, Some(fault)) = (place.origin, job.record.faults.last_mut()) {
            fault.resumed_from = Some(resume.as_ref().map_or(0, |from| from.step));
        }
        self.transit(id, JobEvent::Placed { life });
        self.decide_assignment(id);
        let start = from.map_or_else(|| "from nothing".to_owned(), |from| format!("from {from}"));
        let text = format!("{generation} with {shape} on {nodes} nodes {start}");
        self.tell(Some(id), None, "started", text);
    }
}
