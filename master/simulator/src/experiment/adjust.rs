//! Two numbers of the text: what adjusting resources costs (section 6.2), and the priority factor
//! (section 6.3).

use scheduler::snapshot::{Allocation, Placing, Policy};

use super::compare::{Case, Contender, Measured, optimus, over, papers};
use super::testbed::assumptions;
use super::{Experiment, Report, Row, Settings, mean_of};
use crate::plot::{Bars, Chart};
use crate::world::Estimates;

pub(super) const OVERHEAD: Experiment = Experiment {
    name: "overhead",
    figure: "Section 6.2",
    title: "Time spent on adjusting resources",
    runs: 3,
    run: overhead,
};
pub(super) const PRIORITY: Experiment = Experiment {
    name: "priority",
    figure: "Section 6.3",
    title: "A priority factor of 0.95 for jobs at their beginning",
    runs: 100,
    run: priority,
};

/// The paper's share of the makespan, in %.
const PAPER_OVERHEAD: f64 = 2.54;
/// By how many % the paper's mean JCT and makespan were smaller.
const PAPER_SMALLER: (f64, f64) = (2.66, 1.88);

fn overhead(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(OVERHEAD.runs).max(1);
    let case = Case::of(Vec::new(), runs);
    let kept = Contender { policy: Policy { young_factor: 1.0, ..Policy::default() }, ..optimus() };
    let ours = Contender { spacing_s: Some(1.0), ..kept.clone() };
    let anew = Contender { policy: papers(Allocation::MarginalGain, Placing::Pack), ..optimus() };
    let mut report = Report { runs, assumptions: assumptions(), ..Report::default() };
    let mut bars = vec![(PAPER_OVERHEAD, 0.0)];
    let mut groups = vec!["paper".to_owned()];
    for (name, contender, paper) in [
        ("every change made", optimus(), Some(PAPER_OVERHEAD)),
        ("all shared out anew each round", anew, Some(PAPER_OVERHEAD)),
        ("changes worth their cost", kept, None),
        ("changes worth their cost, rounds at events", ours, None),
    ] {
        settings.hands.progress(name);
        let work = |run: u32| {
            let outcome = case.outcome(&contender, settings.seed_of(run))?;
            let restarts: u32 = outcome.jobs.iter().map(|job| job.restarts).sum();
            let jobs = u32::try_from(outcome.jobs.len()).unwrap_or(u32::MAX);
            Ok(vec![outcome.rescale_share * 100.0, f64::from(restarts) / f64::from(jobs.max(1))])
        };
        let numbers = settings.hands.each(runs, &work)?;
        let of = |at: usize| mean_of(&numbers.iter().map(|run| run[at]).collect::<Vec<f64>>());
        let (share, restarts) = (of(0), of(1));
        let note = "mean over jobs of the time lost to rescales over the time that they held tasks";
        report.rows.push(Row::of(format!("% of the time, {name}"), paper, share).note(note));
        report.rows.push(Row::of(format!("rescales of a job, {name}"), None, restarts));
        groups.push(name.to_owned());
        bars.push((share.0.unwrap_or(0.0), share.1.unwrap_or(0.0)));
    }
    report.charts.push(Chart::Bars(Bars {
        title: "Time spent on adjusting resources".to_owned(),
        y: "% of the time".to_owned(),
        groups,
        series: vec![("share".to_owned(), bars)],
    }));
    Ok(report)
}

fn priority(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(PRIORITY.runs).max(1);
    let damped = Contender {
        name: "factor 0.95",
        policy: Policy { young_factor: 0.95, ..optimus().policy },
        ..optimus()
    };
    let plain = Contender { name: "factor 1", ..optimus() };
    let case = Case {
        name: "priority factor",
        estimates: Estimates::Fitted,
        first: plain,
        ..Case::of(vec![damped], runs)
    };
    let measured: Vec<Measured> = case.measure(settings)?;
    let (Some(plain), Some(damped)) = (measured.first(), measured.get(1)) else {
        return Err("nobody was measured".to_owned());
    };
    let smaller = |(ratio, error): (Option<f64>, Option<f64>)| {
        (ratio.map(|ratio| 100.0 * (1.0 - ratio)), error.map(|error| 100.0 * error))
    };
    let jct = smaller(over(&damped.jct_s, &plain.jct_s));
    let makespan = smaller(over(&damped.makespan_s, &plain.makespan_s));
    let mut report = Report { runs, assumptions: assumptions(), ..Report::default() };
    report.assumptions.retain(|text| !text.starts_with("remaining work is known"));
    report.assumptions.push(
        "remaining work and speed are what the daemon fits to losses with 1 % of noise and to \
         profiled shapes; the factor counts while a job's remaining work is not known yet"
            .to_owned(),
    );
    for (what, paper, ours) in
        [("mean JCT", PAPER_SMALLER.0, jct), ("makespan", PAPER_SMALLER.1, makespan)]
    {
        report.rows.push(Row::of(format!("% less {what}"), Some(paper), ours));
    }
    let bar = |ours: (Option<f64>, Option<f64>)| (ours.0.unwrap_or(0.0), ours.1.unwrap_or(0.0));
    report.charts.push(Chart::Bars(Bars {
        title: "Less with a factor of 0.95".to_owned(),
        y: "%".to_owned(),
        groups: vec!["mean JCT".to_owned(), "makespan".to_owned()],
        series: vec![
            ("paper".to_owned(), vec![(PAPER_SMALLER.0, 0.0), (PAPER_SMALLER.1, 0.0)]),
            ("ours".to_owned(), vec![bar(jct), bar(makespan)]),
        ],
    }));
    Ok(report)
}
