//! Messages as bytes that were recorded when protocol 1 was fixed. Where one of these fails, a
//! peer of yesterday no longer understands this build: add fields and variants only under a new
//! protocol version, at the end, and record new bytes beside the old.

use std::collections::BTreeMap;
use std::fmt::Debug;

use model::agent::{
    AgentAnswer, AgentQuery, CheckpointOrder, CheckpointReport, CheckpointState, Desired,
    DesiredGeneration, EpochReport, Exit, FromAgent, GpuReport, Heartbeat, Introduction, Launch,
    LossWindow, NodeLoad, Order, Part, RateReport, TaskReport, TaskState, ToAgent, WorkerReport,
};
use model::client::{Answer, Call, Change, ErrorKind, Read, Refusal, Reply, Request};
use model::{
    Batch, BootId, Bounds, CheckpointId, Finish, Framework, Generation, Incarnation, JobId,
    JobSpec, Mode, OnDisconnect, Resources, Revision, Shape, Task,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The message is written as these bytes, and they read as the message.
pub(crate) fn recorded<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    message: &T,
    hex: &str,
) {
    let frame = net::encode(message, net::FRAME_BYTES_MAX).unwrap();
    let written: String = frame[4..].iter().map(|byte| format!("{byte:02x}")).collect();
    let hex: String = hex.split_whitespace().collect();
    assert_eq!(written, hex, "written otherwise than recorded: {message:?}");
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    assert_eq!(net::decode::<T>(&bytes).as_ref(), Ok(message));
}

pub(crate) const JOB: JobId = JobId(12);
pub(crate) const GENERATION: Generation = Generation(3);

fn heartbeat() -> Heartbeat {
    let mut capacity = Resources::new(16_000, 64 << 30, 2);
    capacity.named.insert("licence".to_owned(), 1);
    Heartbeat {
        sequence: 7,
        obeyed: Revision((2 << 32) + 5),
        capacity,
        load: NodeLoad {
            cpu_share: 0.5,
            memory_bytes_used: 1 << 30,
            memory_bytes_total: 64 << 30,
            disk_bytes_free: 300,
            load_1m: 1.25,
        },
        gpus: vec![GpuReport {
            uuid: "GPU-1".to_owned(),
            name: "H200".to_owned(),
            memory_bytes_total: 1 << 37,
            memory_bytes_used: 0,
            utilisation: Some(0.25),
            fault: None,
        }],
        tasks: vec![
            report(Task::SCHEDULER, TaskState::Running { pid: 4711, ready: true }),
            report(
                Task::worker(1),
                TaskState::Exited(Exit {
                    code: Some(-1),
                    signal: Some(9),
                    reason: "killed".to_owned(),
                    ordered: false,
                }),
            ),
        ],
        workers: vec![worker()],
        epochs: vec![EpochReport {
            job: JOB,
            generation: GENERATION,
            worker: 1,
            epoch: 4,
            step: 400,
            loss_sum: 12.5,
            samples: 1000,
        }],
        checkpoints: checkpoints(),
        reports_dropped: 2,
    }
}

fn report(task: Task, state: TaskState) -> TaskReport {
    TaskReport { job: JOB, generation: GENERATION, task, state }
}

fn worker() -> WorkerReport {
    let window = LossWindow { steps: 50, mean: 0.75, deviation: 0.125 };
    WorkerReport {
        job: JOB,
        generation: GENERATION,
        worker: 1,
        step: 410,
        epoch: 4,
        steps: 210,
        steps_s: 105.5,
        compute_s: 80.0,
        samples: 13_440,
        loss_sum: 157.5,
        loss_count: 209,
        loss_not_finite: 1,
        loss_not_finite_since: Some(300),
        recent: window,
        first: LossWindow::default(),
        samples_per_epoch: Some(60_000),
        finished: false,
    }
}

fn checkpoints() -> Vec<CheckpointReport> {
    let part = Part { file: "params".to_owned(), bytes: 300, crc32: 0xdead_beef };
    [
        CheckpointState::Reached { step: 420, epoch: 4, loss_sum: 1.5, samples: 640 },
        CheckpointState::Missed { step: 421 },
        CheckpointState::Saved { step: 420, epoch: 4, epoch_position: 20, parts: vec![part] },
        CheckpointState::Failed { error: "disk full".to_owned() },
    ]
    .into_iter()
    .map(|state| CheckpointReport {
        job: JOB,
        generation: GENERATION,
        checkpoint: CheckpointId(8),
        worker: 0,
        state,
    })
    .collect()
}

fn desired() -> Desired {
    let launch = Launch {
        job_name: "mnist".to_owned(),
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        working_directory: "/srv".to_owned(),
        environment: BTreeMap::from([("SEED".to_owned(), "1".to_owned())]),
        mode: Mode::Sync,
        batch: Batch::Global(64),
        epochs_max: 100,
        shape: Shape::new(1, 2),
        tasks: vec![Task::SCHEDULER, Task::server(0), Task::worker(1)],
        worker: Resources::new(1000, 1 << 30, 1),
        server: Resources::new(500, 1 << 29, 0),
        root_host: "10.0.0.7".to_owned(),
        root_port: 21_000,
        resume: Some("file:///ckpt/j12".to_owned()),
        on_disconnect: OnDisconnect::Replace,
    };
    let order = CheckpointOrder {
        checkpoint: CheckpointId(9),
        at_step: Some(500),
        directory: "file:///ckpt/c9".to_owned(),
        hold: true,
        released: false,
    };
    let generations = [
        (Order::Start, None),
        (Order::Keep, Some(order)),
        (Order::Stop { grace_ms: 10_000 }, None),
    ]
    .into_iter()
    .map(|(order, checkpoint)| DesiredGeneration {
        job: JOB,
        generation: GENERATION,
        order,
        launch: launch.clone(),
        checkpoint,
    })
    .collect();
    Desired { revision: Revision((2 << 32) + 6), generations }
}

pub(crate) fn spec() -> JobSpec {
    JobSpec {
        name: "mnist".to_owned(),
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        working_directory: "/srv".to_owned(),
        framework: Framework::Mxnet,
        mode: Mode::Async,
        batch: Batch::PerWorker(32),
        worker: Resources::new(1000, 1 << 30, 1),
        server: Resources::new(500, 1 << 29, 0),
        workers: Bounds { min: 1, max: 8 },
        servers: Bounds { min: 1, max: 4 },
        finish: Finish::Convergence { threshold: 0.01, patience: 3 },
        epochs_max: 100,
        checkpoint: "file:///ckpt".to_owned(),
        checkpoint_interval_s: 60,
        environment: BTreeMap::new(),
        priority: 1.0,
        on_disconnect: OnDisconnect::Keep,
        restarts_max: 3,
        model_key: None,
    }
}

#[test]
fn from_agent() {
    recorded(
        &FromAgent::Introduction(Introduction {
            incarnation: Incarnation(4),
            boot_id: BootId("b-1".to_owned()),
            software: "optimus-agent 0.1.0".to_owned(),
            unix_ms: 1_700_000_000_000,
            task_address: "10.0.0.7".to_owned(),
            beat_ms: 2000,
            first: Heartbeat::default(),
        }),
        INTRODUCTION,
    );
    recorded(&FromAgent::Heartbeat(heartbeat()), HEARTBEAT);
    let rate = RateReport { job: JOB, generation: GENERATION, worker: 1, step: 300, rate: 0.5 };
    recorded(&FromAgent::Rates(vec![rate]), RATES);
}

#[test]
fn to_agent() {
    recorded(&ToAgent::Desired(desired()), DESIRED);
}

#[test]
fn agent_query_and_answer() {
    let task = Task::worker(2);
    recorded(
        &AgentQuery::Log { job: JOB, generation: Some(GENERATION), task, bytes_max: 65_536 },
        LOG_QUERY,
    );
    recorded(
        &AgentAnswer::Log { generation: GENERATION, text: b"loss 0.5\n".to_vec() },
        LOG_ANSWER,
    );
    recorded(&AgentAnswer::Refused("no such task".to_owned()), LOG_REFUSED);
}

#[test]
fn requests() {
    recorded(
        &Request {
            dry_run: false,
            reason: Some("demo".to_owned()),
            call: Call::Change(Change::Submit { spec: spec(), request_id: Some("r1".to_owned()) }),
        },
        SUBMIT,
    );
    let curve = "a/(k+b)+c".to_owned();
    recorded(&Finish::ConvergenceBy { threshold: 0.01, patience: 3, curve }, OWN_CURVE);
    let read = Read::Events { job: Some(JOB), after: 300, limit: 20 };
    recorded(&Request { dry_run: true, reason: None, call: Call::Read(read) }, READ_EVENTS);
}

#[test]
fn replies() {
    let submitted = Answer::Submitted { job: JOB, created: true, submitted_s_ago: 0.5 };
    recorded(&Reply::Ok(submitted), SUBMITTED);
    recorded(
        &Reply::Err(Refusal::new(ErrorKind::CannotPlace, "no node has 9 GPUs", "ask for fewer")),
        REFUSAL,
    );
    recorded(&Reply::Ok(Answer::SnapshotPiece(vec![1, 2, 3])), PIECE);
}

/// Since protocol 2.
const RATES: &str = "02010c0301fb2c01000000000000e03f";
/// Since protocol 2.
const OWN_CURVE: &str = "027b14ae47e17a843f0309612f286b2b62292b63";
const INTRODUCTION: &str = "000403622d31136f7074696d75732d6167656e7420302e312e30fd0068e5cf8b0100000831302e30 \
    2e302e37fbd00700000000000000000000000000000000000000000000000000000000000000";
const HEARTBEAT: &str = "0107fd0500000002000000fb803efd00000000100000000201076c6963656e636501000000000000 \
    e03ffc00000040fd0000000010000000fb2c01000000000000f43f01054750552d310448323030fd \
    00000000200000000001000000000000d03f00020c03000000fb6712010c0302010101010112066b \
    696c6c656400010c0301fb9a0104d20000000000605a400000000000005440fb80340000000000b0 \
    6340d10101fb2c0132000000000000e83f000000000000c03f000000000000000000000000000000 \
    000001fb60ea00010c030104fb90010000000000002940fbe803040c03080000fba4010400000000 \
    0000f83ffb80020c03080001fba5010c03080002fba40104140106706172616d73fb2c01fcefbead \
    de0c03080003096469736b2066756c6c02";
const DESIRED: &str = "00fd0600000002000000030c0300056d6e6973740207707974686f6e3308747261696e2e7079042f \
    737276010453454544013100004064010203000001000201fbe803fc000000400100fbf401fc0000 \
    002000000831302e302e302e37fb0852011066696c653a2f2f2f636b70742f6a313202000c030105 \
    6d6e6973740207707974686f6e3308747261696e2e7079042f737276010453454544013100004064 \
    010203000001000201fbe803fc000000400100fbf401fc0000002000000831302e302e302e37fb08 \
    52011066696c653a2f2f2f636b70742f6a313202010901fbf4010f66696c653a2f2f2f636b70742f \
    633901000c0302fb1027056d6e6973740207707974686f6e3308747261696e2e7079042f73727601 \
    0453454544013100004064010203000001000201fbe803fc000000400100fbf401fc000000200000 \
    0831302e302e302e37fb0852011066696c653a2f2f2f636b70742f6a31320200";
const LOG_QUERY: &str = "000c01030202fc00000100";
const LOG_ANSWER: &str = "0003096c6f737320302e350a";
const LOG_REFUSED: &str = "010c6e6f2073756368207461736b";
const SUBMIT: &str = "00010464656d6f0000056d6e6973740207707974686f6e3308747261696e2e7079042f7372760001 \
    0120fbe803fc000000400100fbf401fc00000020000001080104007b14ae47e17a843f03640c6669 \
    6c653a2f2f2f636b70743c00000000000000f03f00030001027231";
const READ_EVENTS: &str = "01000103010cfb2c0114";
const SUBMITTED: &str = "00000c01000000000000e03f";
const REFUSAL: &str = "0105126e6f206e6f646520686173203920475055730d61736b20666f7220666577657200";
const PIECE: &str = "000c03010203";
