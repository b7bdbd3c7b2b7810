//! Random runs of a file sink whose store goes back in time (an operator puts an older copy of the store back).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use std::collections::BTreeMap;

use ordain_model::SinkFileFault;
use ordain_sim::{find_fault, run_sink_file, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 20_000;

/// Number of notable states and steps that the runs must reach: four kinds of steps, lost lines, and skipped messages.
const NOTABLE_COUNT: usize = 6;

#[test]
fn each_message_is_in_the_file_once() {
    let seeds = seed_count(SEEDS);
    let mut all = BTreeMap::<&str, u64>::new();
    for seed in 0..seeds {
        let reached = run_sink_file(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        for name in reached {
            *all.entry(name).or_default() += 1;
        }
    }
    println!("{seeds} seeds: {all:?}");
    assert_eq!(all.len(), NOTABLE_COUNT);
    for (name, count) in all {
        assert!(count > seeds / 50, "too few cases: {count} of {name:?} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in SinkFileFault::ALL {
        find_fault(&fault, 20_000, |seed| run_sink_file(seed, Some(fault)));
    }
}
