use std::os::unix::net::UnixDatagram as Client;

use nix::unistd::{getegid, geteuid};

use super::*;

struct World {
    _dir: tempfile::TempDir,
    client: Client,
    telemetry: Telemetry,
}

/// A socket whose worker 0 is this very process.
fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let socket = bind(dir.path(), geteuid(), getegid()).unwrap();
    let client = Client::unbound().unwrap();
    client.connect(dir.path().join(socket::SOCKET)).unwrap();
    client.set_nonblocking(true).unwrap();
    let of = "n1/j1/1/worker0".parse().unwrap();
    let mut telemetry = Telemetry::new(socket, geteuid().as_raw(), &of, true);
    telemetry.add(Task::worker(0), i32::try_from(std::process::id()).unwrap());
    World { _dir: dir, client, telemetry }
}

impl World {
    fn send(&mut self, rest: &str) -> Outcome {
        let text = format!(r#"{{"v":1,"role":"worker","i":0,{rest}}}"#);
        self.client.send(text.as_bytes()).unwrap();
        self.telemetry.drain(Millis(1000))
    }

    fn order(&mut self, id: u64, at_step: u64) {
        self.telemetry.ordered(Some(&CheckpointOrder {
            checkpoint: CheckpointId(id),
            at_step: Some(at_step),
            directory: "file:///x".to_owned(),
            hold: false,
            released: false,
        }));
    }

    fn checkpoints(&self) -> Vec<CheckpointState> {
        self.telemetry.checkpoint_reports().map(|report| report.state).collect()
    }
}

#[test]
fn a_step_goes_through_the_socket_into_the_sums() {
    let mut world = world();
    let step =
        r#""t":"step","step":5,"epoch":1,"loss":0.5,"duration_s":0.2,"compute_s":0.1,"samples":32"#;
    assert!(world.send(step).urgent, "the first step");
    assert_eq!(world.send(step).dropped, 1, "the same again");
    let report = world.telemetry.worker_reports().next().unwrap();
    assert_eq!((report.step, report.steps, report.epoch), (5, 1, 1));
}

#[test]
fn blocks_are_reported_once_all_are_told() {
    let mut world = world();
    assert!(!world.send(r#""t":"blocks","first":1,"of":2,"sizes":[7]"#).urgent);
    assert_eq!(world.telemetry.blocks_report(), None);
    let chunk = r#""t":"blocks","first":0,"of":2,"sizes":[5]"#;
    assert!(world.send(chunk).urgent, "the workers may be waiting");
    assert_eq!(world.telemetry.blocks_report().unwrap().blocks, [5, 7]);
    assert!(!world.send(chunk).urgent, "said again");
}

#[test]
fn the_kernel_attests_the_sender() {
    let mut world = world();
    let hello = r#"{"v":1,"role":"worker","i":0,"t":"hello"}"#;
    world.client.send(hello.as_bytes()).unwrap();
    let mut datagram = receive(&world.telemetry.socket).unwrap();
    assert_eq!(datagram.uid, geteuid().as_raw());
    assert_eq!(world.telemetry.take(&datagram, Millis(0)).hello, Some(Task::worker(0)));
    datagram.uid += 1;
    assert_eq!(world.telemetry.take(&datagram, Millis(0)).dropped, 1, "another user");
    datagram.uid -= 1;
    datagram.pid = 1;
    assert_eq!(world.telemetry.take(&datagram, Millis(0)).dropped, 1, "another process");
    let other = r#"{"v":1,"role":"worker","i":1,"t":"hello"}"#;
    world.client.send(other.as_bytes()).unwrap();
    assert_eq!(world.telemetry.drain(Millis(0)).dropped, 1, "for another worker");
}

#[test]
fn too_long_and_empty_datagrams_are_counted() {
    let mut world = world();
    world.client.send(&vec![b' '; report::DATAGRAM_BYTES_MAX + 1]).unwrap();
    assert_eq!(world.telemetry.drain(Millis(0)).dropped, 1);
    world.client.send(b"").unwrap();
    assert_eq!(world.telemetry.drain(Millis(0)).dropped, 1);
}

#[test]
fn repeated_epochs_are_news_only_once_and_bounded() {
    let mut world = world();
    for epoch in 0..40 {
        let rest =
            format!(r#""t":"epoch","epoch":{epoch},"step":{epoch},"loss_sum":"nan","samples":64"#);
        assert!(world.send(&rest).urgent);
        assert!(!world.send(&rest).urgent, "not a number is still the same");
    }
    let kept: Vec<u32> = world.telemetry.epoch_reports().map(|report| report.epoch).collect();
    assert_eq!(kept, (24..40).collect::<Vec<_>>());
}

#[test]
fn the_newest_learning_rate_is_kept_through_hellos_without_one() {
    let mut world = world();
    world.send(r#""t":"hello","pid":7"#);
    assert_eq!(world.telemetry.rate_reports().count(), 0);
    world.send(r#""t":"hello","learning_rate":0.1,"learning_rate_step":1"#);
    world.send(r#""t":"hello","learning_rate":0.01,"learning_rate_step":301"#);
    world.send(r#""t":"hello","pid":7"#);
    let told: Vec<_> = world.telemetry.rate_reports().collect();
    let (job, generation) = (model::JobId(1), model::Generation(1));
    assert_eq!(told, [RateReport { job, generation, worker: 0, step: 301, rate: 0.01 }]);
}

#[test]
fn checkpoint_reports_belong_to_the_present_order() {
    let mut world = world();
    let missed = r#""t":"missed","checkpoint":7,"step":101"#;
    let reached = |step| {
        format!(r#""t":"reached","checkpoint":7,"step":{step},"epoch":0,"loss_sum":1,"samples":8"#)
    };
    assert_eq!(world.send(missed).dropped, 1, "nobody asked");
    world.order(7, 100);
    assert!(world.send(missed).urgent);
    assert_eq!(world.checkpoints(), [CheckpointState::Missed { step: 101 }]);
    world.order(7, 200);
    assert_eq!(world.checkpoints(), [], "a new step, a new answer");
    assert!(world.send(&reached(200)).urgent);
    assert!(!world.send(&reached(200)).urgent, "repeated while it holds");
    world.order(7, 200);
    assert_eq!(world.checkpoints().len(), 1, "the same order changes nothing");
    let saved = r#""t":"saved","checkpoint":7,"step":200,"epoch":0,"epoch_position":8,
        "parts":[{"file":"parameters.npz","bytes":1,"crc32":2}]"#;
    assert!(world.send(saved).urgent);
    assert_eq!(world.checkpoints().len(), 2, "reached and saved");
    world.order(8, 300);
    assert_eq!(world.checkpoints(), []);
    assert_eq!(world.send(&reached(200)).dropped, 1, "late word of checkpoint 7");
    world.telemetry.ordered(None);
    assert_eq!(world.checkpoints(), []);
}

#[test]
fn a_servers_failure_is_told_in_a_workers_name() {
    let mut world = world();
    world.order(7, 100);
    let failed = Report::Failed { checkpoint: 7, error: "disk full".to_owned() };
    let outcome = world.telemetry.report(Task::server(1), failed.clone(), Millis(0));
    assert!(!outcome.urgent && world.checkpoints().is_empty(), "no worker is here");
    world.send(r#""t":"hello""#);
    assert!(world.telemetry.has_said_hello(Task::worker(0)));
    assert!(world.telemetry.report(Task::server(1), failed, Millis(0)).urgent);
    let error = "server1: disk full".to_owned();
    assert_eq!(world.checkpoints(), [CheckpointState::Failed { error }]);
}

#[test]
fn the_last_word_of_a_dying_script_is_kept() {
    let mut world = world();
    world.send(r#""t":"error","error":"ValueError: no such file""#);
    assert_eq!(world.telemetry.error_of(Task::worker(0)), Some("ValueError: no such file"));
    world.telemetry.remove(Task::worker(0));
    assert_eq!(world.telemetry.error_of(Task::worker(0)), Some("ValueError: no such file"));
}

#[test]
fn a_socket_is_bound_again_over_a_stale_one_and_in_a_deep_folder() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    drop(bind(&deep, geteuid(), getegid()).unwrap());
    let bound = bind(&deep, geteuid(), getegid());
    assert!(bound.is_ok() && deep.join(socket::SOCKET).exists(), "{bound:?}");
}
