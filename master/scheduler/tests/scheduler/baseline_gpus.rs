//! The schedulers of single GPUs that Pollux is compared with.

use proptest::prelude::*;
use scheduler::baseline::gpus::{Replicas, count, most_free, take};
use scheduler::baseline::oracle::{Known, oracle, replicas};
use scheduler::baseline::tiresias::{QUEUE_GPU_S, Queued, order, tiresias};

const fn on(node: usize, count: u32) -> Replicas {
    Replicas { node, count }
}

#[test]
fn the_node_with_the_most_free_comes_first_and_of_equal_ones_the_first() {
    let mut free = [1, 4, 3, 4];
    assert_eq!(most_free(&mut free, 9), [on(1, 4), on(3, 4), on(2, 1)]);
    assert_eq!(free, [1, 0, 2, 0]);
    assert_eq!(most_free(&mut free, 9), [on(2, 2), on(0, 1)], "as many as there are");
    assert_eq!(most_free(&mut [], 1), []);
    let mut free = [2, 1];
    assert!(!take(&mut free, &[on(0, 2), on(1, 2)]) && !take(&mut free, &[on(2, 1)]));
    assert_eq!(free, [2, 1]);
    assert!(take(&mut free, &[on(0, 1), on(1, 1)]));
    assert_eq!(free, [1, 0]);
}

#[test]
fn who_had_less_than_the_queue_comes_first() {
    let attained = [QUEUE_GPU_S, 0.0, 1e9, QUEUE_GPU_S - 1.0, f64::NAN];
    assert_eq!(order(&attained, QUEUE_GPU_S), [1, 3, 4, 0, 2]);
    assert_eq!(order(&[], QUEUE_GPU_S), Vec::<usize>::new());
}

#[test]
fn tiresias_preempts_by_service_and_skips_who_does_not_fit() {
    let (long, short) = ([on(0, 4), on(1, 2)], [on(1, 1)]);
    let job = |requested, attained_gpu_s, held| Queued { requested, attained_gpu_s, held };
    let jobs = [
        job(6, QUEUE_GPU_S, &long[..]),
        job(1, 100.0, &short[..]),
        job(8, 0.0, &[]),
        job(3, 0.0, &[]),
    ];
    // The third does not fit beside the second, the fourth does; the first has to go.
    let given = tiresias(&[4, 4], &jobs, QUEUE_GPU_S);
    assert_eq!(given, [vec![], vec![on(1, 1)], vec![], vec![on(0, 3)]]);
    // Before it had 16 GPU hours it stays where it is.
    let young = [job(6, 5.0, &long[..]), jobs[1], jobs[2], jobs[3]];
    let given = tiresias(&[4, 4], &young, QUEUE_GPU_S);
    assert_eq!(given, [long.to_vec(), vec![on(1, 1)], vec![], vec![]]);
}

#[test]
fn the_oracle_gives_where_most_time_is_saved() {
    let halved = [8.0, 4.0, 2.0, 1.0];
    let job = |remaining_steps, held| Known { step_s: &halved, remaining_steps, held };
    assert_eq!(replicas(6, &[job(100.0, &[]), job(10.0, &[])]), [4, 2]);
    assert_eq!(replicas(3, &[job(1.0, &[]), job(1.0, &[])]), [2, 1], "of equal ones the first");
    assert_eq!(
        replicas(1, &[job(1.0, &[]), job(9.0, &[])]),
        [1, 0],
        "everybody's first comes first"
    );
    assert_eq!(replicas(9, &[job(f64::NAN, &[]), job(0.0, &[])]), [1, 1]);
    let none = Known { step_s: &[], ..job(1.0, &[]) };
    assert_eq!(replicas(9, &[none]), [0]);
    // Who has his number stays; the others come by ascending numbers.
    let held = [on(1, 2)];
    let given = oracle(&[4, 2], &[job(100.0, &[]), job(10.0, &held)]);
    assert_eq!(given, [vec![on(0, 4)], vec![on(1, 2)]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_gpu_is_given_twice(
        gpus in proptest::collection::vec(0_u32..5, 0..6),
        jobs in proptest::collection::vec((0_u32..9, 0.0..1e5_f64, proptest::collection::vec((0_usize..7, 1_u32..5), 0..3)), 0..9),
    ) {
        let held: Vec<Vec<Replicas>> = jobs
            .iter()
            .map(|(.., held)| held.iter().map(|(node, count)| on(*node, *count)).collect())
            .collect();
        let queued: Vec<Queued<'_>> = jobs
            .iter()
            .zip(&held)
            .map(|((requested, attained_gpu_s, _), held)| Queued {
                requested: *requested,
                attained_gpu_s: *attained_gpu_s,
                held,
            })
            .collect();
        let known: Vec<Known<'_>> = jobs
            .iter()
            .zip(&held)
            .map(|((_, remaining_steps, _), held)| Known {
                step_s: &[3.0, 2.0, 2.5, 1.0],
                remaining_steps: *remaining_steps,
                held,
            })
            .collect();
        let by_service = tiresias(&gpus, &queued, QUEUE_GPU_S);
        for (given, queued) in by_service.iter().zip(&queued) {
            prop_assert!(given.is_empty() || count(given) == queued.requested);
        }
        for given in [by_service, oracle(&gpus, &known)] {
            let mut free = gpus.clone();
            prop_assert_eq!(given.len(), jobs.len());
            prop_assert!(given.iter().all(|held| take(&mut free, held)), "{:?}", given);
        }
    }
}
