//! The agent's own part in control groups, where this machine has the v2 tree and the tests run as
//! root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

const LIMIT: Duration = Duration::from_secs(30);

fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut places = mounts.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
    });
    places.next().filter(|_| geteuid().is_root())
}

#[test]
fn the_holder_of_a_unit_leaves_its_group_free_and_ends_with_term() {
    let Some(mount) = mount() else { return };
    // As the service manager starts it, but under another name than an agent looks for.
    let unit = mount.join(format!("optimus-hold-{}", std::process::id()));
    fs::create_dir(&unit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let notify = dir.path().join("notify");
    let socket = UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "echo $$ > \"$1/cgroup.procs\" && exec \"$2\" hold-tasks", "sh"])
        .arg(&unit)
        .arg(env!("CARGO_BIN_EXE_optimus-agent"))
        .env("NOTIFY_SOCKET", &notify)
        .spawn()
        .unwrap();
    let mut words = [0; 100];
    let count = socket.recv(&mut words).unwrap();
    assert_eq!(&words[..count], b"READY=1\n");
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(unit.join("cgroup.procs")), "", "it may share out controllers");
    assert_eq!(read(unit.join("holder/cgroup.procs")), format!("{}\n", child.id()));
    let status = read(PathBuf::from(format!("/proc/{}/status", child.id())));
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    println!("{resident}");
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    fs::remove_dir(unit.join("holder")).unwrap();
    fs::remove_dir(unit).unwrap();
}

#[test]
fn a_launcher_that_no_agent_started_starts_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_optimus-agent"));
    let output = command.args(["run-task", "--", "echo", "here"]).output().unwrap();
    assert!(!output.status.success());
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.starts_with("\n!") && !words.contains("here"), "{words}");
}
