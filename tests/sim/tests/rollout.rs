//! Random runs of instances that decide on rollouts over a store that goes back in time (loses its newest writes).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use ordain_model::{RolloutCounts, RolloutFault};
use ordain_sim::{find_fault, run_rollout, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 50_000;

#[test]
fn instances_agree_on_a_rollout() {
    let seeds = seed_count(SEEDS);
    let mut all = RolloutCounts::default();
    for seed in 0..seeds {
        let counts = run_rollout(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        all.rollbacks += counts.rollbacks;
        all.repeated += counts.repeated;
        all.required += counts.required;
        all.refused += counts.refused;
        all.kills += counts.kills;
    }
    println!("{seeds} seeds: {all:?}");
    let RolloutCounts { rollbacks, repeated, required, refused, kills } = all;
    for (what, count) in [
        ("rollbacks", rollbacks),
        ("repeated", repeated),
        ("required", required),
        ("refused", refused),
        ("kills", kills),
    ] {
        assert!(count > seeds / 50, "too few cases: {count} {what} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in RolloutFault::ALL {
        find_fault(&fault, 20_000, |seed| run_rollout(seed, Some(fault)));
    }
}
