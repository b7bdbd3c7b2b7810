//! Random runs of a file source with a store that goes back in time (loses its newest writes).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use ordain_model::{CheckpointCounts, CheckpointFault};
use ordain_sim::{find_fault, run_checkpoint, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 100_000;

#[test]
fn each_event_of_a_file_has_one_effect_or_one_letter() {
    let seeds = seed_count(SEEDS);
    let mut all = CheckpointCounts::default();
    for seed in 0..seeds {
        let counts = run_checkpoint(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        all.rollbacks += counts.rollbacks;
        all.reread += counts.reread;
        all.repeated += counts.repeated;
        all.letters += counts.letters;
        all.restarts += counts.restarts;
    }
    println!("{seeds} seeds: {all:?}");
    let CheckpointCounts { rollbacks, reread, repeated, letters, restarts } = all;
    for (what, count) in [
        ("rollbacks", rollbacks),
        ("reread", reread),
        ("repeated", repeated),
        ("letters", letters),
        ("restarts", restarts),
    ] {
        assert!(count > seeds / 50, "too few cases: {count} {what} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in CheckpointFault::ALL {
        find_fault(&fault, 20_000, |seed| run_checkpoint(seed, Some(fault)));
    }
}
