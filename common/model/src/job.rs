//! What a user submits, and every rule that it must obey.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::location::Location;
use crate::resources::{NAMED_MAX, Resources};
use crate::shape::Shape;
use crate::text::text_problem;

/// The engine that runs the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Framework {
    Mxnet,
}

/// How workers' gradients meet at the servers (paper, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    Sync,
    Async,
}

impl Mode {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

/// Samples of a step: shared among the workers (Eqn. (4)), or each worker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Batch {
    Global(u32),
    PerWorker(u32),
}

/// Least and most tasks of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    pub min: u32,
    pub max: u32,
}

impl Bounds {
    #[must_use]
    pub const fn holds(self, count: u32) -> bool {
        self.min <= count && count <= self.max
    }
}

/// When a job is done. Append-only: it is sent and kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Finish {
    /// The drop of the measured loss between epochs, divided by the largest epoch loss so far,
    /// stays below `threshold` for `patience` epochs (paper, section 2.1).
    Convergence { threshold: f64, patience: u32 },
    /// After this many epochs.
    Epochs(u32),
    /// As `Convergence`, with the user's own curve of the loss in place of Eqn. (1), such as
    /// `a/(k+b)+c`. The scheduler's parser knows what it may hold.
    ConvergenceBy { threshold: f64, patience: u32, curve: String },
}

impl Finish {
    /// Threshold and patience of a job that ends when it converges, by whatever curve.
    #[must_use]
    pub const fn convergence(&self) -> Option<(f64, u32)> {
        match self {
            Self::Convergence { threshold, patience }
            | Self::ConvergenceBy { threshold, patience, .. } => Some((*threshold, *patience)),
            Self::Epochs(_) => None,
        }
    }

    /// The user's own curve.
    #[must_use]
    pub fn curve(&self) -> Option<&str> {
        match self {
            Self::ConvergenceBy { curve, .. } => Some(curve),
            Self::Convergence { .. } | Self::Epochs(_) => None,
        }
    }
}

/// What happens to a job's tasks on a node that no longer answers: a cut and a death look alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// Nothing is restarted until the node reports again, a new boot id proves death, or an
    /// operator says `node lost`.
    #[default]
    Keep,
    /// The agent ends the tasks 45 s after its last contact with a master; the job restarts when
    /// the node is back.
    Stop,
    /// As `Stop`, and the master restarts the job elsewhere at 60 s.
    Replace,
}

impl OnDisconnect {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Stop => "stop",
            Self::Replace => "replace",
        }
    }
}

/// A training job as submitted. Obeys [`JobSpec::faults`] once accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub name: String,
    /// Program and arguments; started once for each task, in every role.
    pub command: Vec<String>,
    /// Absolute folder in which the tasks start.
    pub working_directory: String,
    pub framework: Framework,
    pub mode: Mode,
    pub batch: Batch,
    /// What one worker takes.
    pub worker: Resources,
    /// What one server takes.
    pub server: Resources,
    pub workers: Bounds,
    pub servers: Bounds,
    pub finish: Finish,
    /// No job is without an end.
    pub epochs_max: u32,
    /// Base URL of its checkpoints: a [`Location`].
    pub checkpoint: String,
    /// Seconds of training between checkpoints; bounds what a fault can cost.
    pub checkpoint_interval_s: u32,
    pub environment: BTreeMap<String, String>,
    /// Multiplies the job's marginal gain (paper, section 4.1), in 0.01 to 100.
    pub priority: f64,
    pub on_disconnect: OnDisconnect,
    /// Restarts after faults before the job is FAILED.
    pub restarts_max: u32,
    /// Jobs of one key share a speed function, so that only the first is profiled.
    pub model_key: Option<String>,
}

/// One thing wrong with a job, a configuration or a request, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    pub field: String,
    pub problem: String,
    pub remedy: String,
}

impl Fault {
    #[must_use]
    pub fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.problem, self.remedy)
    }
}

// Bounds of a job. They keep one job from filling a frame, a record or an agent's memory.
pub const NAME_BYTES_MAX: usize = 128;
pub const COMMAND_WORDS_MAX: usize = 256;
pub const COMMAND_BYTES_MAX: usize = 32 * 1024;
/// Of a folder or a URL: what Linux takes as a path. Without a bound the desired sets of a few jobs
/// would be larger than a frame.
pub const PATH_BYTES_MAX: usize = 4096;
pub const ENVIRONMENT_MAX: usize = 256;
pub const ENVIRONMENT_BYTES_MAX: usize = 32 * 1024;
/// Tasks of one kind in one job. ps-lite numbers nodes in steps of two from 8 in 32 bits.
pub const TASKS_MAX: u32 = 4096;
pub const EPOCHS_MAX: u32 = 1_000_000;
pub const BATCH_MAX: u32 = 1 << 24;
pub const CHECKPOINT_INTERVAL_S: (u32, u32) = (5, 86_400);
pub const RESTARTS_MAX: u32 = 1000;
pub const PATIENCE_MAX: u32 = 1000;
/// A formula of a loss; the parser reads no longer one.
pub const CURVE_BYTES_MAX: usize = 400;
/// Where faults of a curve are shown.
pub const CURVE_FIELD: &str = "convergence.curve";
/// Prefixes that the agent sets itself; a job that set them could break its own generation.
pub const RESERVED_ENVIRONMENT: [&str; 3] = ["OPTIMUS_", "DMLC_", "PS_"];

impl JobSpec {
    /// The smallest shape that the job accepts.
    #[must_use]
    pub const fn shape_min(&self) -> Shape {
        Shape::new(self.servers.min, self.workers.min)
    }

    /// True where a shape is within the job's bounds.
    #[must_use]
    pub const fn accepts(&self, shape: Shape) -> bool {
        self.servers.holds(shape.servers) && self.workers.holds(shape.workers)
    }

    /// Everything wrong with the job, all at once; empty where it may be accepted.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.check_text(&mut faults);
        self.check_environment(&mut faults);
        self.check_numbers(&mut faults);
        self.check_finish(&mut faults);
        check_bounds("workers", self.workers, &mut faults);
        check_bounds("servers", self.servers, &mut faults);
        check_resources("worker", &self.worker, &mut faults);
        check_resources("server", &self.server, &mut faults);
        if let Batch::Global(samples) = self.batch
            && samples < self.workers.max
            && samples > 0
            && self.mode == Mode::Sync
        {
            faults.push(Fault::new(
                "batch.global",
                format!("{samples} samples cannot feed workers.max = {}", self.workers.max),
                "raise the batch or lower workers.max to at most the batch",
            ));
        }
        faults
    }

    fn check_text(&self, faults: &mut Vec<Fault>) {
        if let Some(problem) = text_problem(&self.name, NAME_BYTES_MAX) {
            faults.push(Fault::new(
                "name",
                problem,
                format!("use 1 to {NAME_BYTES_MAX} bytes of printable text"),
            ));
        }
        let bytes: usize = self.command.iter().map(String::len).sum();
        if self.command.first().is_none_or(String::is_empty) {
            faults.push(Fault::new("command", "is empty", "name the program and its arguments"));
        }
        if self.command.len() > COMMAND_WORDS_MAX || bytes > COMMAND_BYTES_MAX {
            faults.push(Fault::new(
                "command",
                format!("has {} words and {bytes} bytes", self.command.len()),
                format!("keep to {COMMAND_WORDS_MAX} words and {COMMAND_BYTES_MAX} bytes"),
            ));
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            faults.push(Fault::new("command", "contains a NUL byte", "remove it"));
        }
        for (field, path) in
            [("working_directory", &self.working_directory), ("checkpoint", &self.checkpoint)]
        {
            if PATH_BYTES_MAX < path.len() {
                let remedy = format!("keep to {PATH_BYTES_MAX} bytes");
                faults.push(Fault::new(field, format!("has {} bytes", path.len()), remedy));
                return;
            }
        }
        if !self.working_directory.starts_with('/') || self.working_directory.contains('\0') {
            faults.push(Fault::new(
                "working_directory",
                format!("{:?} is not an absolute path", self.working_directory),
                "give the folder from the root, such as /srv/train",
            ));
        }
        if let Err(remedy) = Location::parse(&self.checkpoint) {
            faults.push(Fault::new(
                "checkpoint",
                format!("{:?} is not a checkpoint location", self.checkpoint),
                remedy,
            ));
        }
        if let Some(key) = &self.model_key
            && let Some(problem) = text_problem(key, NAME_BYTES_MAX)
        {
            faults.push(Fault::new("model_key", problem, "use a short printable name"));
        }
    }

    fn check_environment(&self, faults: &mut Vec<Fault>) {
        let bytes: usize = self.environment.iter().map(|(k, v)| k.len() + v.len()).sum();
        if self.environment.len() > ENVIRONMENT_MAX || bytes > ENVIRONMENT_BYTES_MAX {
            faults.push(Fault::new(
                "environment",
                format!("has {} entries and {bytes} bytes", self.environment.len()),
                format!("keep to {ENVIRONMENT_MAX} entries and {ENVIRONMENT_BYTES_MAX} bytes"),
            ));
        }
        for (key, value) in &self.environment {
            let field = format!("environment.{}", key.escape_debug());
            let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if key.is_empty() || !plain || key.as_bytes()[0].is_ascii_digit() {
                faults.push(Fault::new(
                    field.as_str(),
                    "is not a variable name",
                    "use letters, digits and '_', not starting with a digit",
                ));
            } else if RESERVED_ENVIRONMENT.iter().any(|prefix| key.starts_with(prefix)) {
                faults.push(Fault::new(
                    field.as_str(),
                    "is set by the agent",
                    "remove it: OPTIMUS_*, DMLC_* and PS_* are reserved",
                ));
            }
            if value.contains('\0') {
                faults.push(Fault::new(field, "contains a NUL byte", "remove it"));
            }
        }
    }

    fn check_numbers(&self, faults: &mut Vec<Fault>) {
        let (field, samples) = match self.batch {
            Batch::Global(samples) => ("batch.global", samples),
            Batch::PerWorker(samples) => ("batch.per_worker", samples),
        };
        let mut range = |field: &str, value: u32, low: u32, high: u32| {
            if value < low || high < value {
                faults.push(Fault::new(
                    field,
                    format!("{value} is out of range"),
                    format!("give {low} to {high}"),
                ));
            }
        };
        range(field, samples, 1, BATCH_MAX);
        range("epochs_max", self.epochs_max, 1, EPOCHS_MAX);
        let (low, high) = CHECKPOINT_INTERVAL_S;
        range("checkpoint_interval", self.checkpoint_interval_s, low, high);
        range("restarts_max", self.restarts_max, 0, RESTARTS_MAX);
        if !self.priority.is_finite() || self.priority < 0.01 || 100.0 < self.priority {
            faults.push(Fault::new(
                "priority",
                format!("{} is out of range", self.priority),
                "give 0.01 to 100; 1 is usual",
            ));
        }
    }

    fn check_finish(&self, faults: &mut Vec<Fault>) {
        match &self.finish {
            Finish::Convergence { threshold, patience }
            | Finish::ConvergenceBy { threshold, patience, .. } => {
                let (threshold, patience) = (*threshold, *patience);
                if !threshold.is_finite() || threshold <= 0.0 || 1.0 <= threshold {
                    faults.push(Fault::new(
                        "convergence.threshold",
                        format!("{threshold} is not a share of the largest loss"),
                        "give a number between 0 and 1, such as 0.01",
                    ));
                }
                if !(1..=PATIENCE_MAX).contains(&patience) {
                    faults.push(Fault::new(
                        "convergence.patience",
                        format!("{patience} is out of range"),
                        format!("give 1 to {PATIENCE_MAX} epochs; 3 is usual"),
                    ));
                }
            }
            Finish::Epochs(epochs) => {
                let epochs = *epochs;
                if epochs == 0 || self.epochs_max < epochs {
                    faults.push(Fault::new(
                        "epochs",
                        format!("{epochs} is not within epochs_max = {}", self.epochs_max),
                        "give 1 to epochs_max",
                    ));
                }
            }
        }
        if let Some(problem) =
            self.finish.curve().and_then(|curve| text_problem(curve, CURVE_BYTES_MAX))
        {
            faults.push(Fault::new(
                CURVE_FIELD,
                problem,
                format!("write a formula in k of at most {CURVE_BYTES_MAX} bytes"),
            ));
        }
    }
}

/// What is wrong with the name of a job, in words; none where it may be taken.
#[must_use]
pub fn name_problem(name: &str) -> Option<String> {
    text_problem(name, NAME_BYTES_MAX)
}

fn check_bounds(field: &str, bounds: Bounds, faults: &mut Vec<Fault>) {
    if bounds.min == 0 || TASKS_MAX < bounds.max {
        faults.push(Fault::new(
            field,
            format!("{} to {} is out of range", bounds.min, bounds.max),
            format!("give min and max within 1 to {TASKS_MAX}"),
        ));
    }
    if bounds.max < bounds.min {
        faults.push(Fault::new(
            field,
            format!("min {} is over max {}", bounds.min, bounds.max),
            "swap or correct them",
        ));
    }
}

/// More of anything than one machine can have; sums of a whole cluster then stay far from 2^64.
const AMOUNT_MAX: u64 = 1 << 50;

fn check_resources(field: &str, resources: &Resources, faults: &mut Vec<Fault>) {
    if resources.cpus_milli == 0 {
        faults.push(Fault::new(
            format!("{field}.cpus"),
            "is zero",
            "give the cores of one task, at least 0.001",
        ));
    }
    if resources.memory_bytes == 0 {
        faults.push(Fault::new(
            format!("{field}.memory"),
            "is zero",
            "give the memory of one task, such as \"512MiB\"",
        ));
    }
    if resources.named.len() > NAMED_MAX {
        faults.push(Fault::new(
            field,
            format!("names {} kinds of resource", resources.named.len()),
            format!("keep to {NAMED_MAX}"),
        ));
    }
    if resources.named.keys().any(|kind| text_problem(kind, NAME_BYTES_MAX).is_some()) {
        let remedy = format!("use 1 to {NAME_BYTES_MAX} bytes of printable text for each");
        faults.push(Fault::new(field, "has an odd name of a resource", remedy));
        return;
    }
    for kind in resources.kinds() {
        let amount = resources.amount(&kind);
        if amount > AMOUNT_MAX {
            faults.push(Fault::new(
                format!("{field}.{kind}"),
                format!("{amount} is more than any machine has"),
                "correct the amount",
            ));
        }
    }
}

#[cfg(test)]
mod tests;
