//! Whole workloads against what the reference came to.

use simulator::outcome::{Outcome, mean, percentile};
use simulator::replay::{Options, Profiles, find_profiles, run};

use crate::world::{data, workload};

fn replay(policy: &str) -> Option<Outcome> {
    let data = data()?;
    let name = "workloads/workload-6.csv";
    let folders = find_profiles(&data.join(name)).unwrap();
    let rows = workload(&data, name);
    let apps = rows.iter().map(|row| row.application.as_str());
    let profiles = Profiles::load(&folders, apps).unwrap();
    let options = Options { policy: policy.to_owned(), ..Options::default() };
    let outcome = run(&profiles, &rows, 16, &options).unwrap();
    assert_eq!(outcome.jobs.len(), 160);
    assert_eq!(run(&profiles, &rows, 16, &options).unwrap(), outcome);
    Some(outcome)
}

/// Mean, median and 99th percentile of completion times, and the makespan, in s.
fn numbers(outcome: &Outcome) -> [f64; 4] {
    let times = outcome.completion_times();
    let makespan_s = outcome.makespan_s().unwrap();
    [mean(&times), percentile(&times, 0.5), percentile(&times, 0.99), Some(makespan_s)]
        .map(Option::unwrap)
}

fn assert_near(found: [f64; 4], wanted: [f64; 4]) {
    for (found, wanted) in found.into_iter().zip(wanted) {
        // Both are deterministic: they agree to the last digit that was published.
        assert!((found - wanted).abs() / wanted < 1e-4, "{found}, wanted {wanted}");
    }
}

#[test]
fn tiresias_comes_to_the_published_numbers() {
    let Some(outcome) = replay("tiresias") else { return };
    assert_near(numbers(&outcome), [3469.7, 1247.5, 46335.5, 78556.0]);
}

#[test]
fn optimus_with_an_oracle_comes_to_the_published_numbers() {
    let Some(outcome) = replay("optimus-oracle") else { return };
    assert_near(numbers(&outcome), [5301.9, 2494.0, 44771.0, 66246.0]);
}
