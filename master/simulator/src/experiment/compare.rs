//! Policies on the testbed: runs of the same jobs under each, and their numbers beside the paper's.

use scheduler::snapshot::{Allocation, Placing, Policy};

use super::testbed::{Assignment, Bed, assigned_by_mxnet, cluster, workload};
use super::{Report, Row, Settings, mean_of};
use crate::outcome::{Outcome, mean};
use crate::plot::{Bars, Chart};
use crate::world::{Estimates, Fidelity, Network, Options, Rounds, run};

/// Section 6.3: what the paper measured its estimates to be off by.
pub(super) const ERRORS: Estimates = Estimates::Errors { work: 0.2, speed: 0.1 };
/// How much faster transfers within a server are.
const WITHIN_OVER_ACROSS: f64 = 5.0;
/// A run that takes longer is given up, in s.
const LIMIT_S: f64 = 5e6;

/// A policy in a figure.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub name: &'static str,
    pub policy: Policy,
    /// Rounds at events too; none where everything waits for the interval.
    pub spacing_s: Option<f64>,
    pub assignment: Assignment,
    /// Mean JCT and makespan over those of Optimus in the paper.
    pub paper: Option<(f64, f64)>,
}

/// What is compared, and where.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Empty for the figure itself.
    pub name: &'static str,
    /// What it shows of a difference.
    pub note: &'static str,
    pub bed: Bed,
    pub estimates: Estimates,
    pub network: Option<Network>,
    pub first: Contender,
    pub rivals: Vec<Contender>,
    pub runs: u32,
}

/// The paper's policies: each round looks at everything anew, and no change is held back.
pub(super) fn papers(allocation: Allocation, placing: Placing) -> Policy {
    Policy {
        allocation,
        placing,
        hysteresis_factor: 0.0,
        change_spacing_ms: 0,
        young_factor: 1.0,
        ..Policy::default()
    }
}

/// Optimus as the paper has it.
pub(super) fn optimus() -> Contender {
    Contender {
        name: "Optimus",
        policy: papers(Allocation::MarginalGain, Placing::Transfer),
        spacing_s: None,
        assignment: Assignment::Even,
        paper: None,
    }
}

/// A rival by its two halves.
pub(super) fn rival(
    name: &'static str,
    (allocation, placing): (Allocation, Placing),
    paper: (f64, f64),
) -> Contender {
    Contender {
        name,
        policy: papers(allocation, placing),
        spacing_s: None,
        assignment: Assignment::Even,
        paper: Some(paper),
    }
}

/// The two baselines of section 6.1, with what the paper has for each. The paper's assignment of
/// parameters is a part of Optimus, to which it gives a fifth of the whole gain.
pub(super) fn baselines(drf: (f64, f64), tetris: (f64, f64)) -> Vec<Contender> {
    let whole = |name, halves, paper| Contender {
        assignment: Assignment::Mxnet,
        ..rival(name, halves, paper)
    };
    vec![
        whole("DRF", (Allocation::Drf, Placing::Spread), drf),
        whole("Tetris", (Allocation::Tetris, Placing::Pack), tetris),
    ]
}

/// Our own policy as the daemon has it by default, with rounds at arrivals and completions.
pub(super) fn horizon() -> Option<Contender> {
    let policy = Policy { young_factor: 1.0, ..Policy::by_name("horizon")? };
    let spacing_s = Some(1.0);
    Some(Contender { name: "Horizon", policy, spacing_s, paper: None, ..optimus() })
}

/// Where transfers within a server are so many times as fast.
pub(super) const fn network(within_over_across: f64) -> Option<Network> {
    Some(Network { within_over_across })
}

impl Case {
    /// The figure itself, on the testbed as it is assumed.
    pub(super) fn of(rivals: Vec<Contender>, runs: u32) -> Self {
        Self {
            name: "",
            note: "",
            bed: Bed::default(),
            estimates: ERRORS,
            network: network(WITHIN_OVER_ACROSS),
            first: optimus(),
            rivals,
            runs,
        }
    }

    /// The options of a run.
    pub(super) fn options(&self, contender: &Contender, seed: u64) -> Options {
        Options {
            seed,
            policy_name: contender.name.to_owned(),
            policy: contender.policy.clone(),
            rounds: Rounds { interval_s: 600.0, spacing_s: contender.spacing_s },
            estimates: self.estimates,
            fidelity: Fidelity::Coarse { report_s: 30.0 },
            network: self.network,
            limit_s: LIMIT_S,
            ..Options::default()
        }
    }

    /// One run of one policy.
    ///
    /// # Errors
    /// Why it came to nothing, with what it was.
    pub(super) fn outcome(&self, contender: &Contender, seed: u64) -> Result<Outcome, String> {
        let jobs = workload(&self.bed, seed);
        let workload = match contender.assignment {
            Assignment::Even => jobs,
            Assignment::Mxnet => assigned_by_mxnet(jobs),
        };
        let options = self.options(contender, seed);
        run(&cluster(), &workload, &options, &mut |_| {})
            .map_err(|error| format!("{} with seed {seed}: {error}", contender.name))
    }

    /// The first one before its rivals.
    pub(super) fn contenders(&self) -> impl Iterator<Item = &Contender> {
        std::iter::once(&self.first).chain(&self.rivals)
    }

    /// Mean JCT and makespan of each policy, by run: the first one's before its rivals'.
    ///
    /// # Errors
    /// The first run that came to nothing, or did not come to its end.
    pub(super) fn measure(&self, settings: &Settings<'_>) -> Result<Vec<Measured>, String> {
        let title = if self.name.is_empty() { "the figure" } else { self.name };
        settings.hands.progress(title);
        let work = |run: u32| {
            let mut numbers = Vec::new();
            for contender in self.contenders() {
                let seed = settings.seed_of(run);
                let outcome = self.outcome(contender, seed)?;
                numbers.extend(both(&outcome).ok_or_else(|| {
                    format!("{} with seed {seed}: a job never ended", contender.name)
                })?);
            }
            Ok(numbers)
        };
        let runs = settings.hands.each(self.runs, &work)?;
        let at = |contender: usize| Measured {
            jct_s: runs.iter().map(|numbers| numbers[2 * contender]).collect(),
            makespan_s: runs.iter().map(|numbers| numbers[2 * contender + 1]).collect(),
        };
        Ok((0..=self.rivals.len()).map(at).collect())
    }

    /// Measures, and puts each rival's numbers over the first one's into the report.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(super) fn report(
        &self,
        settings: &Settings<'_>,
        report: &mut Report,
    ) -> Result<Vec<Measured>, String> {
        let measured = self.measure(settings)?;
        let (first, rivals) = measured.split_first().ok_or("nobody was measured")?;
        let label = |what: &str, contender: &Contender| {
            let case =
                if self.name.is_empty() { String::new() } else { format!(", {}", self.name) };
            format!("{} {what} over {}'s{case}", contender.name, self.first.name)
        };
        for (contender, rival) in self.rivals.iter().zip(rivals) {
            let jct = over(&rival.jct_s, &first.jct_s);
            let makespan = over(&rival.makespan_s, &first.makespan_s);
            let paper = contender.paper;
            report.rows.push(
                Row::of(label("mean JCT", contender), paper.map(|paper| paper.0), jct)
                    .note(self.note),
            );
            report.rows.push(
                Row::of(label("makespan", contender), paper.map(|paper| paper.1), makespan)
                    .note(self.note),
            );
        }
        Ok(measured)
    }

    /// The figure: bars of the paper beside ours.
    pub(super) fn bars(&self, title: &str, measured: &[Measured]) -> Vec<Chart> {
        type Of = fn(&Measured) -> &Vec<f64>;
        type PaperOf = fn((f64, f64)) -> f64;
        let chart = |what: &str, of: Of, paper_of: PaperOf| {
            let Some(first) = measured.first() else { return Chart::Bars(Bars::default()) };
            let ours = measured.iter().map(|rival| {
                let (mean, error) = over(of(rival), of(first));
                (mean.unwrap_or(0.0), error.unwrap_or(0.0))
            });
            let papers = self.contenders().map(|contender| {
                let value = contender.paper.map_or(0.0, paper_of);
                (if contender.name == self.first.name { 1.0 } else { value }, 0.0)
            });
            Chart::Bars(Bars {
                title: format!("{title}: {what}"),
                y: format!("over {}'s", self.first.name),
                groups: self.contenders().map(|contender| contender.name.to_owned()).collect(),
                series: vec![
                    ("paper".to_owned(), papers.collect()),
                    ("ours".to_owned(), ours.collect()),
                ],
            })
        };
        vec![
            chart("mean JCT", |measured| &measured.jct_s, |paper| paper.0),
            chart("makespan", |measured| &measured.makespan_s, |paper| paper.1),
        ]
    }
}

/// What a policy came to, by run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub jct_s: Vec<f64>,
    pub makespan_s: Vec<f64>,
}

/// Mean JCT and makespan in s, where every job ended.
pub(super) fn both(outcome: &Outcome) -> Option<[f64; 2]> {
    Some([mean(&outcome.completion_times())?, outcome.makespan_s()?])
}

/// The mean of one over the mean of the other, with the standard error of that ratio over runs.
pub(super) fn over(values: &[f64], base: &[f64]) -> (Option<f64>, Option<f64>) {
    let Some((above, below)) = mean(values).zip(mean(base)) else { return (None, None) };
    let ratio = above / below;
    // Runs are paired: what the ratio's error comes from is what is left of each pair.
    let left: Vec<f64> =
        values.iter().zip(base).map(|(value, base)| (value - ratio * base) / below).collect();
    (Some(ratio), mean_of(&left).1)
}
