//! Random runs of queues in a store that goes back in time (loses its newest writes).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use ordain_model::{QueueCounts, QueueFault};
use ordain_sim::{find_fault, run_queue, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 100_000;

#[test]
fn each_accepted_entry_takes_effect_or_is_counted_as_lost() {
    let seeds = seed_count(SEEDS);
    let mut all = QueueCounts::default();
    for seed in 0..seeds {
        let counts =
            run_queue(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        all.rollbacks += counts.rollbacks;
        all.refused += counts.refused;
        all.lost += counts.lost;
        all.recognized += counts.recognized;
        all.restarts += counts.restarts;
        all.rewritten += counts.rewritten;
        all.counted += counts.counted;
        all.repeated += counts.repeated;
        all.published += counts.published;
    }
    println!("{seeds} seeds: {all:?}");
    let QueueCounts {
        rollbacks,
        refused,
        lost,
        recognized,
        restarts,
        rewritten,
        counted,
        repeated,
        published,
    } = all;
    for (what, count) in [
        ("rollbacks", rollbacks),
        ("refused", refused),
        ("lost", lost),
        ("recognized", recognized),
        ("restarts", restarts),
        ("rewritten", rewritten),
        ("counted", counted),
        ("repeated", repeated),
        ("published", published),
    ] {
        assert!(count > seeds / 10, "too few cases: {count} {what} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in QueueFault::ALL {
        find_fault(&fault, 20_000, |seed| run_queue(seed, Some(fault)));
    }
}
