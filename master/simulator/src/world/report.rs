//! Agents' connections and heartbeats.

use control::{Event, SessionId};
use model::agent::{Heartbeat, Introduction};
use model::{BootId, NodeId};

use super::reports::{self, Reports};
use super::{Due, Estimates, Fidelity, World};

impl World {
    pub(super) fn connect(&mut self, node: usize) {
        let agent = &self.agents[node];
        if !agent.hears() || agent.link.is_mute() || agent.session.is_some() {
            return;
        }
        if !self.master_up {
            self.queue.put(self.now.plus(super::RECONNECT_MS), Due::Connect(node));
            return;
        }
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let beat_ms = self.beat_ms();
        let agent = &mut self.agents[node];
        agent.session = Some(session);
        agent.sequence = 0;
        agent.beats += 1;
        agent.news.extend(agent.ledger.keys().copied());
        let (beats, boots) = (agent.beats, agent.boots);
        let (incarnation, id) = (agent.incarnation, agent.id.clone());
        if let Some(ms) = beat_ms {
            self.queue.put(self.now.plus(ms), Due::Beat { node, beats });
        }
        let introduction = Introduction {
            incarnation,
            boot_id: BootId(format!("{id}-{boots}")),
            software: "simulated".to_owned(),
            unix_ms: super::clocks(self.now).unix.0,
            task_address: format!("10.{}.{}.{}", node >> 16, (node >> 8) & 255, node & 255),
            beat_ms: beat_ms.unwrap_or(60_000),
            first: self.heartbeat(node),
        };
        let introduction = Box::new(introduction);
        if !self.send_up(node, Event::NodeConnected { node: id, session, introduction }) {
            // No connection comes about without it.
            self.agents[node].session = None;
            self.queue.put(self.now.plus(super::RECONNECT_MS), Due::Connect(node));
        }
    }

    /// Between two regular heartbeats; none where only news is told.
    fn beat_ms(&self) -> Option<u64> {
        match self.options.fidelity {
            Fidelity::Exact { beat_ms, .. } => Some(beat_ms),
            Fidelity::Coarse { report_s } => (self.options.estimates == Estimates::Fitted)
                .then(|| super::truth::ceil_ms(report_s).max(1)),
        }
    }

    pub(super) fn beat(&mut self, node: usize, beats: u64) {
        let agent = &mut self.agents[node];
        if agent.beats != beats || agent.session.is_none() || !agent.hears() {
            return;
        }
        let idle = agent.ledger.is_empty();
        agent.news.extend(agent.ledger.keys().copied());
        if self.is_exact() || !idle {
            self.send_heartbeat(node);
        }
        if let Some(ms) = self.beat_ms() {
            self.queue.put(self.now.plus(ms), Due::Beat { node, beats });
        }
    }

    /// Something is to be told.
    pub(super) fn poke(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        if agent.session.is_some() && !agent.soon {
            agent.soon = true;
            self.queue.put(self.now, Due::Soon(node));
        }
    }

    pub(super) fn send_heartbeat(&mut self, node: usize) {
        let agent = &self.agents[node];
        let Some(session) = agent.session.filter(|_| agent.hears()) else { return };
        let id = agent.id.clone();
        let heartbeat = self.heartbeat(node);
        let heartbeat = Box::new(self.tainted(node, heartbeat));
        self.send_up(node, Event::Heartbeat { node: id, session, heartbeat });
    }

    /// The node's whole state; of trainings, where only news is told, those with news.
    fn heartbeat(&mut self, node: usize) -> Heartbeat {
        let whole = self.is_exact();
        let agent = &mut self.agents[node];
        agent.sequence += 1;
        let news = std::mem::take(&mut agent.news);
        let mut reports = Reports::default();
        for (name, held) in &agent.ledger {
            if !whole && !news.contains(name) {
                continue;
            }
            let Some(training) = self.trainings.get_mut(name) else { continue };
            training.accrue(self.now);
            let job = training.job;
            let truth = &self.truths[job];
            reports::observe(training, truth, self.options.speed_noise);
            let tasks = held.tasks.keys().copied();
            let of = (&self.workload.jobs[job], truth);
            reports::tell(&mut reports, *name, tasks, of, training);
        }
        let agent = &self.agents[node];
        Heartbeat {
            sequence: agent.sequence,
            obeyed: agent.obeyed,
            capacity: agent.capacity.clone(),
            tasks: agent.task_reports(),
            workers: reports.workers,
            epochs: reports.epochs,
            checkpoints: reports.checkpoints,
            ..Heartbeat::default()
        }
    }

    /// A message of an agent got through, which the network tells it.
    pub(super) fn note_contact(&mut self, id: &NodeId, session: SessionId) {
        if let Some(node) = self.index.get(id).copied()
            && self.agents[node].session == Some(session)
            // Else the word of it does not reach the agent.
            && !self.agents[node].link.mute_down
        {
            self.agents[node].contact = self.now;
        }
    }

    /// The agent's own rule: tasks that may be started elsewhere end 45 s after the last contact.
    pub(super) fn watch_contact(&mut self, node: usize) {
        let agent = &self.agents[node];
        let at = agent.contact.plus(DISCONNECT_STOP_MS);
        if at > self.now {
            self.queue.put(at, Due::Silence(node));
            return;
        }
        self.queue.put(self.now.plus(WATCH_MS), Due::Silence(node));
        if !agent.powered || !agent.runs {
            return;
        }
        if self.outlives_contact() {
            return;
        }
        let names: Vec<_> = agent
            .ledger
            .iter()
            .filter(|(_, held)| held.on_disconnect != model::OnDisconnect::Keep && held.is_live())
            .map(|(name, _)| *name)
            .collect();
        if !names.is_empty() {
            self.watch.count("tasks ended 45 s after the last contact");
        }
        for name in names {
            self.end_tasks(node, name, "no contact with a master for 45 s", false);
        }
    }
}

const DISCONNECT_STOP_MS: u64 = 45_000;
const WATCH_MS: u64 = 1_000;
