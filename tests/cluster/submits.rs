//! "Accepted" means stored.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::JobFile;
use harness::process::talk;
use harness::{Cluster, ClusterOptions, wait};
use serde_json::Value;

const SUBMITS: usize = 50;
const KILLS: usize = 10;

#[test]
fn every_acknowledged_job_is_there_once() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[]))?;
    cluster.master.start()?;
    let mut file = JobFile::new("many", "linear_probe.py", &cluster.checkpoints());
    file.workers = (1, 1);
    let path = cluster.folder.join("many.toml");
    std::fs::write(&path, file.text(&cluster.environment))?;
    let path = path.display().to_string();
    let mut master = cluster.take_master();
    let (cluster, path) = (&cluster, &path);
    let done = AtomicBool::new(false);
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    let killed = std::thread::scope(|scope| -> Result<usize> {
        let done = &done;
        let killer = scope.spawn(move || -> Result<(usize, harness::cluster::Daemon)> {
            let mut kills = 0;
            while kills < KILLS {
                // Wait until it serves, so that each kill meets a master at work.
                wait::until("the master to answer", Duration::from_secs(30), || {
                    Ok(cluster.optimus(["status"])?.status.success().then_some(()))
                })?;
                master.kill()?;
                kills += 1;
                master.start()?;
            }
            wait::until("all submits", 5 * crate::common::MINUTE, || {
                Ok(done.load(Ordering::Acquire).then_some(()))
            })?;
            Ok((kills, master))
        });
        for number in 0..SUBMITS {
            let request = format!("request-{number}");
            let args = ["submit", path, "--request-id", &request, "-o", "json"];
            // A client retries with the same request id until it is told "accepted".
            let id = wait::until("an acknowledged submit", crate::common::MINUTE, || {
                let output = cluster.optimus(args)?;
                if !output.status.success() {
                    let code = output.status.code();
                    ensure!(code == Some(6), "submit exited with {code:?}: {output:?}");
                    return Ok(None);
                }
                let answer: Value = serde_json::from_slice(&output.stdout)?;
                Ok(Some(answer["id"].as_str().context("no id")?.to_owned()))
            })?;
            acknowledged.insert(request, id);
        }
        done.store(true, Ordering::Release);
        let (kills, mut master) =
            killer.join().map_err(|_| anyhow::anyhow!("the killer panicked"))??;
        let listing = cluster.json(&["ps"])?;
        let ids: Vec<_> =
            rows(&listing, "jobs").iter().filter_map(|job| job["id"].as_str()).collect();
        for (request, id) in &acknowledged {
            let count = ids.iter().filter(|found| *found == id).count();
            ensure!(count == 1, "{id} of {request} is there {count} times");
        }
        ensure!(ids.len() == SUBMITS, "{} jobs for {SUBMITS} submits", ids.len());
        master.kill()?;
        Ok(kills)
    })?;
    talk(&format!("{SUBMITS} submits acknowledged over {killed} kills of the master"));
    Ok(())
}
