//! What goes wrong by chance: nodes that are lost and come back, and slow spells. Each node has
//! streams of its own, so that a further node changes no other's luck.

use control::Event;
use model::Millis;
use model::client::Change;

use super::chance::exponential_ms;
use super::{Due, RECONNECT_MS, World};
use crate::random::stream;

/// A node's next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Lost,
    Back,
    Slow,
    Fast,
}

/// Silence after which an operator calls a node lost, where no silence is judged.
const DECLARED_MS: u64 = 60_000;

impl World {
    pub(super) fn begin_turns(&mut self) {
        for node in 0..self.agents.len() {
            self.turn_later(node, Turn::Lost);
            self.turn_later(node, Turn::Slow);
        }
    }

    fn turn_later(&mut self, node: usize, turn: Turn) {
        let failures = self.options.failures;
        let mean_s = match turn {
            Turn::Lost => failures.node_mtbf_s,
            Turn::Back => failures.node_mttr_s,
            Turn::Slow => failures.slow_mtbf_s,
            Turn::Fast => failures.slow_mttr_s,
        };
        let comes = matches!(turn, Turn::Back | Turn::Fast) || mean_s > 0.0;
        if comes {
            let id = &self.agents[node].id;
            let purpose = format!("{turn:?} {id} {}", self.now.0);
            let mut stream = stream(self.options.seed, &purpose);
            let at = self.now.plus(exponential_ms(&mut stream, mean_s.max(1e-3)));
            self.queue.put(at, Due::Turn { node, turn });
        }
    }

    pub(super) fn turn(&mut self, node: usize, turn: Turn) {
        match turn {
            Turn::Lost => {
                self.lose_power(node);
                self.turn_later(node, Turn::Back);
            }
            Turn::Back => {
                self.get_power(node);
                self.turn_later(node, Turn::Lost);
            }
            Turn::Slow => {
                self.set_speed(node, self.options.failures.slow_factor);
                self.turn_later(node, Turn::Fast);
            }
            Turn::Fast => {
                self.set_speed(node, 1.0);
                self.turn_later(node, Turn::Slow);
            }
        }
    }

    /// A machine goes dark with everything that it ran.
    pub(super) fn lose_power(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        if !agent.powered {
            return;
        }
        agent.powered = false;
        agent.soon = false;
        let (id, session) = (agent.id.clone(), agent.session.take());
        agent.off_since = Some(self.now);
        agent.beats += 1;
        let ledger = std::mem::take(&mut agent.ledger);
        agent.desired.clear();
        for (name, held) in ledger {
            let tasks = held.tasks.iter().filter(|(_, exit)| exit.is_none());
            let tasks: Vec<_> = tasks.map(|(task, _)| *task).collect();
            self.leave(name, &tasks);
        }
        self.idle_rounds = 0;
        if !self.is_exact() {
            // Where no silence is judged, the end of the connection is told at once: or else the
            // machine would be refused when it is back, as one that took a living one's name.
            if let Some(session) = session {
                self.master(Event::NodeDisconnected { node: id, session });
            }
            let since = self.now;
            self.queue.put(since.plus(DECLARED_MS), Due::Declare { node, since });
        }
    }

    /// It comes back with a new boot.
    pub(super) fn get_power(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        if agent.powered {
            return;
        }
        agent.powered = true;
        agent.runs = true;
        agent.boots += 1;
        agent.off_since = None;
        agent.incarnation = agent.incarnation.next();
        agent.soon = false;
        self.idle_rounds = 0;
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    pub(super) fn declare(&mut self, node: usize, since: Millis) {
        let agent = &self.agents[node];
        if agent.powered || agent.off_since != Some(since) {
            return;
        }
        let change = Box::new(Change::NodeLost { node: agent.id.clone() });
        self.requests_made += 1;
        self.master(Event::Change {
            request: control::RequestKey(self.requests_made),
            user: "sim".to_owned(),
            rank: model::access::Rank::Operator,
            dry_run: false,
            reason: None,
            change,
        });
    }
}
