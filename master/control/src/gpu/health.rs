//! The health of one GPU: what a sight of it makes of its state.
//!
//! ```text
//! OK ──no answer, lost, transient Xid──▶ SUSPECT ──answers, and idle──▶ PROBING ──quiet──▶ OK
//!  └─memory errors, hardware Xid, too often─▶ BAD ──an operator, or a reboot that resets──┘
//! RETIRED: by an operator's word, both ways.
//! ```

use model::nodes::{GpuHealth, XidReport};
use model::{Millis, UnixMs};

use super::xid::{Class, Xids, words};
use crate::record::{GpuCause, GpuRecord};

/// Events kept of one GPU.
pub(crate) const HISTORY_MAX: usize = 16;
/// Suspicions older than this are forgotten.
const DAY_MS: u64 = 86_400_000;

/// The rules of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuRules {
    /// Time without a sign after which a GPU that was probed works again.
    pub quiet_ms: u64,
    /// Suspicions in a day after which a GPU is BAD.
    pub suspicions_max: usize,
    /// Share of the cluster's GPUs that may be taken out in an hour for what they tell.
    pub out_share: f64,
    /// Uncorrected memory errors since the driver was loaded that a GPU may have.
    pub ecc_uncorrected_max: u64,
    pub xids: Xids,
}

/// What was seen of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sight {
    pub(crate) answers: bool,
    pub(crate) lost: bool,
    /// Why not, or which reading fails.
    pub(crate) fault: Option<String>,
    pub(crate) ecc_uncorrected: Option<u64>,
    /// Events that were not seen before.
    pub(crate) xids: Vec<XidReport>,
    /// A task has it.
    pub(crate) held: bool,
    /// It was looked at, idle, and nothing was found.
    pub(crate) probed: bool,
}

/// What is to become of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) health: GpuHealth,
    pub(crate) cause: Option<GpuCause>,
    pub(crate) reason: String,
}

impl Turn {
    fn new(health: GpuHealth, cause: GpuCause, reason: String) -> Self {
        Self { health, cause: Some(cause), reason }
    }

    /// The GPU answers and could work on: only what it told takes it out, so the limit applies.
    pub(crate) fn is_judgement(&self) -> bool {
        match self.cause {
            Some(GpuCause::Xid(_) | GpuCause::Reset(_) | GpuCause::Ecc(_)) => true,
            Some(GpuCause::Silent | GpuCause::Lost | GpuCause::Often | GpuCause::Operator)
            | None => false,
        }
    }
}

/// How bad a state is, where two things are seen at once.
const fn weight(health: GpuHealth) -> u8 {
    match health {
        GpuHealth::Ok => 0,
        GpuHealth::Probing => 1,
        GpuHealth::Suspect => 2,
        GpuHealth::Bad => 3,
        GpuHealth::Retired => 4,
    }
}

/// What a sight makes of a GPU; none where it stays as it is. `quiet_since` is when the last sign
/// against it came.
pub(crate) fn judge(
    gpu: &GpuRecord,
    sight: &Sight,
    quiet_since: Millis,
    now: (Millis, UnixMs),
    rules: &GpuRules,
) -> Option<Turn> {
    match gpu.health {
        GpuHealth::Retired | GpuHealth::Bad => return None,
        GpuHealth::Ok | GpuHealth::Suspect | GpuHealth::Probing => {}
    }
    if let Some(turn) = against(gpu, sight, now.1, rules) {
        let lost = turn.cause == Some(GpuCause::Lost) && gpu.cause != Some(GpuCause::Lost);
        let same = weight(gpu.health) == weight(turn.health);
        let new = weight(gpu.health) < weight(turn.health) || (same && lost);
        return new.then_some(turn);
    }
    match gpu.health {
        GpuHealth::Suspect if sight.held || !sight.xids.is_empty() => None,
        GpuHealth::Suspect => Some(Turn {
            health: GpuHealth::Probing,
            cause: gpu.cause,
            reason: format!("it answers and is idle; before: {}", gpu.reason),
        }),
        GpuHealth::Probing => {
            let quiet = rules.quiet_ms <= now.0.since(quiet_since);
            (sight.probed && !sight.held && quiet).then(|| Turn {
                health: GpuHealth::Ok,
                cause: None,
                reason: format!("nothing found for {} s", rules.quiet_ms / 1000),
            })
        }
        GpuHealth::Ok | GpuHealth::Bad | GpuHealth::Retired => None,
    }
}

/// The worst that speaks against a GPU.
fn against(gpu: &GpuRecord, sight: &Sight, unix: UnixMs, rules: &GpuRules) -> Option<Turn> {
    let mut worst: Option<Turn> = None;
    let mut add = |turn: Turn| {
        if worst.as_ref().is_none_or(|known| weight(known.health) < weight(turn.health)) {
            worst = Some(turn);
        }
    };
    if let Some(errors) = sight.ecc_uncorrected.filter(|n| rules.ecc_uncorrected_max < *n) {
        let reason = format!(
            "{errors} uncorrected memory errors since the driver was loaded; reset the GPU or \
             replace it"
        );
        add(Turn::new(GpuHealth::Bad, GpuCause::Ecc(errors), reason));
    }
    let mut signs = 0;
    for XidReport { xid, .. } in &sight.xids {
        let told = words(*xid);
        match rules.xids.class(*xid) {
            Class::User => {}
            Class::Transient => {
                signs += 1;
                add(Turn::new(GpuHealth::Suspect, GpuCause::Xid(*xid), told));
            }
            Class::Reset => {
                let reason = format!("{told}: it works again after a reset");
                add(Turn::new(GpuHealth::Bad, GpuCause::Reset(*xid), reason));
            }
            Class::Hardware => {
                add(Turn::new(GpuHealth::Bad, GpuCause::Xid(*xid), format!("{told}: hardware")));
            }
        }
    }
    if sight.lost {
        signs += usize::from(!is_lost(gpu));
        let words = sight.fault.clone().unwrap_or_else(|| "it has fallen off the bus".to_owned());
        add(Turn::new(GpuHealth::Suspect, GpuCause::Lost, format!("lost: {words}")));
    } else if !sight.answers || sight.fault.is_some() {
        let words = sight.fault.clone().unwrap_or_else(|| "NVML does not answer".to_owned());
        add(Turn::new(GpuHealth::Suspect, GpuCause::Silent, words));
    }
    let lately = gpu.suspicions.iter().filter(|at| unix.0.saturating_sub(at.0) < DAY_MS).count();
    if 0 < signs && rules.suspicions_max < lately + signs {
        let times = lately + signs;
        let last = worst.as_ref().map(|turn| turn.reason.clone()).unwrap_or_default();
        let reason = format!("suspect {times} times in a day, at last for {last}");
        let turn = Turn::new(GpuHealth::Bad, GpuCause::Often, reason);
        if worst.as_ref().is_none_or(|known| known.health != GpuHealth::Bad) {
            worst = Some(turn);
        }
    }
    worst
}

/// Signs that count towards "too often".
pub(crate) fn signs(gpu: &GpuRecord, sight: &Sight, rules: &GpuRules) -> usize {
    let xids = sight.xids.iter().filter(|event| rules.xids.class(event.xid) == Class::Transient);
    xids.count() + usize::from(sight.lost && !is_lost(gpu))
}

/// That it is gone is known already.
fn is_lost(gpu: &GpuRecord) -> bool {
    gpu.health == GpuHealth::Suspect && gpu.cause == Some(GpuCause::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> GpuRules {
        GpuRules {
            quiet_ms: 10_000,
            suspicions_max: 3,
            out_share: 0.25,
            ecc_uncorrected_max: 0,
            xids: Xids::default(),
        }
    }

    fn gpu(health: GpuHealth) -> GpuRecord {
        GpuRecord { health, ..GpuRecord::new("n1".parse().unwrap(), "GPU-1".to_owned()) }
    }

    fn well() -> Sight {
        Sight { answers: true, ecc_uncorrected: Some(0), ..Sight::default() }
    }

    fn xid(xid: u64) -> Sight {
        Sight { xids: vec![XidReport { number: 1, xid, at: UnixMs(1) }], ..well() }
    }

    fn turned(gpu: &GpuRecord, sight: &Sight, now: u64) -> Option<GpuHealth> {
        let now = (Millis(now), UnixMs(now));
        judge(gpu, sight, Millis(0), now, &rules()).map(|turn| turn.health)
    }

    #[test]
    fn each_sign_has_its_own_weight() {
        let ok = gpu(GpuHealth::Ok);
        assert_eq!(turned(&ok, &well(), 0), None);
        assert_eq!(turned(&ok, &xid(31), 0), None, "the program's fault");
        assert_eq!(turned(&ok, &xid(94), 0), Some(GpuHealth::Suspect));
        assert_eq!(turned(&ok, &xid(79), 0), Some(GpuHealth::Bad));
        assert_eq!(turned(&ok, &xid(119), 0), Some(GpuHealth::Bad));
        let errors = Sight { ecc_uncorrected: Some(1), ..well() };
        assert_eq!(turned(&ok, &errors, 0), Some(GpuHealth::Bad), "seen without any event");
        let silent = Sight::default();
        assert_eq!(turned(&ok, &silent, 0), Some(GpuHealth::Suspect));
        let none = Sight { ecc_uncorrected: None, ..well() };
        assert_eq!(turned(&ok, &none, 0), None, "a GPU that does not count errors");
    }

    #[test]
    fn the_way_back_leads_through_a_probe_of_the_idle_gpu() {
        let suspect = gpu(GpuHealth::Suspect);
        let held = Sight { held: true, ..well() };
        assert_eq!(turned(&suspect, &held, 99_000), None, "a busy one is not tested");
        assert_eq!(turned(&suspect, &well(), 0), Some(GpuHealth::Probing));
        let probing = gpu(GpuHealth::Probing);
        let probed = Sight { probed: true, ..well() };
        assert_eq!(turned(&probing, &probed, 9_999), None, "not quiet for long enough");
        assert_eq!(turned(&probing, &well(), 99_000), None, "not probed");
        assert_eq!(turned(&probing, &probed, 10_000), Some(GpuHealth::Ok));
        assert_eq!(turned(&probing, &xid(94), 99_000), Some(GpuHealth::Suspect));
    }

    #[test]
    fn only_an_operator_brings_back_what_is_out_for_good() {
        for health in [GpuHealth::Bad, GpuHealth::Retired] {
            let probed = Sight { probed: true, ..well() };
            assert_eq!(turned(&gpu(health), &probed, 99_000), None);
        }
    }

    #[test]
    fn too_many_suspicions_in_a_day_are_bad() {
        let mut often = gpu(GpuHealth::Ok);
        often.suspicions = vec![UnixMs(DAY_MS), UnixMs(DAY_MS + 1), UnixMs(DAY_MS + 2)];
        assert_eq!(turned(&often, &xid(94), DAY_MS + 3), Some(GpuHealth::Bad));
        assert_eq!(turned(&often, &xid(94), 2 * DAY_MS + 1), Some(GpuHealth::Suspect), "old ones");
        let silent = Sight::default();
        assert_eq!(turned(&often, &silent, DAY_MS + 3), Some(GpuHealth::Suspect), "not its own");
    }
}
