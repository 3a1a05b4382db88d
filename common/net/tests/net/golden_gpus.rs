//! What is said of GPUs, as bytes of protocol 4: see [`crate::golden`].

use model::client::{Call, Change, Request};
use model::nodes::{GpuHealth, GpuNote, GpuTrouble, GpuView, HeldReport, NodeOrders, XidReport};
use model::{Task, UnixMs};

use crate::golden::{GENERATION, JOB, recorded};

const AT: UnixMs = UnixMs(1_700_000_000_000);

#[test]
fn notes_of_gpus() {
    recorded(
        &GpuNote {
            uuid: "GPU-1".to_owned(),
            answers: false,
            fault: Some("lost".to_owned()),
            ecc_uncorrected: Some(3),
            xids: vec![XidReport { number: 2, xid: 79, at: AT }],
            strangers: vec![4711],
            lost: true,
            probed: false,
        },
        "054750552d310001046c6f7374010301024ffd0068e5cf8b01000001fb67120100",
    );
    recorded(&GpuTrouble::Mismatch("reboot".to_owned()), "01067265626f6f74");
    recorded(
        &HeldReport {
            job: JOB,
            generation: GENERATION,
            task: Task::worker(1),
            gpus: vec!["GPU-1".to_owned()],
        },
        "0c03020101054750552d31",
    );
}

#[test]
fn orders_about_gpus() {
    recorded(
        &NodeOrders {
            jobs: Vec::new(),
            gpus_out: vec!["GPU-1".to_owned()],
            gpus_probed: vec!["GPU-2".to_owned()],
            judges_gpus: true,
        },
        "0001054750552d3101054750552d3201",
    );
}

#[test]
fn what_operators_say_and_see_of_gpus() {
    let node = "n1".parse().unwrap();
    let change = Change::Gpu { node, uuid: "GPU-1".to_owned(), retire: true };
    let request = Request { dry_run: false, reason: None, call: Call::Change(change) };
    recorded(&request, "0000000d026e31054750552d3101");
    recorded(
        &GpuView {
            uuid: "GPU-1".to_owned(),
            name: "H".to_owned(),
            health: GpuHealth::Bad,
            since: Some(AT),
            reason: "Xid 79".to_owned(),
            memory_bytes_total: 80 << 30,
            memory_bytes_used: 1 << 20,
            utilisation: Some(0.5),
            ecc_uncorrected: Some(0),
            job: Some((JOB, GENERATION, "worker1".to_owned())),
            history: vec![(AT, "Xid 79".to_owned())],
        },
        "054750552d3101480301fd0068e5cf8b01000006586964203739fd0000000014000000fc00001000
         01000000000000e03f0100010c0307776f726b65723101fd0068e5cf8b01000006586964203739",
    );
}
