//! What our own policy gives jobs that state their goodput.

use model::job::TASKS_MAX;

use super::{Found, Seeker, Why};
use crate::estimate::speed::SpeedForm;
use crate::goodput::horizon::{Candidate, Memory, Settings, plan};
use crate::goodput::{Elastic, Spread};
use crate::round::Round;
use crate::snapshot::{JobInput, Want};

impl Round<'_> {
    /// What the look ahead finds.
    pub(super) fn foreseen(
        &self,
        slots: &[u16],
        (jobs, seekers): (&[usize], &[Seeker]),
        memory: &mut Memory,
    ) -> Found {
        let mut settings = Settings::default();
        settings.foresight.fairness = self.policy.fairness;
        // Ages come from the clock, not from the jobs' reports.
        let elastics: Vec<Elastic> = jobs
            .iter()
            .zip(seekers)
            .map(|(job, seeker)| Elastic {
                age_s: self.now.seconds_since(self.entries[*job].input.arrival),
                ..(*seeker.elastic).clone()
            })
            .collect();
        let work: Vec<Work> = jobs
            .iter()
            .zip(seekers)
            .map(|(job, seeker)| self.work(self.entries[*job].input, seeker, settings.unknown_s))
            .collect();
        let asked: Vec<Candidate<'_>> = jobs
            .iter()
            .zip(seekers.iter().zip(&elastics))
            .zip(&work)
            .map(|((job, (seeker, elastic)), work)| {
                let entry = &self.entries[*job];
                let had = entry.input.attained_s;
                Candidate {
                    id: entry.input.id,
                    elastic,
                    current: &seeker.current,
                    work_done: work.done,
                    work_left: work.left,
                    replicas_min: seeker.least,
                    replicas_max: seeker.most.min(TASKS_MAX),
                    attained_gpu_s: if had.is_finite() { had.max(0.0) } else { 0.0 },
                    rescale_s: entry.cost_s,
                    restart_left_s: 0.0,
                    priority: entry.gains.weight,
                    rates: None,
                }
            })
            .collect();
        let found = plan(slots, &asked, memory, &settings);
        let why = found.given.iter().zip(&work).map(|(given, work)| {
            let end_s = given.end_s.filter(|end_s| end_s.is_finite() && work.is_known);
            let end = end_s.map(|end_s| format!(", it is projected to end in {end_s:.0} s"));
            Why {
                nothing: "all jobs together end sooner with others first".to_owned(),
                beside: end.unwrap_or_else(|| "; its end is not known yet".to_owned()),
            }
        });
        Found { why: why.collect(), rows: found.rows }
    }

    /// A job's work. What it has done is taken from the GPU seconds that it had, at the goodput
    /// that it has now; of a job whose end is not known as much is left as it would do in the time
    /// that the policy assumes for such jobs, and at least as much as it did up to now, as long
    /// ones are met more often.
    fn work(&self, input: &JobInput, seeker: &Seeker, untimed_s: f64) -> Work {
        let elastic = &seeker.elastic;
        let initial = f64::from(elastic.limits.initial.max(1));
        let held: u32 = seeker.current.iter().map(|here| u32::from(*here)).sum();
        let nodes = seeker.current.iter().filter(|here| **here > 0).count();
        let spread = Spread::new(u32::try_from(nodes.max(1)).unwrap_or(1), held.max(1));
        let sound = |value: &f64| value.is_finite() && *value >= 0.0;
        let rate = elastic.best_batch(spread).map(|best| best.goodput / initial).filter(sound);
        let had = Some(input.attained_s).filter(sound).unwrap_or(0.0);
        let ran_s = had / f64::from(held.max(1));
        let done = rate.map_or(0.0, |rate| rate * ran_s);
        let stated = match &input.want {
            Want::Share { speed, remaining } => remaining.map(|left| match speed.form {
                SpeedForm::SyncPerWorker { .. } => left.value / initial,
                SpeedForm::SyncGlobal { .. } | SpeedForm::Async => left.value,
            }),
            Want::Profile { .. } | Want::Pinned { .. } => None,
        };
        match stated.filter(sound) {
            Some(left) => Work { done, left, is_known: true },
            None => {
                let left = match rate {
                    Some(rate) => (self.policy.unknown_remaining_s * rate).max(done),
                    // In units that make it as long as other jobs that were not timed.
                    None => self.policy.unknown_remaining_s / untimed_s.max(1.0),
                };
                Work { done, left: if sound(&left) { left } else { 1.0 }, is_known: false }
            }
        }
    }
}

/// In steps at the initial batch.
struct Work {
    done: f64,
    left: f64,
    is_known: bool,
}
