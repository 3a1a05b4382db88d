//! How a run goes: the policy and its rounds, what it is told, and what goes wrong.

use scheduler::snapshot::Policy;

/// Everything about a run beside the cluster and the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// All chance of the run: the same seed gives the same outcome.
    pub seed: u64,
    /// What the outcome calls the policy.
    pub policy_name: String,
    pub policy: Policy,
    pub rounds: Rounds,
    pub estimates: Estimates,
    pub fidelity: Fidelity,
    pub costs: Costs,
    /// How the place changes the speed; none where all tasks share one network alike.
    pub network: Option<Network>,
    pub failures: Failures,
    /// Relative noise (one standard deviation) of the step times that workers report.
    pub speed_noise: f64,
    /// Seconds of training between two checkpoints: 5 to 86,400.
    pub checkpoint_interval_s: u32,
    /// Jobs of one model share what was measured of its speed. Only for [`Estimates::Fitted`].
    pub shared_speeds: bool,
    /// Whether the checker looks at every plan; a finding ends the run.
    pub check_plans: bool,
    /// The run is given up at this simulated time, with the jobs as they stand.
    pub limit_s: f64,
}

/// When rounds are held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounds {
    pub interval_s: f64,
    /// At an arrival, completion or loss too, this long after the round before at the earliest;
    /// none where everything waits for the next whole multiple of the interval.
    pub spacing_s: Option<f64>,
}

/// How the scheduler knows speeds and the work that is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimates {
    /// The truth. Speeds from a table are known by their best fit of Eqn. (3) or (4).
    Oracle,
    /// Section 6.3: the truth × (1 ± e·left/total), the signs drawn once for each job, so that
    /// the error decays with the progress.
    Errors { work: f64, speed: f64 },
    /// The same with errors of the speed that differ between shapes: each coefficient of it is
    /// wrong by itself, with a sign of its own.
    Scattered { work: f64, speed: f64 },
    /// The daemon's own: profiled speeds, and losses as they are seen.
    Fitted,
}

/// How much of the traffic between master and agents is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fidelity {
    /// Heartbeats at the agents' interval, messages that take their time, and the daemon's own
    /// time limits: for faults.
    Exact { beat_ms: u64, delay_ms: u64 },
    /// Agents report what changed, at once, and no silence is a fault: for long traces. Running
    /// jobs report progress every `report_s` where the scheduler needs it ([`Estimates::Fitted`]).
    Coarse { report_s: f64 },
}

/// Where the time of a rescale goes. The whole of it is the job's own `rescale_cost_s`: saving,
/// stopping and starting take these shares of it, and the rest is starting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub save_share: f64,
    pub stop_share: f64,
    /// What a job's very first start takes, in s.
    pub first_start_s: f64,
}

/// Speeds of tasks that talk within a node and across nodes.
///
/// The true speed of a job is what it has with every task on a node of its own. The part of a
/// step that goes over the network (the term in w/p of Eqns. (3) and (4)) is shortened by what
/// the placement saves: with x the transfer time of the placement (appendix) over that of tasks
/// spread one to a node, it takes (1 + (r − 1)·x)/r of its time, 1/r on a single node.
///
/// Measured on MXNet (samples a second across servers, within one, and without a network):
/// resnet-50 20.5, 40.9, 67.2; vgg-16 11, 17.5, 59.8; resnext-110 374, 381.2, 567.2;
/// inception-bn 116, 149.9, 157. Taking the seconds without a network off the others leaves
/// r = 3.5, 1.8, 1.1 and 7.5, where the bandwidths are 30 and 6 Gbps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// r: how much faster transfers within a node are. At least 1.
    pub within_over_across: f64,
}

/// What goes wrong by chance. Rates are for one node; 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Failures {
    /// Mean times between losses of a node, and until it is back, in s.
    pub node_mtbf_s: f64,
    pub node_mttr_s: f64,
    /// Mean times between slow spells of a node and of a spell, in s, and the factor on its
    /// speed.
    pub slow_mtbf_s: f64,
    pub slow_mttr_s: f64,
    pub slow_factor: f64,
    /// Share of checkpoints that fail.
    pub save_failures: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            policy_name: "optimus".to_owned(),
            policy: Policy::default(),
            rounds: Rounds { interval_s: 600.0, spacing_s: Some(1.0) },
            estimates: Estimates::Oracle,
            fidelity: Fidelity::Coarse { report_s: 30.0 },
            costs: Costs::default(),
            network: None,
            failures: Failures::default(),
            speed_noise: 0.0,
            checkpoint_interval_s: 86_400,
            shared_speeds: true,
            check_plans: cfg!(debug_assertions),
            limit_s: 1e9,
        }
    }
}

impl Default for Costs {
    /// All of a rescale is its start, and a first start is free.
    fn default() -> Self {
        Self { save_share: 0.0, stop_share: 0.0, first_start_s: 0.0 }
    }
}

impl Fidelity {
    /// As the daemons are set by default, on a quiet network.
    #[must_use]
    pub const fn exact() -> Self {
        Self::Exact { beat_ms: 2_000, delay_ms: 2 }
    }
}

/// Seconds that a rescale of a model of this size costs.
///
/// Jobs of ResNet-50's size (102.2 MB of parameters) took 11.5 to 16.1 s to restart from a
/// checkpoint when 1 to 6 servers were added: 10 s of processes and data that start anew, and the
/// parameters, which go out to storage and back in at 50 MB/s each way. 14.1 s for ResNet-50, 32 s
/// for VGG-16 (553 MB). An assumption where no other size was measured.
#[must_use]
pub fn rescale_cost_s(model_megabytes: f64) -> f64 {
    const FIXED_S: f64 = 10.0;
    const MEGABYTES_PER_S: f64 = 50.0;
    let megabytes = if model_megabytes.is_finite() { model_megabytes.max(0.0) } else { 0.0 };
    FIXED_S + 2.0 * megabytes / MEGABYTES_PER_S
}

impl Options {
    /// # Errors
    /// The first field that makes no sense, in words.
    pub(super) fn validate(&self) -> Result<(), String> {
        let at_least = |what: &str, value: f64, least: f64| {
            if value.is_finite() && value >= least {
                Ok(())
            } else {
                Err(format!("options: {what} is {value}; give at least {least}"))
            }
        };
        at_least("interval_s", self.rounds.interval_s, 0.001)?;
        at_least("spacing_s", self.rounds.spacing_s.unwrap_or(0.0), 0.0)?;
        at_least("limit_s", self.limit_s, 0.0)?;
        at_least("speed_noise", self.speed_noise, 0.0)?;
        at_least("first_start_s", self.costs.first_start_s, 0.0)?;
        let failures = &self.failures;
        for (what, value) in [
            ("node_mtbf_s", failures.node_mtbf_s),
            ("node_mttr_s", failures.node_mttr_s),
            ("slow_mtbf_s", failures.slow_mtbf_s),
            ("slow_mttr_s", failures.slow_mttr_s),
            ("slow_factor", failures.slow_factor),
        ] {
            at_least(what, value, 0.0)?;
        }
        if failures.slow_mtbf_s > 0.0 {
            at_least("slow_factor", failures.slow_factor, 0.001)?;
        }
        if let Some(network) = self.network {
            at_least("within_over_across", network.within_over_across, 1.0)?;
        }
        let share = |what: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(format!("options: {what} is {value}; give 0 to 1"))
            }
        };
        share("save_failures", failures.save_failures)?;
        share("save_share", self.costs.save_share)?;
        share("stop_share", self.costs.stop_share)?;
        share("save_share + stop_share", self.costs.save_share + self.costs.stop_share)?;
        if let Estimates::Errors { work, speed } | Estimates::Scattered { work, speed } =
            self.estimates
        {
            // At 1 a speed of 0 would be seen.
            let below_one = |value: f64| (0.0..0.999).contains(&value);
            if !below_one(work) || !below_one(speed) {
                return Err(format!("options: errors {work} and {speed}; give 0 to below 1"));
            }
        }
        match self.fidelity {
            Fidelity::Coarse { report_s } => at_least("report_s", report_s, 0.1),
            Fidelity::Exact { beat_ms, .. } if !(100..=60_000).contains(&beat_ms) => {
                Err(format!("options: beat_ms is {beat_ms}; give 100 to 60000"))
            }
            Fidelity::Exact { .. } => Ok(()),
        }
    }
}
