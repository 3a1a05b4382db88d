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

/// Where the hosts have the training scripts.
const SCRIPTS: &str = "/opt/train/scripts";
const CHECKPOINTS: &str = "file:///srv/checkpoints";
const PORT: u16 = 7600;

/// The master's own disk: small enough to be filled at once.
const MASTER_DISK_BYTES: u64 = 96 << 20;

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
        let found = rows(&listing, "jobs").to_vec();
        for row in &found {
            let id = row["id"].as_str().context("a job has an id")?.to_owned();
            let step = row["step"].as_u64().context("a job has a step")?;
            let phase = row["phase"].as_str().unwrap_or_default();
            ensure!(
                phase != "FAILED" && phase != "CANCELLED",
                "{id} is {phase}: {}\n{}",
                row["reason"],
                self.run(&["events", &id])?
            );
            let before = self.steps.insert(id.clone(), step).unwrap_or(0);
            ensure!(
                step > 0 || before == 0,
                "{id} was at step {before} and is at step 0 again: {row}"
            );
        }
        Ok(found)
    }

    /// Waits until `holds` of the line of a job. A master that is just away is asked again.
    pub(crate) fn wait_job(
        &mut self,
        name: &str,
        what: &str,
        limit: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let id = self.jobs[name].clone();
        let mut last = Value::Null;
        let waited = wait::until(&format!("{name} {what}"), limit, || {
            if self.json(&["status"]).is_err() {
                return Ok(None);
            }
            let rows = self.look()?;
            last = rows.into_iter().find(|row| row["id"] == *id).context("it is gone")?;
            Ok(holds(&last).then(|| last.clone()))
        });
        waited.with_context(|| self.picture(&id))
    }

    /// Waits until every job runs and has made some further steps.
    pub(crate) fn all_train(&mut self) -> Result<()> {
        let names: Vec<_> = self.jobs.keys().cloned().collect();
        for name in names {
            let shown =
                self.wait_job(&name, "to run", 2 * MINUTE, |row| row["phase"] == "RUNNING")?;
            let first = shown["step"].as_u64().unwrap_or(0);
            self.wait_job(&name, "to make steps", 2 * MINUTE, |row| {
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

    /// The training processes of jobs that should not notice what happens now.
    pub(crate) fn tasks(&self) -> Vec<HostTask> {
        self.site.tasks()
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
        let names: Vec<_> = self.jobs.keys().cloned().collect();
        for name in &names {
            let epoch = rows
                .iter()
                .find(|row| row["id"] == *self.jobs[name])
                .and_then(|row| row["epoch"].as_u64())
                .unwrap_or(0);
            let asked = self.site.shared.join(name);
            fs::write(asked.with_extension("new"), (epoch + 3).to_string())?;
            fs::rename(asked.with_extension("new"), &asked)?;
        }
        for name in &names {
            self.wait_job(name, "to complete", 3 * MINUTE, |row| row["phase"] == "COMPLETED")?;
            let shown = self.show(name)?;
            self.loss_continues(name, &shown)?;
        }
        wait::until("no task to be left", MINUTE, || Ok(self.tasks().is_empty().then_some(())))
            .with_context(|| format!("still there: {:?}", self.tasks()))?;
        self.watch.nothing_twice()
    }

    fn loss_continues(&self, name: &str, shown: &Value) -> Result<()> {
        let mut moves = 0;
        for decision in rows(shown, "decisions") {
            let number = |field: &str| decision[field].as_f64();
            let (Some(before), Some(after), Some(deviation)) =
                (number("loss_before"), number("loss_after"), number("loss_before_deviation"))
            else {
                continue;
            };
            moves += 1;
            if after - before > DEVIATIONS_MAX * deviation {
                bail!("{name}: the loss jumped from {before} ± {deviation} to {after}: {decision}");
            }
        }
        talk(&format!(
            "{name}: {} steps, {} generations, {moves} moves with a loss before and after, at \
             {} in the end",
            shown["step"], shown["generation"], shown["loss"]
        ));
        Ok(())
    }
}

fn copy_scripts(site: &Site, node: &str) -> Result<()> {
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

/// The jobs of the quickstart, in shapes that no round changes, for as long as the test lasts.
/// The first is larger than a node: it always trains across two.
pub(crate) fn quickstart_jobs() -> [JobFile; 3] {
    let job = |name: &str, script: &str, samples: &str| {
        let mut job = JobFile::new(name, "until.py", CHECKPOINTS);
        let last = format!("/srv/checkpoints/{name}");
        job.arguments = [&last, &format!("{SCRIPTS}/{script}"), "--samples", samples]
            .map(ToString::to_string)
            .to_vec();
        job.workers = (1, 1);
        job.servers = (1, 1);
        job.finish = Finish::Epochs(10_000);
        job.epochs_max = 10_000;
        job.checkpoint_interval = "5s".to_owned();
        job
    };
    let mut cnn = job("digits-cnn", "digits_cnn.py", "2560");
    cnn.batch = "global = 256".to_owned();
    cnn.workers = (2, 2);
    let mut mlp = job("digits-mlp", "digits_mlp.py", "10240");
    mlp.mode = "async";
    mlp.batch = "per_worker = 64".to_owned();
    let regression = job("regression", "regression.py", "32768");
    [cnn, mlp, regression]
}
