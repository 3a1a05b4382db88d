//! `node gpus`: what it shows, and what it asks of the master.

use model::client::{Answer, Call, Change, Read, Request};
use model::nodes::{GpuHealth, GpuView, Isolation, NodeMore};
use model::reason::Schedulability;
use model::{Generation, JobId, NodeId};

use crate::fake::{Does, Fake};
use crate::golden::compare;
use crate::views;

fn gpu(number: u32, health: GpuHealth, reason: &str) -> GpuView {
    GpuView {
        uuid: format!("GPU-{number}"),
        name: "H".to_owned(),
        health,
        since: (health != GpuHealth::Ok).then(|| views::later(60)),
        reason: reason.to_owned(),
        memory_bytes_total: 80 << 30,
        memory_bytes_used: 1 << 30,
        utilisation: Some(0.5),
        ecc_uncorrected: Some(0),
        job: None,
        history: Vec::new(),
    }
}

fn more(node: &NodeId) -> NodeMore {
    let (gpus, trouble) = if node.as_str() == "n1" {
        let mut bad = gpu(1, GpuHealth::Bad, "Xid 79 (it has fallen off the bus): hardware");
        bad.history = vec![(views::later(60), "Xid 79\twith a tab".to_owned())];
        let mut busy = gpu(0, GpuHealth::Ok, "");
        busy.job = Some((JobId(1), Generation(3), "worker2".to_owned()));
        (vec![busy, bad], None)
    } else {
        (Vec::new(), Some("the PCI bus shows 1 NVIDIA device(s)".to_owned()))
    };
    NodeMore {
        node: node.clone(),
        isolation: Isolation::default(),
        known: true,
        schedulability: Schedulability::Open,
        by: None,
        since: None,
        reason: String::new(),
        drain: None,
        gpus,
        gpu_trouble: trouble,
        alerts: Vec::new(),
        certificate_ends: None,
        rejects: Vec::new(),
    }
}

fn answer(request: &Request) -> Does {
    match &request.call {
        Call::Read(Read::NodeMore { node }) => Ok(Answer::NodeMore(Box::new(more(node)))).into(),
        Call::Change(Change::Gpu { node, retire, .. }) => {
            let note = if *retire { "RETIRED" } else { "PROBING" }.to_owned();
            Ok(Answer::Accepted { job: None, node: Some(node.clone()), note }).into()
        }
        Call::Read(_) | Call::Change(_) | Call::Certificate(_) => views::answer(request),
    }
}

#[test]
fn gpus_are_shown_as_recorded() {
    let fake = Fake::start(answer);
    for (file, words) in [
        ("node-gpus.json", "node gpus n1 -o json"),
        ("node-gpus.tsv", "node gpus n1 --utc"),
        ("node-gpus-wide.tsv", "node gpus n1 -o wide --utc"),
        ("node-gpus.name", "node gpus n1 -o name"),
        ("node-gpus-retire.json", "node gpus n1 --retire GPU-1 --reason broken -o json"),
    ] {
        let ran = fake.run(words);
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        assert_eq!(ran.err, "", "{words}");
        compare(file, &ran.out);
    }
}

#[test]
fn without_a_node_all_are_listed_and_one_without_gpus_says_why() {
    let fake = Fake::start(answer);
    let ran = fake.run("node gpus --filter health=BAD --no-header --columns node,uuid");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "n1\tGPU-1\n"));
    assert!(ran.err.contains("n2: the PCI bus shows"), "{ran:?}");
}

#[test]
fn changes_name_the_gpu_and_carry_their_reason() {
    let fake = Fake::start(answer);
    let ran = fake.run("node gpus n1 --return GPU-1 --dry-run --reason replaced");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let seen = fake.seen();
    let request = seen.last().unwrap();
    assert!(request.dry_run);
    assert_eq!(request.reason.as_deref(), Some("replaced"));
    let node: NodeId = "n1".parse().unwrap();
    let change = Change::Gpu { node, uuid: "GPU-1".to_owned(), retire: false };
    assert_eq!(request.call, Call::Change(change));
}

#[test]
fn several_at_once_are_listed_and_asked_about() {
    let fake = Fake::start(answer);
    let ran = fake.run("node gpus n1 --retire GPU-1 --retire GPU-0");
    assert_eq!(ran.code, Some(2), "nobody is there to ask: {ran:?}");
    assert!(ran.err.contains("GPU-0  OK") && ran.err.contains("GPU-1  BAD"), "{ran:?}");
    let ran = fake.run("node gpus n1 --retire GPU-1 --retire GPU-0 --yes");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn words_that_do_not_go_together_are_refused() {
    let fake = Fake::start(answer);
    for words in [
        "node gpus --retire GPU-1",
        "node gpus n1 --retire GPU-1 --return GPU-0",
        "node gpus n1 --dry-run",
        "node gpus n1 --retire GPU-1 --watch",
        "node gpus n1 --columns colour",
    ] {
        assert_eq!(fake.run(words).code, Some(2), "{words}");
    }
}
