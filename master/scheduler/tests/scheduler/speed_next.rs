//! Which shapes are asked for next.

use std::collections::BTreeSet;

use model::Shape;
use proptest::prelude::*;
use scheduler::estimate::speed::{SpeedForm, fit, next_shapes};

use crate::speed_data::{mean_error, sample, samples_of};
use crate::world::paper_sync;

const FORM: SpeedForm = SpeedForm::SyncGlobal { batch: 40 };

fn grid(servers: u32, workers: u32) -> Vec<Shape> {
    (1..=servers).flat_map(|p| (1..=workers).map(move |w| Shape::new(p, w))).collect()
}

#[test]
fn without_samples_the_shapes_span_the_terms() {
    for form in [SpeedForm::Async, FORM, SpeedForm::SyncPerWorker { batch: 32 }] {
        let shapes = next_shapes(form, &[], &grid(8, 8), 5);
        assert_eq!(shapes.len(), 5);
        let ratio = |shape: &Shape| 1000 * shape.workers / shape.servers;
        for count in [ratio, |s: &Shape| s.workers, |s: &Shape| s.servers] {
            let counts: BTreeSet<u32> = shapes.iter().map(count).collect();
            assert!(counts.len() >= 3, "{shapes:?}");
        }
    }
}

/// The samples show w/p only at one: a shape off the diagonal is what is missing.
#[test]
fn after_the_diagonal_a_shape_off_it_is_asked_for() {
    let truth = paper_sync();
    let diagonal: Vec<Shape> = (1..=8).map(|n| Shape::new(n, n)).collect();
    let mut samples = samples_of(&truth, &diagonal);
    let all = samples_of(&truth, &grid(12, 12));
    let before = mean_error(&fit(FORM, &samples).unwrap(), &all);
    let next = next_shapes(FORM, &samples, &grid(12, 12), 2);
    for shape in &next {
        let (few, many) = (shape.servers.min(shape.workers), shape.servers.max(shape.workers));
        assert!(many >= 2 * few, "{next:?}");
    }
    samples.extend(samples_of(&truth, &next));
    let after = mean_error(&fit(FORM, &samples).unwrap(), &all);
    assert!(after < 0.5 * before, "{after} after {before}");
}

#[test]
fn no_shape_is_asked_for_twice_while_another_is_left() {
    let candidates = grid(3, 3);
    let mut samples = samples_of(&paper_sync(), &candidates[..7]);
    assert_eq!(
        next_shapes(FORM, &samples, &candidates, 9).into_iter().collect::<BTreeSet<_>>(),
        candidates[7..].iter().copied().collect()
    );
    samples.extend(samples_of(&paper_sync(), &candidates[7..]));
    let again = next_shapes(FORM, &samples, &candidates, 2);
    assert_eq!(again.len(), 2, "a second sample is better than none");
    // What gave no speed was not measured.
    samples[4].steps_per_s = f64::NAN;
    assert_eq!(next_shapes(FORM, &samples, &candidates, 3), [candidates[4]]);
}

#[test]
fn candidates_from_outside_are_no_trouble() {
    assert_eq!(next_shapes(FORM, &[], &[], 5), []);
    assert_eq!(next_shapes(FORM, &[], &grid(3, 3), 0), []);
    assert_eq!(next_shapes(FORM, &[], &[Shape::new(0, 3), Shape::new(3, 0)], 5), []);
    let one = [Shape::new(2, 2); 7];
    assert_eq!(next_shapes(FORM, &[], &one, usize::MAX), [Shape::new(2, 2)]);
    // Far more than are weighed against each other.
    let many = grid(300, 300);
    let samples = samples_of(&paper_sync(), &grid(30, 30));
    for samples in [&samples[..], &[]] {
        let next = next_shapes(FORM, samples, &many, 12);
        assert_eq!(next.len(), 12);
        assert!(next.iter().any(|shape| shape.servers > 100), "{next:?}");
        assert!(next.iter().any(|shape| shape.workers > 100), "{next:?}");
    }
    let wide: Vec<Shape> = (0..32).map(|bit| Shape::new(1 << bit, u32::MAX >> bit)).collect();
    assert_eq!(next_shapes(SpeedForm::Async, &[], &wide, 99).len(), 32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_is_asked_for_is_open_and_new(
        shapes in proptest::collection::vec((0_u32..7, 0_u32..7), 0..30),
        measured in proptest::collection::vec((0_u32..7, 0_u32..7, prop::num::f64::ANY), 0..12),
        batch in any::<u32>(), count in 0_usize..12,
    ) {
        let candidates: Vec<Shape> = shapes.iter().map(|(p, w)| Shape::new(*p, *w)).collect();
        let samples: Vec<_> = measured.iter().map(|(p, w, speed)| sample(*p, *w, *speed)).collect();
        for form in [SpeedForm::Async, SpeedForm::SyncGlobal { batch }] {
            let next = next_shapes(form, &samples, &candidates, count);
            prop_assert!(next.len() <= count);
            let unique: BTreeSet<Shape> = next.iter().copied().collect();
            prop_assert_eq!(unique.len(), next.len());
            prop_assert!(next.iter().all(|s| candidates.contains(s) && s.servers * s.workers > 0));
            // The more there may be, the same first.
            let more = next_shapes(form, &samples, &candidates, count + 1);
            prop_assert_eq!(&more[..next.len()], &next[..]);
        }
    }
}
