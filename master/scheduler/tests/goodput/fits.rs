//! The online fit of the throughput model.

use scheduler::goodput::fit::{Observation, fit, objective};
use scheduler::goodput::{Spread, Throughput};
use serde_json::Value;

use crate::recorded::{list, model, number, records, whole};

fn rows(profile: &Value) -> Vec<Observation> {
    let row = |row: &Value| Observation {
        spread: Spread::new(whole(&row[0]), whole(&row[1])),
        local: whole(&row[2]),
        grad_s: number(&row[3]) - number(&row[4]),
        optim_s: number(&row[3]),
    };
    list(profile).iter().map(row).collect()
}

#[test]
fn recorded_models_have_the_recorded_objective() {
    for record in records("fit.json") {
        let told = objective(&model(&record["params"]), &rows(&record["profile"])).unwrap();
        assert!((told / number(&record["objective"]) - 1.0).abs() < 1e-6, "{told}: {record}");
    }
}

#[test]
fn fits_are_as_good_as_the_recorded_ones() {
    for record in records("fit.json") {
        let rows = rows(&record["profile"]);
        let wanted = number(&record["objective"]);
        let theta = fit(&rows, None).unwrap();
        let found = objective(&theta, &rows).unwrap();
        assert!(found <= 1.01 * wanted, "{found} over {wanted}: {theta:?} for {record}");
        for last in [theta, model(&record["params"])] {
            let warm = objective(&fit(&rows, Some(&last)).unwrap(), &rows).unwrap();
            assert!(warm <= 1.01 * wanted, "{warm} over {wanted}, from {last:?}");
        }
    }
}

fn observed(theta: &Throughput, nodes: u32, replicas: u32, local: u32) -> Observation {
    let spread = Spread::new(nodes, replicas);
    let (grad_s, optim_s) = (theta.grad_s(local), theta.optim_s(spread, local));
    Observation { spread, local, grad_s, optim_s }
}

const TRUE: Throughput = Throughput {
    alpha_c: 0.05,
    beta_c: 0.002,
    alpha_n: 0.2,
    beta_n: 0.004,
    alpha_r: 0.08,
    beta_r: 0.001,
    gamma: 1.6,
};

/// Rows of a true model are predicted well, and so is what lies between them.
#[test]
fn a_true_model_is_found_again() {
    let mut rows = Vec::new();
    for (nodes, replicas) in [(1, 1), (1, 2), (1, 4), (2, 8), (4, 16)] {
        for local in [16, 64, 200] {
            rows.push(observed(&TRUE, nodes, replicas, local));
        }
    }
    let theta = fit(&rows, None).unwrap();
    for (nodes, replicas, local) in [(1, 3, 32), (3, 12, 100), (1, 1, 150)] {
        let spread = Spread::new(nodes, replicas);
        let (told, is) = (theta.optim_s(spread, local), TRUE.optim_s(spread, local));
        assert!((told / is - 1.0).abs() < 0.05, "{told} for {is}: {theta:?}");
    }
}

#[test]
fn what_was_never_seen_looks_perfect() {
    let one = fit(&[observed(&TRUE, 1, 1, 64)], None).unwrap();
    assert!((one.alpha_c - TRUE.grad_s(64) / 2.0).abs() < 1e-9, "half of what was measured");
    assert!(one.sync_s(Spread::new(1, 4)) < 1e-6 && one.sync_s(Spread::new(4, 16)) < 1e-6);
    let two = fit(&[observed(&TRUE, 1, 1, 64), observed(&TRUE, 1, 2, 64)], None).unwrap();
    let within = two.sync_s(Spread::new(1, 2));
    assert!(within > 0.01, "{two:?}");
    assert!(two.sync_s(Spread::new(1, 4)) < within * 1.001, "more than two were never seen");
    let over = two.sync_s(Spread::new(2, 2));
    assert!((over / within - 1.1).abs() < 0.01, "nodes are a little slower: {two:?}");
}
