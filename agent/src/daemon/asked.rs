//! Questions of the master.

use model::agent::{AgentAnswer, AgentQuery, ProbeAct};
use model::{Generation, JobId, Task};
use tokio::sync::oneshot;

use super::Agent;
use crate::checkpoint;
use crate::config::TaskUser;

/// Longest answer to a question for a log.
const LOG_BYTES_MAX: u64 = 1 << 20;

impl Agent {
    pub(super) fn on_query(&mut self, query: AgentQuery, reply: oneshot::Sender<AgentAnswer>) {
        match query {
            AgentQuery::Probe { folder, name, act } => {
                probe_folder(self.settings.user.clone(), folder, name, act, reply);
            }
            AgentQuery::CertificateRequest | AgentQuery::CertificateInstall { .. } => {
                let words = "this agent does not renew its certificate over the master";
                let _ = reply.send(AgentAnswer::Refused(words.to_owned()));
            }
            AgentQuery::Log { job, generation, task, bytes_max } => {
                // Whoever asked may be gone: then nobody needs the answer.
                let _ = reply.send(self.log(job, generation, task, bytes_max));
            }
        }
    }

    pub(super) fn log(
        &self,
        job: JobId,
        generation: Option<Generation>,
        task: Task,
        bytes_max: u32,
    ) -> AgentAnswer {
        let bytes_max = u64::from(bytes_max).min(LOG_BYTES_MAX);
        match self.logs.tail(job, generation, task, bytes_max) {
            Ok((generation, text)) => AgentAnswer::Log { generation, text },
            Err(why) => AgentAnswer::Refused(why),
        }
    }
}

/// Answers whether a folder of several hosts is one. A file system may not answer at all.
fn probe_folder(
    user: TaskUser,
    folder: String,
    name: String,
    act: ProbeAct,
    reply: oneshot::Sender<AgentAnswer>,
) {
    tokio::task::spawn_blocking(move || {
        let found = checkpoint::probe(&folder, &name, act, &user);
        // Whoever asked may be gone: then nobody needs the answer.
        let _ = reply.send(found.map_or_else(AgentAnswer::Refused, AgentAnswer::Probed));
    });
}
