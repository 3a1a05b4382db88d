//! The JSON of a run is a contract.

use simulator::outcome::{JobOutcome, Outcome, Sample, Span};
use simulator::report::{Run, Runs, SCHEMA, Timelines};

pub(crate) fn outcome(policy: &str, seed: u64) -> Outcome {
    let job = |id: &str, arrival_s: f64, completion_s: Option<f64>| JobOutcome {
        id: id.to_owned(),
        model: "wlm".to_owned(),
        arrival_s,
        started_s: Some(arrival_s + 1.5),
        completion_s,
        restarts: 2,
        rescale_s: 30.0,
        timeline: vec![
            Span { at_s: arrival_s + 1.5, servers: 1, workers: 2, nodes: 1 },
            Span { at_s: completion_s.unwrap_or(900.0), servers: 0, workers: 0, nodes: 0 },
        ],
    };
    Outcome {
        policy: policy.to_owned(),
        seed,
        jobs: vec![job("a", 0.0, Some(100.0)), job("b \"é\"", 10.0, Some(310.5))],
        samples: (0..50_u32)
            .map(|at| Sample {
                at_s: f64::from(at) * 10.0,
                tasks: at % 7,
                jobs_running: 1,
                jobs_waiting: at % 3,
                used: f64::from(at % 7) / 7.0,
            })
            .collect(),
        rescale_share: 0.025,
        rounds: 12,
    }
}

#[test]
fn a_run_is_as_recorded() {
    let mut run = Run::of(&outcome("optimus", 7), &Timelines::Of("a".to_owned()));
    run.schema = Some(SCHEMA);
    let recorded = concat!(
        r#"{"schema":"optimus.simulation/1","policy":"optimus","seed":7,"jobs":["#,
        r#"{"id":"a","arrival_s":0.0,"completion_s":100.0,"restarts":2,"model":"wlm","#,
        r#""started_s":1.5,"jct_s":100.0,"rescale_s":30.0,"timeline":["#,
        r#"{"at_s":1.5,"servers":1,"workers":2,"nodes":1},"#,
        r#"{"at_s":100.0,"servers":0,"workers":0,"nodes":0}]},"#,
        r#"{"id":"b \"é\"","arrival_s":10.0,"completion_s":310.5,"restarts":2,"model":"wlm","#,
        r#""started_s":11.5,"jct_s":300.5,"rescale_s":30.0}],"#,
        r#""mean_jct_s":200.25,"p50_jct_s":200.25,"p99_jct_s":298.495,"makespan_s":310.5,"#,
        r#""rescale_share":0.025,"restarts":4.0,"unfinished":0.0,"rounds":12.0}"#,
    );
    assert_eq!(serde_json::to_string(&run).unwrap(), recorded);
}

#[test]
fn jobs_that_never_end_and_numbers_that_are_none_are_null() {
    let mut hostile = outcome("drf", 1);
    hostile.jobs[0].completion_s = None;
    hostile.jobs[0].started_s = Some(f64::NAN);
    hostile.rescale_share = f64::INFINITY;
    let json = serde_json::to_value(Run::of(&hostile, &Timelines::None)).unwrap();
    assert!(json["makespan_s"].is_null() && json["jobs"][0]["started_s"].is_null(), "{json}");
    assert_eq!((&json["unfinished"], &json["mean_jct_s"]), (&1.0.into(), &300.5.into()));
    let empty = serde_json::to_value(Run::of(&Outcome::default(), &Timelines::All)).unwrap();
    assert!(empty["mean_jct_s"].is_null() && empty["p99_jct_s"].is_null(), "{empty}");
}

#[test]
fn the_mean_over_runs_is_of_each_number() {
    let mut second = outcome("drf", 2);
    second.jobs[1].completion_s = Some(410.5);
    let runs = [outcome("drf", 1), second].map(|outcome| Run::of(&outcome, &Timelines::None));
    let json = serde_json::to_value(Runs::of("drf", runs.to_vec())).unwrap();
    assert_eq!(json["mean"]["makespan_s"], 360.5);
    assert_eq!(json["mean"]["mean_jct_s"], 225.25);
    assert_eq!(json["runs"][1]["seed"], 2);
}
