//! Job files: TOML to a [`JobSpec`], with every fault at once.

mod data;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use model::diverged::OnNan;
use model::job::CURVE_FIELD;
use model::options::AssignmentKind;
use model::units::cpus_milli;
use model::{
    Batch, Bounds, Fault, Finish, Framework, JobOptions, JobSpec, Mode, OnDisconnect, Resources,
};
use scheduler::estimate::loss::Curve;

use crate::failure::Located;
use crate::keys::{Document, Key, Value, Want};

const COUNT: Want = Want::Integer(u32::MAX as u64);

/// Every key of a job file.
pub(crate) const KEYS: [Key; 38] = [
    Key::required("name", Want::Text),
    Key::required("command", Want::Texts),
    Key::optional("working_directory", Want::Text),
    Key::required("framework", Want::Word(&["mxnet"])),
    Key::required("mode", Want::Word(&["sync", "async"])),
    Key::optional("epochs", COUNT),
    Key::optional("epochs_max", COUNT),
    Key::optional("priority", Want::Decimal),
    Key::required("checkpoint", Want::Text),
    Key::optional("checkpoint_shared", Want::Truth),
    Key::optional("checkpoint_interval", Want::Duration),
    Key::optional("on_disconnect", Want::Word(&["keep", "stop", "replace"])),
    Key::optional("restarts_max", COUNT),
    Key::optional("on_nan", Want::Word(&OnNan::NAMES)),
    Key::optional("model_key", Want::Text),
    Key::optional("batch.global", COUNT),
    Key::optional("batch.per_worker", COUNT),
    Key::required("worker.cpus", Want::Decimal),
    Key::required("worker.memory", Want::Size),
    Key::optional("worker.gpus", COUNT),
    Key::optional("worker.named", Want::FreeIntegers),
    Key::optional("worker.count.min", COUNT),
    Key::optional("worker.count.max", COUNT),
    Key::required("server.cpus", Want::Decimal),
    Key::required("server.memory", Want::Size),
    Key::optional("server.gpus", COUNT),
    Key::optional("server.named", Want::FreeIntegers),
    Key::optional("server.count.min", COUNT),
    Key::optional("server.count.max", COUNT),
    Key::optional("convergence.threshold", Want::Decimal),
    Key::optional("convergence.patience", COUNT),
    Key::optional(CURVE_FIELD, Want::Text),
    Key::optional("assignment", Want::Word(&["paa", "mxnet"])),
    Key::optional("environment", Want::FreeTexts),
    Key::optional("data.url", Want::Text),
    Key::optional("data.format", Want::Word(&["recordio", "lines", "fixed", "files"])),
    Key::optional("data.record_bytes", COUNT),
    Key::optional("data.chunk", Want::Size),
];

/// Most tasks of a kind where the file does not say.
const COUNT_MAX: u32 = 16;
const PATIENCE: u32 = 3;
const CHECKPOINT_INTERVAL_MS: u64 = 600_000;
const RESTARTS: u32 = 10;

/// What a job file says.
pub(crate) type Job = (JobSpec, JobOptions, OnNan);

/// Reads a job file.
///
/// `folder` is the absolute folder of the file, which a relative `working_directory` starts from.
///
/// # Errors
/// Everything that is wrong with it, in the order of the file.
pub(crate) fn parse(text: &str, folder: &Path) -> Result<Job, Vec<Located>> {
    let document = Document::read(text, &KEYS);
    let mut reader = Reader { document };
    let spec = reader.spec(folder);
    let options = reader.options();
    let on_nan = reader.text("on_nan").and_then(|word| OnNan::of_name(&word)).unwrap_or_default();
    let mut document = reader.document;
    if !document.broken {
        let before = document.faults.clone();
        let mut faults = spec.faults();
        faults.extend(options.faults());
        faults.extend(curve_fault(&spec, &faults));
        for fault in faults.into_iter().map(in_file_words) {
            document.add_unless(&before, fault);
        }
    }
    if document.faults.is_empty() { Ok((spec, options, on_nan)) } else { Err(document.sorted()) }
}

/// What is wrong with the syntax of the job's own curve.
fn curve_fault(spec: &JobSpec, others: &[Fault]) -> Option<Fault> {
    if others.iter().any(|fault| fault.field == CURVE_FIELD) {
        return None;
    }
    let problem = Curve::parse(spec.finish.curve()?).err()?;
    let remedy = "write a formula in the step k, such as \"a/(k+b)+c\", or remove it";
    Some(Fault::new(CURVE_FIELD, problem, remedy))
}

/// The job's fields are named as in the file.
fn in_file_words(fault: Fault) -> Fault {
    let words = |text: &str| {
        text.replace("workers.m", "worker.count.m").replace("servers.m", "server.count.m")
    };
    let field = match fault.field.as_str() {
        "workers" => "worker.count".to_owned(),
        "servers" => "server.count".to_owned(),
        field => match field.split_once('.') {
            Some((side @ ("worker" | "server"), kind))
                if !matches!(kind, "cpus" | "memory" | "gpus") =>
            {
                format!("{side}.named.{kind}")
            }
            Some(_) | None => field.to_owned(),
        },
    };
    Fault::new(field, words(&fault.problem), words(&fault.remedy))
}

struct Reader {
    document: Document,
}

impl Reader {
    /// What the job asks for beside its spec.
    fn options(&mut self) -> JobOptions {
        let assignment = match self.text("assignment").as_deref() {
            Some("mxnet") => AssignmentKind::Mxnet,
            Some(_) | None => AssignmentKind::Paa,
        };
        let checkpoint_shared =
            matches!(self.document.values.get("checkpoint_shared"), Some(Value::Truth(true)));
        JobOptions { assignment, data: self.data(), checkpoint_shared }
    }

    /// The job as far as it is right; a fault stands where a value is missing or wrong.
    fn spec(&mut self, folder: &Path) -> JobSpec {
        let mode = match self.text("mode").as_deref() {
            Some("sync") => Mode::Sync,
            // Or unknown: the fewer rules follow from it.
            Some(_) | None => Mode::Async,
        };
        let batch = self.batch();
        let finish = self.finish();
        let epochs_max = self.epochs_max(&finish);
        let batch_max = match (mode, batch) {
            (Mode::Sync, Batch::Global(samples)) if samples > 0 => samples,
            (Mode::Sync | Mode::Async, Batch::Global(_) | Batch::PerWorker(_)) => u32::MAX,
        };
        JobSpec {
            name: self.text("name").unwrap_or_default(),
            command: self.texts("command"),
            working_directory: self.working_directory(folder),
            framework: Framework::Mxnet,
            mode,
            batch,
            worker: self.resources("worker"),
            server: self.resources("server"),
            workers: self.bounds("worker", COUNT_MAX.min(batch_max)),
            servers: self.bounds("server", COUNT_MAX),
            finish,
            epochs_max,
            checkpoint: self.text("checkpoint").unwrap_or_default(),
            checkpoint_interval_s: self.checkpoint_interval_s(),
            environment: match self.document.values.get("environment") {
                Some(Value::FreeTexts(map)) => map.clone(),
                Some(_) | None => BTreeMap::new(),
            },
            priority: self.decimal("priority").unwrap_or(1.0),
            on_disconnect: match self.text("on_disconnect").as_deref() {
                Some("stop") => OnDisconnect::Stop,
                Some("replace") => OnDisconnect::Replace,
                Some(_) | None => OnDisconnect::Keep,
            },
            restarts_max: self.count("restarts_max").unwrap_or(RESTARTS),
            model_key: self.text("model_key"),
        }
    }

    fn text(&self, path: &str) -> Option<String> {
        match self.document.values.get(path) {
            Some(Value::Text(text)) => Some(text.clone()),
            Some(_) | None => None,
        }
    }

    fn texts(&self, path: &str) -> Vec<String> {
        match self.document.values.get(path) {
            Some(Value::Texts(words)) => words.clone(),
            Some(_) | None => Vec::new(),
        }
    }

    fn decimal(&self, path: &str) -> Option<f64> {
        match self.document.values.get(path) {
            Some(Value::Decimal(number)) => Some(*number),
            Some(_) | None => None,
        }
    }

    fn integer(&self, path: &str) -> Option<u64> {
        match self.document.values.get(path) {
            Some(Value::Integer(number)) => Some(*number),
            Some(_) | None => None,
        }
    }

    fn count(&self, path: &str) -> Option<u32> {
        self.integer(path).and_then(|number| u32::try_from(number).ok())
    }

    /// A fault beside those of types; not where a part of the field is faulty already.
    fn fault(&mut self, field: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        if !self.document.broken {
            let before = self.document.faults.clone();
            self.document.add_unless(&before, Fault::new(field, problem, remedy));
        }
    }

    fn batch(&mut self) -> Batch {
        let (global, own) = (self.count("batch.global"), self.count("batch.per_worker"));
        let named = ["batch.global", "batch.per_worker"].map(|path| self.document.has(path));
        match named {
            [true, true] => self.fault(
                "batch",
                "has both global and per_worker",
                "keep one: global is shared among the workers, per_worker is each worker's own",
            ),
            [false, false] => self.fault(
                "batch",
                "is missing",
                "add [batch] with global = 256, or per_worker = 64",
            ),
            [true, false] | [false, true] => {}
        }
        match (global, own) {
            (Some(samples), _) => Batch::Global(samples),
            (None, Some(samples)) => Batch::PerWorker(samples),
            (None, None) => Batch::PerWorker(1),
        }
    }

    fn finish(&mut self) -> Finish {
        let remedy = "add [convergence] with threshold = 0.01, or epochs = 50 above the tables";
        match (self.document.has("convergence"), self.document.has("epochs")) {
            (true, true) => self.fault(
                "epochs",
                "stands beside [convergence]",
                "keep one: a job ends when it converges, or after a number of epochs",
            ),
            (false, false) => self.fault("convergence", "is missing", remedy),
            (true, false) if !self.document.has("convergence.threshold") => {
                self.fault("convergence.threshold", "is missing", "add threshold = 0.01");
            }
            (true, false) | (false, true) => {}
        }
        if let Some(epochs) = self.count("epochs") {
            return Finish::Epochs(epochs);
        }
        let threshold = self.decimal("convergence.threshold").unwrap_or(0.01);
        let patience = self.count("convergence.patience").unwrap_or(PATIENCE);
        match self.text(CURVE_FIELD) {
            Some(curve) => Finish::ConvergenceBy { threshold, patience, curve },
            None => Finish::Convergence { threshold, patience },
        }
    }

    fn epochs_max(&mut self, finish: &Finish) -> u32 {
        if let Some(epochs) = self.count("epochs_max") {
            return epochs;
        }
        match finish {
            Finish::Epochs(epochs) => *epochs,
            Finish::Convergence { .. } | Finish::ConvergenceBy { .. } => {
                if !self.document.has("epochs_max") {
                    self.fault(
                        "epochs_max",
                        "is missing",
                        "add epochs_max = 100: a job that never converges must end too",
                    );
                }
                1
            }
        }
    }

    fn resources(&mut self, side: &str) -> Resources {
        let cpus = self.decimal(&format!("{side}.cpus")).unwrap_or(1.0);
        let cpus_milli = match cpus_milli(cpus) {
            Ok(milli) => milli,
            Err(error) => {
                let message = error.to_string();
                let (problem, remedy) =
                    message.split_once(": ").unwrap_or((&message, "correct it"));
                self.fault(&format!("{side}.cpus"), problem, remedy);
                1000
            }
        };
        let memory_bytes = match self.document.values.get(&format!("{side}.memory")) {
            Some(Value::Bytes(bytes)) => *bytes,
            Some(_) | None => 1,
        };
        let named = match self.document.values.get(&format!("{side}.named")) {
            Some(Value::FreeIntegers(map)) => map.clone(),
            Some(_) | None => BTreeMap::new(),
        };
        for kind in named.keys().filter(|kind| matches!(kind.as_str(), "cpus" | "memory" | "gpus"))
        {
            self.fault(
                &format!("{side}.named.{kind}"),
                "is not a named resource",
                format!("write it as {side}.{kind}"),
            );
        }
        let gpus = self.integer(&format!("{side}.gpus")).unwrap_or(0);
        Resources { cpus_milli, memory_bytes, gpus, named }
    }

    fn bounds(&self, side: &str, max: u32) -> Bounds {
        let given = |end: &str| self.count(&format!("{side}.count.{end}"));
        match (given("min"), given("max")) {
            (Some(min), Some(max)) => Bounds { min, max },
            (Some(min), None) => Bounds { min, max: max.max(min) },
            (None, given) => Bounds { min: 1, max: given.unwrap_or(max) },
        }
    }

    fn checkpoint_interval_s(&mut self) -> u32 {
        let field = "checkpoint_interval";
        let ms = match self.document.values.get(field) {
            Some(Value::Duration(ms)) => *ms,
            Some(_) | None => CHECKPOINT_INTERVAL_MS,
        };
        if ms % 1000 != 0 {
            self.fault(field, format!("{ms} ms is not whole seconds"), "write such as \"90s\"");
        }
        u32::try_from(ms / 1000).unwrap_or(u32::MAX)
    }

    fn working_directory(&self, folder: &Path) -> String {
        let given = self.text("working_directory").unwrap_or_default();
        let path = plain(&folder.join(given));
        // A folder of the client that is no UTF-8 cannot be sent; the job's rules refuse "".
        path.to_str().map(str::to_owned).unwrap_or_default()
    }
}

/// Without `.` and `..`, as far as that can be told without looking at the disk.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests;
