//! Job files for the training scripts of the package.

use std::fmt::Write as _;

use crate::setup::Environment;

/// A job file in the making.
#[derive(Clone, Debug)]
pub struct JobFile {
    pub name: String,
    pub script: String,
    /// Of the interpreter.
    pub flags: Vec<String>,
    pub arguments: Vec<String>,
    pub mode: &'static str,
    /// `global = 64` or `per_worker = 32`.
    pub batch: String,
    pub worker_cpus: f64,
    pub server_cpus: f64,
    pub worker_gpus: u32,
    pub workers: (u32, u32),
    pub servers: (u32, u32),
    /// `epochs = 5`, or a `[convergence]` table's two values.
    pub finish: Finish,
    pub epochs_max: u32,
    pub checkpoint: String,
    pub checkpoint_interval: String,
    pub on_disconnect: &'static str,
    pub restarts_max: u32,
    /// How parameter blocks come to servers, where it is not the default.
    pub assignment: Option<&'static str>,
    /// Lines of the `[data]` table; none where empty.
    pub data: String,
    pub environment: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug)]
pub enum Finish {
    Epochs(u32),
    Convergence { threshold: f64, patience: u32 },
}

impl JobFile {
    /// A job with usual values for a script of the package.
    #[must_use]
    pub fn new(name: &str, script: &str, checkpoint: &str) -> Self {
        Self {
            name: name.to_owned(),
            script: script.to_owned(),
            flags: Vec::new(),
            arguments: Vec::new(),
            mode: "sync",
            batch: "global = 64".to_owned(),
            worker_cpus: 1.0,
            server_cpus: 0.5,
            worker_gpus: 0,
            workers: (1, 3),
            servers: (1, 3),
            finish: Finish::Epochs(5),
            epochs_max: 100,
            checkpoint: checkpoint.to_owned(),
            checkpoint_interval: "10s".to_owned(),
            on_disconnect: "keep",
            restarts_max: 10,
            assignment: None,
            data: String::new(),
            environment: Vec::new(),
        }
    }

    /// The file's text.
    #[must_use]
    pub fn text(&self, environment: &Environment) -> String {
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let script = environment.scripts.join(&self.script);
        let mut command = vec![environment.python.display().to_string()];
        command.extend(self.flags.iter().cloned());
        command.push(script.display().to_string());
        command.extend(self.arguments.iter().cloned());
        let command: Vec<_> = command.iter().map(|word| quote(word)).collect();
        let (finish_line, finish_table) = match self.finish {
            Finish::Epochs(epochs) => (format!("epochs = {epochs}\n"), String::new()),
            Finish::Convergence { threshold, patience } => (
                String::new(),
                format!("[convergence]\nthreshold = {threshold}\npatience = {patience}\n"),
            ),
        };
        let assignment = self.assignment.map(|kind| format!("assignment = \"{kind}\"\n"));
        let mut text = assignment.unwrap_or_default();
        let _infallible = write!(
            text,
            "name = {}\ncommand = [{}]\nworking_directory = {}\nframework = \"mxnet\"\n\
             mode = \"{}\"\nepochs_max = {}\n{finish_line}checkpoint = {}\n\
             checkpoint_interval = \"{}\"\non_disconnect = \"{}\"\nrestarts_max = {}\n\
             [batch]\n{}\n",
            quote(&self.name),
            command.join(", "),
            quote(&environment.scripts.display().to_string()),
            self.mode,
            self.epochs_max,
            quote(&self.checkpoint),
            self.checkpoint_interval,
            self.on_disconnect,
            self.restarts_max,
            self.batch,
        );
        for (role, cpus, gpus, (min, max)) in [
            ("worker", self.worker_cpus, self.worker_gpus, self.workers),
            ("server", self.server_cpus, 0, self.servers),
        ] {
            let gpus = if gpus > 0 { format!("gpus = {gpus}\n") } else { String::new() };
            let _infallible = write!(
                text,
                "[{role}]\ncpus = {cpus:?}\nmemory = \"256MiB\"\n{gpus}count = {{ min = {min}, max = {max} }}\n",
            );
        }
        text.push_str(&finish_table);
        if !self.data.is_empty() {
            let _infallible = writeln!(text, "[data]\n{}", self.data);
        }
        text.push_str("[environment]\n");
        for (key, value) in &self.environment {
            let _infallible = writeln!(text, "{key} = {}", quote(value));
        }
        text
    }
}
