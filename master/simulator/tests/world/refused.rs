//! What makes no sense is refused by name before anything runs.

use model::Shape;
use simulator::workload::{Job, Workload};
use simulator::world::{Options, World};

use super::{cluster, job};

type Spoil = fn(&mut Job);

#[test]
fn a_bad_job_is_named_with_its_field() {
    let cases: Vec<(&str, Spoil)> = vec![
        ("work", |job| job.work = 0.0),
        ("work", |job| job.work = f64::NAN),
        ("arrival_s", |job| job.arrival_s = -1.0),
        ("arrival_s", |job| job.arrival_s = f64::INFINITY),
        ("rescale_cost_s", |job| job.rescale_cost_s = 1e308),
        ("priority", |job| job.priority = 0.0),
        ("speed", |job| job.speed = simulator::workload::Speed::Table(Vec::new())),
        ("speed", |job| {
            job.speed = simulator::workload::Speed::Table(vec![(Shape::new(1, 1), 0.0)]);
        }),
        ("min", |job| job.min = Shape::new(9, 9)),
        ("min", |job| {
            job.min = Shape::new(8, 8);
            job.max = job.min;
        }),
        ("id", |job| job.id = "good".to_owned()),
        ("name", |job| job.id = "a\nb".to_owned()),
        ("min", |job| job.min.servers = 0),
    ];
    for (field, spoil) in cases {
        let mut bad = job("bad", 1.0);
        spoil(&mut bad);
        let name = bad.id.clone();
        let workload = Workload { jobs: vec![job("good", 0.0), bad] };
        let refused = World::new(&cluster(1, 8), &workload, &Options::default());
        let words = refused.err().unwrap_or_default();
        assert!(words.contains(&name) && words.contains(field), "{field}: {words:?}");
    }
}

#[test]
fn bad_options_and_clusters_are_refused() {
    let workload = Workload { jobs: vec![job("good", 0.0)] };
    let mut options = Options::default();
    options.rounds.interval_s = 0.0;
    assert!(World::new(&cluster(1, 8), &workload, &options).is_err());
    assert!(World::new(&cluster(0, 8), &workload, &Options::default()).is_err());
    let mut twice = cluster(2, 8);
    twice.nodes[1].0 = twice.nodes[0].0.clone();
    assert!(World::new(&twice, &workload, &Options::default()).is_err());
}
