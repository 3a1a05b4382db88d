//! Taking a job in.

use model::access::Rank;
use model::client::{Answer, ErrorKind, Refusal, Reply};
use model::diverged::OnNan;
use model::job::CURVE_FIELD;
use model::{CheckpointId, Fault, JobId, JobOptions, JobSpec};
use scheduler::estimate::loss::Curve;

use crate::change::{Asked, DRY_RUN};
use crate::job::Job;
use crate::job::phase::{Phase, Wait};
use crate::record::{JobRecord, Progress};
use crate::step::Control;

const REQUEST_ID_MAX: usize = 128;

/// Everything wrong with a job, the syntax of its own curve included.
fn faults_of(spec: &JobSpec) -> Vec<Fault> {
    let mut faults = spec.faults();
    if !faults.iter().any(|fault| fault.field == CURVE_FIELD)
        && let Some(Err(problem)) = spec.finish.curve().map(Curve::parse)
    {
        let remedy = "write a formula in the step k, such as a/(k+b)+c, or remove it";
        faults.push(Fault::new(CURVE_FIELD, problem, remedy));
    }
    faults
}

impl Control {
    pub(crate) fn submit(
        &mut self,
        asked: &Asked,
        (spec, options, on_nan): (JobSpec, JobOptions, OnNan),
        request_id: Option<String>,
    ) -> Reply {
        if let Some(id) = &request_id {
            if id.is_empty() || id.len() > REQUEST_ID_MAX || id.chars().any(char::is_control) {
                return Err(Refusal::new(
                    ErrorKind::Invalid,
                    "the request id is not plain text of 1 to 128 bytes",
                    "use a short printable one, such as a UUID",
                ));
            }
            let known = self.requests.get(&(asked.user.clone(), id.clone()));
            if let Some(job) = known.and_then(|job| self.jobs.get(job)) {
                let age = self.now.unix.seconds_since(job.record.submitted);
                let job = job.id();
                return Ok(Answer::Submitted { job, created: false, submitted_s_ago: age });
            }
        }
        let mut faults = faults_of(&spec);
        faults.extend(options.faults());
        if !faults.is_empty() {
            let mut refusal = Refusal::new(
                ErrorKind::Invalid,
                format!("the job has {} faults", faults.len()),
                "correct each field as it says",
            );
            refusal.faults = faults;
            return Err(refusal);
        }
        if self.unfinished.len() >= self.settings.jobs_queued_max {
            return Err(Refusal::new(
                ErrorKind::Unavailable,
                format!("{} jobs are there already", self.unfinished.len()),
                "wait until some have ended, or raise limits.jobs_queued_max",
            ));
        }
        self.within_share(asked)?;
        if asked.dry_run {
            let note = format!("{DRY_RUN}; the job is valid");
            return Ok(Answer::Accepted { job: None, node: None, note });
        }
        let job = self.accept(asked, spec, request_id);
        if options != JobOptions::default() {
            self.job_mut(job).options = options;
            self.out.options.insert(job);
        }
        if on_nan != OnNan::Alert {
            self.job_mut(job).diverging.on_nan = on_nan;
            self.out.diverging.insert(job);
        }
        Ok(Answer::Submitted { job, created: true, submitted_s_ago: 0.0 })
    }

    /// One person's jobs leave room for those of others.
    fn within_share(&self, asked: &Asked) -> Result<(), Refusal> {
        let most = self.settings.jobs_per_user;
        // Whoever looks after the cluster may fill it.
        if asked.rank != Rank::User || self.unfinished.len() < most {
            return Ok(());
        }
        let own = self.unfinished.iter().filter(|id| self.job(**id).record.user == asked.user);
        let own = own.count();
        if own < most {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorKind::Unavailable,
            format!("{} has {own} jobs that have not ended, of at most {most}", asked.user),
            "wait until some have ended, cancel some, or ask an admin to raise \
             limits.jobs_per_user",
        ))
    }

    fn accept(&mut self, asked: &Asked, spec: JobSpec, request_id: Option<String>) -> JobId {
        self.meta.jobs += 1;
        self.out.meta = true;
        let id = JobId(self.meta.jobs);
        if let Some(request) = &request_id {
            self.requests.insert((asked.user.clone(), request.clone()), id);
        }
        let name = spec.name.clone();
        let record = JobRecord {
            id,
            spec,
            user: asked.user.clone(),
            request_id,
            submitted: self.now.unix,
            started: None,
            ended: None,
            phase: Phase::Queued {
                last: None,
                wait: Wait::Round { reason: "not evaluated yet".to_owned() },
            },
            last: None,
            pinned: None,
            once: None,
            wish: None,
            profiled: self.settings.profile_shapes_max == 0,
            measured: std::collections::BTreeSet::new(),
            progress: Progress::default(),
            checkpoints: Vec::new(),
            checkpoint_next: CheckpointId(1),
            litter: Vec::new(),
            decisions: Vec::new(),
            faults: Vec::new(),
            faults_in_row: 0,
            failures_in_row: 0,
            port_retries: 0,
            restarts: 0,
            rescales: 0,
            paused_s: 0.0,
            save_tries: 0,
            barred_rounds: 0,
            note: None,
            history: Vec::new(),
        };
        self.jobs.insert(id, Job::new(record, self.now.mono));
        self.unfinished.insert(id);
        self.touch(id);
        self.told(asked, Some(id), None, &format!("submitted {name}"));
        self.ask_round("a job arrived");
        id
    }
}
