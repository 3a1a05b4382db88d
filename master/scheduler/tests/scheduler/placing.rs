//! Placement against the appendix and against exhaustive search.

use model::{NodeId, NodeShare, Placement, Resources, Shape};
use proptest::prelude::*;
use scheduler::place::{cross_node_share, place, transfer_time};

use crate::world::{node_id, placement};

fn slots(counts: &[u64]) -> Vec<(NodeId, Resources)> {
    counts
        .iter()
        .enumerate()
        .map(|(at, count)| (node_id(&format!("n{at:03}")), Resources::new(*count, 0, 0)))
        .collect()
}

fn placed(servers: u32, workers: u32, counts: &[u64]) -> Option<Placement> {
    let slot = Resources::new(1, 0, 0);
    place(Shape::new(servers, workers), &slot, &slot, &slots(counts))
}

#[test]
fn figure_10_takes_its_best_case() {
    let best = placed(2, 4, &[3, 3, 3]).unwrap();
    assert_eq!(best, placement(&[("n000", 1, 2), ("n001", 1, 2)]));
    // The figure counts in units of S/p.
    assert!((transfer_time(&best) * 2.0 - 2.0).abs() < 1e-12);
    let first = placement(&[("n000", 2, 1), ("n001", 0, 2), ("n002", 0, 1)]);
    assert!((transfer_time(&first) * 2.0 - 3.0).abs() < 1e-12);
    assert!((cross_node_share(&best) - 0.5).abs() < 1e-12);
}

#[test]
fn one_server_and_four_workers_on_two_nodes_of_four() {
    let best = placed(1, 4, &[4, 4]).unwrap();
    assert_eq!(best, placement(&[("n000", 1, 3), ("n001", 0, 1)]));
    assert!((transfer_time(&best) - 1.0).abs() < 1e-12);
    assert!((transfer_time(&placement(&[("a", 1, 2), ("b", 0, 2)])) - 2.0).abs() < 1e-12);
}

#[test]
fn one_node_has_no_transfer_and_an_even_split_comes_next() {
    let alone = placed(2, 2, &[3, 4, 9]).unwrap();
    assert_eq!(alone, placement(&[("n001", 2, 2)]));
    assert!(transfer_time(&alone).abs() < 1e-12);
    let even = placed(4, 4, &[4, 4, 4, 4]).unwrap();
    assert_eq!(even, placement(&[("n000", 2, 2), ("n001", 2, 2)]));
    assert_eq!(placed(2, 3, &[2, 2]), None);
    assert_eq!(placed(0, 3, &[9]), None, "no server, no job");
}

#[test]
fn every_kind_of_resource_counts() {
    let mut licensed = Resources::new(4000, 4, 0);
    licensed.named.insert("licence".to_owned(), 1);
    let mut worker = Resources::new(1000, 1, 0);
    worker.named.insert("licence".to_owned(), 1);
    let nodes = [(node_id("a"), Resources::new(9000, 9, 9)), (node_id("b"), licensed)];
    let server = Resources::new(1000, 1, 0);
    let found = place(Shape::new(1, 1), &server, &worker, &nodes).unwrap();
    assert_eq!(found, placement(&[("b", 1, 1)]));
    assert_eq!(place(Shape::new(1, 2), &server, &worker, &nodes), None, "one licence");
    let huge = Resources::new(u64::MAX, u64::MAX, u64::MAX);
    assert_eq!(place(Shape::new(4096, 4096), &huge, &huge, &nodes), None);
}

#[test]
fn wide_jobs_are_spread_evenly() {
    let counts = vec![8; 40];
    let wide = placed(60, 120, &counts).unwrap();
    assert_eq!(wide.shape(), Shape::new(60, 120));
    assert!(wide.0.iter().all(|share| share.servers + share.workers <= 8));
    assert_eq!(wide.0.len(), 23, "180 tasks at 8 a node");
    let full = placed(100, 220, &counts).unwrap();
    assert_eq!(full.shape(), Shape::new(100, 220));
    assert_eq!(placed(100, 221, &counts), None);
}

/// A small cluster and a job of two kinds of task.
#[derive(Clone, Debug)]
struct Case {
    shape: Shape,
    server: Resources,
    worker: Resources,
    nodes: Vec<(NodeId, Resources)>,
}

fn case() -> impl Strategy<Value = Case> {
    let amounts = |top: u64| (0..=top, 0..=top).prop_map(|(a, b)| Resources::new(a, b, 0));
    (1_u32..4, 1_u32..5, amounts(3), amounts(3), proptest::collection::vec(amounts(9), 1..=4))
        .prop_map(|(servers, workers, server, worker, capacities)| Case {
            shape: Shape::new(servers, workers),
            server,
            worker,
            nodes: capacities
                .into_iter()
                .enumerate()
                .map(|(at, capacity)| (node_id(&format!("n{at}")), capacity))
                .collect(),
        })
}

/// Every way to place the case, by trying all counts on all nodes.
fn all_ways(case: &Case) -> Vec<Placement> {
    let mut ways = vec![(case.shape, Vec::<NodeShare>::new())];
    for (id, capacity) in &case.nodes {
        let mut next = Vec::new();
        for (left, shares) in ways {
            for servers in 0..=left.servers {
                for workers in 0..=left.workers {
                    let here = Shape::new(servers, workers);
                    if !capacity.covers(&here.demand(&case.worker, &case.server)) {
                        continue;
                    }
                    let mut shares = shares.clone();
                    if !here.is_empty() {
                        shares.push(NodeShare { node: id.clone(), servers, workers });
                    }
                    next.push((Shape::new(left.servers - servers, left.workers - workers), shares));
                }
            }
        }
        ways = next;
    }
    ways.into_iter().filter(|(left, _)| left.is_empty()).map(|(_, way)| Placement(way)).collect()
}

/// Distance, nodes and unevenness: what is made least, in this order.
fn rank(case: &Case, way: &Placement) -> (u32, usize, u64) {
    let (p, w) = (case.shape.servers, case.shape.workers);
    let mut distance = 0;
    let mut squares = 0;
    for share in &way.0 {
        if share.servers > 0 {
            distance = distance.max(w - share.workers);
        }
        if share.workers > 0 {
            distance = distance.max(p - share.servers);
        }
        squares += u64::from(share.servers).pow(2) + u64::from(share.workers).pow(2);
    }
    (distance, way.0.len(), squares)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_placement_is_the_best_of_all_and_none_means_none(case in case()) {
        let found = place(case.shape, &case.server, &case.worker, &case.nodes);
        let ways = all_ways(&case);
        let best = ways.iter().map(|way| rank(&case, way)).min();
        prop_assert_eq!(found.as_ref().map(|way| rank(&case, way)), best);
        if let Some(found) = found {
            prop_assert!(ways.contains(&found), "{found:?} is not possible");
            let distance = transfer_time(&found) * f64::from(case.shape.servers);
            let same = f64::from(best.expect("found").0);
            prop_assert!((distance - same).abs() < 1e-9);
        }
    }

    #[test]
    fn wide_jobs_are_placed_whenever_they_fit(
        servers in 40_u32..90, workers in 40_u32..90,
        counts in proptest::collection::vec(0_u64..12, 20..40),
    ) {
        let found = placed(servers, workers, &counts);
        let fits = counts.iter().sum::<u64>() >= u64::from(servers + workers);
        prop_assert_eq!(found.is_some(), fits);
        if let Some(found) = found {
            prop_assert_eq!(found.shape(), Shape::new(servers, workers));
            for share in &found.0 {
                let at: usize = share.node.as_str()[1..].parse().expect("a number");
                prop_assert!(u64::from(share.servers + share.workers) <= counts[at]);
            }
        }
    }
}
