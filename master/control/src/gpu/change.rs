//! An operator's word about a GPU.

use model::NodeId;
use model::client::{Answer, ErrorKind, Refusal, Reply};
use model::nodes::GpuHealth;

use super::health::Turn;
use crate::change::Asked;
use crate::record::GpuCause;
use crate::step::Control;

impl Control {
    /// Takes a GPU out for good, or lets one that is out be probed.
    pub(crate) fn change_gpu(
        &mut self,
        asked: &Asked,
        id: &NodeId,
        uuid: &str,
        retire: bool,
    ) -> Reply {
        let missing = |what: String, hint: &str| {
            Err(Refusal::new(ErrorKind::NotFound, what, hint.to_owned()))
        };
        let Some(node) = self.nodes.get(id) else {
            return missing(format!("no node {id}"), "see optimus nodes");
        };
        let seen = node.gpus.iter().any(|gpu| gpu.uuid == uuid);
        if !seen && self.gpus.get(id, uuid).is_none() {
            let shown: String = uuid.chars().take(96).collect();
            return missing(format!("{id} has no GPU {shown}"), "see optimus node gpus");
        }
        let accepted = |note: &str| {
            let note = note.to_owned();
            Ok(Answer::Accepted { job: None, node: Some(id.clone()), note })
        };
        let health = self.gpus.health(id, uuid);
        let (to, verb, note) = match (retire, health) {
            (true, GpuHealth::Retired) => return accepted("it is RETIRED already"),
            (true, _) => {
                let note = "RETIRED: no new task gets it; a task that has it goes on";
                (GpuHealth::Retired, "retired", note)
            }
            (false, GpuHealth::Ok) => return accepted("it is OK already"),
            (false, GpuHealth::Probing) => return accepted("it is PROBING already"),
            (false, GpuHealth::Suspect | GpuHealth::Bad | GpuHealth::Retired) => {
                let note = "PROBING: it works again once it was idle and quiet for a while";
                (GpuHealth::Probing, "returned", note)
            }
        };
        if asked.dry_run {
            return accepted("dry run: nothing was changed");
        }
        self.told(asked, None, Some(id), &format!("{verb} {uuid} on {id}"));
        let words = asked.reason.clone().unwrap_or_else(|| format!("{verb} by {}", asked.user));
        if let Some(gpu) = self.gpu_mut(id, uuid) {
            // Whoever brings it back has looked at what was before.
            gpu.record.suspicions.clear();
        }
        let turn = Turn { health: to, cause: Some(GpuCause::Operator), reason: words };
        self.turn_gpu(id, uuid, turn, Some(asked.user.clone()));
        accepted(note)
    }
}
