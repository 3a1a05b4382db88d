use std::os::unix::fs::MetadataExt;

use model::CheckpointId;
use model::agent::{CheckpointOrder, CheckpointState};

use super::*;

/// Sends its arguments but the first as datagrams to its generation's socket, as the package
/// does; then it exits with the code in the first, or stays.
const REPORTER: &str = r#"
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for text in sys.argv[2:]:
    s.sendto(text.encode(), os.environ["OPTIMUS_DIR"] + "/report.sock")
if sys.argv[1] != "stay":
    os._exit(int(sys.argv[1]))
time.sleep(1000)
"#;

/// A script whose task of the given role is the reporter with these reports of worker 0; the
/// others sleep.
fn reporting(role: &str, then: &str, reports: &[&str]) -> String {
    let reports: String = reports
        .iter()
        .map(|rest| format!(r#" '{{"v":1,"role":"worker","i":0,{rest}}}'"#))
        .collect();
    format!(
        "test $OPTIMUS_ROLE = {role} && exec python3 -c '{REPORTER}' {then}{reports}
        exec sleep 1000"
    )
}

fn order(id: u64, at_step: u64, directory: String) -> CheckpointOrder {
    let checkpoint = CheckpointId(id);
    CheckpointOrder { checkpoint, at_step: Some(at_step), directory, hold: false, released: false }
}

#[tokio::test]
async fn reports_of_a_worker_reach_the_heartbeat() {
    let mut world = world("orders-1");
    let script = reporting(
        "worker",
        "stay",
        &[
            r#""t":"hello","pid":1,"rank":0,"samples_per_epoch":1797"#,
            r#""t":"steps","steps":[[1,0,2.5,0.1,0.05,32],[2,0,"nan",0.1,0.05,32]]"#,
            r#""t":"epoch","epoch":0,"step":2,"loss_sum":80.0,"samples":64"#,
            "junk",
        ],
    )
    // Also a process that the first one started speaks for its task.
    .replace("exec python3", "python3");
    world.desire(vec![generation(1, Order::Start, &script)]);
    world
        .until("it has reported", |world| world.agent.heartbeat(clock::now()).reports_dropped == 1)
        .await;
    let beat = world.agent.heartbeat(clock::now());
    let worker = &beat.workers[0];
    assert_eq!((worker.step, worker.steps, worker.samples), (2, 2, 64));
    assert_eq!((worker.loss_count, worker.loss_not_finite_since), (1, Some(2)));
    assert_eq!(worker.samples_per_epoch, Some(1797));
    assert_eq!((beat.epochs.len(), beat.epochs[0].samples), (1, 64));
    let ready = |task| {
        matches!(
            world.agent.ledger.generations[&key(1)].tasks[&task].state,
            State::Running { ready: true, .. }
        )
    };
    assert!(ready(Task::worker(0)) && !ready(Task::server(0)));
}

#[tokio::test]
async fn the_error_of_a_script_is_the_reason_of_its_exit() {
    let mut world = world("orders-2");
    let script = reporting(
        "worker",
        "3",
        &[r#""t":"hello""#, r#""t":"error","error":"part server-0.npz is damaged""#],
    );
    world.desire(vec![generation(1, Order::Start, &script)]);
    let exits = world.until_exited(1).await;
    let exit = &exits[&(1, Task::worker(0))];
    assert_eq!((exit.code, exit.reason.as_str()), (Some(3), "part server-0.npz is damaged"));
}

#[tokio::test]
async fn a_process_of_another_user_or_task_is_not_heard() {
    let mut world = world("orders-3");
    // The server speaks for the worker.
    let text = r#"{"v":1,"role":"worker","i":0,"t":"finished","step":9}"#;
    let script = reporting("server", "stay", &[r#""t":"finished","step":9"#]);
    world.desire(vec![generation(1, Order::Start, &script)]);
    world
        .until("it is dropped", |world| world.agent.heartbeat(clock::now()).reports_dropped == 1)
        .await;
    // This very process, which is none of the generation's.
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let path = world.state_dir().join("tasks/j1-g1/report.sock");
    socket.send_to(text.as_bytes(), path).unwrap();
    world
        .until("it is dropped", |world| world.agent.heartbeat(clock::now()).reports_dropped == 2)
        .await;
    assert_eq!(world.agent.heartbeat(clock::now()).workers, []);
}

#[tokio::test]
async fn a_checkpoint_order_makes_the_folder_before_it_is_shown() {
    let mut world = world("orders-4");
    world.desire(vec![generation(1, Order::Start, "exec sleep 1000")]);
    world.until_running(3).await;
    let folder = world.state_dir().join("ckpt/j1/g00000001-c00000001");
    let control = world.state_dir().join("tasks/j1-g1/control.json");
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(&control), r#"{"checkpoint":null}"#);

    let mut wanted = generation(1, Order::Keep, "");
    let url = format!("file://{}", folder.display());
    wanted.checkpoint = Some(order(1, 100, url.clone()));
    world.desire(vec![wanted.clone()]);
    world.until("the order is shown", |_| read(&control).contains(r#""at_step":100"#)).await;
    let found = fs::metadata(&folder).unwrap();
    assert_eq!(found.uid(), world.settings.user.uid.as_raw());

    wanted.checkpoint = Some(order(1, 250, url.clone()));
    world.desire(vec![wanted.clone()]);
    assert!(read(&control).contains(r#""at_step":250"#), "the folder is there already");

    // After a restart the same order is shown again, whatever lies there.
    fs::write(&control, "junk").unwrap();
    world.restart(|_| {});
    world.desire(vec![wanted.clone()]);
    world.until("the order is shown", |_| read(&control).contains(r#""at_step":250"#)).await;

    wanted.checkpoint = None;
    world.desire(vec![wanted]);
    assert_eq!(read(&control), r#"{"checkpoint":null}"#);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_fails_the_checkpoint_and_not_the_job() {
    let mut world = world("orders-5");
    world.desire(vec![generation(1, Order::Start, "exec sleep 1000")]);
    let pids = world.until_running(3).await;
    fs::write(world.state_dir().join("file"), "").unwrap();
    let url = format!("file://{}/file/j1/c1", world.state_dir().display());
    let mut wanted = generation(1, Order::Keep, "");
    wanted.checkpoint = Some(order(1, 100, url));
    world.desire(vec![wanted]);
    world
        .until("it is reported", |world| {
            !world.agent.heartbeat(clock::now()).checkpoints.is_empty()
        })
        .await;
    let report = world.agent.heartbeat(clock::now()).checkpoints.remove(0);
    let CheckpointState::Failed { error } = report.state else { panic!("{report:?}") };
    assert!(error.contains("cannot make the checkpoint folder"), "{error}");
    assert_eq!(world.pids(), pids);
    let control = world.state_dir().join("tasks/j1-g1/control.json");
    assert_eq!(fs::read_to_string(control).unwrap(), r#"{"checkpoint":null}"#);
}

#[tokio::test]
async fn the_output_of_a_chatty_task_is_bounded_while_it_runs() {
    let mut world = world_with("orders-6", |settings| settings.log_bytes_max = 64 << 10);
    let script = "test $OPTIMUS_ROLE = worker || exec sleep 1000
        n=0; while test $n -lt 40000; do n=$((n+1)); echo 0123456789012345678901234567890123456789; done
        echo over; exec sleep 1000";
    world.desire(vec![generation(1, Order::Start, script)]);
    world.until_printed(Task::worker(0), "over").await;
    let log = world.state_dir().join("logs/j1-g1/worker0.log");
    let on_disk = || fs::metadata(&log).unwrap().blocks() * 512;
    world.until("it is within its bound", |_| on_disk() <= 2 * (64 << 10) + 8192).await;
    assert_eq!(fs::metadata(&log).unwrap().len(), 40_000 * 41 + 5, "all that was printed");
    assert!(world.log(Task::worker(0)).ends_with("over\n"));
    assert_eq!(world.pids().len(), 3, "the writer lives on");
}

#[tokio::test]
async fn a_disk_that_refuses_the_ledger_keeps_tasks_from_starting() {
    let mut world = world("orders-7");
    // A folder in the way of the temporary file: works for root as well.
    fs::create_dir(world.state_dir().join("ledger.new")).unwrap();
    world.desire(vec![generation(1, Order::Start, "exec sleep 1000")]);
    let exits = world.until_exited(3).await;
    let reason = &exits[&(1, Task::worker(0))].reason;
    assert!(reason.contains("ledger cannot be written"), "{reason}");
    assert_eq!(world.marked(), []);
    fs::remove_dir(world.state_dir().join("ledger.new")).unwrap();
    world.until("it is written again", |world| world.agent.unsaved_since.is_none()).await;
}
