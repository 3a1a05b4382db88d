//! Where a job's parameter blocks lie (section 5.3).
//!
//! Only the workers know the blocks, and all of a generation must agree on where these lie. So it
//! is decided at the start of a generation whether they wait to be told; once the worker of rank 0
//! has said what the blocks are, all are told the same. The blocks outlive the generation: the
//! next one need not wait.

use model::notes::{AssignmentOrder, BLOCK_PARAMETERS_MAX, BLOCKS_MAX, BlockPart, BlocksReport};
use model::options::AssignmentKind;
use model::view::AssignmentView;
use model::{Generation, JobId, NodeId, Role};
use scheduler::assign::{Algorithm, Assignment, assign};

use crate::job::Job;
use crate::step::Control;

/// The parameter blocks of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Blocks {
    /// Parameters of each, in the order of initialisation; empty until they are known.
    sizes: Vec<u64>,
    /// The newest generation that was started to be told where they lie.
    assigned: Option<Generation>,
    /// Where they lie in the present generation.
    made: Option<(Algorithm, Assignment)>,
}

impl Blocks {
    pub(crate) fn restored(sizes: Vec<u64>, assigned: Option<Generation>) -> Self {
        Self { sizes, assigned, made: None }
    }

    pub(crate) fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    pub(crate) fn assigned(&self) -> Option<Generation> {
        self.assigned
    }

    /// Whether there is anything to keep.
    pub(crate) fn is_known(&self) -> bool {
        *self != Self::default()
    }

    /// Makes the assignment of a generation, where the blocks are known.
    fn make(&mut self, generation: Generation, servers: u32) {
        let told = self.assigned == Some(generation);
        let algorithm = if told { Algorithm::Best } else { Algorithm::Mxnet };
        // What cannot be assigned is not shown; bounds on what enters leave MXNet's rule alone
        // with that, which the workers follow without us.
        let made = assign(&self.sizes, servers, algorithm).ok();
        self.made = made.map(|made| (algorithm, made));
    }

    /// What the workers of a generation are told.
    pub(crate) fn order(&self, generation: Generation) -> AssignmentOrder {
        if self.assigned != Some(generation) {
            return AssignmentOrder::Stock;
        }
        let Some((_, made)) = &self.made else { return AssignmentOrder::Wait };
        let parts = made.blocks.iter().map(|parts| {
            let part = |part: &scheduler::assign::Part| BlockPart {
                server: part.server,
                parameters: part.parameters,
            };
            parts.iter().map(part).collect()
        });
        AssignmentOrder::Given(parts.collect())
    }
}

impl Control {
    /// Decides for a generation that is about to start: its workers wait to be told where blocks
    /// lie if the job has it so, and every agent of it can tell them.
    pub(crate) fn decide_assignment(&mut self, id: JobId) {
        let job = self.job(id);
        let Some(life) = job.life() else { return };
        let (generation, servers) = (life.generation, life.shape().servers);
        let wanted = match job.options.assignment {
            AssignmentKind::Paa => true,
            AssignmentKind::Mxnet => false,
        };
        let can = |node: &NodeId| self.nodes.get(node).is_some_and(|node| node.tells_notes);
        let told = wanted && life.placement.0.iter().all(|share| can(&share.node));
        let blocks = &mut self.job_mut(id).blocks;
        let before = blocks.assigned;
        blocks.assigned = told.then_some(generation);
        blocks.make(generation, servers);
        if blocks.assigned != before {
            self.out.blocks.insert(id);
        }
    }

    /// The state of a job was read from disk.
    pub(crate) fn restore_assignment(job: &mut Job, blocks: Blocks) {
        job.blocks = blocks;
        let life = job.record.phase.life();
        if let Some((generation, shape)) = life.map(|life| (life.generation, life.shape())) {
            job.blocks.make(generation, shape.servers);
        }
    }

    pub(crate) fn on_blocks(&mut self, node: &NodeId, report: BlocksReport) {
        let Some(job) = self.jobs.get_mut(&report.job) else {
            self.count("parameter blocks of an unknown job");
            return;
        };
        let life = job.record.phase.life().filter(|life| {
            let works = |task: &model::Task| task.role == Role::Worker;
            life.generation == report.generation && life.placement.tasks_on(node).iter().any(works)
        });
        let Some(life) = life else {
            self.count("parameter blocks of another generation");
            return;
        };
        let (generation, servers) = (life.generation, life.shape().servers);
        let sane = (1..=BLOCKS_MAX).contains(&report.blocks.len())
            && report.blocks.iter().all(|block| *block <= BLOCK_PARAMETERS_MAX);
        if !sane {
            self.count("parameter blocks out of range");
            return;
        }
        if job.blocks.sizes == report.blocks {
            return;
        }
        // Also where others were known: a script that was changed fails once, on what it was told
        // before, and its next generation is told the right thing.
        job.blocks.sizes = report.blocks;
        job.blocks.make(generation, servers);
        self.out.blocks.insert(report.job);
        self.mark_desired(report.job);
    }
}

/// How the blocks of a running job are spread over its servers, once they are known.
pub(crate) fn spread(job: &Job) -> Option<AssignmentView> {
    job.life()?;
    let (algorithm, made) = job.blocks.made.as_ref()?;
    let sizes = made.servers.iter().map(|server| server.parameters);
    Some(AssignmentView {
        algorithm: algorithm.name().to_owned(),
        blocks: u64::try_from(made.blocks.len()).unwrap_or(u64::MAX),
        servers: u32::try_from(made.servers.len()).unwrap_or(u32::MAX),
        parameters: sizes.clone().sum(),
        parameters_largest: sizes.max().unwrap_or(0),
        requests: made.requests(),
        requests_largest: made.servers.iter().map(|server| server.requests).max().unwrap_or(0),
    })
}
