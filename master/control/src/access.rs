//! Whether one who asks may have it: the only place that decides, by [`model::access::TABLE`].

use model::JobId;
use model::access::{Asker, Deed, Needs};
use model::agent::AgentQuery;
use model::client::{Answer, Call, Change, ErrorKind, Read, Refusal, Reply};
use model::text::is_visible;
use model::{NodeId, Task};

use crate::change::Asked;
use crate::event::{Now, SessionId};
use crate::step::Control;

/// What stands for the value of an environment variable that is not the asker's to see. Of one
/// length, as the length too would tell something.
pub const HIDDEN: &str = "***";

/// The job that a change is of.
const fn job_of_change(change: &Change) -> Option<JobId> {
    match change {
        Change::Cancel { job, .. }
        | Change::Pause { job }
        | Change::Resume { job }
        | Change::Checkpoint { job }
        | Change::Resize { job, .. }
        | Change::Unpin { job }
        | Change::Update { job, .. } => Some(*job),
        Change::Submit { .. }
        | Change::SubmitWith { .. }
        | Change::SubmitWatched { .. }
        | Change::NodeLost { .. }
        | Change::NodeCordon { .. }
        | Change::NodeDrain { .. }
        | Change::NodeUndrain { .. }
        | Change::Gpu { .. } => None,
    }
}

/// A reason is there to be read, and not to look like none.
fn legible(reason: Option<&str>) -> Result<(), Refusal> {
    let reason = reason.unwrap_or_default();
    if reason.trim().is_empty() || is_visible(reason) {
        return Ok(());
    }
    let words = "the reason has no visible character";
    Err(Refusal::new(ErrorKind::Invalid, words, "give it in words, or leave it out"))
}

impl Control {
    /// Whether `asker` may do this, by the role in the certificate and whose the job is. A job
    /// that does not exist is nobody's: that it is not there is for others to say.
    ///
    /// # Errors
    /// [`ErrorKind::NotAllowed`], naming the role and what is needed.
    pub fn admit(&self, asker: &Asker, call: &Call) -> Result<(), Refusal> {
        let job = match call {
            Call::Change(change) => job_of_change(change),
            Call::Read(Read::Log { job, .. }) => Some(*job),
            Call::Read(_) | Call::Certificate(_) => None,
        };
        self.admit_deed(asker, Deed::of(call), job)
    }

    /// A change that is admitted is made, or refused for what it is.
    pub(crate) fn on_asked(&mut self, asked: Asked, change: Change) {
        let asker = Asker { user: asked.user.clone(), rank: asked.rank };
        let admitted = self.admit_change(&asker, &change).and_then(|()| self.admits_changes());
        match admitted.and_then(|()| legible(asked.reason.as_deref())) {
            Ok(()) => self.on_change(asked, change),
            Err(refusal) => self.reply(asked.request, Err(refusal)),
        }
    }

    /// As [`Self::admit`], of a change.
    fn admit_change(&self, asker: &Asker, change: &Change) -> Result<(), Refusal> {
        self.admit_deed(asker, Deed::of_change(change), job_of_change(change))
    }

    fn admit_deed(&self, asker: &Asker, deed: Deed, job: Option<JobId>) -> Result<(), Refusal> {
        let row = deed.row();
        let owner = job.and_then(|job| self.jobs.get(&job)).map(|job| job.record.user.as_str());
        let own = owner.is_none_or(|owner| owner == asker.user);
        if row.needs.admits(asker.rank, own) {
            return Ok(());
        }
        let (rank, user) = (asker.rank, &asker.user);
        let (what, needed, least) = match (row.needs, job) {
            (Needs::Own(least), Some(job)) => {
                let owner = owner.unwrap_or_default();
                (format!(" on {job} of {owner}"), format!("its owner or the role {least}"), least)
            }
            (Needs::Own(least) | Needs::Least(least), _) => {
                (String::new(), format!("the role {least}"), least)
            }
            (Needs::Any, _) => return Ok(()),
        };
        let name = row.name;
        Err(Refusal::new(
            ErrorKind::NotAllowed,
            format!("{rank} {user} may not do this: {name}{what} needs {needed}"),
            format!("use such a certificate (optimus cert issue {least} NAME); see optimus roles"),
        ))
    }

    /// [`Self::read`] for one who asks: refused by the table, and without what is not for them.
    ///
    /// # Errors
    /// As [`Self::admit`] and [`Self::read`].
    pub fn read_as(&self, now: Now, asker: &Asker, read: &Read) -> Reply {
        self.admit_deed(asker, Deed::of_read(read), None)?;
        let mut answer = self.read(now, read)?;
        if let Answer::Job(detail) = &mut answer {
            let own = detail.row.user == asker.user;
            if !Deed::ReadEnvironment.row().needs.admits(asker.rank, own) {
                for value in detail.spec.environment.values_mut() {
                    HIDDEN.clone_into(value);
                }
            }
        }
        Ok(answer)
    }

    /// [`Self::log_route`] for one who asks.
    ///
    /// # Errors
    /// As [`Self::admit`] and [`Self::log_route`].
    pub fn log_route_as(
        &self,
        asker: &Asker,
        job: JobId,
        generation: Option<u64>,
        task: Task,
        bytes_max: u32,
    ) -> Result<(NodeId, SessionId, AgentQuery), Refusal> {
        self.admit_deed(asker, Deed::ReadLog, Some(job))?;
        self.log_route(job, generation, task, bytes_max)
    }
}
