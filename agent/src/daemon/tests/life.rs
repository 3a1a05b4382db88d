use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use super::*;

const SLEEP: &str = "echo here; exec sleep 1000";

#[tokio::test]
async fn a_generation_is_started_stopped_and_forgotten() {
    let mut world = world("life-1");
    world.desire(vec![generation(1, Order::Start, "echo here >&2; exec sleep 1000")]);
    let pids = world.until_running(3).await;
    world.until_printed(Task::worker(0), "here").await;
    for (task, pid) in &pids {
        let process = crate::procfs::process(i32::try_from(*pid).unwrap()).unwrap();
        assert_eq!(process.group, process.pid, "{task} leads a group of its own");
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(proc.join("status")).unwrap();
        let line = |name: &str| status.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
        let uid = world.settings.user.uid;
        assert_eq!(line("Uid:"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}"));
        if world.settings.user.switch {
            assert_eq!(line("Groups:").trim(), "Groups:", "no group of root's");
        }
        assert_eq!(fs::read_link(proc.join("fd/0")).unwrap(), PathBuf::from("/dev/null"));
    }
    let folder = world.state_dir().join("tasks/j1-g1");
    let found = fs::metadata(&folder).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o700, world.settings.user.uid.as_raw()));
    assert!(folder.join("report.sock").exists() && folder.join("control.json").exists());

    world.desire(vec![generation(1, Order::Stop { grace_ms: 5000 }, SLEEP)]);
    for (task, exit) in world.until_exited(3).await {
        assert!(exit.ordered && exit.reason == "stopped as told", "{task:?}: {exit:?}");
        assert_eq!(exit.signal, Some(15));
    }
    assert_eq!(world.marked(), []);
    world.desire(Vec::new());
    assert_eq!(world.reports(), BTreeMap::new(), "forgotten once it is not desired");
    world.until("its folder is gone", |_| !folder.exists()).await;
    assert_eq!(world.log(Task::worker(0)), "here\n", "its output stays for a while");
}

#[tokio::test]
async fn nothing_is_left_of_a_task_that_ignores_term_and_forks_twice() {
    let mut world = world("life-2");
    let script = "trap '' TERM
        (setsid sh -c 'trap \"\" TERM; echo deep; while :; do sleep 0.1; done' &)
        echo up; while :; do sleep 0.1; done";
    world.desire(vec![generation(1, Order::Start, script)]);
    world.until_running(3).await;
    for task in [Task::SCHEDULER, Task::server(0), Task::worker(0)] {
        world.until_printed(task, "deep").await;
        world.until_printed(task, "up").await;
    }
    assert!(6 <= world.marked().len());
    world.desire(vec![generation(1, Order::Stop { grace_ms: 200 }, script)]);
    for (task, exit) in world.until_exited(3).await {
        assert_eq!(exit.signal, Some(9), "{task:?}: {exit:?}");
    }
    assert_eq!(world.marked(), [], "exited was said while a process lived");
}

#[tokio::test]
async fn a_stop_can_be_hastened() {
    let mut world = world("life-3");
    let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    world.desire(vec![generation(1, Order::Start, script)]);
    world.until_running(3).await;
    for task in [Task::SCHEDULER, Task::server(0), Task::worker(0)] {
        world.until_printed(task, "up").await;
    }
    let hour = Order::Stop { grace_ms: 3_600_000 };
    world.desire(vec![generation(1, hour, script)]);
    world.agent.work(clock::now());
    assert_eq!(world.exits().len(), 0);
    world.desire(vec![generation(1, Order::Stop { grace_ms: 0 }, script)]);
    world.until_exited(3).await;
}

#[tokio::test]
async fn a_task_that_ends_by_itself_is_told_with_its_last_words_and_its_children_end() {
    let mut world = world("life-4");
    let script = "case $OPTIMUS_ROLE in
        worker) sleep 1000 & echo 'ValueError: no data' >&2; exit 7;;
        server) kill -SEGV $$;;
        *) exit 0;; esac";
    world.desire(vec![generation(1, Order::Start, script)]);
    let exits = world.until_exited(3).await;
    let worker = &exits[&(1, Task::worker(0))];
    assert_eq!((worker.code, worker.ordered), (Some(7), false));
    assert!(worker.reason.contains("code 7") && worker.reason.contains("ValueError"), "{worker:?}");
    let server = &exits[&(1, Task::server(0))];
    assert_eq!(server.signal, Some(11));
    assert!(server.reason.contains("SIGSEGV"), "{server:?}");
    assert_eq!(exits[&(1, Task::SCHEDULER)].reason, "exited with code 0");
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn a_busy_root_port_is_named_and_nothing_else_starts() {
    let mut world = world("life-5");
    let wanted = generation(1, Order::Start, SLEEP);
    let port = wanted.launch.root_port;
    let _busy = TcpListener::bind((wanted.launch.root_host.as_str(), port)).unwrap();
    world.desire(vec![wanted]);
    let exits = world.until_exited(3).await;
    assert_eq!(exits[&(1, Task::SCHEDULER)].reason, format!("root port {port} is busy"));
    let worker = &exits[&(1, Task::worker(0))].reason;
    assert!(worker.starts_with("not started") && worker.contains("busy"), "{worker}");
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let mut world = world("life-6");
    let mut missing = generation(1, Order::Start, SLEEP);
    missing.launch.command = vec!["no-such-program".to_owned()];
    world.desire(vec![missing]);
    let exits = world.until_exited(3).await;
    let reason = &exits[&(1, Task::SCHEDULER)].reason;
    assert!(reason.contains("no-such-program"), "{reason}");
    let mut nowhere = generation(2, Order::Start, SLEEP);
    nowhere.launch.working_directory = "/no/such/folder".to_owned();
    world.desire(vec![nowhere]);
    world.until("the second failed", |w| w.exits().contains_key(&(2, Task::worker(0)))).await;
    let reason = world.exits()[&(2, Task::SCHEDULER)].reason.clone();
    assert!(reason.contains("working_directory \"/no/such/folder\""), "{reason}");
}

#[tokio::test]
async fn a_stop_on_the_heels_of_a_start_leaves_nothing() {
    let mut world = world("life-7");
    world.desire(vec![generation(1, Order::Start, SLEEP)]);
    world.desire(vec![generation(1, Order::Stop { grace_ms: 1000 }, SLEEP)]);
    world.until_exited(3).await;
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn a_new_generation_starts_once_the_old_is_gone() {
    let mut world = world("life-8");
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    world.desire(vec![generation(1, Order::Start, stubborn)]);
    world.until_running(3).await;
    world.until_printed(Task::worker(0), "up").await;
    world.desire(vec![generation(2, Order::Start, SLEEP)]);
    assert!(!world.reports().contains_key(&(2, Task::worker(0))), "the old one lives");
    world
        .until("the new one runs", |world| {
            let reports = world.reports();
            let both = reports.contains_key(&(1, Task::worker(0))) && world.pids().len() == 6;
            assert!(!both, "two generations of one job at once");
            reports.len() == 3 && world.pids().len() == 3 && reports.keys().all(|(g, _)| *g == 2)
        })
        .await;
}

#[tokio::test]
async fn gpus_are_given_out_once() {
    let mut world = world_with("life-9", |s| s.capacity.gpus = Some(3));
    let script = "echo gpus=$CUDA_VISIBLE_DEVICES; exec sleep 1000";
    let with_gpus = |number, job: u64| {
        let mut wanted = generation(number, Order::Start, script);
        wanted.job = JobId(job);
        wanted.launch.worker.gpus = 2;
        wanted
    };
    world.desire(vec![with_gpus(1, 1)]);
    world.until_running(3).await;
    world.until_printed(Task::worker(0), "gpus=0,1\n").await;
    world.until_printed(Task::server(0), "gpus=\n").await;
    let mut first = with_gpus(1, 1);
    first.order = Order::Keep;
    world.desire(vec![first, with_gpus(2, 2)]);
    let exits = world.until_exited(3).await;
    let reason = &exits[&(2, Task::worker(0))].reason;
    assert!(reason.contains("wants 2 GPUs and 1 are free"), "{reason}");
}

#[tokio::test]
async fn agents_side_by_side_leave_each_others_tasks_alone() {
    let (mut one, mut two) = (world("life-10a"), world("life-10b"));
    one.desire(vec![generation(1, Order::Start, SLEEP)]);
    two.desire(vec![generation(1, Order::Start, SLEEP)]);
    one.until_running(3).await;
    let theirs = two.until_running(3).await;
    one.restart(|world| fs::remove_file(world.state_dir().join("ledger")).unwrap());
    one.until_exited(3).await;
    assert_eq!(two.pids(), theirs);
    assert_eq!(two.marked().len(), 3);
}

#[tokio::test]
async fn an_old_masters_set_changes_nothing() {
    let mut world = world("life-11");
    world.revision = (2 << 32) - 1;
    world.desire(vec![generation(1, Order::Start, SLEEP)]);
    let pids = world.until_running(3).await;
    world.revision = (1 << 32) + 900;
    world.desire(Vec::new());
    world.agent.work(clock::now());
    assert_eq!(world.pids(), pids);
    let obeyed = world.agent.heartbeat(clock::now()).obeyed;
    assert_eq!(obeyed, Revision(2 << 32));
}
