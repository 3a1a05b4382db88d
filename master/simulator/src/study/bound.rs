//! What no policy can beat, whatever it knows.

use super::{Job, Workload};

/// Lower bounds on the mean JCT, in s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Each job alone in the whole pool, at its best speed.
    pub alone_s: f64,
    /// Each job at its least slot seconds for its work, as if any number of slots worked that
    /// well: then the pool is one machine, and shortest remaining first is the best.
    pub pooled_s: f64,
}

/// The bounds of a workload. The larger one counts.
#[must_use]
pub fn bounds(workload: &Workload) -> Bounds {
    let slots = workload.setting.slots;
    let shapes = || (1..slots).flat_map(move |p| (1..=slots - p).map(move |w| (p, w)));
    let best_of = |job: &Job, of: &dyn Fn(u32, u32) -> f64| {
        job.work / shapes().map(|(p, w)| of(p, w)).fold(f64::MIN_POSITIVE, f64::max)
    };
    let alone: Vec<f64> =
        workload.jobs.iter().map(|job| best_of(job, &|p, w| job.model.rate(p, w))).collect();
    let pooled: Vec<f64> = workload
        .jobs
        .iter()
        .map(|job| best_of(job, &|p, w| job.model.rate(p, w) / f64::from(p + w)))
        .map(|slot_s| slot_s / f64::from(slots))
        .collect();
    let arrivals: Vec<f64> = workload.jobs.iter().map(|job| job.arrival_s).collect();
    Bounds {
        alone_s: crate::outcome::mean(&alone).unwrap_or(0.0),
        pooled_s: shortest_first_s(&arrivals, pooled),
    }
}

/// Mean time in the system on one machine that always works on the job with the least left.
/// Arrivals ascend.
pub(crate) fn shortest_first_s(arrivals: &[f64], mut left: Vec<f64>) -> f64 {
    let (mut now, mut next, mut times) = (0.0, 0, Vec::new());
    let mut here: Vec<usize> = Vec::new();
    while next < arrivals.len() || !here.is_empty() {
        let first = here.iter().copied().min_by(|a, b| left[*a].total_cmp(&left[*b]));
        let comes = arrivals.get(next).copied().unwrap_or(f64::INFINITY);
        match first {
            Some(job) if now + left[job] <= comes => {
                now += left[job];
                times.push(now - arrivals[job]);
                here.retain(|other| *other != job);
            }
            Some(job) => {
                left[job] -= comes - now;
                now = comes;
                here.push(next);
                next += 1;
            }
            None => {
                now = comes;
                here.push(next);
                next += 1;
            }
        }
    }
    crate::outcome::mean(&times).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_shortest_goes_first() {
        let mean = super::shortest_first_s(&[0.0, 1.0], vec![10.0, 2.0]);
        assert!((mean - 7.0).abs() < 1e-9, "12 and 2: {mean}");
    }
}
