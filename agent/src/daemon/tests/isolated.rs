//! Tasks in control groups. Where this machine has none to give these tests have nothing to show.

use model::nodes::{JobOrders, NodeNotes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::cgroup::Tree;

const SLEEP: &str = "echo up; exec sleep 1000";

/// The group of a process below the mount.
pub(super) fn group_of(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

pub(super) fn tree(world: &World) -> Option<Tree> {
    world.agent.tree.clone()
}

fn populated(world: &World) -> usize {
    let groups = tree(world).map(|tree| tree.of_tasks()).unwrap_or_default();
    groups.iter().filter(|(_, group)| group.is_populated()).count()
}

impl World {
    pub(super) fn notes(&self) -> NodeNotes {
        self.agent.node_notes()
    }
}

#[tokio::test]
async fn every_task_lies_in_a_group_of_its_own_and_none_in_the_agents() {
    let mut world = world("isolated-1");
    let Some(tree) = tree(&world) else { return };
    world.desire(vec![generation(1, Order::Start, SLEEP)]);
    let pids = world.until_running(3).await;
    let mut seen = BTreeSet::new();
    for (task, pid) in &pids {
        let found = group_of(*pid);
        assert!(found.ends_with(&format!("/tasks/j1-g1/{task}")), "{found}");
        assert_eq!(tree.task(key(1), *task).pids(), [i32::try_from(*pid).unwrap()]);
        seen.insert(found);
        let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(!environ.contains("OPTIMUS_LAUNCH"), "nothing of the launcher stays");
        for output in [1, 2] {
            let file = fs::read_link(format!("/proc/{pid}/fd/{output}")).unwrap();
            assert!(file.ends_with(format!("logs/j1-g1/{task}.log")), "{}", file.display());
        }
    }
    assert_eq!(seen.len(), 3);
    assert!(!seen.contains(&group_of(std::process::id())));
    let isolation = world.notes().isolation;
    assert!(isolation.groups);
    let enforced = [isolation.cpu, isolation.memory, isolation.pids, isolation.filter];
    let missing = enforced.iter().filter(|enforced| !**enforced).count();
    assert_eq!(isolation.missing.len(), missing, "{isolation:?}");
    world.desire(Vec::new());
    world.until("all is gone", |world| world.reports().is_empty()).await;
    assert!(!tree.task(key(1), Task::SCHEDULER).path().parent().unwrap().exists());
}

/// Of a process that ignores TERM, left its session and has neither parent nor mark.
const UNMARKED: &str = "(setsid env -i /bin/sh -c '
    trap \"\" TERM; echo up $$; while :; do /bin/sleep 0.1; done' &)
    exec sleep 1000";

#[tokio::test]
async fn a_process_without_mark_parent_and_session_is_ended_with_its_task() {
    let mut world = world("isolated-2");
    if tree(&world).is_none() {
        return;
    }
    world.desire(vec![generation(1, Order::Start, UNMARKED)]);
    world.until_running(3).await;
    for task in [Task::SCHEDULER, Task::server(0), Task::worker(0)] {
        world.until_printed(task, "up").await;
    }
    assert_eq!(world.marked().len(), 3, "only the first processes bear a mark");
    world.desire(vec![generation(1, Order::Stop { grace_ms: 200 }, UNMARKED)]);
    world
        .until("all have exited", |world| {
            let gone = world.exits().len();
            assert!(gone + populated(world) <= 3, "told as gone while a process of it lives");
            gone == 3
        })
        .await;
    assert_eq!(populated(&world), 0);
}

#[tokio::test]
async fn an_agent_that_comes_back_finds_them_by_their_group() {
    let mut world = world("isolated-3");
    let Some(tree) = tree(&world) else { return };
    world.desire(vec![generation(1, Order::Start, UNMARKED)]);
    let pids = world.until_running(3).await;
    world.until_printed(Task::worker(0), "up").await;
    world.restart(|_| {
        let pid = Pid::from_raw(i32::try_from(pids[&Task::worker(0)]).unwrap());
        kill(pid, Signal::SIGKILL).unwrap();
        while crate::procfs::process(pid.as_raw()).is_some_and(|process| process.is_alive()) {
            std::thread::yield_now();
        }
    });
    assert_eq!(world.exits().len(), 0, "not gone while a process of it lives");
    assert!(tree.task(key(1), Task::worker(0)).is_populated());
    let exits = world.until_exited(1).await;
    assert!(exits[&(1, Task::worker(0))].reason.starts_with("vanished"), "{exits:?}");
    assert!(!tree.task(key(1), Task::worker(0)).is_populated());
    assert_eq!(world.pids().len(), 2, "the others were taken back");
}

#[tokio::test]
async fn what_a_lost_ledger_leaves_in_groups_is_ended() {
    let mut world = world("isolated-4");
    if tree(&world).is_none() {
        return;
    }
    world.desire(vec![generation(1, Order::Start, "exec env -i /bin/sleep 1000")]);
    world.until_running(3).await;
    world.until("no mark is left", |world| world.marked().is_empty()).await;
    world.restart(|world| fs::remove_file(world.state_dir().join("ledger")).unwrap());
    for (task, exit) in world.until_exited(3).await {
        assert_eq!(exit.reason, "unknown to this agent's ledger", "{task:?}");
    }
    assert_eq!(populated(&world), 0);
}

#[tokio::test]
async fn a_start_that_failed_is_told_with_its_errno_and_whose_fault_it_is() {
    let mut world = world("isolated-5");
    let mut missing = generation(1, Order::Start, SLEEP);
    missing.launch.command = vec!["no-such-program".to_owned()];
    world.desire(vec![missing]);
    world.until_exited(3).await;
    let rejects = world.notes().rejects;
    assert_eq!(rejects.len(), 1, "those that waited for it were not tried: {rejects:?}");
    assert_eq!((rejects[0].errno, rejects[0].server), (Some(2), false));
    assert!(rejects[0].words.contains("no-such-program"), "{rejects:?}");
    world.desire(Vec::new());
    world.until("it is forgotten", |world| world.notes().rejects.is_empty()).await;
    if let Some(tree) = tree(&world) {
        // A file where the generation's groups are to be: as a kernel that gives no more.
        let path = tree.task(key(2), Task::SCHEDULER).path().parent().unwrap().to_owned();
        world.agent.tree = Some(tree.with_root(world.dir.path().join("groups")));
        let path = world.dir.path().join("groups/tasks").join(path.file_name().unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        world.desire(vec![generation(2, Order::Start, SLEEP)]);
        world.until_exited(3).await;
        world.agent.tree = Some(tree);
        let rejects = world.notes().rejects;
        assert!(rejects[0].server && rejects[0].errno.is_some(), "{rejects:?}");
        assert!(rejects[0].words.contains("no control group"), "{rejects:?}");
    }
}

#[tokio::test]
async fn a_submitter_runs_his_own_tasks_and_nobody_elses() {
    let mut world = world_with("isolated-6", |settings| settings.as_submitter = true);
    if !geteuid().is_root() {
        return;
    }
    let order = |user: &str, generation: u64| JobOrders {
        job: JobId(1),
        generation: Generation(generation),
        user: user.to_owned(),
        peers: Vec::new(),
    };
    for (number, user, word) in [
        (1, "no such; user\n", "there is no user"),
        (2, "root", "no task runs as root"),
        (3, "daemon", "below task_uid_min"),
    ] {
        world.orders.jobs = vec![order(user, number)];
        world.desire(vec![generation(number, Order::Start, SLEEP)]);
        world.until("it is refused", |w| w.exits().contains_key(&(number, Task::worker(0)))).await;
        let reason = world.exits()[&(number, Task::worker(0))].reason.clone();
        assert!(reason.contains(word) && reason.contains(&world.node), "{reason}");
        assert!(world.notes().rejects.iter().any(|one| one.words == reason && !one.server));
    }
    world.orders.jobs = vec![order("nobody", 4)];
    world.desire(vec![generation(4, Order::Start, SLEEP)]);
    let pids = world.until_running(3).await;
    let nobody = User::from_name("nobody").unwrap().unwrap().uid.as_raw();
    for pid in pids.values() {
        let pid = i32::try_from(*pid).unwrap();
        assert_eq!(crate::procfs::owner(pid), Some(nobody));
    }
    // Without the master's word it is not guessed.
    world.orders.jobs.clear();
    world.desire(vec![generation(5, Order::Start, SLEEP)]);
    world.until("it is refused", |w| w.exits().contains_key(&(5, Task::worker(0)))).await;
    let reason = world.exits()[&(5, Task::worker(0))].reason.clone();
    assert!(reason.contains("does not say who submitted it"), "{reason}");
}

/// Says where it runs with its first words, and whether it was forked.
const SAYS_ITS_GROUP: &str = "\
import sys, time
group = open('/proc/self/cgroup').read().split('0::')[1].strip()
print('forked' if 'mxnet' in sys.modules else 'fresh', group, flush=True)
time.sleep(1000)
";

/// The real fork server, with next to nothing to import.
fn package(folder: &std::path::Path) {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("python/optimus");
    fs::create_dir_all(folder.join("optimus")).unwrap();
    fs::copy(source.join("forkserver.py"), folder.join("optimus/forkserver.py")).unwrap();
    for name in ["__init__", "server", "states", "store", "trainer"] {
        fs::write(folder.join(format!("optimus/{name}.py")), "").unwrap();
    }
    fs::write(folder.join("mxnet.py"), "").unwrap();
    fs::write(folder.join("numpy.py"), "class random:\n    seed = staticmethod(lambda: None)\n")
        .unwrap();
    fs::write(folder.join("train.py"), SAYS_ITS_GROUP).unwrap();
}

#[tokio::test]
async fn a_forked_task_is_in_its_group_before_it_runs_anything_and_its_server_in_another() {
    let mut world = world_with("isolated-7", |settings| {
        settings.python_package = Some(settings.state_dir.join("python"));
    });
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return;
    }
    let folder = world.state_dir().join("python");
    package(&folder);
    let mut wanted = generation(1, Order::Start, "");
    wanted.launch.command =
        vec!["/usr/bin/python3".to_owned(), folder.join("train.py").display().to_string()];
    world.desire(vec![wanted]);
    let pids = world.until_running(3).await;
    for task in [Task::SCHEDULER, Task::server(0), Task::worker(0)] {
        world.until_printed(task, "\n").await;
        let log = world.log(task);
        assert!(log.starts_with("forked "), "{log}");
        if tree(&world).is_some() {
            assert!(log.trim().ends_with(&format!("/tasks/j1-g1/{task}")), "{log}");
        }
    }
    if tree(&world).is_some() {
        let server = crate::procfs::process(i32::try_from(pids[&Task::worker(0)]).unwrap());
        let found = group_of(u32::try_from(server.unwrap().parent).unwrap());
        assert!(found.contains("/servers/j1-1-"), "{found}");
        assert_ne!(found, group_of(std::process::id()));
    }
    world.desire(Vec::new());
    world.until("all is gone", |world| world.reports().is_empty()).await;
    assert_eq!(populated(&world), 0);
}

#[tokio::test]
async fn what_helps_a_task_lies_in_the_group_of_helpers_from_its_first_moment() {
    let world = world("isolated-8");
    if tree(&world).is_none() {
        return;
    }
    let words = ["/bin/cat", "/proc/self/cgroup"].map(str::to_owned);
    let user = &world.agent.settings.user;
    let mut command = crate::task::launcher::helper(user, &words, &BTreeMap::new());
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    // The runner of these tests may have begun a line.
    let (_, found) = said.lines().find_map(|line| line.split_once("0::")).unwrap();
    assert!(found.ends_with("/helpers"), "{said}");
    assert_ne!(found, group_of(std::process::id()));
}
