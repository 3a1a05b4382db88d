//! The knobs of the state machine, in plain units.

use model::config::MasterConfig;
use scheduler::snapshot::Policy;

use crate::gpu::{GpuRules, Xids};

/// Settings of one master. Durations in ms.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub cluster: String,
    pub interval_ms: u64,
    pub spacing_ms: u64,
    /// Rounds only at whole multiples of the interval since the start: whatever happens waits for
    /// the next one. For runs beside published schedulers that know no other rounds.
    pub rounds_on_grid: bool,
    pub policy: Policy,
    /// 0: nothing is profiled, whoever carries out the rounds knows the speeds.
    pub profile_shapes_max: usize,
    pub profile_ms: u64,
    /// Assumed cost of a job's first rescale, in s.
    pub rescale_cost_s: f64,
    /// Share of its time that a job may lose to changes of its shape.
    pub pause_share: f64,
    pub suspect_ms: u64,
    pub down_ms: u64,
    pub start_grace_ms: u64,
    /// Share of all nodes that may be DOWN at once; always one.
    pub down_share_max: f64,
    pub start_timeout_ms: u64,
    pub checkpoint_timeout_ms: u64,
    pub stop_grace_ms: u64,
    pub backoff_ms: u64,
    pub backoff_ms_max: u64,
    pub stall_ms: u64,
    /// Length of a window in which workers are compared, windows in a row that name a slow one
    /// (0: nobody is watched), and the share of the others' median speed below which it is slow.
    pub straggler_window_ms: u64,
    pub straggler_windows: u32,
    pub straggler_ratio: f64,
    /// How long slowness is held against a node without a new sign of it.
    pub slow_node_ms: u64,
    /// How GPUs are judged.
    pub gpus: GpuRules,
    pub checkpoints_kept: usize,
    pub jobs_queued_max: usize,
    /// Of these, of one person: no one's may keep all others' out.
    pub jobs_per_user: usize,
    pub jobs_finished_kept: usize,
    pub events_kept: usize,
    pub rounds_kept: usize,
    /// First and last root port.
    pub root_ports: (u16, u16),
}

impl From<&MasterConfig> for Settings {
    fn from(config: &MasterConfig) -> Self {
        let (rounds, nodes, jobs) = (&config.rounds, &config.nodes, &config.jobs);
        let (limits, stragglers, gpus) = (&config.limits, &config.stragglers, &config.gpus);
        let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            cluster: config.cluster.clone(),
            interval_ms: rounds.interval.0,
            spacing_ms: rounds.spacing.0,
            rounds_on_grid: false,
            policy: Policy {
                hysteresis_factor: rounds.hysteresis_factor,
                change_spacing_ms: rounds.change_spacing.0,
                ..Policy::by_name(&rounds.policy).unwrap_or_default()
            },
            profile_shapes_max: count(rounds.profile_shapes_max),
            profile_ms: rounds.profile_time.0,
            rescale_cost_s: model::time::seconds(rounds.rescale_cost.0),
            pause_share: rounds.pause_share,
            suspect_ms: nodes.suspect.0,
            down_ms: nodes.down.0,
            start_grace_ms: nodes.start_grace.0,
            down_share_max: nodes.down_share_max,
            start_timeout_ms: jobs.start_timeout.0,
            checkpoint_timeout_ms: jobs.checkpoint_timeout.0,
            stop_grace_ms: jobs.stop_grace.0,
            backoff_ms: jobs.backoff.0,
            backoff_ms_max: jobs.backoff_max.0,
            stall_ms: jobs.stall_timeout.0,
            straggler_window_ms: stragglers.window.0.max(1),
            straggler_windows: stragglers.windows,
            straggler_ratio: stragglers.ratio,
            slow_node_ms: stragglers.node_flag.0,
            gpus: GpuRules {
                quiet_ms: gpus.quiet.0,
                suspicions_max: count(gpus.suspicions_max),
                out_share: gpus.out_share,
                ecc_uncorrected_max: u64::from(gpus.ecc_uncorrected_max),
                xids: Xids::with(
                    &gpus.xid_user,
                    &gpus.xid_transient,
                    &gpus.xid_reset,
                    &gpus.xid_hardware,
                ),
            },
            checkpoints_kept: count(jobs.checkpoints_kept).max(1),
            jobs_queued_max: count(limits.jobs_queued_max),
            jobs_per_user: count(limits.jobs_per_user),
            jobs_finished_kept: count(limits.jobs_finished_kept),
            events_kept: count(limits.events_kept).max(1),
            rounds_kept: count(limits.rounds_kept).max(1),
            root_ports: limits.root_ports,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(&MasterConfig::default())
    }
}
