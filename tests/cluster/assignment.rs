//! Parameter blocks lie where the master assigned them: counted on the wire.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::binaries::{Binaries, checkout};
use harness::process::talk;
use harness::setup::Environment;
use serde_json::Value;

/// The paper's case of section 5.3: ResNet-50's 157 blocks on ten servers, real MXNet processes.
#[test]
fn resnet50_on_ten_servers_is_one_push_a_block_and_even() -> Result<()> {
    let environment = Environment::ready()?;
    let output = Command::new(&environment.python)
        .arg(checkout().join("agent/python/benchmarks/assignment.py"))
        .arg("--optimus")
        .arg(&Binaries::build()?.optimus)
        .args(["--servers", "10", "--rounds", "0"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .context("cannot run the benchmark")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout)?;
    let count = |layout: &str, what: &str| {
        found["rows"][0][layout][what].as_f64().with_context(|| format!("no {what} in {found}"))
    };
    let mut seen = Vec::new();
    for layout in ["stock", "assigned"] {
        let pushes = count(layout, "pushes_per_step_and_worker")?;
        seen.push((pushes, count(layout, "bytes_largest_over_mean")?));
    }
    talk(&format!("pushes and largest server over mean, by MXNet's rule and assigned: {seen:?}"));
    // Both within a push: a process says its last word in the log a little later.
    ensure!((seen[0].0 - 247.0).abs() < 1.0 && seen[0].1 > 1.2, "MXNet's rule gives {seen:?}");
    ensure!((seen[1].0 - 157.0).abs() < 1.0 && seen[1].1 <= 1.02, "assigned gives {seen:?}");
    Ok(())
}
