use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::ledger::HeldTask;

const SLEEP: &str = "echo up; exec sleep 1000";

async fn running(node: &str, script: &str) -> (World, BTreeMap<Task, u32>) {
    let mut world = world(node);
    world.desire(vec![generation(1, Order::Start, script)]);
    let pids = world.until_running(3).await;
    world.until("all are up", |w| pids.keys().all(|task| w.log(*task).contains("up"))).await;
    (world, pids)
}

/// Changes the ledger on disk as another life could have left it.
fn edit(world: &World, change: impl FnOnce(&mut Ledger)) {
    let file = LedgerFile::new(&world.settings.state_dir);
    let crate::ledger::Found::Ledger(mut ledger) = file.load(0).unwrap() else { panic!() };
    change(&mut ledger);
    file.store(&ledger).unwrap();
}

fn set_state(ledger: &mut Ledger, task: Task, state: State) {
    let held = ledger.generations.get_mut(&key(1)).unwrap();
    held.tasks.insert(task, HeldTask { gpus: Vec::new(), state });
}

#[tokio::test]
async fn tasks_live_through_a_restart_and_can_be_stopped_after_it() {
    let (mut world, pids) = running("restart-1", SLEEP).await;
    let before = world.agent.ledger.incarnation;
    world.restart(|_| {});
    assert_eq!(world.pids(), pids, "the same processes");
    assert_eq!(world.agent.ledger.incarnation, before.next());
    assert!(world.state_dir().join("tasks/j1-g1/report.sock").exists());
    world.desire(vec![generation(1, Order::Keep, SLEEP)]);
    world.agent.work(clock::now());
    assert_eq!(world.pids(), pids, "kept as they are");
    world.desire(vec![generation(1, Order::Stop { grace_ms: 2000 }, SLEEP)]);
    for (task, exit) in world.until_exited(3).await {
        assert!(exit.ordered, "{task:?}: {exit:?}");
    }
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn a_stop_under_way_goes_on_after_a_restart() {
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let (mut world, _) = running("restart-2", stubborn).await;
    world.desire(vec![generation(1, Order::Stop { grace_ms: 300 }, stubborn)]);
    world.agent.work(clock::now());
    world.restart(|_| {});
    for (task, exit) in world.until_exited(3).await {
        assert!(exit.ordered, "{task:?}: {exit:?}");
    }
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn what_vanished_while_the_agent_was_down_is_told() {
    let (mut world, pids) = running("restart-3", SLEEP).await;
    let pid = Pid::from_raw(i32::try_from(pids[&Task::worker(0)]).unwrap());
    world.restart(|_| {
        kill(pid, Signal::SIGKILL).unwrap();
        // A killed process is a zombie or gone a moment later; both count as dead.
        while crate::procfs::process(pid.as_raw()).is_some_and(|process| process.is_alive()) {
            std::thread::yield_now();
        }
    });
    let exits = world.exits();
    assert_eq!(exits.len(), 1);
    assert_eq!(exits[&(1, Task::worker(0))].reason, "vanished while the agent was down");
    assert_eq!(world.pids().len(), 2, "the others are taken back");
}

#[tokio::test]
async fn the_end_of_an_adopted_task_is_seen() {
    let (mut world, pids) = running("restart-4", SLEEP).await;
    world.restart(|_| {});
    let pid = Pid::from_raw(i32::try_from(pids[&Task::server(0)]).unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    let exits = world.until_exited(1).await;
    let exit = &exits[&(1, Task::server(0))];
    assert!(exit.reason.contains("nobody can know its exit code"), "{exit:?}");
    assert_eq!((exit.code, exit.signal, exit.ordered), (None, None, false));
}

#[tokio::test]
async fn a_stranger_with_the_pid_of_a_dead_task_is_not_touched() {
    let mut world = world("restart-5");
    world.desire(vec![generation(1, Order::Keep, SLEEP)]);
    // Of the tasks' own user, leading a group, but neither the start time nor the mark.
    let mut stranger = tokio::process::Command::new("sleep");
    stranger.arg("1000").process_group(0).kill_on_drop(true);
    if world.settings.user.switch {
        stranger.uid(world.settings.user.uid.as_raw()).gid(world.settings.user.gid.as_raw());
    }
    let stranger = stranger.spawn().unwrap();
    let pid = i32::try_from(stranger.id().unwrap()).unwrap();
    let before = crate::procfs::process(pid).unwrap();
    world.restart(|world| {
        edit(world, |ledger| {
            let boot = crate::procfs::boot_id().unwrap();
            let start_ticks = before.start_ticks - 1;
            set_state(
                ledger,
                Task::worker(0),
                State::Running { pid, start_ticks, boot, ready: true },
            );
        });
    });
    assert_eq!(world.exits()[&(1, Task::worker(0))].reason, "vanished while the agent was down");
    world.desire(vec![generation(1, Order::Stop { grace_ms: 0 }, SLEEP)]);
    world.until_exited(3).await;
    world.desire(Vec::new());
    world.agent.work(clock::now());
    let after = crate::procfs::process(pid).unwrap();
    assert!(after.is_alive() && after.start_ticks == before.start_ticks, "{after:?}");
}

#[tokio::test]
async fn an_interrupted_launch_is_found_by_its_mark_or_told() {
    let (mut world, pids) = running("restart-6", SLEEP).await;
    world.restart(|world| {
        edit(world, |ledger| {
            set_state(ledger, Task::worker(0), State::Intent);
            set_state(ledger, Task::worker(1), State::Intent);
        });
    });
    assert_eq!(world.pids(), pids, "the one that was spawned is taken back");
    let exits = world.exits();
    assert_eq!(exits[&(1, Task::worker(1))].reason, "launch was interrupted by an agent restart");
    world.desire(Vec::new());
    world.until("all are gone", |world| world.reports().is_empty()).await;
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn a_reboot_proves_death() {
    let mut world = world("restart-7");
    world.desire(vec![generation(1, Order::Keep, SLEEP)]);
    world.restart(|world| {
        edit(world, |ledger| {
            let boot = BootId("another".to_owned());
            let (pid, start_ticks) = (1, 1);
            let state = State::Running { pid, start_ticks, boot, ready: true };
            set_state(ledger, Task::worker(0), state);
        });
    });
    assert_eq!(world.exits()[&(1, Task::worker(0))].reason, "the server was rebooted");
}

#[tokio::test]
async fn with_the_ledger_damaged_its_tasks_are_found_and_ended() {
    let (mut world, _) = running("restart-8", SLEEP).await;
    let before = world.agent.ledger.incarnation;
    world.restart(|world| {
        let path = world.state_dir().join("ledger");
        let mut bytes = fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        bytes.truncate(half);
        fs::write(&path, bytes).unwrap();
    });
    // A master that still wants them does not get "gone" before they are.
    world.desire(vec![generation(1, Order::Keep, SLEEP)]);
    for (task, exit) in world.until_exited(3).await {
        assert_eq!(exit.reason, "unknown to this agent's ledger", "{task:?}");
    }
    assert_eq!(world.marked(), []);
    let kept = fs::read_dir(world.state_dir()).unwrap().flatten();
    let kept = kept.filter(|e| e.file_name().to_string_lossy().starts_with("ledger.damaged-"));
    assert_eq!(kept.count(), 1);
    assert!(before < world.agent.ledger.incarnation, "not an earlier life again");
}

#[tokio::test]
async fn leftovers_of_a_task_that_died_meanwhile_are_ended() {
    let script = "(setsid sleep 1000 &); echo up; exec sleep 1000";
    let (mut world, pids) = running("restart-9", script).await;
    world.restart(|_| {
        for pid in pids.values() {
            let pid = Pid::from_raw(i32::try_from(*pid).unwrap());
            kill(pid, Signal::SIGKILL).unwrap();
            while crate::procfs::process(pid.as_raw()).is_some_and(|process| process.is_alive()) {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(world.exits().len(), 0, "not gone while a process of it lives");
    for (task, exit) in world.until_exited(3).await {
        assert!(exit.reason.starts_with("vanished"), "{task:?}: {exit:?}");
    }
    assert_eq!(world.marked(), []);
}

#[tokio::test]
async fn stop_tasks_ends_everything() {
    let (mut world, _) = running("restart-10", SLEEP).await;
    world.restart(|_| {});
    let ended = world.agent.stop_all(&mut world.inbox, LIMIT_MS).await;
    assert_eq!(ended.unwrap(), 3);
    assert_eq!(world.marked(), []);
    world.restart(|_| {});
    assert_eq!(world.exits().len(), 3, "and the ledger knows it");
}

#[tokio::test]
async fn silence_ends_only_the_jobs_that_ask_for_it() {
    let mut world = world_with("restart-11", |settings| settings.disconnect_stop_ms = 2000);
    world.agent.started_at = Millis(0);
    let mut stop = generation(1, Order::Start, SLEEP);
    stop.launch.on_disconnect = OnDisconnect::Stop;
    let mut keep = generation(2, Order::Start, SLEEP);
    keep.job = JobId(2);
    let contact = clock::now();
    world.desire(vec![stop, keep]);
    world
        .until("all run", |world| {
            let reports = world.reports();
            reports.len() == 6
                && reports.values().all(|s| matches!(s, TaskState::Running { pid, .. } if 0 < *pid))
        })
        .await;
    for ((generation, task), exit) in world.until_exited(3).await {
        assert_eq!(generation, 1, "{task}");
        assert_eq!(exit.reason, "no contact with a master for 2 s");
        assert!(!exit.ordered);
    }
    assert!(2000 <= clock::now().since(contact), "not before its time");
    assert_eq!(world.pids().len(), 3);
}
