//! Random runs of a file sink whose store goes back in time (an operator puts an older copy of the store back).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use std::collections::BTreeMap;
use std::env;

use ordain_model::SinkFileFault;
use ordain_sim::run_sink_file;

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 20_000;

/// Number of notable states and steps that the runs must reach: four kinds of steps, lost lines, and skipped messages.
const NOTABLE: usize = 6;

#[test]
fn each_message_is_in_the_file_once() {
    let seeds =
        env::var("ORDAIN_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let mut all = BTreeMap::<&str, u64>::new();
    for seed in 0..seeds {
        let reached = run_sink_file(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        for name in reached {
            *all.entry(name).or_default() += 1;
        }
    }
    println!("{seeds} seeds: {all:?}");
    assert_eq!(all.len(), NOTABLE);
    for (name, count) in all {
        assert!(count > seeds / 50, "too few cases: {count} of {name:?} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in SinkFileFault::ALL {
        let found =
            (0..20_000).find_map(|seed| Some((seed, run_sink_file(seed, Some(fault)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("no run detects {fault:?}"));
        println!("{fault:?}: seed {seed} breaks {:?}", violation.invariant);
    }
}
