//! Random runs of a file source with a store that goes back in time.
//!
//! `ORDAIN_SIM_SEEDS=N` plays N seeds.

use std::env;

use ordain_model::{CheckpointFault, CheckpointSeen};
use ordain_sim::run_checkpoint;

const SEEDS: u64 = 100_000;

#[test]
fn each_event_of_a_file_has_one_effect_or_one_letter() {
    let seeds =
        env::var("ORDAIN_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let mut all = CheckpointSeen::default();
    for seed in 0..seeds {
        let seen = run_checkpoint(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        all.rewinds += seen.rewinds;
        all.again += seen.again;
        all.repeated += seen.repeated;
        all.letters += seen.letters;
        all.restarts += seen.restarts;
    }
    println!("{seeds} seeds: {all:?}");
    let CheckpointSeen { rewinds, again, repeated, letters, restarts } = all;
    for (what, count) in [
        ("rewinds", rewinds),
        ("again", again),
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
        let found =
            (0..20_000).find_map(|seed| Some((seed, run_checkpoint(seed, Some(fault)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?}: seed {seed}: not {:?}", violation.invariant);
    }
}
