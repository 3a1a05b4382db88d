//! One pool of task slots: the quick study in which policies are compared and ours is tuned.
//!
//! A server and a worker take one slot each, there is no placement and no other resource. Models,
//! sizes, errors and the cost of a rescale are those of the data's `optimus/study.json`, printed
//! in [`MODELS`] and [`Setting::default`]. What a policy sees of the work left and of the speed is
//! wrong by a part that decays with progress, its sign drawn once for each job (section 6.3).

mod bound;
mod greedy;
mod world;

use std::sync::Arc;

use rand::Rng;

pub(crate) use self::bound::shortest_first_s;
pub use self::bound::{Bounds, bounds};
pub use self::world::{Met, finish_time_ratios, run};
use crate::random::stream;

/// A model of the study: batches of one worker a second are `w / (c + wp·w/p + kw·w + kp·p)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    pub name: &'static str,
    pub c: f64,
    pub wp: f64,
    pub kw: f64,
    pub kp: f64,
    /// What a job of it takes on one server and two workers, on average.
    pub hours: f64,
}

const fn model(name: &'static str, [c, wp, kw, kp, hours]: [f64; 5]) -> Model {
    Model { name, c, wp, kw, kp, hours }
}

/// The study's models: fits to measured speeds.
pub const MODELS: [Model; 8] = [
    model("resnet-50", [1.003, 0.2158, 0.0, 3.1e-05, 0.9]),
    model("vgg-16", [1.34, 0.82, 0.0, 0.0, 0.8]),
    model("resnext-110", [0.2035, 0.0897, 0.0, 0.0036, 1.4]),
    model("inception-bn", [0.84, 0.1274, 0.0, 0.0, 1.2]),
    model("seq2seq", [0.1333, 0.0369, 0.2004, 0.0, 1.0]),
    model("cnn-text-classification", [0.607, 0.0796, 0.0071, 0.0026, 0.1]),
    model("dssm", [0.5447, 0.027, 0.0102, 0.0, 1.5]),
    model("wlm", [0.548, 0.393, 0.0188, 0.0, 0.3]),
];

impl Model {
    /// Work a second; 0 without a server or a worker.
    #[must_use]
    pub fn rate(&self, servers: u32, workers: u32) -> f64 {
        if servers == 0 || workers == 0 {
            return 0.0;
        }
        let (p, w) = (f64::from(servers), f64::from(workers));
        w / (self.c + self.wp * w / p + self.kw * w + self.kp * p)
    }
}

/// The numbers of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    pub slots: u32,
    pub jobs: u32,
    /// Arrivals are spread over so long.
    pub span_s: f64,
    /// A job whose shape changes, or that resumes after it held none, makes no progress for so
    /// long; its first start costs nothing.
    pub rescale_cost_s: f64,
    /// The policy sees the work left and the rate times 1 ± these · left / total.
    pub work_error: f64,
    pub speed_error: f64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            slots: 60,
            jobs: 60,
            span_s: 12_000.0,
            rescale_cost_s: 15.0,
            work_error: 0.2,
            speed_error: 0.1,
        }
    }
}

/// When jobs come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Each anywhere in the span.
    Uniform,
    /// With exponential gaps at the same mean rate.
    Poisson,
    /// As so many in a row of these sorted submission times, in s, scaled to the span.
    Trace(Arc<[f64]>),
}

/// A job and the truth about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    pub model: Model,
    pub arrival_s: f64,
    pub work: f64,
    /// Signs of what the policy sees wrong of work and rate: 1 or -1.
    pub signs: [f64; 2],
}

/// Jobs by arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub seed: u64,
    pub setting: Setting,
    pub jobs: Vec<Job>,
}

/// What shares the slots out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// One server and one worker to each job by arrival, then by marginal gain (section 4.1);
    /// new jobs wait for the round. Without a period at each arrival and completion.
    Optimus { period_s: Option<f64> },
    /// [`scheduler::allocate::horizon`] at each arrival and completion.
    Horizon { fairness: f64 },
}

impl Kind {
    /// The policy that all others are held against.
    pub const PAPERS: Self = Self::Optimus { period_s: Some(600.0) };

    /// For tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Optimus { period_s: Some(period_s) } => format!("optimus at {period_s:.0} s"),
            Self::Optimus { period_s: None } => "optimus at events".to_owned(),
            Self::Horizon { fairness } => format!("horizon, fairness {fairness}"),
        }
    }
}

/// Evenly from 0 to 1, without 1.
fn uniform(chance: &mut impl Rng) -> f64 {
    let bits = u32::try_from(chance.next_u64() >> 32).expect("32 bits");
    f64::from(bits) / 4_294_967_296.0
}

impl Workload {
    /// The workload of a seed. A trace with fewer times than jobs is gone through again.
    #[must_use]
    pub fn generate(seed: u64, arrivals: &Arrivals, setting: Setting) -> Self {
        let mut sizes = stream(seed, "study sizes");
        let mut errors = stream(seed, "study errors");
        let times = times(seed, arrivals, setting);
        let one = |arrival_s: f64| {
            let drawn = uniform(&mut sizes) * 8.0;
            let model = MODELS.iter().zip(1_u8..).find(|(_, upper)| drawn < f64::from(*upper));
            let model = *model.map_or(&MODELS[0], |(model, _)| model);
            let size = 0.5 + uniform(&mut sizes);
            let mut sign = || if uniform(&mut errors) < 0.5 { 1.0 } else { -1.0 };
            let work = model.hours * 3600.0 * model.rate(1, 2) * size;
            Job { model, arrival_s, work, signs: [sign(), sign()] }
        };
        Self { seed, setting, jobs: times.into_iter().map(one).collect() }
    }
}

/// Sorted arrival times.
fn times(seed: u64, arrivals: &Arrivals, setting: Setting) -> Vec<f64> {
    let mut chance = stream(seed, "study arrivals");
    let count = setting.jobs;
    let mut times: Vec<f64> = match arrivals {
        Arrivals::Uniform => (0..count).map(|_| uniform(&mut chance) * setting.span_s).collect(),
        Arrivals::Poisson => {
            let gap_s = setting.span_s / f64::from(count.max(1));
            let gaps = (0..count).map(|_| -libm::log(1.0 - uniform(&mut chance)) * gap_s);
            gaps.scan(0.0, |at, gap| {
                *at += gap;
                Some(*at)
            })
            .collect()
        }
        Arrivals::Trace(all) => window(all, &mut chance, setting),
    };
    times.sort_by(f64::total_cmp);
    times
}

fn window(all: &[f64], chance: &mut impl Rng, setting: Setting) -> Vec<f64> {
    let count = usize::try_from(setting.jobs).unwrap_or(usize::MAX);
    let starts = u64::try_from(all.len().saturating_sub(count) + 1).unwrap_or(1);
    let first = usize::try_from(chance.next_u64() % starts).unwrap_or(0);
    let taken: Vec<f64> = all.iter().copied().cycle().skip(first).take(count).collect();
    let from = taken.iter().copied().fold(f64::INFINITY, f64::min);
    let to = taken.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scale = if to > from { setting.span_s / (to - from) } else { 0.0 };
    taken.into_iter().map(|at| (at - from) * scale).collect()
}

/// Submission times in s of a trace whose first column is `YYYY-MM-DD hh:mm:ss`, sorted and from
/// 0 on. Lines without one are left out.
#[must_use]
pub fn submission_times(csv: &str) -> Vec<f64> {
    let mut times: Vec<f64> = csv.lines().filter_map(submission_time).collect();
    times.sort_by(f64::total_cmp);
    let first = times.first().copied().unwrap_or(0.0);
    times.iter().map(|at| at - first).collect()
}

fn submission_time(line: &str) -> Option<f64> {
    let (date, time) = line.split(',').next()?.trim().split_once(' ')?;
    let numbers = |text: &str, mark: char| -> Option<[i32; 3]> {
        let parts: Vec<i32> =
            text.split(mark).map(|part| part.parse().ok()).collect::<Option<_>>()?;
        parts.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    // Years begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some(f64::from(days) * 86_400.0 + f64::from(hour * 3600 + minute * 60 + second))
}
