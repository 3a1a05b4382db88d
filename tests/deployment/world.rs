//! The cluster under test with its jobs, and what is asked of it after every step.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::Environment;
use harness::binaries::checkout;
use harness::cluster::{rows, tail};
use harness::hosts::{HostTask, PYTHON, Plan, Site, Watch};
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::wait::{self, Clock};
use serde_json::Value;

use crate::operator::Operator;
use crate::rollout::{MASTER, NODES, Rollout};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// The job that is larger than any node.
pub(crate) const CNN: &str = "digits-cnn";

/// Where the hosts have the training scripts.
const SCRIPTS: &str = "/opt/train/scripts";
const CHECKPOINTS: &str = "file:///srv/checkpoints";
const PORT: u16 = 7600;

/// The master's own disk: small enough to be filled at once.
const MASTER_DISK_BYTES: u64 = 96 << 20;

/// What a job's environment has and nobody else is to read.
pub(crate) const SECRET: &str = "hunter2-of-the-cnn";

/// How far the mean loss after a move may lie over that before, in standard deviations of the last
/// 50 steps.
const DEVIATIONS_MAX: f64 = 3.0;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) rollout: Rollout,
    pub(crate) operator: Operator,
    pub(crate) watch: Watch,
    /// Ids by name.
    pub(crate) jobs: BTreeMap<String, String>,
    /// Newest step of each job.
    steps: BTreeMap<String, u64>,
}

impl World {
    /// Boots the hosts. Nothing of Optimus is on them.
    pub(crate) fn boot() -> Result<Self> {
        let mut plans: Vec<Plan> = NODES.iter().map(|name| Plan::new(name)).collect();
        let disk = ("/var/lib/optimus/master".to_owned(), MASTER_DISK_BYTES);
        plans.insert(0, Plan { name: MASTER.to_owned(), small_disk: Some(disk) });
        let clock = Clock::start();
        let site = Site::start(&plans)?;
        talk(&format!("{} hosts boot in {:.1} s", plans.len(), clock.elapsed().as_secs_f64()));
        let rollout = Rollout::prepare(&site)?;
        let operator = Operator {
            program: rollout.binaries.join("optimus"),
            certificates: rollout.pki(),
            master: format!("{}:{PORT}", site.host(MASTER).address),
        };
        for node in NODES {
            copy_scripts(&site, node)?;
        }
        let watch = site.watch();
        let (jobs, steps) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { site, rollout, operator, watch, jobs, steps })
    }

    pub(crate) fn json(&self, args: &[&str]) -> Result<Value> {
        self.operator.json(&self.site, args)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Result<String> {
        self.operator.run(&self.site, args)
    }

    /// Submits a job of the quickstart, in a shape that no round changes.
    pub(crate) fn submit(&mut self, file: &JobFile) -> Result<String> {
        let path = self.write(file)?;
        let answer = self.json(&["submit", &path])?;
        let id = answer["id"].as_str().context("submit printed no id")?.to_owned();
        self.jobs.insert(file.name.clone(), id.clone());
        Ok(id)
    }

    /// Writes a job's file; returns its path.
    pub(crate) fn write(&self, file: &JobFile) -> Result<String> {
        let environment = Environment {
            python: PYTHON.into(),
            package: "/usr/share/optimus/python".into(),
            scripts: SCRIPTS.into(),
        };
        let text = format!("checkpoint_shared = true\n{}", file.text(&environment));
        let path = self.site.folder.join(format!("{}.toml", file.name));
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// `show` of a job by its name.
    pub(crate) fn show(&self, name: &str) -> Result<Value> {
        self.json(&["show", &self.jobs[name]])
    }

    /// Looks at all jobs: none may have failed, and no step is ever made again from the start.
    pub(crate) fn look(&mut self) -> Result<Vec<Value>> {
        let listing = self.json(&["ps"])?;
        self.judge(&listing)
    }

    /// The lines of the jobs that are not forgotten.
    fn judge(&mut self, listing: &Value) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        for row in rows(listing, "jobs") {
            let id = row["id"].as_str().context("a job has an id")?.to_owned();
            if !self.jobs.values().any(|known| *known == id) {
                continue;
            }
            let step = row["step"].as_u64().context("a job has a step")?;
            let phase = row["phase"].as_str().unwrap_or_default();
            if phase == "FAILED" || phase == "CANCELLED" {
                bail!("{id} is {phase}: {}\n{}", row["reason"], self.run(&["events", &id])?);
            }
            let before = self.steps.insert(id.clone(), step).unwrap_or(0);
            ensure!(
                step > 0 || before == 0,
                "{id} was at step {before} and is at step 0 again: {row}"
            );
            found.push(row.clone());
        }
        Ok(found)
    }

    /// Waits until `holds` of the line of a job. A master that is just away is asked again.
    pub(crate) fn wait_job(
        &mut self,
        name: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let id = self.jobs[name].clone();
        let waited = wait::until(&format!("{name} {what}"), 2 * MINUTE, || {
            let Ok(listing) = self.json(&["ps"]) else { return Ok(None) };
            let lines = self.judge(&listing)?;
            let line = lines.into_iter().find(|row| row["id"] == *id).context("it is gone")?;
            Ok(holds(&line).then_some(line))
        });
        waited.with_context(|| self.picture(&id))
    }

    /// Waits until every job runs and has made some further steps.
    pub(crate) fn all_train(&mut self) -> Result<()> {
        let names = self.names();
        self.train(&names)
    }

    /// Waits until these jobs run and have made some further steps.
    pub(crate) fn train(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let shown = self.wait_job(name, "to run", |row| row["phase"] == "RUNNING")?;
            let first = shown["step"].as_u64().unwrap_or(0);
            self.wait_job(name, "to make steps", |row| {
                row["phase"] == "RUNNING" && row["step"].as_u64() >= Some(first + 3)
            })?;
        }
        self.watch.nothing_twice()
    }

    /// Waits until a node's line in `nodes` says so.
    pub(crate) fn wait_node(&self, name: &str, field: &str, wanted: &str) -> Result<Value> {
        wait::until(&format!("{name} to be {wanted}"), MINUTE, || {
            let Ok(node) = self.operator.node(&self.site, name) else { return Ok(None) };
            Ok((node[field] == wanted).then_some(node))
        })
        .with_context(|| self.run(&["nodes"]).unwrap_or_default())
    }

    pub(crate) fn wait_all_up(&self) -> Result<()> {
        NODES.iter().try_for_each(|name| self.wait_node(name, "reachability", "UP").map(drop))
    }

    /// Waits until the master shows another life of a node's agent, which is UP.
    pub(crate) fn wait_new_incarnation(&self, name: &str, before: &Value) -> Result<()> {
        wait::until(&format!("the next life of {name}'s agent"), MINUTE, || {
            let Ok(node) = self.json(&["node", "show", name]) else { return Ok(None) };
            let new = node["incarnation"] != *before && node["reachability"] == "UP";
            Ok(new.then_some(()))
        })
    }

    /// A node that carries a worker of a job.
    pub(crate) fn node_of(&self, name: &str) -> Result<String> {
        let job = &self.jobs[name];
        let tasks = self.site.tasks();
        let worker = tasks.iter().find(|task| task.job() == job && task.role() == "worker0");
        Ok(worker.with_context(|| format!("{name} has no worker: {tasks:?}"))?.host.clone())
    }

    /// Faults of each of these jobs that were told of.
    pub(crate) fn faults(&self, names: &[String]) -> Result<Vec<usize>> {
        names.iter().map(|name| Ok(rows(&self.show(name)?, "faults").len())).collect()
    }

    /// The training processes of these jobs.
    pub(crate) fn tasks_of(&self, names: &[String]) -> Vec<HostTask> {
        let ids: Vec<_> = names.iter().map(|name| self.jobs[name].as_str()).collect();
        let mut tasks = self.site.tasks();
        tasks.retain(|task| ids.contains(&task.job()));
        tasks
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.jobs.keys().cloned().collect()
    }

    /// A job that has come to its end is asked for nothing more.
    pub(crate) fn forget(&mut self, name: &str) {
        self.jobs.remove(name);
    }

    /// Lets a job end with an epoch that it has not begun.
    pub(crate) fn ask_to_end(&self, name: &str, epoch: u64) -> Result<()> {
        let asked = self.site.shared.join(name);
        fs::write(asked.with_extension("new"), epoch.to_string())?;
        fs::rename(asked.with_extension("new"), &asked)?;
        Ok(())
    }

    /// What was told of a node since an event, in this order among other things.
    pub(crate) fn saw(&self, node: &str, since: u64, kinds: &[&str]) -> Result<()> {
        let told = self.told_since(since)?;
        let mut left = kinds.iter().peekable();
        for (kind, text) in &told {
            if text.starts_with(node) && left.peek().is_some_and(|wanted| *wanted == kind) {
                left.next();
            }
        }
        ensure!(left.peek().is_none(), "{node} was not told as {kinds:?}, but {told:#?}");
        Ok(())
    }

    /// What was told of a node or a job since the event of this number.
    pub(crate) fn told_since(&self, number: u64) -> Result<Vec<(String, String)>> {
        let events = self.json(&["events", "--limit", "400"])?;
        let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
        Ok(rows(&events, "events")
            .iter()
            .filter(|row| row["number"].as_u64() > Some(number))
            .map(|row| (text(row, "kind"), text(row, "text")))
            .collect())
    }

    pub(crate) fn newest_event(&self) -> Result<u64> {
        let events = self.json(&["events", "--limit", "1"])?;
        Ok(rows(&events, "events").last().and_then(|row| row["number"].as_u64()).unwrap_or(0))
    }

    /// What to read where a wait was in vain.
    fn picture(&self, job: &str) -> String {
        let say = |args: &[&str]| self.run(args).unwrap_or_else(|error| format!("{error:#}\n"));
        format!(
            "{}{}{}{}",
            say(&["nodes"]),
            say(&["ps", "-o", "wide"]),
            say(&["why", job]),
            tail(&say(&["events"]), 40)
        )
    }

    /// Lets the jobs end, and judges them.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let rows = self.look()?;
        let names = self.names();
        for name in &names {
            let row = rows.iter().find(|row| row["id"] == *self.jobs[name]);
            let epoch = row.and_then(|row| row["epoch"].as_u64()).unwrap_or(0);
            self.ask_to_end(name, epoch + 3)?;
        }
        for name in &names {
            self.wait_job(name, "to complete", |row| row["phase"] == "COMPLETED")?;
            self.loss_continues(name)?;
        }
        wait::until("no task to be left", MINUTE, || {
            Ok(self.site.tasks().is_empty().then_some(()))
        })
        .with_context(|| format!("still there: {:?}", self.site.tasks()))?;
        self.watch.nothing_twice()
    }

    /// No restart and no move began anew, and after each the loss was where it had been.
    pub(crate) fn loss_continues(&self, name: &str) -> Result<()> {
        let shown = self.show(name)?;
        let mut breaks = Vec::new();
        for fault in rows(&shown, "faults") {
            let (step, from) = (fault["step"].as_u64(), fault["resumed_from"].as_u64());
            ensure!(from > Some(0) && from <= step, "{name} went on from nothing: {fault}");
            breaks.extend(from);
        }
        for decision in rows(&shown, "decisions") {
            let number = |field: &str| decision[field].as_f64();
            let (Some(before), Some(after), Some(deviation)) =
                (number("loss_before"), number("loss_after"), number("loss_before_deviation"))
            else {
                continue;
            };
            if after - before > DEVIATIONS_MAX * deviation {
                bail!("{name}: the loss jumped from {before} ± {deviation} to {after}: {decision}");
            }
        }
        let epochs: Vec<(u64, f64)> = rows(&shown, "epochs")
            .iter()
            .filter_map(|row| Some((row["step"].as_u64()?, row["loss"].as_f64()?)))
            .collect();
        for step in &breaks {
            let at = epochs.iter().position(|(end, _)| step < end).unwrap_or(epochs.len());
            // The epoch of the break itself is of both lives.
            let Some((_, after)) = epochs.get(at + 1) else { continue };
            let before: Vec<f64> = epochs[..at].iter().rev().take(8).map(|(_, l)| *l).collect();
            if let Some((mean, deviation)) = spread(&before) {
                ensure!(
                    after - mean <= DEVIATIONS_MAX * deviation,
                    "{name}: the loss jumped from {mean} ± {deviation} to {after} at step {step}"
                );
            }
        }
        talk(&format!(
            "{name}: {} steps, generation {}, {} faults, {} moves, loss {} at first and {} at last",
            shown["step"],
            shown["generation"],
            breaks.len(),
            rows(&shown, "decisions").len(),
            epochs.first().map_or(f64::NAN, |(_, loss)| *loss),
            epochs.last().map_or(f64::NAN, |(_, loss)| *loss),
        ));
        Ok(())
    }
}

/// Mean and standard deviation of at least four values.
fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let count = f64::from(u32::try_from(values.len()).ok().filter(|count| 4 <= *count)?);
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, (squares / (count - 1.0)).sqrt()))
}

/// What the jobs run, as a share of home folders would hold it.
pub(crate) fn copy_scripts(site: &Site, node: &str) -> Result<()> {
    let to = site.host(node).root().join(SCRIPTS.trim_start_matches('/'));
    fs::create_dir_all(&to)?;
    let examples = checkout().join("agent/python/examples");
    let own = checkout().join("tests/deployment/scripts");
    for folder in [examples, own] {
        for entry in fs::read_dir(&folder)?.filter_map(Result::ok) {
            if entry.path().extension().is_some_and(|extension| extension == "py") {
                fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}

fn job(name: &str, script: &str, arguments: &[&str]) -> JobFile {
    let mut job = JobFile::new(name, "until.py", CHECKPOINTS);
    job.arguments = vec![format!("/srv/checkpoints/{name}"), format!("{SCRIPTS}/{script}")];
    job.arguments.extend(arguments.iter().map(ToString::to_string));
    job.workers = (1, 1);
    job.servers = (1, 1);
    job.finish = Finish::Epochs(10_000);
    job.epochs_max = 10_000;
    job.checkpoint_interval = "5s".to_owned();
    job.restarts_max = 100;
    job
}

/// The jobs of the quickstart, in shapes that no round changes, for as long as the test lasts.
/// The first is larger than a node: it always trains across two.
pub(crate) fn quickstart_jobs() -> [JobFile; 3] {
    let mut cnn = job(CNN, "digits_cnn.py", &["--samples", "1280", "--width", "8"]);
    cnn.batch = "global = 256".to_owned();
    cnn.workers = (2, 2);
    cnn.environment.push(("TOKEN".to_owned(), SECRET.to_owned()));
    let mut mlp = job("digits-mlp", "digits_mlp.py", &["--samples", "5120"]);
    mlp.mode = "async";
    mlp.batch = "per_worker = 64".to_owned();
    let regression = job("regression", "regression.py", &["--samples", "8192"]);
    [cnn, mlp, regression]
}

/// A small job beside them, with a rule for a silent node.
pub(crate) fn extra_job(name: &str, on_disconnect: &'static str) -> JobFile {
    let mut extra = job(name, "regression.py", &["--samples", "4096"]);
    extra.worker_cpus = 0.2;
    extra.server_cpus = 0.2;
    extra.on_disconnect = on_disconnect;
    extra
}
