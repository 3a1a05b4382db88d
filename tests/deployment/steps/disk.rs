//! The master's disk is full: no new work, everything else as ever.

use anyhow::{Context as _, Result, ensure};
use harness::wait;

use super::agents::unnoticed;
use crate::rollout::MASTER;
use crate::world::{MINUTE, World, extra_job};

const FOLDER: &str = "/var/lib/optimus/master";
const FILLER: &str = "/var/lib/optimus/master/filler";

/// Less than what a master wants for new jobs on a disk of this size, more than it needs for those
/// that it has.
const LEFT_KIB: u32 = 14 << 10;

pub(crate) fn fills(world: &mut World) -> Result<()> {
    let names = world.names();
    unnoticed(world, |world| {
        // Acknowledged just before: it must be there in the end.
        world.submit(&extra_job("acknowledged", "keep"))?;
        // Little is left, then nothing.
        let nearly = format!(
            "free=$(df --output=avail -k {FOLDER} | tail -1); \
             head -c $((free - {LEFT_KIB}))K /dev/zero > {FILLER}"
        );
        world.site.host(MASTER).ssh(&nearly)?;
        let path = world.write(&extra_job("refused", "keep"))?;
        let words = wait::until("a refusal", MINUTE, || {
            let args = ["submit", &path, "--output", "name"];
            let output = world.operator.output(&world.site, &args)?;
            if output.status.success() {
                // The master had not looked yet.
                let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                world.run(&["cancel", &id, "--yes"])?;
                return Ok(None);
            }
            Ok(Some(String::from_utf8_lossy(&output.stderr).into_owned()))
        })?;
        let full = format!("cat /dev/zero >> {FILLER} 2>/dev/null; test -s {FILLER}");
        world.site.host(MASTER).ssh(&full)?;
        ensure!(words.contains("the disk of its state folder is nearly full"), "said {words}");
        ensure!(!words.contains("still trying"), "was sent again: {words}");
        let output = world.operator.output(&world.site, &["submit", &path])?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(6), "on a full disk: {output:?}");
        ensure!(told.contains("the disk of its state folder is full"), "said {told}");
        let status = world.run(&["status"])?;
        ensure!(status.contains("disk of the state folder"), "status says nothing: {status}");
        for read in [&["ps"], &["nodes"], &["events"]] {
            world.run(read).context("reads are served meanwhile")?;
        }
        world.train(&names).context("training goes on meanwhile")?;
        // A kill, and a start without a byte to spare.
        world.site.host(MASTER).ssh("systemctl kill --signal=KILL optimus-master")?;
        wait::until("the master to serve reads on a full disk", MINUTE, || {
            Ok(world.run(&["ps"]).ok())
        })?;
        world.site.host(MASTER).ssh(&format!("rm {FILLER}"))?;
        let id = wait::until("a submission to be taken again", MINUTE, || {
            let args = ["submit", &path, "--output", "name"];
            let output = world.operator.output(&world.site, &args)?;
            let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Ok(output.status.success().then_some(id))
        })?;
        world.jobs.insert("refused".to_owned(), id);
        Ok(())
    })
    .context("with a full disk")?;
    for name in ["acknowledged", "refused"] {
        world.train(&[name.to_owned()])?;
        world.ask_to_end(name, 0)?;
    }
    for name in ["acknowledged", "refused"] {
        world.wait_job(name, "to complete", |row| row["phase"] == "COMPLETED")?;
        world.forget(name);
    }
    Ok(())
}
