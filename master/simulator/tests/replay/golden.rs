//! Look-ups against what the reference answered.

use simulator::replay::App;

use crate::world::{all_apps, count, data, golden, number};

fn near(found: f64, wanted: f64, what: &str) {
    let off = (found - wanted).abs() / wanted.abs().max(1e-12);
    assert!(off < 1e-9, "{what}: {found}, wanted {wanted}");
}

#[test]
fn step_times_are_those_of_the_reference() {
    let Some(data) = data() else { return };
    let profiles = all_apps(&data);
    let cases = golden("throughput.json").unwrap();
    assert!(cases.len() > 200);
    for case in &cases {
        let app: &App = profiles.app(case["app"].as_str().unwrap()).unwrap();
        let counts: Vec<u32> = case["placement"].as_array().unwrap().iter().map(count).collect();
        let curve = app.curve(&counts).unwrap_or_else(|| panic!("{case} was not measured"));
        let timing = app.timing(curve, count(&case["local_bsz"]));
        near(timing.step_s, number(case, "step_time"), &case.to_string());
        near(timing.sync_s, number(case, "sync_time"), &case.to_string());
    }
}

#[test]
fn gradients_iterations_and_targets_are_those_of_the_reference() {
    let Some(data) = data() else { return };
    let profiles = all_apps(&data);
    let cases = golden("grad_stats.json").unwrap();
    assert!(cases.len() >= 100);
    for case in &cases {
        let app = profiles.app(case["app"].as_str().unwrap()).unwrap();
        let (batch, epoch) = (count(&case["batch_size"]), count(&case["epoch"]));
        let epoch = usize::try_from(epoch).unwrap();
        let gradient = app.gradient(batch, epoch);
        near(gradient.sqr, number(case, "grad_sqr"), &case.to_string());
        near(gradient.var, number(case, "grad_var"), &case.to_string());
        near(app.iteration(batch, epoch), number(case, "iteration"), &case.to_string());
        near(app.target(epoch), number(case, "progress_target"), &case.to_string());
    }
}

#[test]
fn every_placement_within_bounds_was_measured() {
    let Some(data) = data() else { return };
    let profiles = all_apps(&data);
    for name in ["bert", "cifar10", "deepspeech2", "imagenet", "yolov3"] {
        let app = profiles.app(name).unwrap();
        assert_eq!(app.replicas_max(), 64);
        for nodes in 1..=16 {
            for replicas in nodes..=4 * nodes {
                // As even as it can be, and as uneven.
                let even: Vec<u32> = (0..nodes)
                    .map(|node| replicas / nodes + u32::from(node < replicas % nodes))
                    .collect();
                let mut uneven = vec![1; usize::try_from(nodes).unwrap()];
                let mut more = replicas - nodes;
                for here in &mut uneven {
                    *here += more.min(3);
                    more -= more.min(3);
                }
                for counts in [even, uneven] {
                    assert!(app.curve(&counts).is_some(), "{name} on {counts:?}");
                }
            }
        }
    }
}
