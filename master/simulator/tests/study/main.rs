//! The policy study on a few seeds.

use simulator::outcome::{Outcome, mean};
use simulator::study::{
    Arrivals, Kind, MODELS, Met, Setting, Workload, bounds, finish_time_ratios, run,
    submission_times,
};

const OURS: Kind = Kind::Horizon { fairness: 0.5 };

fn workloads(seeds: std::ops::Range<u64>, arrivals: &Arrivals, setting: Setting) -> Vec<Workload> {
    seeds.map(|seed| Workload::generate(seed, arrivals, setting)).collect()
}

fn all(workloads: &[Workload], kind: Kind) -> Vec<Outcome> {
    workloads.iter().map(|workload| run(workload, kind)).collect()
}

fn met(arrivals: &Arrivals, kind: Kind) -> Met {
    let workloads = workloads(1..9, arrivals, Setting::default());
    let papers = all(&workloads, Kind::PAPERS);
    Met::of(&workloads, &all(&workloads, kind), &papers).expect("every job ends")
}

#[test]
fn looking_ahead_beats_the_papers_allocation() {
    for arrivals in [Arrivals::Uniform, Arrivals::Poisson] {
        let met = met(&arrivals, OURS);
        assert!(met.jct <= 0.58 && met.makespan <= 1.03, "{arrivals:?} {met:?}");
        assert!(met.ratio_p99 <= 2.5, "{arrivals:?} {met:?}");
    }
}

#[test]
fn the_papers_allocation_at_each_event_is_as_the_study_before_found_it() {
    let met = met(&Arrivals::Uniform, Kind::Optimus { period_s: None });
    assert!((0.80..0.92).contains(&met.jct), "0.86 then: {met:?}");
    assert!((0.95..1.01).contains(&met.makespan), "0.98 then: {met:?}");
}

#[test]
fn fairness_trades_the_mean_for_the_worst() {
    let workloads =
        workloads(1..9, &Arrivals::Uniform, Setting { slots: 45, ..Setting::default() });
    let papers = all(&workloads, Kind::PAPERS);
    let met = |fairness: f64| {
        let runs = all(&workloads, Kind::Horizon { fairness });
        Met::of(&workloads, &runs, &papers).expect("every job ends")
    };
    let (mean, fair) = (met(0.0), met(2.0));
    assert!(fair.ratio_p99 < mean.ratio_p99, "{fair:?} {mean:?}");
    assert!(fair.jct > mean.jct, "{fair:?} {mean:?}");
}

#[test]
fn one_seed_gives_one_outcome() {
    let workload = Workload::generate(7, &Arrivals::Uniform, Setting::default());
    assert_eq!(workload, Workload::generate(7, &Arrivals::Uniform, Setting::default()));
    assert_eq!(run(&workload, OURS), run(&workload, OURS));
    let other = Workload::generate(8, &Arrivals::Uniform, Setting::default());
    assert_ne!(workload.jobs, other.jobs);
}

#[test]
fn every_job_ends_in_a_pool_that_is_far_too_small() {
    let setting = Setting { slots: 12, jobs: 80, ..Setting::default() };
    let workload = Workload::generate(3, &Arrivals::Uniform, setting);
    let outcome = run(&workload, OURS);
    assert_eq!(outcome.completion_times().len(), 80);
    let ratios = finish_time_ratios(&workload, &outcome);
    assert!(ratios.iter().all(|ratio| *ratio < 8.0), "{ratios:?}");
    assert!(outcome.samples.iter().all(|sample| sample.tasks <= 12));
}

#[test]
fn no_policy_is_below_the_bounds() {
    for workload in workloads(1..4, &Arrivals::Uniform, Setting::default()) {
        let bounds = bounds(&workload);
        for kind in [OURS, Kind::PAPERS] {
            let mean = mean(&run(&workload, kind).completion_times()).expect("jobs");
            assert!(mean > bounds.alone_s && mean > bounds.pooled_s, "{mean} {bounds:?}");
        }
    }
}

#[test]
fn a_single_job_takes_its_work_over_its_best_rate() {
    let exact = Setting { jobs: 1, work_error: 0.0, speed_error: 0.0, ..Setting::default() };
    let workload = Workload::generate(5, &Arrivals::Uniform, exact);
    let outcome = run(&workload, OURS);
    let took_s = outcome.completion_times()[0];
    let ratio = took_s / bounds(&workload).alone_s;
    assert!((1.0 - 1e-9..1.10).contains(&ratio), "{ratio}");
    assert!(outcome.jobs[0].restarts == 0 && outcome.jobs[0].rescale_s <= 0.0);
}

#[test]
fn degenerate_settings_end() {
    let none = Setting { jobs: 0, ..Setting::default() };
    assert!(run(&Workload::generate(1, &Arrivals::Uniform, none), OURS).jobs.is_empty());
    let no_slots = Setting { slots: 0, jobs: 3, ..Setting::default() };
    for kind in [OURS, Kind::Optimus { period_s: None }] {
        let outcome = run(&Workload::generate(1, &Arrivals::Poisson, no_slots), kind);
        assert_eq!(outcome.completion_times(), Vec::<f64>::new());
    }
    let trace = Arrivals::Trace(Vec::new().into());
    let empty = Workload::generate(1, &trace, Setting::default());
    assert!(empty.jobs.is_empty());
}

#[test]
fn submission_times_are_read_from_a_trace() {
    let csv = "timestamp,duration\n2017-10-09 07:01:55,66.0\n2017-10-09 06:13:03,2951.0\n\
               2016-02-30 x\n2017-10-10 06:13:03,1\n";
    assert_eq!(submission_times(csv), vec![0.0, 2932.0, 86_400.0]);
}

/// The models are those of the data, where that is there.
#[test]
fn models_are_those_of_the_data() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let Ok(text) = std::fs::read_to_string(root.join("optimus/study.json")) else {
        eprintln!("optimus/study.json is not there: not compared");
        return;
    };
    let compact: String = text.split_whitespace().collect();
    for model in MODELS {
        let found = format!("\"model\":\"{}\",\"c\":{},\"wp\":{}", model.name, model.c, model.wp);
        assert!(compact.contains(&found), "{found}");
    }
}
