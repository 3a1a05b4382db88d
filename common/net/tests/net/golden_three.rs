//! Messages as bytes that were recorded when protocol 3 was fixed: see [`crate::golden`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::agent::{FromAgent, ToAgent};
use model::client::{Answer, Call, Change, Read, Reply, Request};
use model::notes::{
    ArrivalReport, AssignmentOrder, BegunReport, BlockPart, BlocksReport, DataReport, Extras,
    JobExtras, LinkReport, Notes, TroubleReport, WaitReport, Warm,
};
use model::options::{AssignmentKind, DataFormat, DataSpec};
use model::view::{AssignmentView, DataSize, DataView, JobMore, PauseView};
use model::{CheckpointId, Generation, JobOptions, Shape};

use crate::golden::{GENERATION, JOB, recorded, spec};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn data() -> DataSpec {
    let format = DataFormat::Fixed(3073);
    DataSpec { url: "hdfs://lab/cifar".to_owned(), format, chunk_bytes: 128 << 20 }
}

#[test]
fn notes() {
    let (job, generation) = (JOB, GENERATION);
    let behind = vec![(address("10.0.0.7:40000"), 9)];
    let from = vec![address("10.0.0.7:40000"), address("[fd00::7]:40001")];
    recorded(
        &FromAgent::Notes(Notes {
            blocks: vec![BlocksReport { job, generation, blocks: vec![9408, 64, 2_048_000] }],
            arrivals: vec![ArrivalReport { job, generation, server: 1, looks: 20, behind }],
            links: vec![LinkReport { job, generation, worker: 2, from }],
            troubles: vec![TroubleReport {
                job,
                generation,
                checkpoint: CheckpointId(7),
                words: "quota".to_owned(),
            }],
            data: vec![DataReport { job, generation, chunks: 8, records: 50_000, bytes: 1 << 30 }],
            begun: vec![BegunReport {
                job,
                generation,
                worker: 0,
                script_s: 0.5,
                connect_s: 0.25,
                restore_s: 0.125,
                step_s: 0.0625,
            }],
            waits: vec![WaitReport { job, generation, words: "away".to_owned() }],
        }),
        NOTES,
    );
}

#[test]
fn extras() {
    let part = |server, parameters| BlockPart { server, parameters };
    let given = AssignmentOrder::Given(vec![vec![part(0, 9408)], vec![part(1, 32), part(0, 32)]]);
    let job = |generation, assignment, data| JobExtras {
        job: JOB,
        generation: Generation(generation),
        assignment,
        data,
        index_base: "hdfs://lab/ckpt".to_owned(),
    };
    recorded(
        &ToAgent::Extras(Extras {
            jobs: vec![
                job(3, given, Some(data())),
                job(4, AssignmentOrder::Wait, None),
                job(5, AssignmentOrder::Stock, None),
            ],
            warm: vec![Warm {
                job: JOB,
                command: vec!["python3".to_owned(), "train.py".to_owned()],
                working_directory: "/srv".to_owned(),
                environment: BTreeMap::from([("SEED".to_owned(), "1".to_owned())]),
                worker_cpus_milli: 1000,
                server_cpus_milli: 500,
            }],
        }),
        EXTRAS,
    );
}

#[test]
fn options_and_more_of_a_job() {
    let options = JobOptions {
        assignment: AssignmentKind::Mxnet,
        data: Some(data()),
        checkpoint_shared: true,
    };
    let change = Change::SubmitWith { spec: spec(), request_id: None, options };
    recorded(&Request { dry_run: false, reason: None, call: Call::Change(change) }, SUBMIT_WITH);
    let read = Read::JobMore { job: JOB };
    recorded(&Request { dry_run: false, reason: None, call: Call::Read(read) }, READ_MORE);
    let more = JobMore {
        assignment: Some(AssignmentView {
            algorithm: "best".to_owned(),
            blocks: 157,
            servers: 10,
            parameters: 25_549_352,
            parameters_largest: 2_556_000,
            requests: 157,
            requests_largest: 16,
        }),
        data: Some(DataView {
            spec: data(),
            found: Some(DataSize { chunks: 8, records: 50_000, bytes: 1 << 30 }),
        }),
        pauses: vec![PauseView {
            generation: GENERATION,
            from: Shape::new(1, 2),
            to: Shape::new(2, 4),
            total_s: 0.75,
            ..PauseView::default()
        }],
    };
    recorded(&Reply::Ok(Answer::JobMore(Box::new(more))), MORE);
}

const NOTES: &str = "03010c0303fbc02440fc00401f00010c03011401000a000007fb409c09010c030202000a000007fb \
    409c01fd000000000000000000000000000007fb419c010c03070571756f7461010c0308fb50c3fc \
    00000040010c0300000000000000e03f000000000000d03f000000000000c03f000000000000b03f \
    010c030461776179";
const EXTRAS: &str = "01030c0302020100fbc02402012000200110686466733a2f2f6c61622f636966617202fb010cfc00 \
    0000080f686466733a2f2f6c61622f636b70740c0401000f686466733a2f2f6c61622f636b70740c \
    0500000f686466733a2f2f6c61622f636b7074010c0207707974686f6e3308747261696e2e707904 \
    2f7372760104534545440131fbe803fbf401";
const SUBMIT_WITH: &str = "00000009056d6e6973740207707974686f6e3308747261696e2e7079042f73727600010120fbe803 \
    fc000000400100fbf401fc00000020000001080104007b14ae47e17a843f03640c66696c653a2f2f \
    2f636b70743c00000000000000f03f00030000010110686466733a2f2f6c61622f636966617202fb \
    010cfc0000000801";
const READ_MORE: &str = "0000010b0c";
const MORE: &str = "000d0104626573749d0afc28da8501fc600027009d100110686466733a2f2f6c61622f6369666172 \
    02fb010cfc000000080108fb50c3fc00000040010301020204000000000000e83f00000000000000 \
    00000000000000000000000000000000000000000000000000000000000000000000000000";
