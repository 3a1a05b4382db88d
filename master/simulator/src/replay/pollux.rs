//! Pollux: goodput as each job's agent has learned it, and a genetic search in every round.

use model::JobId;
use rand_pcg::Pcg64Mcg;
use scheduler::baseline::gpus::Replicas;
use scheduler::goodput::Elastic;
use scheduler::goodput::genetic::{Candidate, Population, Settings, search};

use super::planner::{Batching, Planner, View};
use crate::random::stream;

/// Pollux with its search as the paper has it.
#[derive(Debug)]
pub struct Pollux {
    settings: Settings,
    population: Population,
    chance: Pcg64Mcg,
}

impl Pollux {
    /// Each seed is another course of the search.
    #[must_use]
    pub fn new(seed: u64, settings: Settings) -> Self {
        let (population, chance) = (Population::default(), stream(seed, "pollux"));
        Self { settings, population, chance }
    }
}

impl Planner for Pollux {
    fn name(&self) -> &'static str {
        "pollux"
    }

    fn batching(&self) -> Batching {
        Batching::Goodput
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
                    attained_gpu_s: job.attained_gpu_s,
                    submitted_s: job.row.time,
                }
            })
            .collect();
        let settings = Settings { rescale_s: view.restart_s, ..self.settings };
        let rows = search(&gpus, &candidates, &mut self.population, &mut self.chance, &settings);
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
