//! The master's disk is full: no new work, everything else as ever.

use anyhow::{Context as _, Result, ensure};
use harness::wait;

use super::agents::unnoticed;
use crate::rollout::MASTER;
use crate::world::{MINUTE, World, extra_job};

const FILLER: &str = "/var/lib/optimus/master/filler";

pub(crate) fn fills(world: &mut World) -> Result<()> {
    // Acknowledged just before: it must be there in the end.
    world.submit(&extra_job("acknowledged", "keep"))?;
    unnoticed(world, |world| {
        let fill = format!("cat /dev/zero > {FILLER} 2>/dev/null; test -s {FILLER}");
        world.site.host(MASTER).ssh(&fill)?;
        let path = world.write(&extra_job("refused", "keep"))?;
        let words = wait::until("a refusal", MINUTE, || {
            let output = world.operator.output(&world.site, &["submit", &path])?;
            // One that was taken before the master looked is to end as any other.
            if output.status.success() {
                world.run(&["cancel", &String::from_utf8_lossy(&output.stdout), "--yes"]).ok();
                return Ok(None);
            }
            Ok(Some(String::from_utf8_lossy(&output.stderr).into_owned()))
        })?;
        ensure!(words.contains("the disk of its state folder is nearly full"), "said {words}");
        let status = world.run(&["status"])?;
        ensure!(status.contains("disk of the state folder"), "status says nothing: {status}");
        for read in [&["ps"][..], &["nodes"], &["events"]] {
            world.run(read).context("reads are served meanwhile")?;
        }
        world.all_train().context("training goes on meanwhile")?;
        // A kill and a start without a byte to spare.
        world.site.host(MASTER).ssh("systemctl kill --signal=KILL optimus-master")?;
        wait::until("the master to serve reads on a full disk", MINUTE, || {
            Ok(world.run(&["ps"]).ok())
        })?;
        world.site.host(MASTER).ssh(&format!("rm {FILLER}"))?;
        wait::until("a submission to be taken again", MINUTE, || {
            let output = world.operator.output(&world.site, &["submit", &path, "-o", "json"])?;
            if !output.status.success() {
                return Ok(None);
            }
            let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
            Ok(answer["id"].as_str().map(ToOwned::to_owned))
        })
        .map(|id| world.jobs.insert("refused".to_owned(), id))
        .map(drop)
    })
    .context("with a full disk")?;
    for name in ["acknowledged", "refused"] {
        let epoch = world.show(name)?["epoch"].as_u64().unwrap_or(0);
        world.ask_to_end(name, epoch + 1)?;
    }
    for name in ["acknowledged", "refused"] {
        world.wait_job(name, "to complete", |row| row["phase"] == "COMPLETED")?;
        world.forget(name);
    }
    Ok(())
}
