//! Figures 11 and 16 to 19: Optimus beside the fairness scheduler and Tetris, whole and with half
//! of it replaced.

use model::Mode;
use scheduler::snapshot::{Allocation, Placing};

use super::compare::{Case, Contender, Measured, baselines, horizon, network, rival};
use super::testbed::{Arrivals, Assignment, Bed, Containers, DATA_SCALE, Modes, assumptions};
use super::{Experiment, Report, Settings};
use crate::world::Estimates;

pub(super) const FIG11: Experiment = Experiment {
    name: "fig11",
    figure: "Figure 11",
    title: "Mean JCT and makespan on the testbed",
    runs: 3,
    run: fig11,
};
pub(super) const FIG16: Experiment = Experiment {
    name: "fig16",
    figure: "Figure 16",
    title: "All jobs asynchronous, all synchronous",
    runs: 100,
    run: fig16,
};
pub(super) const FIG17: Experiment = Experiment {
    name: "fig17",
    figure: "Figure 17",
    title: "Poisson and trace arrivals",
    runs: 100,
    run: fig17,
};
pub(super) const FIG18: Experiment = Experiment {
    name: "fig18",
    figure: "Figure 18",
    title: "The allocation replaced, with Optimus's placement",
    runs: 100,
    run: fig18,
};
pub(super) const FIG19: Experiment = Experiment {
    name: "fig19",
    figure: "Figure 19",
    title: "The placement replaced, with Optimus's allocation",
    runs: 100,
    run: fig19,
};

/// Runs of the cases that look for causes.
const CAUSE_RUNS: u32 = 30;

fn runs(settings: &Settings<'_>, experiment: &Experiment) -> u32 {
    settings.runs.unwrap_or(experiment.runs).max(1)
}

/// Each case in turn; the first ones are the figure's panels, under their titles.
fn figure(
    settings: &Settings<'_>,
    experiment: &Experiment,
    panels: &[(&str, Case)],
    causes: &[Case],
) -> Result<Report, String> {
    let mut report = Report {
        runs: runs(settings, experiment),
        assumptions: assumptions(),
        ..Report::default()
    };
    for (title, case) in panels {
        let measured: Vec<Measured> = case.report(settings, &mut report)?;
        report.charts.extend(case.bars(title, &measured));
    }
    for case in causes {
        case.report(settings, &mut report)?;
    }
    Ok(report)
}

/// The same policy with a round at every arrival and completion as well.
fn at_events(contender: &Contender) -> Contender {
    Contender { spacing_s: Some(1.0), ..contender.clone() }
}

/// The same policy with parameters assigned in the paper's way.
fn evenly(contender: &Contender) -> Contender {
    Contender { assignment: Assignment::Even, ..contender.clone() }
}

/// A case that looks for a cause, in fewer runs than the figure where nobody asked.
fn cause(settings: &Settings<'_>, figure: &Case) -> Case {
    let runs = settings.runs.map_or(CAUSE_RUNS, |runs| runs.clamp(1, CAUSE_RUNS));
    Case { runs, ..figure.clone() }
}

/// Rounds at arrivals and completions as well.
fn events(case: Case) -> Case {
    Case {
        name: "rounds at events",
        note: "every arrival and completion starts a round, for all policies",
        first: at_events(&case.first),
        rivals: case.rivals.iter().map(at_events).collect(),
        ..case
    }
}

/// Jobs that cannot grow as far.
fn small(case: Case) -> Case {
    Case {
        name: "small jobs",
        note: "at most 5 servers and 5 workers",
        bed: Bed { tasks_max: 5, ..case.bed },
        ..case
    }
}

/// What a difference from the paper may come from, each alone.
fn causes(settings: &Settings<'_>, figure: &Case) -> Vec<Case> {
    let base = || cause(settings, figure);
    let bed = |bed: Bed| Case { bed, ..base() };
    vec![
        Case {
            name: "oracle",
            note: "no estimation error",
            estimates: Estimates::Oracle,
            ..base()
        },
        Case {
            name: "no placement effect",
            note: "speed does not depend on the nodes",
            network: None,
            ..base()
        },
        Case {
            name: "1 Gbps",
            note: "transfers within a server 30 times as fast",
            network: network(30.0),
            ..base()
        },
        Case {
            name: "same assignment",
            note: "baselines with the paper's assignment of parameters too",
            rivals: figure.rivals.iter().map(evenly).collect(),
            ..base()
        },
        events(base()),
        Case {
            name: "light load",
            note: "half the work",
            ..bed(Bed { data_scale: DATA_SCALE * 0.5, ..figure.bed })
        },
        Case {
            name: "heavy load",
            note: "twice the work",
            ..bed(Bed { data_scale: DATA_SCALE * 2.0, ..figure.bed })
        },
        Case {
            name: "large containers",
            note: "5 CPUs and 10 GB each, 27 of them",
            ..bed(Bed { containers: Containers::Study, ..figure.bed })
        },
        small(base()),
        Case {
            name: "dear rescales",
            note: "a rescale costs five times as much",
            ..bed(Bed { rescale_scale: 5.0, ..figure.bed })
        },
        Case {
            name: "large jobs",
            note: "at most 20 servers and 20 workers",
            ..bed(Bed { tasks_max: 20, ..figure.bed })
        },
    ]
}

fn fig11(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = runs(settings, &FIG11);
    let mut rivals = baselines((2.39, 1.63), (1.74, 1.22));
    rivals.extend(horizon());
    let case = Case {
        note: "what makes the difference: one cause at a time below",
        ..Case::of(rivals, runs)
    };
    let causes = causes(settings, &case);
    figure(settings, &FIG11, &[("Testbed", case)], &causes)
}

fn fig16(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = runs(settings, &FIG16);
    let all = |name, mode, rivals| Case {
        name,
        bed: Bed { modes: Modes::All(mode), ..Bed::default() },
        ..Case::of(rivals, runs)
    };
    let panels = [
        ("All async", all("all async", Mode::Async, baselines((1.97, 1.36), (1.64, 1.11)))),
        ("All sync", all("all sync", Mode::Sync, baselines((2.29, 1.45), (1.91, 1.21)))),
    ];
    let alone = cause(settings, &panels[0].1);
    let causes = [
        Case { name: "all async, rounds at events", ..events(alone.clone()) },
        Case { name: "all async, small jobs", ..small(alone) },
    ];
    figure(settings, &FIG16, &panels, &causes)
}

fn fig17(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = runs(settings, &FIG17);
    let come = |name, arrivals, rivals| Case {
        name,
        bed: Bed { arrivals, ..Bed::default() },
        ..Case::of(rivals, runs)
    };
    let (poisson, trace) =
        (baselines((2.15, 1.40), (1.82, 1.15)), baselines((2.21, 1.46), (1.78, 1.24)));
    let panels = [
        ("Poisson", come("Poisson arrivals", Arrivals::Poisson, poisson)),
        ("Trace", come("trace arrivals", Arrivals::Trace, trace)),
    ];
    let trace = cause(settings, &panels[1].1);
    let causes = [
        Case { name: "trace arrivals, rounds at events", ..events(trace.clone()) },
        Case { name: "trace arrivals, small jobs", ..small(trace) },
    ];
    let mut report = figure(settings, &FIG17, &panels, &causes)?;
    report.assumptions.push(
        "trace arrivals are those of a Philly cluster (Philly traces, Microsoft, CC-BY-4.0), seven \
         hours drawn from five; the paper's Google trace is not at hand"
            .to_owned(),
    );
    Ok(report)
}

fn fig18(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = runs(settings, &FIG18);
    let with = |name, allocation, paper| rival(name, (allocation, Placing::Transfer), paper);
    let rivals: Vec<Contender> = vec![
        with("DRF", Allocation::Drf, (1.62, 1.31)),
        with("Tetris", Allocation::Tetris, (1.33, 1.14)),
    ];
    figure(settings, &FIG18, &[("Allocation replaced", Case::of(rivals, runs))], &[])
}

fn fig19(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = runs(settings, &FIG19);
    let with = |name, placing, paper| rival(name, (Allocation::MarginalGain, placing), paper);
    let rivals: Vec<Contender> = vec![
        with("DRF", Placing::Spread, (1.17, 1.13)),
        with("Tetris", Placing::Pack, (1.12, 1.09)),
    ];
    let case = Case::of(rivals, runs);
    let none = Case {
        name: "no placement effect",
        note: "what the baselines' simpler rounds do apart from where tasks go",
        network: None,
        ..cause(settings, &case)
    };
    let strong = Case {
        name: "1 Gbps",
        network: network(30.0),
        note: "transfers within a server 30 times as fast",
        ..case.clone()
    };
    figure(settings, &FIG19, &[("Placement replaced", case)], &[none, strong])
}
