//! What a policy of the replay is asked, and what it may know.

use std::fmt;

use scheduler::baseline::gpus::Replicas;
use scheduler::goodput::fit::Observation;
use scheduler::goodput::{Elastic, Limits};

use super::app::App;
use super::rows::Row;

/// A policy: from what it sees of the jobs to the GPUs of each. It may keep what it likes from one
/// round to the next; jobs are known by [`JobView::id`].
pub trait Planner: fmt::Debug {
    fn name(&self) -> &'static str;

    /// Who chooses the batches of the jobs.
    fn batching(&self) -> Batching;

    /// Whether it is asked at every arrival and completion too, and when a job has been timed for
    /// the first time: else only at the end of each interval.
    fn acts_at_events(&self) -> bool {
        false
    }

    /// The replicas of each job on its nodes, in the order of the view's jobs; of up to four nodes
    /// the order counts, as rings are measured. An allocation other than what the job holds costs
    /// a restart.
    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>>;
}

/// Who chooses the batches of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Their owners: the workload's column.
    Stated,
    /// Each job by its goodput, as far as it has learned it; at its start the initial batch.
    Goodput,
}

/// The cluster and the jobs that were submitted and have not ended, in order of submission.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub now_s: f64,
    /// GPUs of each node.
    pub gpus: &'a [u32],
    /// What each start and restart costs, in s.
    pub restart_s: f64,
    /// Until the next round, in s.
    pub interval_s: f64,
    pub jobs: Vec<JobView<'a>>,
}

/// A job as a policy sees it.
#[derive(Clone, Debug)]
pub struct JobView<'a> {
    /// Its place in the workload.
    pub id: usize,
    pub row: &'a Row,
    pub limits: Limits,
    /// Most replicas that the measurements, or a pinned batch, allow.
    pub replicas_max: u32,
    /// Whether its batch and its one replica are given.
    pub pinned: bool,
    /// Empty where it waits.
    pub held: &'a [Replicas],
    /// Since its submission, in s.
    pub age_s: f64,
    /// GPU seconds that it held, and seconds in which it held any.
    pub attained_gpu_s: f64,
    pub executed_s: f64,
    /// Without the first start.
    pub restarts: u32,
    /// What is still to be paid of the last one, in s.
    pub restart_left_s: f64,
    /// Epochs that it has behind it, and those that it is to run in all.
    pub epoch: usize,
    pub epochs: usize,
    /// Steps at the initial batch that it has made, and those that are left: known from the
    /// number of epochs that its owner states.
    pub progress: f64,
    pub work_left: f64,
    /// What was learned of its goodput, where batches are chosen by it.
    pub elastic: Option<Elastic>,
    /// Times of its steps, one for each shape and batch that was timed.
    pub timed: &'a [Observation],
    /// The truth about it: for oracles only.
    pub app: &'a App,
}
