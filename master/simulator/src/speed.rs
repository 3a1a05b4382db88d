//! True speeds: a measured table read between its points, or Eqns. (3) and (4).

use std::collections::BTreeMap;

use model::{Batch, Mode, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel, SpeedSample, fit};

use crate::workload::Speed;

/// A speed that is asked for often.
#[derive(Clone, Debug)]
pub struct Rates {
    known: Known,
    /// What a scheduler can know of it: θ itself, or the best fit to the table.
    model: SpeedModel,
}

#[derive(Clone, Debug)]
enum Known {
    Theta,
    /// By servers, then by workers: the logarithm of the speed.
    Table(BTreeMap<u32, Vec<(u32, f64)>>),
}

impl Rates {
    /// # Errors
    /// What is wrong with the speed, in words.
    pub fn new(speed: &Speed, mode: Mode, batch: Batch) -> Result<Self, String> {
        let form = SpeedForm::of(mode, batch);
        match speed {
            Speed::Theta(model) => {
                let usable = model.theta.len() == form.coefficients()
                    && model.form == form
                    && model.theta.iter().all(|theta| theta.is_finite() && *theta >= 0.0)
                    && model.theta.iter().any(|theta| *theta > 0.0);
                if !usable {
                    return Err(format!("theta {:?} is not one of its form", model.theta));
                }
                Ok(Self { known: Known::Theta, model: model.clone() })
            }
            Speed::Table(points) => {
                let mut rows: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
                let mut samples = Vec::new();
                for (shape, speed) in points {
                    let Shape { servers, workers } = *shape;
                    if !speed.is_finite() || *speed <= 0.0 || servers == 0 || workers == 0 {
                        return Err(format!("{speed} at {shape} is not a speed"));
                    }
                    rows.entry(servers).or_default().push((workers, libm::log(*speed)));
                    let steps_per_s = speed / work_per_step(mode, batch, workers);
                    samples.push(SpeedSample { shape: *shape, steps_per_s, weight: 1.0 });
                }
                for row in rows.values_mut() {
                    row.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
                    row.dedup_by_key(|(workers, _)| *workers);
                }
                let model = fit(form, &samples).map_err(|none| none.to_string())?;
                Ok(Self { known: Known::Table(rows), model })
            }
        }
    }

    /// Work a second at a shape: samples where each worker keeps its batch, else steps.
    ///
    /// Between the points of a table the logarithm of the speed is linear in the logarithms of
    /// the numbers of workers and of servers: first along the workers, in the measured numbers of
    /// servers next below and above, then between these two. Outside, the nearest point's speed
    /// holds: nothing is extrapolated. Rows that do not reach the number of workers are passed
    /// over where others do.
    #[must_use]
    pub fn work_per_s(&self, shape: Shape) -> f64 {
        if shape.servers == 0 || shape.workers == 0 {
            return 0.0;
        }
        match &self.known {
            Known::Theta => self.model.work_per_s(shape),
            Known::Table(rows) => libm::exp(between(rows, shape)),
        }
    }

    /// What a scheduler can know of it at best.
    #[must_use]
    pub const fn model(&self) -> &SpeedModel {
        &self.model
    }

    /// The share of a step that goes over the network at a shape: the term in w/p.
    #[must_use]
    pub fn network_share(&self, shape: Shape) -> f64 {
        let (p, w) = (f64::from(shape.servers), f64::from(shape.workers));
        let (theta, steps_per_s) = (&self.model.theta, self.model.steps_per_s(shape));
        let (ratio, seconds) = match self.model.form {
            SpeedForm::Async => (theta[1], w / steps_per_s),
            SpeedForm::SyncGlobal { .. } | SpeedForm::SyncPerWorker { .. } => {
                (theta[2], 1.0 / steps_per_s)
            }
        };
        let share = ratio * w / p / seconds;
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Work of one step with so many workers: samples where each keeps its batch, else 1.
#[must_use]
pub fn work_per_step(mode: Mode, batch: Batch, workers: u32) -> f64 {
    match (mode, batch) {
        (Mode::Sync, Batch::PerWorker(batch)) => f64::from(batch) * f64::from(workers),
        (Mode::Sync, Batch::Global(_)) | (Mode::Async, _) => 1.0,
    }
}

/// The logarithm of the speed at a shape; the table is not empty.
fn between(rows: &BTreeMap<u32, Vec<(u32, f64)>>, shape: Shape) -> f64 {
    let reaches = |row: &[(u32, f64)]| {
        let (first, last) = (row.first(), row.last());
        first.is_some_and(|point| point.0 <= shape.workers)
            && last.is_some_and(|point| shape.workers <= point.0)
    };
    let wide = rows.values().any(|row| reaches(row));
    let fits = |row: &&Vec<(u32, f64)>| !wide || reaches(row);
    let below = rows.range(..=shape.servers).rev().find(|(_, row)| fits(row));
    let above = rows.range(shape.servers..).find(|(_, row)| fits(row));
    let at = |row: &[(u32, f64)]| {
        let next = row.partition_point(|point| point.0 < shape.workers);
        let above = row.get(next).or_else(|| row.last()).copied().unwrap_or((1, 0.0));
        let below = next.checked_sub(1).and_then(|before| row.get(before)).copied();
        line(below.unwrap_or(above), above, shape.workers)
    };
    match (below, above) {
        (Some((p0, low)), Some((p1, high))) => line((*p0, at(low)), (*p1, at(high)), shape.servers),
        (Some((_, row)), None) | (None, Some((_, row))) => at(row),
        (None, None) => 0.0,
    }
}

/// Linear in the logarithm of the count, constant outside.
fn line(from: (u32, f64), to: (u32, f64), at: u32) -> f64 {
    if at <= from.0 || to.0 <= from.0 {
        return from.1;
    }
    if at >= to.0 {
        return to.1;
    }
    let ln = |count: u32| libm::log(f64::from(count));
    let share = (ln(at) - ln(from.0)) / (ln(to.0) - ln(from.0));
    from.1 + (to.1 - from.1) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(points: &[(u32, u32, f64)]) -> Rates {
        let points = points.iter().map(|(p, w, speed)| (Shape::new(*p, *w), *speed)).collect();
        Rates::new(&Speed::Table(points), Mode::Sync, Batch::Global(64)).expect("it is sound")
    }

    #[test]
    fn a_table_is_met_at_its_points_and_nothing_is_extrapolated() {
        let rates = table(&[(1, 1, 1.0), (1, 4, 2.0), (4, 1, 1.0), (4, 4, 3.0)]);
        let at = |p, w| rates.work_per_s(Shape::new(p, w));
        for (p, w, speed) in [(1, 1, 1.0), (1, 4, 2.0), (4, 4, 3.0), (9, 9, 3.0)] {
            assert!((at(p, w) - speed).abs() < 1e-12, "{p}+{w}: {}", at(p, w));
        }
        assert!((at(1, 2) - f64::sqrt(2.0)).abs() < 1e-12, "{}", at(1, 2));
        assert!((at(2, 4) - f64::sqrt(6.0)).abs() < 1e-12, "{}", at(2, 4));
        assert!(at(0, 3) <= 0.0);
    }

    #[test]
    fn rows_that_do_not_reach_are_passed_over() {
        let rates = table(&[(1, 1, 1.0), (1, 8, 4.0), (2, 2, 9.0), (3, 1, 1.0), (3, 8, 4.0)]);
        assert!((rates.work_per_s(Shape::new(2, 8)) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_speed_is_refused() {
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let table = Speed::Table(vec![(Shape::new(1, 1), speed)]);
            assert!(Rates::new(&table, Mode::Sync, Batch::Global(64)).is_err(), "{speed}");
        }
        let empty = Speed::Table(Vec::new());
        assert!(Rates::new(&empty, Mode::Sync, Batch::Global(64)).is_err());
        let theta = SpeedModel::of_theta(SpeedForm::Async, vec![f64::NAN, 0.0, 0.0, 0.0]);
        assert!(Rates::new(&Speed::Theta(theta), Mode::Async, Batch::Global(64)).is_err());
    }
}
