//! Small clusters in which everything goes wrong: they heal, and planted bugs are found.

use std::time::{SystemTime, UNIX_EPOCH};

use simulator::faults::{Plant, Settings, run};

fn planted(plant: Plant) -> Settings {
    Settings { plant: Some(plant), ..Settings::default() }
}

/// Seeds within which each planted bug must be found.
const SEEDS: u64 = 300;
/// Fewer where every step is checked in debug code; all 10,000 are for the command.
const PASSING: u64 = if cfg!(debug_assertions) { 20 } else { 80 };
const FRESH: u64 = if cfg!(debug_assertions) { 8 } else { 20 };

#[test]
fn the_first_seeds_pass() {
    for seed in 1..=PASSING {
        run(seed, &Settings::default()).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a fresh seed each run, which is printed")]
fn fresh_seeds_pass() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let from = now.as_secs() % 1_000_000_000;
    eprintln!("fresh seeds: optimus simulate --faults {FRESH} --seed {from}");
    for seed in from..from + FRESH {
        run(seed, &Settings::default()).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
fn a_seed_tells_the_same_story_again() {
    let usual = Settings::default();
    for seed in [3, 7] {
        assert_eq!(run(seed, &usual), run(seed, &usual));
    }
    assert_ne!(run(3, &usual).unwrap().faults, run(7, &usual).unwrap().faults);
}

/// Each planted bug is found soon, by what it breaks, and without it the same seed passes.
#[test]
fn planted_bugs_are_found() {
    for plant in Plant::ALL {
        let settings = planted(plant);
        let found = (1..=SEEDS).find_map(|seed| run(seed, &settings).err());
        let broken = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        eprintln!("{plant:?}: seed {}: {}", broken.seed, broken.what);
        assert!(!broken.last.is_empty(), "{broken}");
        assert!(broken.replay().ends_with(&format!("--seed {}", broken.seed)));
        run(broken.seed, &Settings::default()).unwrap_or_else(|broken| panic!("{broken}"));
    }
}
