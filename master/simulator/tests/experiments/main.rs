//! Each experiment in one or two runs: numbers that are numbers, and who is best.

#![expect(clippy::unwrap_used, reason = "a missing value should stop the test at once")]

use std::path::PathBuf;

use simulator::experiment::{EXPERIMENTS, Hands, Report, Settings, Work, find};
use simulator::plot::document;

/// One thread, and a clock that stands.
#[derive(Debug)]
struct Alone;

impl Hands for Alone {
    fn each(&self, count: u32, work: &Work<'_>) -> Result<Vec<Vec<f64>>, String> {
        (0..count).map(work).collect()
    }

    fn seconds(&self) -> f64 {
        0.0
    }

    fn progress(&self, _: &str) {}
}

fn report(name: &str, runs: u32) -> Report {
    let settings = Settings { runs: Some(runs), seed: 1, data: None, hands: &Alone };
    let report = (find(name).unwrap().run)(&settings).unwrap();
    assert_eq!(report.runs, runs, "{name}");
    assert!(!report.assumptions.is_empty(), "{name} says nothing of what it assumes");
    for row in &report.rows {
        assert!(row.ours.is_some_and(f64::is_finite), "{name}: {}", row.what);
        assert_eq!(row.error.is_some(), runs > 1, "{name}: {}", row.what);
    }
    let svg = document(name, &report.charts);
    assert!(svg.contains("paper") && !svg.contains("NaN"), "{name}: {svg}");
    report
}

fn ours(report: &Report, what: &str) -> f64 {
    let row = report.rows.iter().find(|row| row.what == what);
    row.unwrap_or_else(|| panic!("no row {what}")).ours.unwrap()
}

#[test]
fn names_differ() {
    let mut names: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), EXPERIMENTS.len());
    assert!(find("fig61").unwrap_err().contains("did you mean fig1"));
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for name in ["fig13", "overhead"] {
        assert_eq!(report(name, 1), report(name, 1), "{name}");
    }
}

#[test]
fn optimus_is_best_and_tetris_next_on_the_testbed() {
    let report = report("fig13", 2);
    for what in ["mean JCT", "makespan"] {
        let of = |policy: &str| ours(&report, &format!("{policy} {what}"));
        assert!(of("Optimus") < of("Tetris"), "{report:?}");
        assert!(of("Tetris") < of("DRF"), "{report:?}");
        assert!(of("Horizon") < of("Optimus"), "{report:?}");
    }
}

#[test]
fn both_halves_of_optimus_are_worth_something() {
    for name in ["fig18", "fig19"] {
        let report = report(name, 2);
        for rival in ["DRF", "Tetris"] {
            let ratio = ours(&report, &format!("{rival} mean JCT over Optimus's"));
            assert!(ratio > 1.0, "{name}: {rival} {ratio}");
        }
    }
}

#[test]
fn modes_and_arrivals_make_other_workloads() {
    for name in ["fig16", "fig17"] {
        let report = report(name, 1);
        let jct = report.rows.iter().filter(|row| row.what.starts_with("DRF mean JCT"));
        let ratios: Vec<f64> = jct.map(|row| row.ours.unwrap()).collect();
        assert!(ratios.len() >= 2 && ratios.iter().all(|ratio| *ratio > 1.0), "{ratios:?}");
        assert!((ratios[0] - ratios[1]).abs() > 1e-6, "{ratios:?}");
    }
}

#[test]
fn errors_are_measured_against_none() {
    let report = report("fig15", 1);
    for estimated in ["convergence", "speed"] {
        let none = ours(&report, &format!("mean JCT at 0 % {estimated} error"));
        assert!((none - 1.0).abs() < 1e-12);
        let most = ours(&report, &format!("mean JCT at 50 % {estimated} error"));
        assert!((0.5..2.0).contains(&most), "{most}");
    }
}

#[test]
fn deterministic_policies_come_to_what_was_published() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let data = std::env::var_os("OPTIMUS_DATA").map_or_else(|| root.into(), PathBuf::from);
    let data = data.join("pollux");
    if cfg!(debug_assertions) || !data.join("workloads").is_dir() {
        eprintln!("skipped: needs a release build and the data at {}", data.display());
        return;
    }
    let settings = Settings { runs: Some(1), seed: 1, data: Some(data), hands: &Alone };
    let report = (find("pollux").unwrap().run)(&settings).unwrap();
    for row in report.rows.iter().filter(|row| !row.what.contains(" pollux ")) {
        assert!(row.ratio.is_none_or(|ratio| (ratio - 1.0).abs() < 0.01), "{row:?}");
    }
    assert!(report.rows.iter().filter(|row| row.ratio.is_some()).count() >= 8);
}

#[test]
fn rescales_cost_little_and_the_priority_factor_changes_little() {
    let overhead = report("overhead", 1);
    let share = ours(&overhead, "% of the time, every change made");
    assert!((0.0..5.0).contains(&share), "{share}");
    let smaller = ours(&report("priority", 1), "% less mean JCT");
    assert!((-20.0..20.0).contains(&smaller), "{smaller}");
}
