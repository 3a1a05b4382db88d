use simulator::outcome::{mean, percentile};
use simulator::replay::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let path = std::path::Path::new(&args[1]);
    let t = std::time::Instant::now();
    let rows = read_rows(std::fs::File::open(path).unwrap()).unwrap();
    let folders = find_profiles(path).unwrap();
    let profiles = Profiles::load(&folders, rows.iter().map(|r| r.application.as_str())).unwrap();
    println!("load {:?}", t.elapsed());
    for policy in &args[2..] {
        let t = std::time::Instant::now();
        let o =
            run(&profiles, &rows, 16, &Options { policy: policy.clone(), ..Options::default() })
                .unwrap();
        let j = o.completion_times();
        println!(
            "{policy}: {:?} n={} mean {:.1} p50 {:?} p99 {:?} makespan {:?} restarts {} rounds {}",
            t.elapsed(),
            j.len(),
            mean(&j).unwrap(),
            percentile(&j, 0.5).unwrap(),
            percentile(&j, 0.99).unwrap(),
            o.makespan_s(),
            o.jobs.iter().map(|j| j.restarts).sum::<u32>(),
            o.rounds
        );
    }
}
