//! Times, goodput and batches.

use scheduler::goodput::batch::{best, candidates, first, fixed};
use scheduler::goodput::{Batch, Gradient, Limits, Spread, Throughput};

use crate::recorded::{gradient, limits, model, number, records, whole};

#[test]
fn the_best_batch_is_the_recorded_one() {
    for record in records("optimize.json") {
        let spread = Spread::new(whole(&record["N"]), whole(&record["K"]));
        let limits = limits(&record["app"]);
        let found =
            best(&model(&record["params"]), &gradient(&record["grad"]), &limits, spread).unwrap();
        let wanted = Batch {
            local: whole(&record["atomic_bsz"]),
            accumulation: whole(&record["accum_steps"]),
        };
        assert_eq!(found.batch, wanted, "{record}");
        let goodput = number(&record["goodput"]);
        assert!((found.goodput / goodput - 1.0).abs() < 1e-9, "{} {record}", found.goodput);
    }
}

#[test]
fn a_batch_that_stays_is_shared_as_recorded() {
    for record in records("fixed_batch.json") {
        let found =
            fixed(&limits(&record["app"]), whole(&record["K"]), whole(&record["batch_size"]));
        let wanted = Batch {
            local: whole(&record["atomic_bsz"]),
            accumulation: whole(&record["accum_steps"]),
        };
        assert_eq!(found, Some(wanted), "{record}");
    }
}

/// By hand: with γ = 2 passes of 3 s and sums of 4 s overlap to 5 s.
#[test]
fn an_iteration_by_hand() {
    let theta = Throughput {
        alpha_c: 1.0,
        beta_c: 0.5,
        alpha_n: 8.0,
        beta_n: 1.0,
        alpha_r: 3.0,
        beta_r: 0.5,
        gamma: 2.0,
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12 * b, "{a} for {b}");
    let four = Spread::new(1, 4);
    near(theta.grad_s(4), 3.0);
    near(theta.sync_s(four), 4.0);
    near(theta.optim_s(four, 4), 5.0);
    let batch = Batch { local: 4, accumulation: 2 };
    near(theta.iteration_s(four, batch), 11.0);
    near(theta.samples_per_s(four, batch), 48.0 / 11.0);
    near(theta.sync_s(Spread::new(2, 4)), 10.0);
    assert!(theta.sync_s(Spread::new(1, 1)) < 2e-8);
    // One more replica beyond two counts; the first two do not.
    near(theta.sync_s(Spread::new(1, 3)) - theta.alpha_r, 0.5);
    assert!((theta.sync_s(Spread::new(1, 2)) - theta.alpha_r).abs() < 1e-7);
}

/// φ = 4·3 = 12: at a batch of 12 (scale 3) efficiency is (12 + 4) / (12 + 12).
#[test]
fn efficiency_by_hand() {
    let gradient = Gradient { sqr: 1.0, var: 3.0 };
    assert!((gradient.efficiency(3.0) - 16.0 / 24.0).abs() < 1e-15);
    assert!((gradient.efficiency(1.0) - 1.0).abs() < 1e-15);
    // Without noise a larger batch is worth one step; without a signal it is worth all its samples.
    assert!((Gradient { sqr: 1.0, var: 0.0 }.gain(8.0) - 1.0).abs() < 1e-15);
    assert!((Gradient { sqr: 0.0, var: 1.0 }.gain(8.0) - 8.0).abs() < 1e-15);
    assert!((Gradient { sqr: 0.0, var: 0.0 }.gain(8.0) - 1.0).abs() < 1e-15);
}

#[test]
fn candidates_stay_within_their_limits() {
    for accumulation in [false, true] {
        for replicas in 1..70 {
            let limits =
                Limits { initial: 12, batch_max: 384, local_min: 4, local_max: 12, accumulation };
            let mut total = 0.0;
            for batch in candidates(limits, replicas) {
                assert!((4..=12).contains(&batch.local), "{batch:?}");
                assert!(accumulation || batch.accumulation == 0);
                assert!(batch.total(replicas) >= 12.0 - 1e-9);
                total = batch.total(replicas).max(total);
            }
            let most = f64::from(if accumulation { 384 } else { (12 * replicas).min(384) });
            // Sizes are rounded up to whole samples of each replica in each pass, and the sizes
            // that are tried lie 7 % apart.
            assert!(total >= 0.92 * most && total <= most * 1.5, "{replicas}: {total} of {most}");
        }
    }
}

#[test]
fn one_replica_passes_twice_where_its_batch_has_grown() {
    let limits =
        Limits { initial: 8, batch_max: 64, local_min: 1, local_max: 64, accumulation: true };
    let all: Vec<Batch> = candidates(limits, 1).collect();
    assert_eq!(all[0], Batch { local: 8, accumulation: 0 });
    assert!(all[1..].iter().all(|batch| batch.accumulation == 1), "{all:?}");
    let two: Vec<Batch> = candidates(limits, 2).collect();
    assert!(two.iter().all(|batch| batch.accumulation == 0));
    assert_eq!(first(&limits, 1), 8);
    assert_eq!(first(&limits, 16), 16);
}

#[test]
fn too_many_replicas_have_no_batch() {
    let limits =
        Limits { initial: 8, batch_max: 64, local_min: 4, local_max: 8, accumulation: true };
    assert_eq!(candidates(limits, 17).count(), 0);
    assert!(candidates(limits, 16).count() > 0);
    assert_eq!(fixed(&limits, 65, 64), None);
    assert_eq!(fixed(&limits, 0, 64), None);
}
