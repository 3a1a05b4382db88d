//! Measured step times of placements on up to four nodes, and how training went at each batch.

use std::path::{Path, PathBuf};

use super::read::{columns, narrow, whole};

/// Nodes of a placement that was measured as such.
pub(super) const PLACED_NODES: usize = 4;
/// GPUs of a node in the measurements.
pub(super) const NODE_GPUS: u32 = 4;
/// Places of the index over placements: one digit of 0 to 4 for each node.
const PLACEMENTS: usize = 625;
/// Larger batches than anybody trains with.
pub(super) const BATCH_MAX: u32 = 1 << 24;
/// More epochs than anybody trains for.
const EPOCHS_MAX: usize = 100_000;

/// Times of an optimiser step, in s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// The whole step, with what is seen of the exchange of gradients.
    pub step_s: f64,
    /// What is seen of that exchange.
    pub sync_s: f64,
}

/// Step times by placement and local batch.
#[derive(Clone, Debug)]
pub(super) struct Placements {
    /// By the digits of a placement, to the base 5: its curve, from 1; 0 where there is none.
    index: Vec<u16>,
    /// Where each curve's points begin, and the end.
    starts: Vec<usize>,
    /// By ascending local batch within a curve.
    points: Vec<(f64, Timing)>,
}

impl Placements {
    /// Reads `placements.csv`: `placement,local_bsz,step_time,sync_time`.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        let names = ["placement", "local_bsz", "step_time", "sync_time"];
        let mut rows: Vec<(usize, u32, Timing)> = Vec::new();
        columns(path, names, |[placement, local, step_s, sync_s]| {
            let local = whole(local, "local_bsz", 1, BATCH_MAX)?;
            let key = digits(placement)?;
            if step_s <= 0.0 || sync_s > step_s {
                return Err(format!(
                    "column step_time: {step_s} s is no time with {sync_s} s of exchange in it"
                ));
            }
            rows.push((key, local, Timing { step_s, sync_s }));
            Ok(())
        })?;
        rows.sort_by_key(|(key, local, _)| (*key, *local));
        if let Some(pair) =
            rows.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1))
        {
            let local = pair[0].1;
            return Err(format!("{}: a placement has local_bsz {local} twice", path.display()));
        }
        let mut placements = Self {
            index: vec![0; PLACEMENTS],
            starts: vec![],
            points: Vec::with_capacity(rows.len()),
        };
        for (key, local, timing) in rows {
            if placements.index[key] == 0 {
                placements.starts.push(placements.points.len());
                let curve = u16::try_from(placements.starts.len());
                placements.index[key] = curve.expect("there are no more than 625 placements");
            }
            placements.points.push((f64::from(local), timing));
        }
        placements.starts.push(placements.points.len());
        Ok(placements)
    }

    /// The curve of replicas on nodes in this order, which may be turned round.
    pub(super) fn curve(&self, counts: &[u32]) -> Option<usize> {
        if counts.is_empty() || counts.len() > PLACED_NODES {
            return None;
        }
        let key = |turn: usize| {
            let mut turned = counts[turn..].iter().chain(&counts[..turn]);
            turned.try_fold(0_u32, |key, count| {
                (1..=NODE_GPUS).contains(count).then_some(key * (NODE_GPUS + 1) + count)
            })
        };
        let mut least = u32::MAX;
        for turn in 0..counts.len() {
            least = least.min(key(turn)?);
        }
        let curve = usize::from(*self.index.get(usize::try_from(least).ok()?)?);
        curve.checked_sub(1)
    }

    /// The largest local batch that was measured for any placement, and the smallest.
    pub(super) fn local_range(&self) -> (u32, u32) {
        let locals = self.points.iter().map(|(local, _)| narrow(*local));
        locals.fold((u32::MAX, 0), |(low, high), local| (low.min(local), high.max(local)))
    }

    pub(super) fn timing(&self, curve: usize, local: f64) -> Timing {
        let points = &self.points[self.starts[curve]..self.starts[curve + 1]];
        let after = points.partition_point(|(measured, _)| *measured < local);
        match (points.get(after.wrapping_sub(1)), points.get(after)) {
            (Some((low, at_low)), Some((high, at_high))) => {
                let between = |a: f64, b: f64| (b - a) / (high - low) * (local - low) + a;
                Timing {
                    step_s: between(at_low.step_s, at_high.step_s),
                    sync_s: between(at_low.sync_s, at_high.sync_s),
                }
            }
            (None, Some((_, timing))) => *timing,
            (Some((last, timing)), None) => timing.beyond(local / last),
            (None, None) => Timing::default(),
        }
    }
}

impl Timing {
    /// Of a batch so many times as large as the largest that was measured: passes take as much
    /// longer, so that nothing is gained by a batch of which nothing is known.
    pub(super) fn beyond(self, times: f64) -> Self {
        Self { step_s: (self.step_s - self.sync_s) * times + self.sync_s, ..self }
    }

    /// A pass that only adds up gradients.
    #[must_use]
    pub fn pass_s(self) -> f64 {
        self.step_s - self.sync_s
    }

    /// A step of `passes` more than one.
    #[must_use]
    pub fn iteration_s(self, accumulated: u32) -> f64 {
        self.step_s + self.pass_s() * f64::from(accumulated)
    }
}

/// Digits of a placement as a number to the base 5.
fn digits(placement: f64) -> Result<usize, String> {
    let number = whole(placement, "placement", 1, 9999)?;
    let mut key = 0;
    for digit in number.to_string().bytes().map(|digit| u32::from(digit - b'0')) {
        if !(1..=NODE_GPUS).contains(&digit) {
            return Err(format!(
                "column placement: {number} has another digit than 1 to {NODE_GPUS}"
            ));
        }
        key = key * (NODE_GPUS + 1) + digit;
    }
    Ok(usize::try_from(key).expect("four digits to the base 5"))
}

/// How training went at one batch, by epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Epoch {
    progress: f64,
    iteration: f64,
    sqr: f64,
    var: f64,
}

/// How training went at the batches that were measured.
#[derive(Clone, Debug)]
pub(super) struct Validation {
    /// Ascending.
    batches: Vec<f64>,
    epochs: usize,
    /// By batch, then by epoch.
    rows: Vec<Epoch>,
    /// Progress after each epoch: the least over the batches.
    targets: Vec<f64>,
}

impl Validation {
    /// Reads every `validation-M.csv` of a folder.
    pub(super) fn load(folder: &Path) -> Result<Self, String> {
        let mut files: Vec<(u32, PathBuf)> = Vec::new();
        let entries =
            folder.read_dir().map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let batch = name.strip_prefix("validation-").and_then(|name| name.strip_suffix(".csv"));
            if let Some(batch) = batch {
                let sound = batch.parse().ok().filter(|batch| (1..=BATCH_MAX).contains(batch));
                let batch =
                    sound.ok_or_else(|| format!("{}: {batch} is no batch", path.display()))?;
                files.push((batch, path));
            }
        }
        files.sort();
        let mut validation =
            Self { batches: Vec::new(), epochs: 0, rows: Vec::new(), targets: Vec::new() };
        for (batch, path) in files {
            validation.add(batch, &path)?;
        }
        if validation.epochs == 0 {
            return Err(format!("{}: there is no validation-M.csv with rows", folder.display()));
        }
        Ok(validation)
    }

    fn add(&mut self, batch: u32, path: &Path) -> Result<(), String> {
        let names = ["progress", "iteration", "grad_sqr", "grad_var"];
        let (first, mut before) = (self.rows.len(), 0.0);
        columns(path, names, |[progress, iteration, sqr, var]| {
            if progress <= before {
                return Err(format!("column progress: {progress} does not grow from {before}"));
            }
            before = progress;
            self.rows.push(Epoch { progress, iteration, sqr, var });
            Ok(())
        })?;
        let rows = &self.rows[first..];
        if self.batches.is_empty() {
            self.epochs = rows.len();
            self.targets = rows.iter().map(|row| row.progress).collect();
        }
        if rows.len() != self.epochs || rows.len() > EPOCHS_MAX {
            return Err(format!(
                "{}: {} epochs, where the smallest batch has {}, and at most {EPOCHS_MAX} are read",
                path.display(),
                rows.len(),
                self.epochs
            ));
        }
        for (target, row) in self.targets.iter_mut().zip(rows) {
            *target = target.min(row.progress);
        }
        self.batches.push(f64::from(batch));
        Ok(())
    }

    pub(super) fn epochs(&self) -> usize {
        self.epochs
    }

    /// The smallest and the largest batch that was measured.
    pub(super) fn batch_range(&self) -> (u32, u32) {
        let at = |batch: Option<&f64>| batch.map_or(1, |batch| narrow(*batch));
        (at(self.batches.first()), at(self.batches.last()))
    }

    /// Progress at the end of the epoch with this place.
    pub(super) fn target(&self, epoch: usize) -> f64 {
        self.targets[epoch.min(self.epochs - 1)]
    }

    /// Squared norm and variance of the gradient during an epoch.
    pub(super) fn gradient(&self, batch: f64, epoch: usize) -> (f64, f64) {
        let (low, high, at) = self.between(batch, epoch);
        ((high.sqr - low.sqr) * at + low.sqr, (high.var - low.var) * at + low.var)
    }

    /// Steps up to the end of an epoch.
    pub(super) fn iteration(&self, batch: f64, epoch: usize) -> f64 {
        let (low, high, at) = self.between(batch, epoch);
        (high.iteration - low.iteration) * at + low.iteration
    }

    /// The rows of the neighbouring batches, and how far the batch lies between them.
    fn between(&self, batch: f64, epoch: usize) -> (Epoch, Epoch, f64) {
        let epoch = epoch.min(self.epochs - 1);
        let last = self.batches.len() - 1;
        let after = self.batches.partition_point(|measured| *measured < batch).min(last);
        let before = after.saturating_sub(1);
        let row = |batch: usize| self.rows[batch * self.epochs + epoch];
        let (low, high) = (self.batches[before], self.batches[after]);
        let at = if high > low { ((batch - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        (row(before), row(after), at)
    }
}
