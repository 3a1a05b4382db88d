use model::client::*;
use model::*;
use scheduler::estimate::speed::*;
use simulator::workload::*;
use simulator::world::*;
fn n(number: usize) -> NodeId {
    format!("n{number:03}").parse().unwrap()
}
fn job(id: &str, arrival_s: f64) -> Job {
    let theta = vec![0.4 / 64.0, 0.05, 0.05, 0.0, 0.0];
    Job {
        id: id.to_owned(),
        arrival_s,
        model: "m".to_owned(),
        mode: Mode::Sync,
        batch: Batch::Global(64),
        worker: Resources::new(1000, 1 << 30, 0),
        server: Resources::new(1000, 1 << 30, 0),
        min: Shape::new(1, 1),
        max: Shape::new(4, 4),
        requested: None,
        priority: 1.0,
        speed: Speed::Theta(SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 64 }, theta)),
        work: 1000.0,
        rescale_cost_s: 15.0,
        loss: None,
    }
}
fn main() {
    let jobs = (0..12_u8).map(|k| job(&format!("j{k}"), 30.0 * f64::from(k))).collect();
    let options = Options {
        seed: 1,
        estimates: Estimates::Errors { work: 0.3, speed: 0.3 },
        failures: Failures {
            node_mtbf_s: 2_000.0,
            node_mttr_s: 100.0,
            slow_mtbf_s: 500.0,
            slow_mttr_s: 100.0,
            slow_factor: 0.5,
            save_failures: 0.2,
        },
        checkpoint_interval_s: 60,
        network: Some(Network { within_over_across: 3.5 }),
        ..Options::default()
    };
    let c = Cluster { nodes: (0..4).map(|k| (n(k), Resources::new(8000, 64 << 30, 0))).collect() };
    let mut w = World::new(&c, &Workload { jobs }, &options).unwrap();
    while w.now_s() < 20_000.0 && !w.is_done() {
        w.step().unwrap();
        // print the newest event
        if let Ok(Answer::Events(e)) = w
            .control()
            .read(control::Now::default(), &Read::Events { job: None, after: 0, limit: 1 })
        {
            for e in e {
                eprintln!(
                    "{} {:?} {:?} {} {}",
                    e.at.0 - 1_700_000_000_000,
                    e.job,
                    e.node.map(|n| n.to_string()),
                    e.kind,
                    e.text
                );
            }
        }
        if let Some(f) = w.findings().first() {
            eprintln!("FINDING {f}");
            return;
        }
    }
    for j in 1..=12 {
        if let Ok(Answer::Job(d)) =
            w.control().read(control::Now::default(), &Read::Job { job: JobId(j) })
        {
            eprintln!("{j} {:?} {} {:?}", d.row.phase, d.row.reason, d.row.shape);
        }
    }
    eprintln!("{:?}", w.control().refused());
}
