//! `optimus forecast` against a master of the test's own.

use model::client::{Answer, Call, Read, Reply, Request};
use model::reason::PhaseName;
use model::{JobId, Shape};

use crate::fake::{Does, Fake};
use crate::views;

/// Two jobs alike, one of which runs, a third that is not known yet, and one without room.
fn answer(request: &Request) -> Does {
    let reply: Reply = match &request.call {
        Call::Read(Read::Jobs) => Ok(Answer::Jobs(
            [
                (1, PhaseName::Running),
                (2, PhaseName::Queued),
                (3, PhaseName::Profiling),
                (5, PhaseName::Queued),
            ]
            .map(|(id, phase)| views::row(id, &format!("job {id}"), phase))
            .into_iter()
            .chain([views::row(4, "ended", PhaseName::Completed)])
            .collect(),
        )),
        Call::Read(Read::Job { job }) => {
            let mut detail = views::detail();
            detail.row.id = *job;
            detail.row.name = format!("job {}", job.0);
            if *job != JobId(1) {
                detail.placement.0.clear();
                detail.row.shape = Shape::default();
                detail.row.phase = PhaseName::Queued;
            }
            if *job == JobId(3) {
                detail.speed_fit = None;
            }
            // No node has the licence that this kind of job takes.
            if *job != JobId(5) {
                detail.spec.worker.named.clear();
            }
            Ok(Answer::Job(Box::new(detail)))
        }
        Call::Read(_) | Call::Change(_) | Call::Certificate(_) => return views::answer(request),
    };
    reply.into()
}

#[test]
fn jobs_are_told_when_they_will_be_done() {
    let fake = Fake::start(answer);
    let ran = fake.run("forecast -o json --add-nodes 3");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!((&json["schema"], &json["added_nodes"]), (&"optimus.forecast/1".into(), &3.into()));
    let jobs = json["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 4, "{json}");
    for job in &jobs[..2] {
        let at = |name: &str| job[name].as_f64().unwrap_or_else(|| panic!("{name}: {job}"));
        assert!(at("low_s") <= at("done_in_s") && at("done_in_s") <= at("high_s"), "{job}");
        assert!(at("low_s") < at("high_s") && at("low_s") > 0.0, "{job}");
        assert!((at("done_in_s") - at("with_nodes_in_s") - at("saved_s")).abs() < 1e-6, "{job}");
    }
    assert!(jobs[2]["done_in_s"].is_null(), "{json}");
    assert_eq!(jobs[2]["reason"], "its speed is not known yet");
    assert!(jobs[3]["reason"].as_str().unwrap().contains("no room"), "{json}");
    assert!(json["all_done_in_s"].is_null(), "one job is not known");
    let table = fake.run("forecast j2");
    assert_eq!(table.code, Some(0), "{table:?}");
    assert_eq!(table.out.lines().count(), 2, "{table:?}");
    assert!(table.err.contains("assumed: no job comes"), "{table:?}");
}

#[test]
fn what_is_not_there_is_told() {
    let fake = Fake::start(answer);
    for (words, code, part) in [
        ("forecast j9", 3, "j9 is not in the queue"),
        ("forecast --add-nodes 1 --like nowhere", 3, "no node nowhere"),
        ("forecast --add-nodes 0", 2, "--add-nodes"),
        ("forecast --like n1", 2, "--add-nodes"),
    ] {
        let ran = fake.run(words);
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
        assert!(ran.err.contains(part), "{words}: {ran:?}");
    }
}
