//! Our own policy: goodput as each job's agent has learned it, and what is left of the epochs that
//! its owner states.

use model::JobId;
use scheduler::baseline::gpus::Replicas;
use scheduler::goodput::Elastic;
use scheduler::goodput::horizon::{Candidate, Memory, Settings, plan};

use super::planner::{Batching, Planner, View};

/// Our own policy, with its knobs.
#[derive(Debug, Default)]
pub struct Horizon {
    settings: Settings,
    memory: Memory,
}

impl Horizon {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, memory: Memory::default() }
    }
}

impl Planner for Horizon {
    fn name(&self) -> &'static str {
        "horizon"
    }

    fn batching(&self) -> Batching {
        Batching::Goodput
    }

    fn acts_at_events(&self) -> bool {
        true
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let gpus: Vec<u16> = view.gpus.iter().map(|gpus| narrow(*gpus)).collect();
        let known: Vec<(usize, &Elastic, Vec<u16>)> = view
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(at, job)| {
                let mut current = vec![0; gpus.len()];
                for here in job.held {
                    current[here.node] = narrow(here.count);
                }
                Some((at, job.elastic.as_ref()?, current))
            })
            .collect();
        let candidates: Vec<Candidate<'_>> = known
            .iter()
            .map(|(at, elastic, current)| {
                let job = &view.jobs[*at];
                Candidate {
                    id: JobId(u64::try_from(job.id).unwrap_or(u64::MAX)),
                    elastic,
                    current,
                    work_done: job.progress,
                    work_left: job.work_left,
                    replicas_max: job.replicas_max,
                    attained_gpu_s: job.attained_gpu_s,
                    restart_left_s: job.restart_left_s,
                    priority: 1.0,
                }
            })
            .collect();
        let settings = Settings { rescale_s: view.restart_s, ..self.settings };
        let rows = plan(&gpus, &candidates, &mut self.memory, &settings);
        let mut given = vec![Vec::new(); view.jobs.len()];
        for ((at, ..), row) in known.iter().zip(rows) {
            let held = row.iter().enumerate().filter(|(_, count)| **count > 0);
            given[*at] =
                held.map(|(node, count)| Replicas { node, count: u32::from(*count) }).collect();
        }
        given
    }
}

fn narrow(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
