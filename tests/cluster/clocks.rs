//! Wall clocks that differ between hosts, and that are set while everything runs.

use anyhow::{Context as _, Result, ensure};
use harness::clock::WallClock;
use harness::cluster::rows;
use harness::process::talk;
use harness::{Cluster, ClusterOptions, wait};
use serde_json::Value;

use crate::common::{MINUTE, faults, show, submit, wait_job, wait_steps};
use crate::links::{endless, node};

const HOUR_MS: i64 = 3_600_000;

/// Waits until the master has heard of a skew of about this many seconds.
fn wait_skew(cluster: &Cluster, seconds: f64) -> Result<()> {
    let mut last = Value::Null;
    wait::until(&format!("a skew of {seconds} s to be seen"), MINUTE, || {
        last = cluster.json(&["node", "show", "n1"])?["clock_skew_s"].clone();
        let near = last.as_f64().is_some_and(|skew| (skew - seconds).abs() < 0.4);
        Ok(near.then_some(()))
    })
    .with_context(|| format!("it is {last}"))
}

#[test]
fn a_clock_that_differs_is_named_and_hinders_nothing() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[1.0]))?;
    let clock = WallClock::give(&mut cluster.agents[0], &cluster.folder, "n1")?;
    cluster.launch(1)?;
    let job = submit(&cluster, &endless(&cluster, "skewed", "keep"))?;
    wait_steps(&cluster, &job, 5)?;
    // How far it is off, the severity of doctor's finding, and whether status has an alert.
    let told = [
        (500, None, false),
        (2_000, Some("warning"), false),
        (31_000, Some("fault"), true),
        (300_000, Some("fault"), true),
        (600_000, Some("fault"), true),
        (-300_000, Some("fault"), true),
    ];
    for (ms, severity, alert) in told {
        clock.set_ahead_ms(ms)?;
        cluster.agents[0].kill()?;
        cluster.agents[0].start()?;
        let seconds = f64::from(i32::try_from(ms)?) / 1000.0;
        wait_skew(&cluster, seconds)?;
        wait_steps(&cluster, &job, 5)?;
        let doctor = cluster.json(&["doctor"])?;
        let about = |one: &&Value| one["words"].as_str().is_some_and(|w| w.contains("its clock"));
        let found = rows(&doctor, "findings").iter().find(about);
        let as_told = found.map(|one| one["severity"].as_str().unwrap_or("").to_lowercase());
        ensure!(as_told.as_deref() == severity, "{seconds} s: {found:?}");
        let alerts = cluster.json(&["status"])?["alerts"].to_string();
        ensure!(alerts.contains("the clock of n1 differs") == alert, "{seconds} s: {alerts}");
    }
    let events = cluster.run(["events"])?;
    ensure!(events.contains("its clock differs by 600 s"), "{events}");
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "a skew is no fault");
    // Before its certificate begins nobody can prove who it is: the clock is named.
    clock.set_ahead_ms(-2 * HOUR_MS)?;
    cluster.agents[0].kill()?;
    let before = cluster.agents[0].log().len();
    cluster.agents[0].start()?;
    let said = wait::until("the clock to be named", MINUTE, || {
        let log = cluster.agents[0].log();
        let line = log.get(before..).unwrap_or("").lines().find(|line| line.contains("clock"));
        Ok(line.map(str::to_owned))
    })
    .with_context(|| cluster.agents[0].log())?;
    talk(&format!("two hours behind: {said}"));
    clock.set_ahead_ms(0)?;
    // It tries on, or was ended by that and is started again.
    if !cluster.agents[0].lives()? {
        cluster.agents[0].kill()?;
        cluster.agents[0].start()?;
    }
    wait_skew(&cluster, 0.0)?;
    wait_steps(&cluster, &job, 5)?;
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()
}

/// Every duration within, by the ends of names: none may be negative.
fn negative(value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, inner)| {
                let path = format!("{path}.{name}");
                let wrong = name.ends_with("_s") && inner.as_f64().is_some_and(|s| s < 0.0);
                let own = wrong.then(|| format!("{path} = {inner}"));
                let skew = name == "clock_skew_s" || name.contains("gain");
                own.into_iter().filter(move |_| !skew).chain(negative(inner, &path))
            })
            .collect(),
        Value::Array(rows) => rows.iter().flat_map(|row| negative(row, path)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn looks_right(cluster: &Cluster, job: &str) -> Result<()> {
    ensure!(node(cluster, "n1")?["reachability"] == "UP", "the node is lost");
    let shown = show(cluster, job)?;
    ensure!(shown["generation"] == "g1" && faults(&shown).is_empty(), "{shown}");
    let mut wrong = negative(&shown, "show");
    for page in [&["ps"][..], &["nodes"], &["status"], &["rounds"]] {
        wrong.extend(negative(&cluster.json(page)?, page[0]));
    }
    ensure!(wrong.is_empty(), "negative durations: {wrong:?}");
    Ok(())
}

#[test]
fn a_date_that_is_set_on_the_master_loses_nothing() -> Result<()> {
    let mut options = ClusterOptions::quick(&[1.0]);
    options.master_toml.push_str("[nodes]\nsuspect = \"5s\"\ndown = \"15s\"\n");
    let mut cluster = Cluster::prepare(&options)?;
    let clock = WallClock::give(&mut cluster.master, &cluster.folder, "master")?;
    // Certificates begin now, and are looked at by this clock.
    clock.set_ahead_ms(2 * HOUR_MS)?;
    cluster.launch(1)?;
    let job = submit(&cluster, &endless(&cluster, "dated", "replace"))?;
    wait_steps(&cluster, &job, 5)?;
    wait_job(&cluster, &job, "a checkpoint", MINUTE, |s| !rows(s, "checkpoints").is_empty())?;
    let tasks = cluster.tasks();
    clock.set_ahead_ms(3 * HOUR_MS)?;
    let step = wait_steps(&cluster, &job, 40)?;
    looks_right(&cluster, &job).context("an hour forward")?;
    clock.set_ahead_ms(HOUR_MS)?;
    wait_steps(&cluster, &job, 40)?;
    looks_right(&cluster, &job).context("two hours back")?;
    // What was written last wins, whatever its date.
    cluster.master.kill()?;
    cluster.master.start()?;
    let after = wait_steps(&cluster, &job, 10)?;
    ensure!(step < after, "step {after} after {step}");
    looks_right(&cluster, &job).context("a restart two hours back")?;
    ensure!(cluster.tasks() == tasks, "tasks changed");
    let later = submit(&cluster, &endless(&cluster, "later", "keep"))?;
    ensure!(later == "j2", "{later}");
    cluster.run(["cancel", &job, &later, "--now", "--yes"])?;
    wait_job(&cluster, &job, "its end", MINUTE, |shown| shown["phase"] == "CANCELLED")?;
    let wrong = negative(&show(&cluster, &job)?, "show");
    ensure!(wrong.is_empty(), "negative durations: {wrong:?}");
    cluster.wait_no_task()
}
