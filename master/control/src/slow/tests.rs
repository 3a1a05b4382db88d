//! From both sides: who is slow is found, and nothing else makes a straggler.

use std::collections::BTreeMap;

use model::{Millis, Mode};
use proptest::prelude::*;

use super::Rule;
use super::judge::{Arrivals, Measured, Verdict, judge};
use super::watch::Watch;
use crate::job::live::Sums;

const RULE: Rule = Rule { window_ms: 5_000, windows: 3, ratio: 0.5 };

/// A worker of a job that makes steps: what it has done by some time.
#[derive(Clone, Debug)]
struct Worker {
    /// Seconds of its own computing and of waiting for the servers in a step.
    compute_s: f64,
    comm_s: f64,
    /// Where between two heartbeats it reports.
    phase_ms: u64,
}

/// Sums of a worker after `ms`, where it is slow by `factor` from `from_ms` on. In sync mode all
/// wait for the slowest.
fn sums(team: &[Worker], mode: Mode, of: usize, ms: u64, slow: Option<(usize, f64, u64)>) -> Sums {
    let step_s = |worker: usize, slowed: bool| {
        let own = |at: usize| {
            let factor = slow.filter(|slow| slowed && slow.0 == at).map_or(1.0, |slow| slow.1);
            team[at].compute_s / factor
        };
        let longest = (0..team.len()).map(own).fold(0.0, f64::max);
        match mode {
            Mode::Sync => (own(worker), longest + team[worker].comm_s),
            // What slows a node slows its communication too.
            Mode::Async => {
                let factor =
                    slow.filter(|slow| slowed && slow.0 == worker).map_or(1.0, |slow| slow.1);
                (own(worker), own(worker) + team[worker].comm_s / factor)
            }
        }
    };
    let turn_ms = slow.map_or(u64::MAX, |slow| slow.2);
    let mut all = Sums::default();
    for (span_ms, slowed) in [(ms.min(turn_ms), false), (ms.saturating_sub(turn_ms), true)] {
        let (compute_s, wall_s) = step_s(of, slowed);
        let steps = (span_ms as f64 / 1000.0 / wall_s).floor();
        all.steps += crate::job::whole(steps);
        all.steps_s += steps * wall_s;
        all.compute_s += steps * compute_s;
    }
    all
}

/// Lets a team be watched for `seconds`; who was slow in three windows in a row, and when first.
fn watched(
    team: &[Worker],
    mode: Mode,
    seconds: u64,
    beat_ms: u64,
    slow: Option<(usize, f64, u64)>,
) -> BTreeMap<u32, u64> {
    let mut watch = Watch::default();
    let mut named = BTreeMap::new();
    let workers = u32::try_from(team.len()).unwrap();
    for ms in (0..seconds * 1000).step_by(100) {
        let now = Millis(1_000_000 + ms);
        for (index, worker) in team.iter().enumerate() {
            if ms >= worker.phase_ms && (ms - worker.phase_ms) % beat_ms < 100 {
                watch.report(now, number(index), sums(team, mode, index, ms, slow));
            }
        }
        if watch.close(now, (mode, workers), &RULE, &BTreeMap::new()) {
            for worker in 0..workers {
                if watch.streak(worker).slow >= RULE.windows {
                    named.entry(worker).or_insert(ms);
                }
            }
        }
    }
    named
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap()
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Sync), Just(Mode::Async)]
}

/// Workers that differ by 30 % at most, of steps from 5 ms to 3 s.
fn teams(least: usize) -> impl Strategy<Value = Vec<Worker>> {
    (least..9_usize, prop_oneof![0.005..0.15_f64, 0.005..3.0], 0.0..0.5_f64).prop_flat_map(
        |(count, step_s, comm)| {
            let worker =
                (0.85..1.15_f64, 0_u64..2_000).prop_map(move |(factor, phase_ms)| Worker {
                    compute_s: step_s * (1.0 - comm) * factor,
                    comm_s: step_s * comm * factor,
                    phase_ms,
                });
            proptest::collection::vec(worker, count)
        },
    )
}

proptest! {
    #[test]
    fn who_is_at_two_fifths_is_named_in_the_third_window(
        team in teams(2), mode in modes(), which in 0_usize..9, at_s in 30_u64..60,
        beat_ms in prop_oneof![Just(500_u64), Just(1_000)],
    ) {
        let which = which % team.len();
        let named = watched(&team, mode, at_s + 60, beat_ms, Some((which, 0.33, at_s * 1000)));
        // With few steps in a window one more or less counts much: it takes longer then.
        let wall_s = (team[which].compute_s + team[which].comm_s) / 0.33;
        prop_assume!(wall_s < 0.5);
        prop_assert_eq!(named.keys().copied().collect::<Vec<_>>(), vec![number(which)]);
        // The window in which it began, three more, and a beat.
        let ms = named[&(number(which))] - at_s * 1000;
        prop_assert!((9_000..=21_500).contains(&ms), "{} ms", ms);
    }

    #[test]
    fn nobody_is_named_in_a_team_that_differs_little(
        team in teams(1), mode in modes(), beat_ms in 500_u64..4_000,
    ) {
        prop_assert_eq!(watched(&team, mode, 120, beat_ms, None), BTreeMap::new());
    }

    #[test]
    fn all_slowed_at_once_are_nobody(team in teams(2), mode in modes(), factor in 0.05..1.0_f64) {
        let mut slowed = team.clone();
        for worker in &mut slowed {
            worker.compute_s /= factor;
            worker.comm_s /= factor;
        }
        let mut watch = Watch::default();
        let workers = u32::try_from(team.len()).unwrap();
        let turn = 60_000;
        for ms in (0..150_000_u64).step_by(500) {
            for index in 0..team.len() {
                let mut all = sums(&team, mode, index, ms.min(turn), None);
                let more = sums(&slowed, mode, index, ms.saturating_sub(turn), None);
                all.steps += more.steps;
                all.steps_s += more.steps_s;
                all.compute_s += more.compute_s;
                watch.report(Millis(ms), number(index), all);
            }
            watch.close(Millis(ms), (mode, workers), &RULE, &BTreeMap::new());
            prop_assert!((0..workers).all(|w| watch.streak(w).slow < RULE.windows), "at {} ms", ms);
        }
    }

    /// A team at one speed, and one member whose numbers are garbage: nobody is slow.
    #[test]
    fn numbers_that_cannot_be_name_nobody(
        mode in modes(), count in 4_u32..8,
        steps in prop_oneof![Just(0_u64), Just(1), Just(10), Just(1_000_000), any::<u64>()],
        times in proptest::collection::vec(odd(), 3),
        looks in 0_u64..9, behind in any::<u64>(),
    ) {
        let usual = Measured { steps: 50, steps_s: 4.9, compute_s: 3.0, wall_s: 5.0 };
        let strange =
            Measured { steps, steps_s: times[0], compute_s: times[1], wall_s: times[2] };
        let mut team: BTreeMap<u32, (Option<Measured>, Arrivals)> =
            (1..count).map(|worker| (worker, (Some(usual), Arrivals::default()))).collect();
        team.insert(0, (Some(strange), Arrivals { looks, behind }));
        let verdicts = judge(mode, RULE.ratio, &team);
        for worker in 1..count {
            prop_assert!(!matches!(verdicts[&worker], Verdict::Slow(_)), "{:?}", verdicts);
        }
        // The strange one itself only where its numbers are whole.
        if let Verdict::Slow(sign) = verdicts[&0] {
            prop_assert!(times.iter().all(|t| t.is_finite() && *t >= 0.0) && steps > 0);
            prop_assert!((0.0..0.5).contains(&sign.share()), "{:?}", sign);
        }
        team.insert(0, (None, Arrivals::default()));
        let verdicts = judge(mode, RULE.ratio, &team);
        prop_assert!(verdicts.values().all(|verdict| !matches!(verdict, Verdict::Slow(_))));
        prop_assert_eq!(verdicts[&0], Verdict::Unknown);
    }

    /// Reports in any order of times and sums break nothing, and a worker that stands still, is
    /// lost or starts anew is nobody's straggler.
    #[test]
    fn any_reports_are_taken(
        reports in proptest::collection::vec((0_u32..4, 0_u64..4_000, 0_u64..40, odd(), odd()), 0..200),
        mode in modes(),
    ) {
        let mut watch = Watch::default();
        let mut now = Millis(0);
        for (worker, wait_ms, steps, steps_s, compute_s) in reports {
            now = now.plus(wait_ms);
            watch.report(now, worker, Sums { steps, steps_s, compute_s, ..Sums::default() });
            watch.close(now, (mode, 4), &RULE, &BTreeMap::new());
        }
    }
}

#[test]
fn ten_steps_in_a_millisecond_are_no_measure_of_the_other_worker() {
    let usual = Measured { steps: 50, steps_s: 4.9, compute_s: 3.0, wall_s: 5.0 };
    for (steps_s, wall_s) in [(0.001, 5.0), (0.001, 0.001), (0.0, 5.0), (0.001, 0.0)] {
        let strange = Measured { steps: 10, steps_s, compute_s: steps_s, wall_s };
        for mode in [Mode::Sync, Mode::Async] {
            let team = [usual, strange].map(|one| (Some(one), Arrivals::default()));
            let verdicts = judge(mode, RULE.ratio, &(0..).zip(team).collect());
            assert_eq!(verdicts[&0], Verdict::Unknown, "{strange:?}");
            assert!(!matches!(verdicts[&1], Verdict::Slow(_)), "{strange:?}");
        }
    }
}

fn odd() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(0.0),
        Just(0.001),
        Just(1e-300),
        Just(1e300),
        0.0..10.0_f64,
    ]
}

/// Steps at 10 a second of some workers, watched by hand.
struct Team {
    watch: Watch,
    now: u64,
    steps: Vec<u64>,
}

impl Team {
    fn new(workers: usize) -> Self {
        let mut team = Self { watch: Watch::default(), now: 0, steps: vec![0; workers] };
        for _ in 0..30 {
            team.second(&vec![10; workers]);
        }
        team
    }

    /// A second passes in which each worker makes so many steps; one with none reports the same.
    fn second(&mut self, steps: &[u64]) {
        self.now += 1_000;
        for (worker, more) in steps.iter().enumerate() {
            self.steps[worker] += more;
            let all = self.steps[worker];
            let steps_s = all as f64 / 10.0;
            let sums = Sums { steps: all, steps_s, compute_s: steps_s / 2.0, ..Sums::default() };
            self.watch.report(Millis(self.now), number(worker), sums);
        }
        let workers = number(self.steps.len());
        self.watch.close(Millis(self.now), (Mode::Async, workers), &RULE, &BTreeMap::new());
    }

    fn slow(&self) -> Vec<u32> {
        (0..number(self.steps.len())).map(|worker| self.watch.streak(worker).slow).collect()
    }
}

#[test]
fn a_worker_at_an_epochs_end_is_no_straggler() {
    let mut team = Team::new(3);
    for _ in 0..10 {
        // Its steps are as fast as ever; between them it looks at the validation set for long.
        for _ in 0..5 {
            team.second(&[0, 10, 10]);
        }
        for _ in 0..2 {
            team.second(&[10, 10, 10]);
        }
        assert_eq!(team.slow(), [0, 0, 0]);
    }
    // It does nothing else any more: nobody knows why, and it is not said to be slow.
    for _ in 0..60 {
        team.second(&[0, 10, 10]);
    }
    assert_eq!(team.slow(), [0, 0, 0]);
}

#[test]
fn a_pause_begins_a_window_anew_and_keeps_what_is_in_a_row() {
    let mut team = Team::new(3);
    let slow = |team: &mut Team, seconds: u64| {
        for _ in 0..seconds {
            team.second(&[10, 10, 10]);
            // The third makes four steps a second that take 0.25 s each.
            team.steps[2] -= 6;
            let steps = team.steps[2];
            team.now += 1;
            let steps_s = 1e3 + team.now as f64 / 1000.0;
            let sums = Sums { steps, steps_s, compute_s: 1.0, ..Sums::default() };
            team.watch.report(Millis(team.now), 2, sums);
        }
    };
    slow(&mut team, 1);
    team.watch.pause();
    assert_eq!(team.slow(), [0, 0, 0]);
    team.now += 100_000;
    for _ in 0..20 {
        team.second(&[10, 10, 10]);
        assert_eq!(team.slow(), [0, 0, 0], "the wait is nobody's");
    }
}

#[test]
fn a_lone_worker_is_slow_against_its_own_past_until_that_is_its_past() {
    let mut watch = Watch::default();
    let (mut steps, mut seconds) = (0, 0.0);
    let mut slow_at = None;
    for second in 1..=600_u64 {
        let per_s = if second <= 60 { 10 } else { 4 };
        steps += per_s;
        seconds += 1.0;
        let sums = Sums { steps, steps_s: seconds, compute_s: seconds / 2.0, ..Sums::default() };
        let now = Millis(second * 1000);
        watch.report(now, 0, sums);
        if watch.close(now, (Mode::Async, 1), &RULE, &BTreeMap::new())
            && watch.streak(0).slow >= RULE.windows
        {
            slow_at = slow_at.or(Some(second));
        }
    }
    assert!((71..=80).contains(&slow_at.unwrap()), "{slow_at:?}");
    assert_eq!(watch.streak(0).slow, 0, "five minutes later it is how it is");
}
