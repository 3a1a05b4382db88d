//! What operators read: rows and details, made from the present state.

use model::client::{Answer, ErrorKind, Read, Refusal, Reply};
use model::notes::DataReport;
use model::view::{
    CheckpointView, DataSize, DataView, EpochView, Estimate, EventView, JobDetail, JobMore, JobRow,
    LossFitView, RoundDetail, RoundJobView, RoundRow, SpeedFitView, SpeedSampleView, TaskView,
};
use model::{Generation, JobId, NodeId, RoundId, Task};

use crate::event::{Now, SessionId};
use crate::job::Job;
use crate::job::estimate::{Left, left};
use crate::job::progress::work_per_step;
use crate::record::RoundRecord;
use crate::step::Control;

/// Rows of one answer: a frame holds 4 MiB.
const ROWS_MAX: usize = 10_000;
const EPOCHS_SHOWN: usize = 1_000;

/// A job's data set, with its size once an agent has told.
fn data_view(job: &Job) -> Option<DataView> {
    let size = |told: DataReport| DataSize {
        chunks: told.chunks,
        records: told.records,
        bytes: told.bytes,
    };
    let spec = job.options.data.clone()?;
    Some(DataView { spec, found: job.data.map(size) })
}

impl Control {
    /// Answers a question about the state; times are relative to `now`. Logs and snapshots are
    /// not read from here.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for what is not there, [`ErrorKind::Invalid`] for a question that
    /// another part answers.
    pub fn read(&self, now: Now, read: &Read) -> Reply {
        match read {
            Read::Jobs => {
                let rows = self.jobs.values().rev().take(ROWS_MAX);
                let mut rows: Vec<JobRow> = rows.map(|job| self.job_row(now, job)).collect();
                rows.reverse();
                Ok(Answer::Jobs(rows))
            }
            Read::NodeMore { node } => match self.nodes.get(node) {
                Some(node) => Ok(Answer::NodeMore(Box::new(self.node_more(node)))),
                None => Err(no_such(format!("no node {node}"))),
            },
            Read::Doctor => Ok(Answer::Doctor(self.findings(now))),
            Read::Audit { .. } => Err(Refusal::new(
                ErrorKind::Unavailable,
                "this master does not know the question",
                "upgrade the master",
            )),
            Read::Job { job } => {
                let job = self.asked_job(*job)?;
                Ok(Answer::Job(Box::new(self.job_detail(now, job))))
            }
            Read::JobMore { job } => {
                let job = self.asked_job(*job)?;
                let assignment = crate::job::blocks::spread(job);
                Ok(Answer::JobMore(Box::new(JobMore {
                    assignment,
                    data: data_view(job),
                    pauses: job.pauses.done.clone(),
                })))
            }
            Read::Why { job } => {
                self.asked_job(*job)?;
                let why = self.why(*job).map(Box::new);
                why.map(Answer::Why).ok_or_else(|| no_such(format!("no job {job}")))
            }
            Read::Events { job, after, limit } => {
                Ok(Answer::Events(self.events_after(*job, *after, *limit)))
            }
            Read::Rounds { limit } => {
                let limit = usize::try_from(*limit).unwrap_or(ROWS_MAX).min(ROWS_MAX);
                let newest = self.rounds.values().rev().take(limit);
                let mut rows: Vec<RoundRow> = newest.map(round_row).collect();
                rows.reverse();
                Ok(Answer::Rounds(rows))
            }
            Read::Round { round } => self.round_detail(*round),
            Read::Nodes => {
                let rows = self.nodes.values().take(ROWS_MAX);
                Ok(Answer::Nodes(rows.map(|node| self.node_row(now, node)).collect()))
            }
            Read::Node { node } => match self.nodes.get(node) {
                Some(node) => Ok(Answer::Node(Box::new(self.node_detail(now, node)))),
                None => Err(no_such(format!("no node {node}"))),
            },
            Read::Status => Ok(Answer::Status(Box::new(self.status(now)))),
            Read::Log { .. } | Read::Snapshot => Err(Refusal::new(
                ErrorKind::Invalid,
                "logs and snapshots are not part of the state",
                "ask the master's own route for them",
            )),
        }
    }

    /// Where the end of a task's output is to be asked: the node that carries or carried it.
    /// Without a generation, the newest that had such a task.
    ///
    /// # Errors
    /// Where the job, the generation or the task is not known, or its node is not connected.
    pub fn log_route(
        &self,
        job: JobId,
        generation: Option<u64>,
        task: Task,
        bytes_max: u32,
    ) -> Result<(NodeId, SessionId, model::agent::AgentQuery), Refusal> {
        let known = self.asked_job(job)?;
        let found = known.record.history.iter().rev().find_map(|(number, placement)| {
            let asked = generation.is_none_or(|asked| number.0 == asked);
            let node = placement.node_of(task).filter(|_| asked)?;
            Some((*number, node.clone()))
        });
        let Some((generation, node)) = found else {
            let known: Vec<String> =
                known.record.history.iter().map(|(number, _)| number.to_string()).collect();
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            return Err(Refusal::new(
                ErrorKind::NotFound,
                format!("no {task} in the generations of {job} that are remembered ({known})"),
                "see optimus show for its tasks",
            ));
        };
        let session = self.nodes.get(&node).and_then(|node| node.session);
        let session = session.ok_or_else(|| {
            Refusal::new(
                ErrorKind::Unavailable,
                format!("{node}, which holds the output of {task}, is not connected"),
                "try again once it is UP",
            )
        })?;
        let generation: Option<Generation> = Some(generation);
        let query = model::agent::AgentQuery::Log { job, generation, task, bytes_max };
        Ok((node, session, query))
    }

    fn events_after(&self, job: Option<JobId>, after: u64, limit: u32) -> Vec<EventView> {
        let limit = usize::try_from(limit).unwrap_or(ROWS_MAX).min(ROWS_MAX);
        let from = after.saturating_add(1);
        let of = |event: &&EventView| job.is_none_or(|job| event.job == Some(job));
        if after == 0 {
            // The newest ones, in order.
            let mut newest: Vec<EventView> =
                self.events.values().rev().filter(of).take(limit).cloned().collect();
            newest.reverse();
            return newest;
        }
        self.events.range(from..).map(|(_, event)| event).filter(of).take(limit).cloned().collect()
    }

    /// Seconds that the work left takes at the present shape: as measured, else as predicted.
    fn left_s(&self, job: &Job, left: &Left) -> Option<Estimate> {
        let shape = job.shape();
        if shape.is_empty() {
            return None;
        }
        let work_per_s = self.speed_now(job) * work_per_step(job, shape.workers);
        (work_per_s > 0.0).then(|| left.scaled(1.0 / work_per_s)).flatten()
    }

    pub(crate) fn job_row(&self, now: Now, job: &Job) -> JobRow {
        let record = &job.record;
        let live = job.live.as_ref();
        let speed = live.and_then(|live| {
            live.recent_steps_per_s.or_else(|| live.measured.map(|(speed, _)| speed))
        });
        let left = if job.phase().is_final() { None } else { left(job).ok() };
        let until = record.ended.unwrap_or(now.unix);
        JobRow {
            id: record.id,
            name: record.spec.name.clone(),
            user: record.user.clone(),
            phase: job.phase_name(),
            reason: self.reason(job),
            generation: record.last,
            shape: job.shape(),
            step: record.progress.step,
            epoch: record.progress.epoch,
            loss: record.progress.loss,
            steps_per_s: speed,
            remaining_s: left.and_then(|left| self.left_s(job, &left)).map(|left| left.value),
            rescales: record.rescales,
            restarts: record.restarts,
            submitted: record.submitted,
            started: record.started,
            ended: record.ended,
            age_s: until.seconds_since(record.submitted),
        }
    }

    fn job_detail(&self, now: Now, job: &Job) -> JobDetail {
        let record = &job.record;
        let shape = job.shape();
        let left = left(job);
        let live = job.live.as_ref();
        let per_step = work_per_step(job, shape.workers);
        let known = left.as_ref().ok().filter(|_| !job.phase().is_final());
        let placement = job.placement();
        JobDetail {
            row: self.job_row(now, job),
            spec: record.spec.clone(),
            pinned: record.pinned.is_some(),
            cross_node_share: if shape.is_empty() {
                0.0
            } else {
                scheduler::place::cross_node_share(&placement)
            },
            placement,
            remaining_epochs: known.map(|left| left.epochs),
            remaining_steps: known
                .filter(|_| per_step > 0.0)
                .and_then(|l| l.scaled(1.0 / per_step)),
            remaining_s: known.and_then(|left| self.left_s(job, left)),
            remaining_unknown: left.as_ref().err().cloned(),
            loss_fit: job.loss_fit.as_ref().and_then(|fit| fit.as_ref().ok()).map(|fit| {
                LossFitView { beta: fit.beta, scale: fit.scale, rmse: fit.rmse, points: fit.points }
            }),
            speed_fit: self.speed_fit_view(job),
            steps_per_s_predicted: self
                .speed_model(job)
                .filter(|_| !shape.is_empty())
                .map(|model| model.steps_per_s(shape)),
            steps_per_s_measured: live.and_then(|live| live.measured).map(|(speed, _)| speed),
            samples_per_epoch: record.progress.samples_per_epoch,
            loss_not_finite_since: record.progress.loss_not_finite_since,
            epochs: epochs_shown(job),
            tasks: self.task_views(job),
            checkpoints: checkpoints_shown(job),
            decisions: record.decisions.clone(),
            faults: record.faults.clone(),
            paused_s: record.paused_s,
        }
    }

    fn speed_fit_view(&self, job: &Job) -> Option<SpeedFitView> {
        let speed = self.speeds.get(&job.speed_key())?;
        let model = speed.model.as_ref().and_then(|model| model.as_ref().ok());
        let samples = speed.samples.iter().map(|(shape, point)| SpeedSampleView {
            shape: *shape,
            steps_per_s: point.steps_per_s,
            seconds: point.seconds,
            profiled: point.profiled,
        });
        Some(SpeedFitView {
            theta: model.map(|model| model.theta.clone()).unwrap_or_default(),
            rmse_relative: model.map_or(0.0, |model| model.rmse_relative),
            samples: samples.collect(),
        })
    }

    fn task_views(&self, job: &Job) -> Vec<TaskView> {
        let Some(life) = job.life() else { return Vec::new() };
        let mut views = Vec::new();
        for share in &life.placement.0 {
            for task in life.placement.tasks_on(&share.node) {
                let (state, pid) = self.task_state(job, task);
                let worker = job
                    .live
                    .as_ref()
                    .filter(|_| task.role == model::Role::Worker)
                    .and_then(|live| live.workers.get(&task.index));
                let speed = worker.and_then(|worker| worker.speed_since(&worker.base));
                let compute = worker.and_then(|worker| {
                    let wall = worker.report.steps_s - worker.base.steps_s;
                    let own = worker.report.compute_s - worker.base.compute_s;
                    (wall > 0.0).then(|| (own / wall).clamp(0.0, 1.0))
                });
                views.push(TaskView {
                    task: task.to_string(),
                    node: share.node.clone(),
                    state,
                    pid,
                    steps_per_s: speed.map(|(speed, _)| speed),
                    compute_share: compute,
                });
            }
        }
        views
    }

    fn round_detail(&self, id: RoundId) -> Reply {
        let record = self.rounds.get(&id).ok_or_else(|| no_such(format!("no round {id}")))?;
        let jobs = record.jobs.iter().map(|entry| RoundJobView {
            id: entry.job,
            verb: entry.verb.clone(),
            from: entry.from,
            to: entry.to,
            reason: entry.reason.clone(),
            predicted_steps_per_s: entry.predicted_steps_per_s,
            measured_steps_per_s: entry.measured_steps_per_s,
            remaining_s: entry.remaining_s,
            placement: entry.placement.clone(),
        });
        Ok(Answer::Round(Box::new(RoundDetail {
            row: round_row(record),
            policy: record.policy.clone(),
            jobs: jobs.collect(),
            dropped: record.dropped.clone(),
            used: record.used.clone(),
        })))
    }
}

fn epochs_shown(job: &Job) -> Vec<EpochView> {
    let epochs = &job.progress().epochs;
    let from = epochs.len().saturating_sub(EPOCHS_SHOWN);
    let shown = epochs[from..].iter();
    shown.map(|mark| EpochView { epoch: mark.epoch, step: mark.step, loss: mark.loss }).collect()
}

fn checkpoints_shown(job: &Job) -> Vec<CheckpointView> {
    let shown = job.record.checkpoints.iter().map(|checkpoint| CheckpointView {
        id: checkpoint.id,
        generation: checkpoint.generation,
        step: checkpoint.step,
        epoch: checkpoint.epoch,
        bytes: checkpoint.bytes,
        at: checkpoint.at,
        url: checkpoint.manifest_url.clone(),
    });
    shown.collect()
}

fn round_row(round: &RoundRecord) -> RoundRow {
    RoundRow {
        id: round.id,
        at: round.at,
        cause: round.cause.clone(),
        jobs: round.jobs_seen,
        started: round.started,
        rescaled: round.rescaled,
        waiting: round.waiting,
        elapsed_s: round.elapsed_s,
    }
}

fn no_such(message: String) -> Refusal {
    Refusal::new(ErrorKind::NotFound, message, "list them to see which there are")
}
