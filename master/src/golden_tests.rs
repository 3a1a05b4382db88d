//! One record of every kind as bytes that were recorded when its kind was fixed: they must be
//! written so, and read, for ever. A changed kind becomes a new variant, with new bytes beside.

use std::collections::{BTreeMap, BTreeSet};

use control::job::phase::{Phase, Wait};
use control::ports::{Holder, HostPorts};
use control::record::{
    BlocksRecord, CheckpointRecord, EpochMark, GpuCause, GpuKept, GpuRecord, JobRecord, Meta,
    NodeOpsRecord, NodeRecord, OptionsRecord, Progress, RateMark, RateRecord, Record, RoundJob,
    RoundRecord, SlowCase, SlowJob, SlowJobRecord, SlowNodeRecord, SpeedKey, SpeedPoint,
    SpeedRecord, Wish, Write,
};
use model::nodes::GpuHealth;
use model::options::{AssignmentKind, DataFormat, DataSpec};
use model::reason::Schedulability;
use model::view::{DecisionView, EventView, FaultView};
use model::{
    Batch, BootId, Bounds, CheckpointId, Finish, Framework, Generation, Incarnation, JobId,
    JobOptions, JobSpec, Mode, NodeId, NodeShare, OnDisconnect, Placement, Resources, RoundId,
    Shape, UnixMs,
};

use crate::codec;

const JOB: JobId = JobId(12);
const G3: Generation = Generation(3);

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn placement() -> Placement {
    Placement(vec![NodeShare { node: node("n1"), servers: 1, workers: 2 }])
}

fn spec() -> JobSpec {
    JobSpec {
        name: "resnet".to_owned(),
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        working_directory: "/srv".to_owned(),
        environment: BTreeMap::from([("LR".to_owned(), "0.1".to_owned())]),
        framework: Framework::Mxnet,
        mode: Mode::Sync,
        batch: Batch::Global(256),
        worker: Resources::new(2_000, 4 << 30, 1),
        server: Resources::new(1_000, 2 << 30, 0),
        workers: Bounds { min: 1, max: 8 },
        servers: Bounds { min: 1, max: 4 },
        finish: Finish::Epochs(90),
        epochs_max: 90,
        checkpoint: "hdfs://lab/ckpt".to_owned(),
        checkpoint_interval_s: 600,
        priority: 1.5,
        restarts_max: 5,
        on_disconnect: OnDisconnect::Keep,
        model_key: Some("resnet-50".to_owned()),
    }
}

fn job() -> JobRecord {
    JobRecord {
        id: JOB,
        spec: spec(),
        user: "ada".to_owned(),
        request_id: Some("r1".to_owned()),
        submitted: UnixMs(1_700_000_000_000),
        started: Some(UnixMs(1_700_000_001_000)),
        ended: None,
        phase: Phase::Queued {
            last: Some(G3),
            wait: Wait::Round { reason: "not evaluated yet".to_owned() },
        },
        last: Some(G3),
        pinned: Some(Shape::new(1, 2)),
        once: None,
        wish: Some(Wish::Pause),
        profiled: true,
        measured: BTreeSet::from([Shape::new(1, 1)]),
        progress: Progress {
            step: 100,
            work: 25_600.0,
            epoch: 1,
            loss: Some(0.5),
            samples_per_epoch: Some(50_000),
            loss_not_finite_since: None,
            epochs: vec![EpochMark { epoch: 0, step: 60, work: 15_360.0, loss: 0.75 }],
            points: vec![(64.0, 2.0)],
        },
        checkpoints: vec![CheckpointRecord {
            id: CheckpointId(4),
            generation: G3,
            step: 90,
            work: 23_040.0,
            epoch: 1,
            bytes: 1 << 20,
            at: UnixMs(1_700_000_002_000),
            directory: "hdfs://lab/ckpt/g3-c4".to_owned(),
            manifest_url: "hdfs://lab/ckpt/g3-c4/manifest".to_owned(),
            partial: None,
        }],
        checkpoint_next: CheckpointId(5),
        litter: vec!["hdfs://lab/ckpt/g2-c3".to_owned()],
        decisions: Vec::<DecisionView>::new(),
        faults: Vec::<FaultView>::new(),
        faults_in_row: 1,
        failures_in_row: 2,
        port_retries: 3,
        restarts: 4,
        rescales: 5,
        paused_s: 6.5,
        save_tries: 7,
        barred_rounds: 8,
        note: Some("a note".to_owned()),
        history: vec![(G3, placement())],
    }
}

fn round() -> RoundRecord {
    RoundRecord {
        id: RoundId(9),
        at: UnixMs(1_700_000_003_000),
        cause: "a job arrived".to_owned(),
        policy: "optimus".to_owned(),
        elapsed_s: 0.25,
        jobs_seen: 1,
        started: 1,
        rescaled: 0,
        waiting: 0,
        jobs: vec![RoundJob {
            job: JOB,
            verb: "start".to_owned(),
            from: Shape::new(0, 0),
            to: Shape::new(1, 2),
            reason: "it fits".to_owned(),
            predicted_steps_per_s: Some(12.5),
            measured_steps_per_s: None,
            remaining_s: Some(3_600.0),
            placement: placement(),
            nodes_refused: vec![("too small".to_owned(), 2)],
            remedy: None,
        }],
        dropped: vec!["gone".to_owned()],
        used: vec![("cpus".to_owned(), 0.5)],
    }
}

fn of_jobs() -> Vec<(&'static str, Record)> {
    let data = DataSpec {
        url: "hdfs://lab/cifar".to_owned(),
        format: DataFormat::Fixed(3_073),
        chunk_bytes: 128 << 20,
    };
    let options =
        JobOptions { assignment: AssignmentKind::Mxnet, data: Some(data), checkpoint_shared: true };
    let case = SlowCase {
        worker: 1,
        generation: G3,
        from: node("n1"),
        to: node("n2"),
        words: "at a third".to_owned(),
    };
    let slow = SlowJob { case: Some(case), own: Some("slow on two".to_owned()), moves: 2 };
    let mark = RateMark { work: 100.0, rate: 0.5, stepped: true };
    let (sizes, assigned) = (vec![9_408, 64, 2_048_000], Some(G3));
    vec![
        ("JobV1", Record::JobV1(Box::new(job()))),
        ("RatesV1", Record::RatesV1(RateRecord { job: JOB, marks: vec![mark] })),
        ("OptionsV1", Record::OptionsV1(Box::new(OptionsRecord { job: JOB, options }))),
        ("BlocksV1", Record::BlocksV1(BlocksRecord { job: JOB, sizes, assigned })),
        ("SlowJobV1", Record::SlowJobV1(Box::new(SlowJobRecord { job: JOB, slow }))),
    ]
}

fn of_the_cluster() -> Vec<(&'static str, Record)> {
    let point = SpeedPoint { steps_per_s: 12.5, seconds: 30.0, profiled: true };
    let samples = BTreeMap::from([(Shape::new(1, 2), point)]);
    let speed = |key| Record::SpeedV1(SpeedRecord { key, samples: samples.clone() });
    let model = SpeedKey::Model { key: "resnet-50".to_owned(), rule: "sync global 256".to_owned() };
    let holder = Holder { job: JOB, generation: G3, node: node("n1") };
    let ports = HostPorts { cursor: Some(7), held: BTreeMap::from([(21_007, holder)]) };
    vec![
        ("MetaV1", Record::MetaV1(Meta { starts: 3, jobs: 12, rounds: 700, events: 70_000 })),
        (
            "EventV1",
            Record::EventV1(EventView {
                number: 70_000,
                at: UnixMs(1_700_000_004_000),
                job: Some(JOB),
                node: Some(node("n1")),
                kind: "change".to_owned(),
                text: "ada paused: tea".to_owned(),
            }),
        ),
        ("RoundV1", Record::RoundV1(Box::new(round()))),
        (
            "NodeV1",
            Record::NodeV1(NodeRecord {
                id: node("n1"),
                incarnation: Incarnation(5),
                boot_id: BootId("b".to_owned()),
                software: "optimus-agent 0.1.0".to_owned(),
                task_address: "10.0.0.7".to_owned(),
                beat_ms: 2_000,
                capacity: Resources::new(16_000, 64 << 30, 2),
                gone: Some("burnt".to_owned()),
            }),
        ),
        ("SpeedV1 of a job", speed(SpeedKey::Job(JOB))),
        ("SpeedV1 of a model", speed(model)),
        ("PortsV1", Record::PortsV1 { host: "10.0.0.7".to_owned(), ports }),
        ("GpuV1", Record::GpuV1(Box::new(gpu()))),
        ("NodeOpsV1", Record::NodeOpsV1(operations())),
        (
            "SlowNodeV1",
            Record::SlowNodeV1(SlowNodeRecord {
                node: node("n1"),
                since: UnixMs(1_700_000_005_000),
                until: UnixMs(1_700_000_006_000),
                words: "slow".to_owned(),
            }),
        ),
    ]
}

fn gpu() -> GpuRecord {
    let kept =
        GpuKept { health: GpuHealth::Bad, cause: GpuCause::Ecc(3), reason: "memory".to_owned() };
    GpuRecord {
        node: node("n1"),
        uuid: "GPU-1".to_owned(),
        health: GpuHealth::Suspect,
        since: Some(UnixMs(1_700_000_007_000)),
        reason: "Xid 79".to_owned(),
        by: Some("ada".to_owned()),
        cause: Some(GpuCause::Xid(79)),
        history: vec![(UnixMs(1_700_000_007_000), "SUSPECT".to_owned())],
        xid_seen: (Incarnation(5), 2),
        suspicions: vec![UnixMs(1_700_000_007_000)],
        kept: Some(kept),
    }
}

fn operations() -> NodeOpsRecord {
    NodeOpsRecord {
        node: node("n1"),
        state: Schedulability::Draining,
        by: "ada".to_owned(),
        since: UnixMs(1_700_000_008_000),
        reason: "a new fan".to_owned(),
        deadline: Some(UnixMs(1_700_000_009_000)),
        tasks_before: 3,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Lines `name = hex`, hex broken into several.
fn recorded() -> BTreeMap<String, Vec<u8>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/records.txt");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut bytes: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_suffix(" =") {
            Some(next) => name = next,
            None => bytes.entry(name.to_owned()).or_default().extend(unhex(line.trim())),
        }
    }
    bytes
}

#[test]
fn every_kind_of_record_is_written_and_read_as_recorded() {
    let recorded = recorded();
    let mut wrong = String::new();
    let records = [of_jobs(), of_the_cluster()].concat();
    for (name, record) in &records {
        let op = codec::encode(&[Write::Put(record.clone())], None).unwrap().remove(0);
        let value = op.value.unwrap();
        if recorded.get(*name) != Some(&value) {
            let lines: Vec<String> =
                value.chunks(48).map(|part| format!("  {}\n", hex(part))).collect();
            wrong.extend([*name, " =\n", &lines.concat()]);
            continue;
        }
        assert_eq!(codec::decode(&op.key, &recorded[*name], None).unwrap(), *record, "{name}");
    }
    assert!(wrong.is_empty(), "not written as recorded:\n{wrong}");
    assert_eq!(recorded.len(), records.len(), "each that was recorded is tried");
}
