//! A master that restarts or dies: nobody notices but who asks it just then.

use anyhow::{Result, ensure};
use harness::cluster::rows;
use harness::wait;

use super::agents::unnoticed;
use crate::rollout::{MASTER, NODES};
use crate::world::{MINUTE, World, extra_job};

/// An orderly restart, and a kill that systemd answers with a new start.
pub(crate) fn restarts(world: &mut World) -> Result<()> {
    for deed in ["restart", "kill --signal=KILL"] {
        unnoticed(world, |world| {
            let since = world.newest_event()?;
            let pid = world.site.host(MASTER).ssh("systemctl show -P MainPID optimus-master")?;
            world.site.host(MASTER).ssh(&format!("systemctl {deed} optimus-master"))?;
            wait::until("the master's next life", MINUTE, || {
                let now = world.site.host(MASTER).ssh(
                    "systemctl is-active optimus-master >/dev/null && \
                     systemctl show -P MainPID optimus-master || true",
                )?;
                Ok((!now.trim().is_empty() && now != pid && world.run(&["status"]).is_ok())
                    .then_some(()))
            })?;
            // Healthy nodes are not judged by what an earlier life of the master heard.
            for node in NODES {
                let down = world.told_since(since)?;
                ensure!(
                    !down.iter().any(|(kind, text)| kind == "down" && text.contains(node)),
                    "a restart of the master took {node} for dead: {down:?}"
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A job that ends while there is no master: told once when there is one again.
pub(crate) fn job_ends_meanwhile(world: &mut World) -> Result<()> {
    let job = world.submit(&extra_job("brief", "keep"))?;
    world.wait_job("brief", "to run", |row| {
        row["phase"] == "RUNNING" && row["step"].as_u64() > Some(0)
    })?;
    world.site.host(MASTER).ssh("systemctl stop optimus-master")?;
    world.ask_to_end("brief", 0)?;
    wait::until("its script to end", MINUTE, || {
        Ok(world.site.shared.join("brief.done").exists().then_some(()))
    })?;
    world.site.host(MASTER).ssh("systemctl start optimus-master")?;
    world.wait_all_up()?;
    world.wait_job("brief", "to complete", |row| row["phase"] == "COMPLETED")?;
    let told = world.json(&["events", &job])?;
    let ends = rows(&told, "events").iter().filter(|event| event["kind"] == "completed").count();
    ensure!(ends == 1, "its end was told {ends} times: {told}");
    world.forget("brief");
    Ok(())
}
