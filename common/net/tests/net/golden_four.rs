//! Messages of protocol 4 but those of certificates as bytes that were recorded when it was fixed: see [`crate::golden`].
//! They lie in `golden/four.txt`, which a failing test says how to extend.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use model::agent::{FromAgent, ToAgent};
use model::client::{Answer, Call, Change, Read, Reply, Request};
use model::nodes::{
    AuditView, DrainView, EndCause, EndReport, Finding, GpuHealth, GpuNote, GpuTrouble, GpuView,
    HeldReport, Isolation, JobOrders, NodeMore, NodeNotes, NodeOrders, RejectReport, Severity,
    StuckReport, XidReport,
};
use model::reason::Schedulability;
use model::{NodeId, Task, UnixMs};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::golden::{GENERATION, JOB};

const AT: UnixMs = UnixMs(1_700_000_000_000);

fn node() -> NodeId {
    "n1".parse().unwrap()
}

fn addresses() -> Vec<IpAddr> {
    vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]
}

/// Lines `name =`, then the bytes in lines of hex.
struct Recorded {
    bytes: BTreeMap<String, Vec<u8>>,
    tried: usize,
    wrong: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Recorded {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/four.txt");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut bytes: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut name = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_suffix(" =") {
                Some(next) => name = next,
                None => {
                    let (digits, known) = (line.trim(), bytes.entry(name.to_owned()).or_default());
                    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
                    known.extend(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
                }
            }
        }
        Self { bytes, tried: 0, wrong: String::new() }
    }

    fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(
        &mut self,
        name: &str,
        message: &T,
    ) {
        self.tried += 1;
        let frame = net::encode(message, net::FRAME_BYTES_MAX).unwrap();
        match self.bytes.get(name) {
            Some(bytes) if *bytes == frame[4..] => {
                assert_eq!(net::decode::<T>(bytes).as_ref(), Ok(message), "{name}");
            }
            Some(_) | None => {
                let lines = frame[4..].chunks(48).map(|part| format!("  {}\n", hex(part)));
                self.wrong.extend([name, " =\n", &lines.collect::<String>()]);
            }
        }
    }
}

fn notes() -> NodeNotes {
    let (job, generation, task) = (JOB, GENERATION, Task::worker(1));
    NodeNotes {
        isolation: Isolation {
            cpu: true,
            memory: false,
            pids: true,
            groups: true,
            filter: false,
            missing: vec!["memory".to_owned()],
        },
        gpus: vec![GpuNote {
            uuid: "GPU-1".to_owned(),
            answers: true,
            fault: Some("hot".to_owned()),
            ecc_uncorrected: Some(2),
            xids: vec![XidReport { number: 1, xid: 79, at: AT }],
            strangers: vec![4_711],
            lost: true,
            probed: false,
        }],
        gpu_trouble: Some(GpuTrouble::Mismatch("550 and 555".to_owned())),
        held: vec![HeldReport { job, generation, task, gpus: vec!["GPU-1".to_owned()] }],
        ends: vec![
            EndReport {
                job,
                generation,
                task,
                cause: EndCause::OutOfMemory { peak: Some(1 << 30), limit: 1 << 29 },
            },
            EndReport { job, generation, task, cause: EndCause::OutOfMemoryHost },
        ],
        rejects: vec![RejectReport {
            job,
            generation,
            task,
            errno: Some(28),
            words: "no space".to_owned(),
            server: true,
        }],
        alerts: vec!["an alert".to_owned()],
        certificate_ends: Some(AT),
        addresses: addresses(),
        stuck: vec![StuckReport {
            job,
            generation,
            task,
            words: "process 4711 (state D, waits in rpc_wait)".to_owned(),
        }],
        one_user: Some("nobody".to_owned()),
    }
}

fn more() -> NodeMore {
    NodeMore {
        node: node(),
        isolation: Isolation::default(),
        known: true,
        schedulability: Schedulability::Draining,
        by: Some("ada".to_owned()),
        since: Some(AT),
        reason: "a new fan".to_owned(),
        drain: Some(DrainView {
            deadline: Some(AT),
            tasks_before: 3,
            tasks_left: 1,
            jobs: vec![(JOB, "its checkpoint".to_owned())],
        }),
        gpus: vec![GpuView {
            uuid: "GPU-1".to_owned(),
            name: "H200".to_owned(),
            health: GpuHealth::Suspect,
            since: Some(AT),
            reason: "Xid 79".to_owned(),
            memory_bytes_total: 1 << 37,
            memory_bytes_used: 1,
            utilisation: Some(0.5),
            ecc_uncorrected: None,
            job: Some((JOB, GENERATION, "worker1".to_owned())),
            history: vec![(AT, "SUSPECT".to_owned())],
        }],
        gpu_trouble: None,
        alerts: vec!["an alert".to_owned()],
        certificate_ends: Some(AT),
        rejects: vec!["no space".to_owned()],
    }
}

fn between_master_and_agent(recorded: &mut Recorded) {
    recorded.check("FromAgent::Node", &FromAgent::Node(notes()));
    for (name, trouble) in [
        ("GpuTrouble::Hangs", GpuTrouble::Hangs("x".to_owned())),
        ("GpuTrouble::Unseen", GpuTrouble::Unseen("x".to_owned())),
        ("GpuTrouble::Other", GpuTrouble::Other("x".to_owned())),
    ] {
        recorded.check(name, &trouble);
    }
    let orders =
        JobOrders { job: JOB, generation: GENERATION, user: "ada".to_owned(), peers: addresses() };
    recorded.check(
        "ToAgent::Orders",
        &ToAgent::Orders(NodeOrders {
            jobs: vec![orders],
            gpus_out: vec!["GPU-1".to_owned()],
            gpus_probed: vec!["GPU-2".to_owned()],
            judges_gpus: true,
        }),
    );
}

fn requests(recorded: &mut Recorded) {
    let request = |call| Request { dry_run: true, reason: Some("tea".to_owned()), call };
    let uuid = "GPU-1".to_owned();
    for (name, change) in [
        ("NodeCordon", Change::NodeCordon { node: node() }),
        ("NodeDrain", Change::NodeDrain { node: node(), deadline_ms: Some(60_000) }),
        ("NodeUndrain", Change::NodeUndrain { node: node() }),
        ("Gpu", Change::Gpu { node: node(), uuid, retire: true }),
    ] {
        recorded.check(&format!("Change::{name}"), &request(Call::Change(change)));
    }
    for (name, read) in [
        ("NodeMore", Read::NodeMore { node: node() }),
        ("Doctor", Read::Doctor),
        ("Audit", Read::Audit { after: 7, limit: 100 }),
    ] {
        recorded.check(&format!("Read::{name}"), &request(Call::Read(read)));
    }
}

fn answers(recorded: &mut Recorded) {
    let mut answer = |name: &str, answer| {
        let reply: Reply = Ok(answer);
        recorded.check(&format!("Answer::{name}"), &reply);
    };
    answer("NodeMore", Answer::NodeMore(Box::new(more())));
    answer("Piece", Answer::Piece(vec![1, 2, 3]));
    let finding = |severity| Finding {
        severity,
        subject: "n1".to_owned(),
        words: "its disk is full".to_owned(),
        remedy: "free some".to_owned(),
    };
    let findings = [Severity::Note, Severity::Warning, Severity::Fault].map(finding);
    answer("Doctor", Answer::Doctor(findings.to_vec()));
    answer(
        "Audit",
        Answer::Audit(vec![AuditView {
            number: 7,
            at: AT,
            user: "ada".to_owned(),
            role: "user".to_owned(),
            address: "10.0.0.9:40000".to_owned(),
            request: "cancel job-12".to_owned(),
            reason: Some("tea".to_owned()),
            outcome: "done".to_owned(),
            dry_run: false,
        }]),
    );
    let healths =
        [GpuHealth::Ok, GpuHealth::Suspect, GpuHealth::Probing, GpuHealth::Bad, GpuHealth::Retired];
    recorded.check("GpuHealth", &healths.to_vec());
}

#[test]
fn messages_of_protocol_4_are_written_and_read_as_recorded() {
    let mut recorded = Recorded::read();
    between_master_and_agent(&mut recorded);
    requests(&mut recorded);
    answers(&mut recorded);
    assert!(recorded.wrong.is_empty(), "not written as recorded:\n{}", recorded.wrong);
    assert_eq!(recorded.bytes.len(), recorded.tried, "each that was recorded is tried");
}
