//! GPUs at the start of an agent: fewer than are configured, and a library that fails at first.

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::nvml::Nvml;
use harness::{Cluster, ClusterOptions, wait};

use crate::common::MINUTE;
use crate::links::node;

/// A cluster whose node is said to have so many GPUs.
fn configured(count: u32) -> Result<Cluster> {
    let cluster = Cluster::prepare(&ClusterOptions::quick(&[1.0]))?;
    let path = cluster.folder.join("n1.toml");
    // The table of capacities is the last one.
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{text}gpus = {count}\n"))?;
    Ok(cluster)
}

fn wait_offered(cluster: &Cluster, count: u64) -> Result<()> {
    wait::until(&format!("{count} GPUs to be offered"), MINUTE, || {
        Ok((node(cluster, "n1")?["capacity"]["gpus"] == count).then_some(()))
    })
    .with_context(|| cluster.agents[0].log())
}

fn told(cluster: &Cluster) -> Result<String> {
    let doctor = cluster.json(&["doctor"])?;
    let findings = rows(&doctor, "findings").iter().filter(|one| one["subject"] == "n1");
    let words: Vec<_> = findings.map(|one| one["words"].to_string()).collect();
    Ok(words.join("; "))
}

#[test]
fn a_node_with_fewer_gpus_than_configured_joins_with_an_alert() -> Result<()> {
    let mut cluster = configured(8)?;
    let mut nvml = Nvml::give(&mut cluster, 0, 7)?;
    cluster.launch(1)?;
    wait_offered(&cluster, 7)?;
    ensure!(node(&cluster, "n1")?["schedulability"] == "OPEN", "it takes no work");
    let alert = "capacity.gpus is 8, and 7 can be used";
    let words = told(&cluster)?;
    ensure!(words.contains(alert), "{words}");
    let shown = cluster.json(&["node", "show", "n1"])?["alerts"].to_string();
    ensure!(shown.contains(alert), "{shown}");
    // The card is seated anew.
    nvml.add("count 8")?;
    nvml.remove("count 7")?;
    wait_offered(&cluster, 8)?;
    wait::until("the alert to end", MINUTE, || {
        Ok((!told(&cluster)?.contains("capacity.gpus")).then_some(()))
    })
}

#[test]
fn a_library_that_fails_at_first_is_asked_again_and_none_at_all_is_normal() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[1.0, 1.0]))?;
    let mut nvml = Nvml::give(&mut cluster, 0, 2)?;
    nvml.add("init 999")?;
    cluster.launch(2)?;
    wait_offered(&cluster, 0)?;
    wait::until("the failure to be told", MINUTE, || {
        Ok(told(&cluster)?.contains("NVML").then_some(()))
    })
    .with_context(|| told(&cluster).unwrap_or_default())?;
    let pid = cluster.agents[0].pid();
    nvml.remove("init 999")?;
    wait_offered(&cluster, 2)?;
    ensure!(cluster.agents[0].pid() == pid, "it was started anew");
    // The other node has no library and no device, and nothing to say of it.
    let doctor = cluster.json(&["doctor"])?;
    let about = |word: &str| {
        let of = rows(&doctor, "findings").iter().filter(|one| one["subject"] == "n2");
        of.filter(|one| one["words"].to_string().contains(word)).count()
    };
    ensure!(about("GPU") + about("NVML") == 0, "{doctor}");
    Ok(())
}
