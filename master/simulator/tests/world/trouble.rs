//! Everything goes wrong for a while, and then nothing more: the cluster heals and every job ends.

use rand::RngExt;
use simulator::random::stream;
use simulator::workload::Workload;
use simulator::world::{Estimates, Fidelity, Options, World};

use super::{cluster, job};

/// Strikes a world at random for so long, then heals it and waits for the end.
fn survive(seed: u64, estimates: Estimates) -> Result<(), String> {
    let jobs = (0..5_u8).map(|k| job(&format!("j{k}"), 60.0 * f64::from(k))).collect();
    let options = Options {
        seed,
        estimates,
        fidelity: Fidelity::exact(),
        checkpoint_interval_s: 60,
        ..Options::default()
    };
    let mut world = World::new(&cluster(4, 8), &Workload { jobs }, &options)?;
    let mut chance = stream(seed, "trouble");
    while world.now_s() < 900.0 {
        let node = chance.random_range(0..4_usize);
        match chance.random_range(0..14_u8) {
            0 => world.power_off(node),
            1 => world.power_on(node),
            2 => world.cut(node),
            3 => world.heal(node),
            4 => world.delay(node, chance.random_range(0..3_000)),
            5 => world.lose(node, chance.random_range(1..5)),
            6 => world.restart_agent(node),
            7 => world.restart_master(),
            8 => world.kill_master(chance.random_range(0..40_000)),
            9 => world.master_dies_after(chance.random_range(0..10)),
            10 => world.fail_saves(chance.random()),
            11 => world.fail_store(chance.random()),
            12 => world.slow(node, 0.3),
            _ => world.exit(model::JobId(1), model::Task::worker(0), 1),
        }
        let until = world.now_s() + chance.random::<f64>() * 30.0;
        world.until(until)?;
        world.control().assert_invariants();
        if let Some(finding) = world.findings().first() {
            return Err(format!("at {} s: {finding}", world.now_s()));
        }
    }
    world.heal_all();
    while !world.is_done() && world.now_s() < 40_000.0 {
        if !world.step()? {
            break;
        }
        if let Some(finding) = world.findings().first() {
            return Err(format!("healing at {} s: {finding}", world.now_s()));
        }
    }
    if !world.is_done() {
        return Err(format!("not healed: {:?}", world.progress()));
    }
    let later = world.now_s() + 120.0;
    world.until(later)?;
    let left = [world.unwanted(), world.left_over()].concat();
    if left.is_empty() { Ok(()) } else { Err(format!("left over: {left:?}")) }
}

#[test]
fn every_job_ends_once_all_is_healed() {
    let seeds = if cfg!(debug_assertions) { 10 } else { 60 };
    let mut failed = Vec::new();
    for seed in 0..seeds {
        let estimates = if seed % 2 == 0 { Estimates::Oracle } else { Estimates::Fitted };
        if let Err(words) = survive(seed, estimates) {
            failed.push(format!("seed {seed}: {words}"));
        }
    }
    assert!(failed.is_empty(), "{} failed: {:#?}", failed.len(), &failed[..failed.len().min(8)]);
}
