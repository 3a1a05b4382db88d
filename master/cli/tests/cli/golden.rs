//! Recorded output: a change here is a change of the contract.
//!
//! With `RECORD=1` in the environment the files are written anew.

use std::path::Path;

use model::Finish;
use model::client::Answer;
use model::view::LossFitView;

use crate::fake::Fake;
use crate::views;

/// File, and the words whose output it holds.
const RECORDED: &[(&str, &str)] = &[
    ("ps.json", "ps -o json"),
    ("ps.jsonl", "ps -o jsonl"),
    ("ps.name", "ps -o name"),
    ("ps.tsv", "ps"),
    ("ps-wide.tsv", "ps -o wide --utc"),
    ("ps-chosen.tsv", "ps --no-header --columns id,phase --sort -id"),
    ("show.json", "show j1 -o json"),
    ("show.tsv", "show j1 --utc"),
    ("why.json", "why j2 -o json"),
    ("why.tsv", "why j2 --utc"),
    ("events.json", "events -o json"),
    ("events.tsv", "events --utc"),
    ("rounds.json", "rounds -o json"),
    ("rounds.tsv", "rounds --utc"),
    ("round-show.json", "round show r7 -o json"),
    ("round-show.tsv", "round show --utc"),
    ("nodes.json", "nodes -o json"),
    ("nodes.tsv", "nodes"),
    ("node-show.json", "node show n1 -o json"),
    ("node-show.tsv", "node show n1 --utc"),
    ("status.json", "status -o json"),
    ("status.tsv", "status --utc"),
    ("version.json", "version -o json"),
    ("logs.json", "logs j1 -o json"),
    ("cancel.json", "cancel j1 -o json"),
    ("cancel-several.json", "cancel j1 j2 --yes -o json"),
    ("pause.txt", "pause j1 j2"),
    ("wait.json", "wait j10 -o json"),
    ("node-lost.json", "node lost n2 --yes -o json"),
    ("node-drain.json", "node drain n2 --reason disk -o json"),
    ("doctor.json", "doctor -o json --filter subject=n1 --filter subject=n2"),
    ("doctor.tsv", "doctor --filter subject=n1 --filter subject=n2"),
];

pub(crate) fn compare(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("RECORD").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, recorded, "{file} is not as recorded");
}

#[test]
fn output_is_as_recorded() {
    let fake = Fake::start(views::answer);
    for (file, words) in RECORDED {
        let ran = fake.run(words);
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        assert_eq!(ran.err, "", "{words}");
        compare(file, &ran.out);
    }
}

#[test]
fn a_job_with_a_curve_of_its_own_shows_it() {
    let fake = Fake::start(|request| {
        if !views::asks_job(request) {
            return views::answer(request);
        }
        let mut detail = views::detail();
        let curve = "a/(k+b)+c".to_owned();
        detail.spec.finish = Finish::ConvergenceBy { threshold: 0.01, patience: 3, curve };
        detail.loss_fit = detail.loss_fit.map(|fit| LossFitView { beta: [0.0; 3], ..fit });
        Ok(Answer::Job(Box::new(detail))).into()
    });
    let json = fake.run("show j1 -o json").json();
    let rule = serde_json::json!({"threshold": 0.01, "patience": 3, "curve": "a/(k+b)+c"});
    assert_eq!(json["spec"]["convergence"], rule);
    let text = fake.run("show j1").out;
    let predicted = "progress.loss_predicted_by\ta/(k+b)+c, rmse 0.002 over 11 points";
    assert!(text.lines().any(|line| line == predicted), "{text}");
    let done = "job.done_when\tloss drops by less than 1% of its largest for 3 epochs";
    assert!(text.lines().any(|line| line == done), "{text}");
}

#[test]
fn every_json_document_has_a_schema_and_every_line_of_a_table_the_same_columns() {
    let fake = Fake::start(views::answer);
    for (file, words) in RECORDED {
        let text = fake.run(words).out;
        if file.ends_with("json") || file.ends_with("jsonl") {
            let stream = serde_json::Deserializer::from_str(&text);
            let mut documents = 0;
            for value in stream.into_iter::<serde_json::Value>() {
                let value = value.unwrap();
                let schema = value["schema"].as_str().unwrap();
                assert!(schema.starts_with("optimus.") && schema.ends_with("/1"), "{words}");
                documents += 1;
            }
            assert!(documents > 0, "{words}");
        }
        if file.ends_with("tsv") {
            let columns: Vec<usize> = text.lines().map(|line| line.split('\t').count()).collect();
            assert!(columns.iter().all(|count| *count == columns[0] && *count > 1), "{words}");
            assert!(!text.contains('\u{1b}'), "{words}: colour or worse");
        }
    }
}

#[test]
fn filters_and_columns_are_checked_before_the_master_is_asked() {
    let fake = Fake::start(views::answer);
    let ran = fake.run("ps --columns nam");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("did you mean name?"), "{ran:?}");
    assert!(fake.seen().is_empty());
    let ran = fake.run("ps --filter phase=running --filter phase=QUEUED -o name");
    assert_eq!(ran.out, "j1\nj2\n");
    let ran = fake.run("ps --filter phase=running --filter user=bob -o json");
    assert_eq!(ran.json()["jobs"], serde_json::json!([]));
}

#[test]
fn nothing_is_cut_when_piped_and_times_are_relative() {
    let fake = Fake::start(|_| {
        let mut row = views::row(1, &"long ".repeat(25), model::reason::PhaseName::Queued);
        row.reason = "because ".repeat(100);
        Ok(model::client::Answer::Jobs(vec![row])).into()
    });
    let ran = fake.run("ps --columns name,reason,submitted");
    assert!(ran.out.contains(&"because ".repeat(100)), "{ran:?}");
    assert!(ran.out.trim_end().ends_with(" ago"), "{ran:?}");
}
