//! What goes wrong in the world.

use model::agent::Exit;
use model::{JobId, NodeId, Task};

use super::World;

impl World {
    /// A process ends by itself.
    pub(crate) fn exit(&mut self, job: JobId, task: Task, code: i32, reason: &str) {
        for agent in self.agents.values_mut().filter(|agent| agent.powered) {
            for ((of, _, name), entry) in &mut agent.ledger {
                if *of == job && *name == task && entry.exit.is_none() {
                    entry.exit = Some(Exit {
                        code: Some(code),
                        signal: None,
                        reason: reason.to_owned(),
                        ordered: false,
                    });
                }
            }
        }
    }

    /// The network is cut: the node lives on and hears nobody.
    pub(crate) fn cut(&mut self, node: &NodeId) {
        self.agents.get_mut(node).unwrap().hears = false;
    }

    /// The network is back; the old connection is gone.
    pub(crate) fn heal(&mut self, node: &NodeId) {
        let agent = self.agents.get_mut(node).unwrap();
        agent.hears = true;
        agent.session = None;
    }

    pub(crate) fn power_off(&mut self, node: &NodeId) {
        let agent = self.agents.get_mut(node).unwrap();
        agent.powered = false;
        agent.ledger.clear();
        agent.session = None;
    }

    pub(crate) fn reboot(&mut self, node: &NodeId) {
        self.agents.get_mut(node).unwrap().reboot();
    }

    /// The agent's process dies and comes back; tasks live on.
    pub(crate) fn restart_agent(&mut self, node: &NodeId) {
        let agent = self.agents.get_mut(node).unwrap();
        agent.session = None;
        agent.incarnation = agent.incarnation.next();
    }

    pub(crate) fn node_of(&self, job: JobId, task: Task) -> NodeId {
        self.detail(job).placement.node_of(task).expect("it stands somewhere").clone()
    }

    /// Processes of a job that are alive anywhere.
    pub(crate) fn alive(&self, job: JobId) -> usize {
        let powered = self.agents.values().filter(|agent| agent.powered);
        powered.map(|agent| agent.running().filter(|(of, _, _)| *of == job).count()).sum()
    }
}
