//! A small cluster as a master would describe it.

use std::collections::BTreeMap;

use model::client::{Answer, Call, Change, ErrorKind, Read, Refusal, Reply, Request};
use model::nodes::{DrainView, Finding, Isolation, NodeMore, Severity};
use model::options::{DataFormat, DataSpec};
use model::reason::{PhaseName, Reachability, Schedulability};
use model::view::{
    AssignmentView, CheckpointView, DataSize, DataView, DecisionView, EpochView, Estimate,
    EventView, FaultView, JobDetail, JobMore, JobRow, LossFitView, NodeDetail, NodeRow, PauseView,
    RoundDetail, RoundJobView, RoundRow, SpeedFitView, SpeedSampleView, Status, TaskView, WhyView,
};
use model::{
    Batch, Bounds, CheckpointId, Finish, Framework, Generation, JobId, JobSpec, Mode, NodeId,
    NodeShare, OnDisconnect, Placement, Resources, RoundId, Shape, UnixMs,
};

use crate::fake::Does;

/// 2023-11-14T22:13:20Z.
pub(crate) const START: UnixMs = UnixMs(1_700_000_000_000);

pub(crate) fn later(s: u64) -> UnixMs {
    UnixMs(START.0 + s * 1000)
}

pub(crate) fn node_id(name: &str) -> NodeId {
    name.parse().unwrap()
}

pub(crate) fn row(id: u64, name: &str, phase: PhaseName) -> JobRow {
    let runs = phase == PhaseName::Running;
    JobRow {
        id: JobId(id),
        name: name.to_owned(),
        user: "anna".to_owned(),
        phase,
        reason: if runs { String::new() } else { "waits for 4 GPUs".to_owned() },
        generation: runs.then_some(Generation(3)),
        shape: if runs { Shape::new(2, 4) } else { Shape::default() },
        step: 14_000,
        epoch: 12,
        loss: runs.then_some(0.1234),
        steps_per_s: runs.then_some(12.5),
        remaining_s: runs.then_some(720.0),
        rescales: 2,
        restarts: 1,
        submitted: START,
        started: runs.then_some(later(5)),
        ended: phase.is_final().then_some(later(600)),
        age_s: 3600.5,
    }
}

pub(crate) fn rows() -> Vec<JobRow> {
    vec![
        row(1, "digits-cnn", PhaseName::Running),
        row(2, "café 漢字 🚂", PhaseName::Queued),
        row(10, "old", PhaseName::Completed),
    ]
}

pub(crate) fn spec() -> JobSpec {
    let mut worker = Resources::new(1500, 512 << 20, 1);
    worker.named.insert("licence".to_owned(), 1);
    JobSpec {
        name: "digits-cnn".to_owned(),
        command: ["python3", "train.py", "--note", "a \"b\"\n\tc"].map(str::to_owned).to_vec(),
        working_directory: "/srv/digits".to_owned(),
        framework: Framework::Mxnet,
        mode: Mode::Sync,
        batch: Batch::Global(256),
        worker,
        server: Resources::new(500, 256 << 20, 0),
        workers: Bounds { min: 1, max: 4 },
        servers: Bounds { min: 1, max: 2 },
        finish: Finish::Convergence { threshold: 0.01, patience: 3 },
        epochs_max: 60,
        checkpoint: "file:///srv/ckpt".to_owned(),
        checkpoint_interval_s: 600,
        environment: BTreeMap::from([("QUOTES".to_owned(), "\"\\\u{1}".to_owned())]),
        priority: 1.0,
        on_disconnect: OnDisconnect::Keep,
        restarts_max: 10,
        model_key: None,
    }
}

fn placement() -> Placement {
    let share = |node, servers, workers| NodeShare { node: node_id(node), servers, workers };
    Placement(vec![share("n1", 2, 2), share("n2", 0, 2)])
}

fn decision() -> DecisionView {
    DecisionView {
        at: later(120),
        round: Some(RoundId(7)),
        from: Shape::new(1, 2),
        to: Shape::new(2, 4),
        reason: "one more worker gains most".to_owned(),
        predicted_before: Some(7.0),
        predicted_after: Some(12.0),
        predicted_gain_s: Some(300.0),
        cost_s: Some(4.5),
        measured_after: Some(12.5),
        loss_before: Some(0.2),
        loss_before_deviation: Some(0.01),
        loss_after: Some(0.21),
        while_running: true,
        profiling: false,
    }
}

pub(crate) fn detail() -> JobDetail {
    let sample = |servers, workers, steps_per_s| SpeedSampleView {
        shape: Shape::new(servers, workers),
        steps_per_s,
        seconds: 10.0,
        profiled: true,
    };
    let estimate = |value: f64| Some(Estimate { value, low: value * 0.75, high: value * 1.5 });
    JobDetail {
        row: row(1, "digits-cnn", PhaseName::Running),
        spec: spec(),
        placement: placement(),
        pinned: false,
        cross_node_share: 0.5,
        remaining_epochs: estimate(8.0),
        remaining_steps: estimate(9000.0),
        remaining_s: estimate(720.0),
        remaining_unknown: None,
        loss_fit: Some(LossFitView {
            beta: [0.001, 1.0, 0.05],
            scale: 2.3,
            rmse: 0.002,
            points: 11,
        }),
        speed_fit: Some(SpeedFitView {
            theta: vec![0.01, 0.02, 0.003, 0.004, 0.005],
            rmse_relative: 0.03,
            samples: vec![sample(1, 1, 4.0), sample(2, 4, 12.4)],
        }),
        steps_per_s_predicted: Some(12.0),
        steps_per_s_measured: Some(12.5),
        samples_per_epoch: Some(60_000),
        loss_not_finite_since: Some(13_999),
        epochs: [(1, 1.5), (2, 0.8), (3, 0.5)]
            .map(|(epoch, loss)| EpochView { epoch, step: u64::from(epoch) * 1166, loss })
            .to_vec(),
        tasks: vec![TaskView {
            task: "worker0".to_owned(),
            node: node_id("n1"),
            state: "running".to_owned(),
            pid: Some(4242),
            steps_per_s: Some(3.1),
            compute_share: Some(0.8),
        }],
        checkpoints: vec![CheckpointView {
            id: CheckpointId(2),
            generation: Generation(2),
            step: 9000,
            epoch: 8,
            bytes: 5 << 20,
            at: later(110),
            url: "file:///srv/ckpt/j1/g00000002-c00000002".to_owned(),
        }],
        decisions: vec![decision()],
        faults: vec![FaultView {
            at: later(60),
            generation: Generation(1),
            cause: "worker1: exit 1: \u{1b}[31mboom\nline two".to_owned(),
            step: 900,
            resumed_from: Some(850),
            lost_s: Some(14.0),
        }],
        paused_s: 18.5,
    }
}

pub(crate) fn why() -> WhyView {
    WhyView {
        id: JobId(2),
        name: "café 漢字 🚂".to_owned(),
        phase: PhaseName::Queued,
        reason: "waits for 4 GPUs".to_owned(),
        round: Some(RoundId(7)),
        round_at: Some(later(120)),
        decision: "its smallest shape 1+4 needs 4 GPUs, 2 are free".to_owned(),
        nodes_refused: vec![("too few GPUs".to_owned(), 12), ("SUSPECT".to_owned(), 1)],
        remedy: Some("lower worker.count.min to 2".to_owned()),
        notes: vec!["it has waited 1h".to_owned()],
    }
}

pub(crate) fn events() -> Vec<EventView> {
    let event = |number, job, node: Option<&str>, kind: &str, text: &str| EventView {
        number,
        at: later(number),
        job,
        node: node.map(node_id),
        kind: kind.to_owned(),
        text: text.to_owned(),
    };
    vec![
        event(1, Some(JobId(1)), None, "change", "anna submitted digits-cnn"),
        event(2, None, Some("n1"), "node", "n1 is UP\tagain"),
    ]
}

fn round_row() -> RoundRow {
    RoundRow {
        id: RoundId(7),
        at: later(120),
        cause: "a job arrived".to_owned(),
        jobs: 2,
        started: 0,
        rescaled: 1,
        waiting: 1,
        elapsed_s: 0.0031,
    }
}

fn round_detail() -> RoundDetail {
    RoundDetail {
        row: round_row(),
        policy: "optimus".to_owned(),
        jobs: vec![RoundJobView {
            id: JobId(1),
            verb: "rescale".to_owned(),
            from: Shape::new(1, 2),
            to: Shape::new(2, 4),
            reason: "one more worker gains most".to_owned(),
            predicted_steps_per_s: Some(12.0),
            measured_steps_per_s: None,
            remaining_s: Some(720.0),
            placement: placement(),
        }],
        dropped: vec!["j3: n2 is no longer UP".to_owned()],
        used: vec![("cpus".to_owned(), 0.75), ("gpus".to_owned(), 1.0)],
    }
}

fn node_row(name: &str, reachability: Reachability) -> NodeRow {
    NodeRow {
        id: node_id(name),
        reachability,
        schedulability: Schedulability::Open,
        reason: String::new(),
        capacity: Resources::new(16_000, 64 << 30, 4),
        used: Resources::new(2500, 3 << 29, 2),
        tasks: 5,
        heartbeat_age_s: Some(1.2),
        cpu_share: 0.42,
        gpus_ok: 4,
        software: "0.1.0".to_owned(),
    }
}

fn node_detail() -> NodeDetail {
    NodeDetail {
        row: node_row("n1", Reachability::Up),
        boot_id: "6a7c".to_owned(),
        incarnation: 2,
        task_address: "10.0.0.1".to_owned(),
        clock_skew_s: -0.02,
        memory_bytes_used: 5 << 30,
        disk_bytes_free: 100 << 30,
        reports_dropped: 0,
        gpus: vec![("GPU-1".to_owned(), "H200".to_owned(), "OK".to_owned())],
        tasks: vec![(JobId(1), Generation(3), "worker0".to_owned(), "running".to_owned())],
    }
}

pub(crate) fn node_more() -> NodeMore {
    let isolation = Isolation {
        cpu: true,
        memory: true,
        pids: true,
        groups: true,
        filter: false,
        missing: vec!["ports are open to all: install nftables".to_owned()],
    };
    let jobs = vec![(JobId(1), "writes its checkpoint, then moves to n2".to_owned())];
    let drain = DrainView { deadline: Some(later(900)), tasks_before: 5, tasks_left: 3, jobs };
    NodeMore {
        node: node_id("n1"),
        isolation,
        known: true,
        schedulability: Schedulability::Draining,
        by: Some("anna".to_owned()),
        since: Some(later(300)),
        reason: "a disk is changed".to_owned(),
        drain: Some(drain),
        gpus: Vec::new(),
        gpu_trouble: Some("NVML hangs: nvmlInit".to_owned()),
        alerts: vec!["the disk is 95% full".to_owned()],
        certificate_ends: Some(later(86_400)),
        rejects: vec!["j1 g2: EAGAIN (11) cannot start python3".to_owned()],
    }
}

pub(crate) fn findings() -> Vec<Finding> {
    let finding = |severity, subject: &str, words: &str, remedy: &str| Finding {
        severity,
        subject: subject.to_owned(),
        words: words.to_owned(),
        remedy: remedy.to_owned(),
    };
    vec![
        finding(Severity::Fault, "n2", "it is DOWN: no heartbeat for 70 s", "look at the host"),
        finding(Severity::Note, "n1", "it is CORDONED: a\ttab (anna)", "undrain opens it"),
    ]
}

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        cluster: "test".to_owned(),
        started: START,
        uptime_s: 86_400.0,
        policy: "optimus".to_owned(),
        round_interval_s: 600.0,
        last_round: Some(RoundId(7)),
        last_round_age_s: Some(12.0),
        jobs_by_phase: vec![(PhaseName::Queued, 1), (PhaseName::Running, 1)],
        nodes_by_state: vec![(Reachability::Up, 1), (Reachability::Down, 1)],
        capacity: Resources::new(32_000, 128 << 30, 8),
        used: Resources::new(2500, 3 << 29, 2),
        reports_refused: vec![("stale generation".to_owned(), 3)],
        alerts: vec!["n2 is DOWN since 5m".to_owned()],
        oldest_agent: Some("0.1.0".to_owned()),
    }
}

/// ResNet-50 on ten servers.
fn more() -> JobMore {
    let assignment = AssignmentView {
        algorithm: "best".to_owned(),
        blocks: 157,
        servers: 10,
        parameters: 25_549_486,
        parameters_largest: 2_600_000,
        requests: 157,
        requests_largest: 16,
    };
    let spec = DataSpec {
        url: "hdfs://cluster/data/train".to_owned(),
        format: DataFormat::RecordIo,
        chunk_bytes: 128 << 20,
    };
    let found = DataSize { chunks: 1100, records: 1_281_167, bytes: 147_000_000_000 };
    let data = DataView { spec, found: Some(found) };
    let pause = PauseView {
        generation: Generation(3),
        from: Shape::new(1, 2),
        to: Shape::new(2, 4),
        total_s: 0.8,
        save_s: 0.1,
        publish_s: 0.02,
        stop_s: 0.08,
        launch_s: 0.1,
        begin_s: 0.5,
        script_s: Some(0.1),
        connect_s: Some(0.2),
        restore_s: Some(0.1),
        step_s: Some(0.1),
    };
    JobMore { assignment: Some(assignment), data: Some(data), pauses: vec![pause] }
}

fn read(read: &Read) -> Reply {
    Ok(match read {
        Read::Jobs => Answer::Jobs(rows()),
        Read::NodeMore { .. } => Answer::NodeMore(Box::new(node_more())),
        Read::Doctor => Answer::Doctor(findings()),
        Read::Audit { .. } => {
            return Err(model::client::Refusal::new(
                model::client::ErrorKind::Invalid,
                "not expected",
                "",
            ));
        }
        Read::Job { job: JobId(1) } => Answer::Job(Box::new(detail())),
        Read::Job { job: JobId(10) } => {
            let row = row(10, "old", PhaseName::Completed);
            Answer::Job(Box::new(JobDetail { row, ..detail() }))
        }
        Read::Job { job } | Read::Log { job, .. } if job.0 > 10 => {
            let message = format!("no job {job}");
            return Err(Refusal::new(ErrorKind::NotFound, message, "see optimus ps"));
        }
        Read::Job { .. } => Answer::Job(Box::new(JobDetail {
            row: row(2, "café 漢字 🚂", PhaseName::Queued),
            ..detail()
        })),
        Read::Why { .. } => Answer::Why(Box::new(why())),
        Read::Events { .. } => Answer::Events(events()),
        Read::Rounds { .. } => Answer::Rounds(vec![round_row()]),
        Read::Round { .. } => Answer::Round(Box::new(round_detail())),
        Read::Nodes => Answer::Nodes(vec![
            node_row("n1", Reachability::Up),
            node_row("n2", Reachability::Down),
        ]),
        Read::Node { .. } => Answer::Node(Box::new(node_detail())),
        Read::Status => Answer::Status(Box::new(status())),
        Read::Log { .. } => {
            Answer::Log { generation: 3, text: b"step 1\n\xff\x1b[31mred\n".to_vec() }
        }
        Read::Snapshot => Answer::SnapshotPiece(Vec::new()),
        Read::JobMore { .. } => Answer::JobMore(Box::new(more())),
    })
}

fn change(change: &Change, dry_run: bool) -> Reply {
    let accepted = |job: &JobId| {
        let note = if dry_run { "dry run: nothing was changed" } else { "ordered" };
        Answer::Accepted { job: Some(*job), node: None, note: note.to_owned() }
    };
    Ok(match change {
        Change::Submit { .. } | Change::SubmitWith { .. } | Change::SubmitWatched { .. }
            if dry_run =>
        {
            let note = "dry run: nothing was changed; the job is valid".to_owned();
            Answer::Accepted { job: None, node: None, note }
        }
        Change::Submit { request_id, .. }
        | Change::SubmitWith { request_id, .. }
        | Change::SubmitWatched { request_id, .. } => Answer::Submitted {
            job: JobId(1),
            created: request_id.as_deref() != Some("again"),
            submitted_s_ago: 185.0,
        },
        Change::Cancel { job, .. }
        | Change::Pause { job }
        | Change::Resume { job }
        | Change::Checkpoint { job }
        | Change::Resize { job, .. }
        | Change::Unpin { job }
        | Change::Update { job, .. } => accepted(job),
        Change::NodeLost { node }
        | Change::NodeCordon { node }
        | Change::NodeDrain { node, .. }
        | Change::NodeUndrain { node }
        | Change::Gpu { node, .. } => Answer::Accepted {
            job: None,
            node: Some(node.clone()),
            note: "its tasks count as dead".to_owned(),
        },
    })
}

/// Answers everything from this page.
pub(crate) fn asks_job(request: &Request) -> bool {
    matches!(request.call, Call::Read(Read::Job { .. }))
}

pub(crate) fn answer(request: &Request) -> Does {
    match &request.call {
        Call::Read(Read::Snapshot) => Does::Replies(vec![
            Ok(Answer::SnapshotPiece(b"OPTSNAP\n".to_vec())),
            Ok(Answer::SnapshotPiece(b"rest".to_vec())),
            Ok(Answer::SnapshotPiece(Vec::new())),
        ]),
        Call::Read(what) => read(what).into(),
        Call::Change(what) => change(what, request.dry_run).into(),
        Call::Certificate(_) => Reply::Err(model::client::Refusal::new(
            model::client::ErrorKind::Invalid,
            "not expected",
            "",
        ))
        .into(),
    }
}
