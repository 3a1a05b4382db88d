//! Real groups of this machine, where its tree is mounted and the tests run as root.

use std::process::{Child, Command, Stdio};

use model::Generation;
use nix::unistd::geteuid;

use super::*;

/// A tree of its own for each test; none where this machine has none to give.
fn tree(test: &str) -> Option<Tree> {
    if !geteuid().is_root() {
        return None;
    }
    let settings = GroupSettings { root: None, cpu_limit: true, pids_max: 50 };
    let node = format!("{test}.{}", std::process::id()).parse().unwrap();
    find(&settings, &node, Path::new("/state")).unwrap().tree
}

fn key() -> Key {
    Key { job: JobId(12), generation: Generation(3) }
}

/// A process in a group, which answers once it is there.
fn sleeper(group: &Group) -> Child {
    let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    group.take(i32::try_from(child.id()).unwrap()).unwrap();
    child
}

#[test]
fn a_group_is_made_filled_killed_and_removed() {
    let Some(tree) = tree("groups-1") else { return };
    let group = tree.task(key(), Task::worker(0));
    assert!(group.path().ends_with("tasks/j12-g3/worker0"), "{group:?}");
    let limits = Limits { cpus_milli: Some(1500), memory_bytes: Some(1 << 30) };
    tree.make(&group, &limits).unwrap();
    tree.make(&group, &limits).unwrap();
    assert!(!group.is_populated());
    // Below it as well, as a task that makes groups itself.
    let below = Group::new(group.path().join("own"));
    tree.make(&tree.task(key(), Task::SCHEDULER), &Limits::default()).unwrap();
    fs::create_dir(below.path()).unwrap();
    let mut child = sleeper(&below);
    assert!(group.is_populated() && group.remove().is_err());
    assert_eq!(group.pids(), [i32::try_from(child.id()).unwrap()]);
    let found: Vec<_> = tree.of_tasks().into_iter().map(|(of, _)| of.unwrap()).collect();
    assert_eq!(found.len(), 2);
    assert!(found.contains(&(key(), Task::worker(0))) && found.contains(&(key(), Task::SCHEDULER)));
    group.kill();
    child.wait().unwrap();
    assert!(!group.is_populated());
    group.remove().unwrap();
    assert!(!group.path().exists());
    tree.prune();
    assert!(!tree.root.exists(), "nothing of it is left in the machine");
}

#[test]
fn what_an_earlier_life_left_beside_tasks_is_ended() {
    let Some(tree) = tree("groups-2") else { return };
    let group = tree.server(JobId(1), 2, 7);
    tree.make(&group, &Limits::default()).unwrap();
    let mut child = sleeper(&group);
    tree.end_servers();
    child.wait().unwrap();
    group.remove().unwrap();
    tree.prune();
}

#[test]
fn a_group_that_is_not_there_is_empty() {
    let group = Group::new(PathBuf::from("/sys/fs/cgroup/no/such/group"));
    assert!(!group.is_populated() && group.pids().is_empty());
    assert_eq!(group.memory(), Memory::default());
    group.kill();
    group.remove().unwrap();
    group.take(1).unwrap_err();
}

#[test]
fn the_errno_of_what_could_not_be_made_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("root"), "").unwrap();
    let settings = GroupSettings { root: None, cpu_limit: true, pids_max: 50 };
    let (base, root) = (dir.path().to_owned(), dir.path().join("root"));
    let tree = Tree { base, root, controllers: Vec::new(), settings };
    let error = tree.make(&tree.helpers(), &Limits::default()).unwrap_err();
    assert_eq!(errno_of(&error), Some(nix::errno::Errno::ENOTDIR as i32));
    assert!(error.to_string().contains("cannot make the control group"), "{error}");
}

#[test]
fn folders_of_other_names_are_no_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let settings = GroupSettings { root: None, cpu_limit: true, pids_max: 50 };
    let (base, root) = (dir.path().to_owned(), dir.path().join("root"));
    let tree = Tree { base, root: root.clone(), controllers: Vec::new(), settings };
    for name in ["j1-g2/worker0", "j1-g2/other", "x/worker0", "j1-g3"] {
        fs::create_dir_all(root.join("tasks").join(name)).unwrap();
    }
    let mut found: Vec<_> = tree.of_tasks();
    found.sort_by(|a, b| a.1.cmp(&b.1));
    let known: Vec<bool> = found.iter().map(|(of, _)| of.is_some()).collect();
    assert_eq!(known, [false, true, false, false], "{found:?}");
}
