//! Limits, on a kernel that has the controllers on cgroup v2: `tests/guest` boots one for these, and
//! sees that they were tried there. Elsewhere they have nothing to show.

use model::nodes::EndCause;

use super::*;

const MIB: u64 = 1 << 20;
const SLEEP: &str = "exec sleep 1000";

fn limited(node: &str) -> Option<World> {
    limited_with(node, |_| {})
}

/// A node that enforces limits, and says so; none where this machine cannot.
fn limited_with(node: &str, change: impl Fn(&mut Settings)) -> Option<World> {
    let world = world_with(node, change);
    let isolation = world.notes().isolation;
    let enforced = isolation.cpu && isolation.memory && isolation.pids;
    enforced.then(|| {
        println!("{node}: limits are enforced");
        world
    })
}

/// A generation whose worker runs a script with so much memory and CPU; the others only wait.
fn with_worker(number: u64, script: &str, memory_bytes: u64, cpus_milli: u64) -> DesiredGeneration {
    let script = format!("test $OPTIMUS_ROLE = worker || {SLEEP}\n{script}");
    let mut wanted = generation(number, Order::Start, &script);
    wanted.launch.worker = Resources::new(cpus_milli, memory_bytes, 0);
    wanted.launch.server = Resources::new(1000, 64 * MIB, 0);
    wanted
}

fn worker() -> (u64, Task) {
    (1, Task::worker(0))
}

#[tokio::test]
async fn guest_enforces_everything() {
    let Some(world) = limited("guest-1") else { return };
    let isolation = world.notes().isolation;
    assert!(isolation.groups);
    // The packet filter is left out in these tests.
    let missing = isolation.missing.iter().filter(|words| !words.starts_with("filter: "));
    assert_eq!(missing.count(), 0, "{:?}", isolation.missing);
}

#[tokio::test]
async fn guest_counts_nothing_of_the_agents_own_as_a_tasks() {
    let Some(mut world) = limited("guest-8") else { return };
    world.desire(vec![with_worker(1, SLEEP, 64 * MIB, 1000)]);
    world.until_running(3).await;
    let tree = world.agent.tree.clone().unwrap();
    let memory = tree.task(key(1), Task::worker(0)).memory();
    println!("of a task that sleeps: {memory:?}");
    assert!(memory.peak.unwrap() < 4 * MIB, "{memory:?}");
}

#[tokio::test]
async fn guest_tells_what_a_task_died_of_while_no_agent_was_there() {
    let Some(mut world) = limited("guest-7") else { return };
    let go = world.state_dir().join("go");
    let script = format!(
        "echo up; while ! test -e {}; do sleep 0.1; done; dd if=/dev/zero of=/dev/null bs=300M",
        go.display()
    );
    world.desire(vec![with_worker(1, &script, 32 * MIB, 1000)]);
    world.until_running(3).await;
    world.until_printed(Task::worker(0), "up").await;
    let group = world.agent.tree.clone().unwrap().task(key(1), Task::worker(0));
    world.restart(|_| {
        fs::write(&go, "").unwrap();
        let limit = clock::now().plus(LIMIT_MS);
        while group.is_populated() && clock::now() < limit {
            std::thread::yield_now();
        }
    });
    let exit = world.until_exited(1).await[&worker()].clone();
    assert!(exit.reason.starts_with("OUT_OF_MEMORY: peak 32 MiB of limit 32 MiB"), "{exit:?}");
    assert!(!group.path().exists());
}

#[tokio::test]
async fn guest_ends_a_whole_task_at_its_memory_limit_and_no_neighbour() {
    let Some(mut world) = limited("guest-2") else { return };
    // The one that takes too much is a child; the first process only waits for it.
    let script =
        "echo begun; dd if=/dev/zero of=/dev/null bs=300M count=1; echo survived; sleep 1000";
    world.desire(vec![with_worker(1, script, 32 * MIB, 1000)]);
    let exit = world.until_exited(1).await[&worker()].clone();
    assert_eq!(exit.signal, Some(9));
    assert_eq!(
        exit.reason,
        "OUT_OF_MEMORY: peak 32 MiB of limit 32 MiB; ask for more memory in [worker]"
    );
    assert!(!exit.ordered);
    assert_eq!(world.log(Task::worker(0)), "begun\n", "the parent of what was killed lives on");
    assert_eq!(world.pids().len(), 2, "the neighbours live");
    let ends = world.notes().ends;
    assert_eq!((ends.len(), ends[0].task), (1, Task::worker(0)));
    let EndCause::OutOfMemory { peak: Some(peak), limit } = ends[0].cause else {
        panic!("{ends:?}");
    };
    assert_eq!(limit, 32 * MIB);
    assert!(30 * MIB <= peak && peak <= limit, "{peak}");
}

/// A disk of 96 MiB, given to the guest for this.
const DISK: &str = "/dev/nvme0n1";

#[tokio::test]
async fn guest_does_not_count_what_the_kernel_can_give_back() {
    let Some(mut world) = limited("guest-3") else { return };
    let script = format!("cat {DISK} | wc -c; echo read");
    world.desire(vec![with_worker(1, &script, 32 * MIB, 1000)]);
    let exit = world.until_exited(1).await[&worker()].clone();
    assert_eq!((exit.code, exit.reason.as_str()), (Some(0), "exited with code 0"));
    assert_eq!(world.log(Task::worker(0)), format!("{}\nread\n", 96 * MIB));
    assert_eq!(world.notes().ends, []);
}

#[tokio::test]
async fn guest_bounds_the_processes_of_a_task() {
    let few = |settings: &mut Settings| settings.groups.pids_max = 30;
    let Some(mut world) = limited_with("guest-4", few) else { return };
    let script = "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo all";
    world.desire(vec![with_worker(1, script, 64 * MIB, 1000)]);
    let tree = world.agent.tree.clone().unwrap();
    let group = tree.task(key(1), Task::worker(0));
    let exit = world.until_exited(1).await[&worker()].clone();
    assert!(exit.reason.contains("can't fork"), "{exit:?}");
    assert!(!world.log(Task::worker(0)).contains("all"));
    assert!(!group.is_populated(), "what it had forked is ended with it");
    assert_eq!(world.pids().len(), 2, "the neighbours live");
}

#[tokio::test]
async fn guest_bounds_the_cpu_of_a_task() {
    let Some(mut world) = limited("guest-5") else { return };
    world.desire(vec![with_worker(1, "while :; do :; done", 64 * MIB, 200)]);
    world.until_running(3).await;
    let tree = world.agent.tree.clone().unwrap();
    let path = tree.task(key(1), Task::worker(0)).path().join("cpu.stat");
    let read = |name: &str| -> u64 {
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        lines.find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    let (used, periods) = (read("usage_usec"), read("nr_periods"));
    world.until("some periods have passed", |_| periods + 20 <= read("nr_periods")).await;
    let (used, periods) = (read("usage_usec") - used, read("nr_periods") - periods);
    let share = used * 100 / (periods * 100_000);
    println!("{used} us of CPU in {periods} periods of 100 ms: {share} %");
    assert!((10..=30).contains(&share), "{share} % of a CPU and not about 20 %");
    assert!(0 < read("nr_throttled"));
}

#[tokio::test]
async fn guest_tells_the_machines_own_want_of_memory_apart() {
    let Some(mut world) = limited("guest-6") else { return };
    // The limit of the worker is far more than the machine has, and so is what it takes: by two
    // processes, since the kernel refuses one that asks for more than there is.
    let script = "echo begun; for i in 1 2; do dd if=/dev/zero of=/dev/null bs=450M & done; wait";
    world.desire(vec![with_worker(1, script, 1 << 40, 1000)]);
    let exit = world.until_exited(1).await[&worker()].clone();
    assert!(exit.reason.starts_with("OUT_OF_MEMORY: the server itself"), "{exit:?}");
    assert_eq!(world.notes().ends[0].cause, EndCause::OutOfMemoryHost);
    assert_eq!(world.log(Task::worker(0)), "begun\n");
    assert_eq!(world.pids().len(), 2, "the neighbours live");
}

#[tokio::test]
async fn guest_tells_what_systemd_oomd_killed_and_asks_it_to_spare_what_has_a_limit() {
    let Some(mut world) = limited("guest-9") else { return };
    world.desire(vec![with_worker(1, SLEEP, 64 * MIB, 1000)]);
    let pids = world.until_running(3).await;
    let tree = world.agent.tree.clone().unwrap();
    let path = |task| tree.task(key(1), task).path().to_owned();
    let mut value = [0_u8; 8];
    let read = rustix::fs::getxattr(path(Task::worker(0)), "user.oomd_omit", &mut value[..]);
    assert_eq!(&value[..read.unwrap()], b"1");
    // It states no memory, and may take all that there is.
    let read = rustix::fs::getxattr(path(Task::SCHEDULER), "user.oomd_omit", &mut value[..]);
    assert!(read.is_err());
    // As systemd-oomd does it: its mark, and a signal.
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path(Task::worker(0)), "user.oomd_kill", b"1", flags).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pids[&Task::worker(0)]).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    let exit = world.until_exited(1).await[&worker()].clone();
    assert!(exit.reason.starts_with("killed by systemd-oomd"), "{exit:?}");
    assert_eq!(world.notes().ends, [], "not by a limit, and not by the kernel");
}

#[tokio::test]
async fn guest_moves_to_the_unit_of_tasks_that_comes_up_after_it() {
    let Some(mut world) = limited("guest-10") else { return };
    world.desire(vec![with_worker(1, SLEEP, 64 * MIB, 1000)]);
    let pids = world.until_running(3).await;
    let tree = world.agent.tree.clone().unwrap();
    let mount = tree.all().path().parent().unwrap().to_owned();
    let slice = mount.join("system.slice");
    let unit = slice.join("optimus-tasks.service");
    fs::create_dir_all(unit.join("holder")).unwrap();
    for folder in [&mount, &slice, &unit] {
        fs::write(folder.join("cgroup.subtree_control"), "+cpu +memory +pids").unwrap();
    }
    let told = |world: &World| {
        world.notes().alerts.iter().any(|alert| alert.contains("outside optimus-tasks.service"))
    };
    assert!(!told(&world));
    world.agent.look_for_unit();
    assert!(told(&world));
    // The next life finds the unit at once, and its tasks where they lie.
    world.restart(|_| {});
    world.agent.look_for_unit();
    assert!(told(&world));
    assert_eq!(world.pids(), pids);
    world.desire(Vec::new());
    world.until("all is gone", |world| world.reports().is_empty()).await;
    world.desire(vec![with_worker(2, SLEEP, 64 * MIB, 1000)]);
    world.until_running(3).await;
    let now = world.agent.tree.clone().unwrap().task(key(2), Task::worker(0));
    assert!(now.path().starts_with(&unit), "{}", now.path().display());
    assert!(now.is_populated() && !tree.all().path().exists());
    assert!(!told(&world));
    assert!(world.notes().isolation.memory);
    world.desire(Vec::new());
    world.until("all is gone", |world| world.reports().is_empty()).await;
    world.agent.tree.clone().unwrap().prune();
    for folder in [unit.join("holder"), unit, slice] {
        fs::remove_dir(folder).unwrap();
    }
}
