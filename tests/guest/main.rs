//! What needs a kernel with the controllers on cgroup v2: the agent's own tests of limits, in a
//! machine that has them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::binaries::checkout;
use harness::guest::Guest;
use harness::process::talk;
use serde_json::Value;

/// Some 30 s to boot without KVM, and some 60 s of tests.
const LIMIT_S: u32 = 400;

/// The tests that only such a machine can run, and those of groups that any other can as well.
const WANTED: [&str; 3] = ["daemon::tests::guest", "daemon::tests::isolated", "cgroup::tests"];

/// Those of `daemon::tests::guest`.
const LIMIT_TESTS: usize = 10;

/// The agent's tests as a program, built just now from this checkout.
fn agent_tests() -> Result<PathBuf> {
    let profile: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--package", "agent", "--bins"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(profile)
        .current_dir(checkout())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "the agent's tests cannot be built: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = messages.filter(|message| {
        message["target"]["name"] == "optimus-agent" && message["profile"]["test"] == true
    });
    let path = built.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.context("cargo built no tests of the agent")
}

#[test]
fn limits_hold_on_a_kernel_with_cgroup_v2() {
    let guest = Guest::ready().expect("the guest is set up");
    let program = agent_tests().expect("the tests are built");
    let script = format!(
        "cd /tmp && agent-tests --show-output --test-threads 1 {} 2>&1; echo \"ended $?\"",
        WANTED.join(" ")
    );
    let mut lines = Vec::new();
    let done = guest.run(&[("agent-tests", &program)], &script, LIMIT_S, |line| {
        talk(line);
        lines.push(line.to_owned());
    });
    done.expect("the guest runs to its end");
    assert!(lines.iter().any(|line| line == "ended 0"), "tests in the guest failed");
    // A test of limits passes also where there are none: here each must have found them.
    let enforced = lines.iter().filter(|line| line.ends_with(": limits are enforced"));
    assert_eq!(enforced.count(), LIMIT_TESTS, "not each test of limits found them");
    // None may be left out: a name that changed would else pass unseen.
    for wanted in WANTED {
        let passed = lines
            .iter()
            .filter(|line| line.starts_with(&format!("test {wanted}")) && line.ends_with("ok"));
        assert!(3 <= passed.count(), "the tests of {wanted} did not run");
    }
}
