//! systemd's own judgement of the units.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::binaries::checkout;
use tempfile::TempDir;

/// The folder of the programs in the units.
const PROGRAMS: &str = "/usr/lib/optimus";

/// Worst exposure of each service that is accepted, in tenths of systemd's scale of ten. What the
/// agent keeps open has its reason in a comment of its unit.
const EXPOSURE_MAX: [(&str, &str); 3] = [
    ("optimus-master.service", "25"),
    ("optimus-agent.service", "46"),
    ("optimus-tasks.service", "25"),
];

/// The units, with programs that are there.
fn units() -> (TempDir, Vec<PathBuf>) {
    harness::ansible::ready().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for name in ["optimus-master", "optimus-agent"] {
        let program = programs.join(name);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(checkout().join("systemd")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let copy = folder.path().join(path.file_name().unwrap());
        fs::write(&copy, text.replace(PROGRAMS, programs.to_str().unwrap())).unwrap();
        found.push(copy);
    }
    assert_eq!(found.len(), 4, "{found:?}");
    (folder, found)
}

fn verify(units: &[PathBuf]) -> Output {
    // Without the second option an unknown key is told, and passes.
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]).args(units);
    command.output().unwrap()
}

#[test]
fn every_unit_is_one_that_systemd_takes_whole() {
    let (_folder, units) = units();
    let output = verify(&units);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    // The judge itself: a misspelt key would else be a rule that nobody keeps.
    let agent = units.iter().find(|path| path.ends_with("optimus-agent.service")).unwrap();
    let text = fs::read_to_string(agent).unwrap();
    fs::write(agent, text.replace("NoNewPrivileges=", "NoNewPrivilege=")).unwrap();
    assert!(!verify(std::slice::from_ref(agent)).status.success());
}

fn exposed(unit: &Path, threshold: &str) -> Output {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager", "--threshold", threshold]).arg(unit);
    command.output().unwrap()
}

#[test]
fn services_are_open_to_no_more_than_they_need() {
    let (folder, _units) = units();
    for (name, threshold) in EXPOSURE_MAX {
        let output = exposed(&folder.path().join(name), threshold);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(!exposed(&folder.path().join(name), "5").status.success(), "it judges nothing");
    }
}

/// Values of a key in a unit, comments aside.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn a_restart_of_the_agent_leaves_tasks_alone_and_a_stop_of_the_tasks_ends_them() {
    let read = |name: &str| fs::read_to_string(checkout().join("systemd").join(name)).unwrap();
    let (agent, tasks) = (read("optimus-agent.service"), read("optimus-tasks.service"));
    assert_eq!(values(&agent, "KillMode"), ["process"]);
    assert_eq!(values(&tasks, "KillMode"), ["control-group"]);
    assert_eq!(values(&tasks, "Delegate"), ["yes"]);
    // One task out of memory would else stop the unit, and all the others with it.
    assert_eq!(values(&tasks, "OOMPolicy"), ["continue"]);
    assert_eq!(values(&agent, "OOMPolicy"), ["continue"]);
    // Each of these would hand a stop or a restart of one unit on to the other.
    for key in
        ["Requires", "BindsTo", "PartOf", "Requisite", "PropagatesStopTo", "StopPropagatedFrom"]
    {
        assert!(values(&agent, key).is_empty() && values(&tasks, key).is_empty(), "{key}");
    }
    // systemd keeps these by control group: the tasks' lie below, and would lose GPUs or network.
    for key in ["PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "IPAddressDeny"] {
        assert!(values(&tasks, key).is_empty(), "{key}");
    }
    // Tasks are the agent's children, and see the /tmp and the users' folders of the host.
    for key in ["PrivateTmp", "ProtectHome", "PrivateDevices", "MemoryDenyWriteExecute"] {
        assert!(values(&agent, key).is_empty(), "{key}");
    }
}
