//! What the applications' goodput is.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
use std::path::Path;
use scheduler::goodput::batch::candidates;
use simulator::replay::{Folders, Profiles};

fn main() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/pollux");
    let folders = Folders::of(&data);
    let names = folders.names();
    let profiles = Profiles::load(&folders, names.iter().map(String::as_str)).unwrap();
    for name in &names {
        let app = profiles.app(name).unwrap();
        let epochs = app.epochs();
        println!("{name} epochs {epochs} target {}", app.target(epochs - 1));
        for part in [0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.99] {
            let epoch = ((epochs as f64) * part) as usize;
            print!("  e{epoch:3} ({:.3} done):", if epoch == 0 { 0.0 } else { app.target(epoch - 1) / app.target(epochs - 1) });
            for k in [1u32, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
                let ways: Vec<Vec<u32>> = if k == 1 { vec![vec![1]] } else if k <= 4 {
                    vec![vec![k], { let mut v = vec![1; k as usize]; v.truncate(4); v }]
                } else { vec![{ let mut v = vec![4; (k / 4) as usize]; if k % 4 > 0 { v.insert(0, k % 4) } v }] };
                for way in ways {
                    let Some(curve) = app.curve(&way) else { print!(" {k}:-"); continue };
                    let mut best = (0.0, 0);
                    for batch in candidates(app.limits(), k) {
                        let t = app.timing(curve, batch.local);
                        let m = batch.total(k);
                        let g = app.gradient(m as u32, epoch);
                        let rate = g.gain(m / f64::from(app.limits().initial)) / t.iteration_s(batch.accumulation);
                        if rate > best.0 { best = (rate, m as u32) }
                    }
                    print!(" {k}:{:.0}s(M{})", app.target(epochs - 1) / best.0, best.1);
                }
            }
            println!();
        }
    }
}
