#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods
)]
use simulator::faults::{Plant, Settings, run};
use std::collections::BTreeMap;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let from: u64 = args[1].parse().unwrap();
    let count: u64 = args[2].parse().unwrap();
    let plant = args.get(3).and_then(|p| p.parse::<usize>().ok()).map(|p| Plant::ALL[p]);
    let limit: usize = args.get(4).and_then(|p| p.parse().ok()).unwrap_or(10);
    std::panic::set_hook(Box::new(|_| {}));
    let (mut events, mut failed, mut healed) = (0, 0, 0.0f64);
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut tests: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let mut slow: Vec<(u128, u64, u64, f64)> = Vec::new();
    let start = std::time::Instant::now();
    for seed in from..from + count {
        let t = std::time::Instant::now();
        match run(
            seed,
            &Settings {
                plant,
                told: std::env::var("TOLD").ok().and_then(|t| t.parse().ok()).unwrap_or(20),
            },
        ) {
            Ok(s) => {
                events += s.events;
                healed = healed.max(s.healed_s - s.faults_s);
                for (k, n) in s.faults {
                    *faults.entry(k).or_default() += n;
                }
                for (k, n) in s.tests {
                    *tests.entry(k).or_default() += n;
                }
                for (k, n) in s.ends {
                    *ends.entry(k).or_default() += n;
                }
                slow.push((t.elapsed().as_micros(), seed, s.events, s.healed_s));
            }
            Err(b) => {
                failed += 1;
                if failed <= limit {
                    println!("{b}\n");
                } else {
                    println!(
                        "seed {} {}: {}",
                        b.seed,
                        b.policy,
                        b.what.chars().take(200).collect::<String>()
                    );
                }
            }
        }
    }
    slow.sort_by_key(|s| std::cmp::Reverse(s.0));
    println!("faults {faults:#?}\ntests {tests:#?}\nends {ends:?}");
    println!("slowest {:?}", &slow[..slow.len().min(5)]);
    println!(
        "{count} seeds, {failed} failed, {events} events, heal max {healed:.0} s, {:.1} ms a seed, {:.2} us/event",
        start.elapsed().as_secs_f64() * 1e3 / count as f64,
        start.elapsed().as_secs_f64() * 1e6 / events as f64
    );
}
