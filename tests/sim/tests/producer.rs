//! Random runs of a producer with a store that goes back in time (loses its newest writes).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use ordain_model::{ProducerCounts, ProducerFault};
use ordain_sim::{find_fault, run_producer, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 100_000;

#[test]
fn each_event_is_published_once() {
    let seeds = seed_count(SEEDS);
    let mut all = ProducerCounts::default();
    for seed in 0..seeds {
        let counts = run_producer(seed, None)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        all.rollbacks += counts.rollbacks;
        all.refused += counts.refused;
        all.rewritten += counts.rewritten;
        all.recognized += counts.recognized;
        all.changed += counts.changed;
        all.restarts += counts.restarts;
        all.stopped += counts.stopped;
        all.reread += counts.reread;
        all.renumbered += counts.renumbered;
    }
    println!("{seeds} seeds: {all:?}");
    let ProducerCounts {
        rollbacks,
        refused,
        rewritten,
        recognized,
        changed,
        restarts,
        stopped,
        reread,
        renumbered,
    } = all;
    for (what, count) in [("stopped", stopped), ("renumbered", renumbered)] {
        assert!(count > seeds / 1_000, "too few cases: {count} {what} in {seeds} seeds");
    }
    for (what, count) in [
        ("rollbacks", rollbacks),
        ("refused", refused),
        ("rewritten", rewritten),
        ("recognized", recognized),
        ("changed", changed),
        ("restarts", restarts),
        ("reread", reread),
    ] {
        assert!(count > seeds / 50, "too few cases: {count} {what} in {seeds} seeds");
    }
}

#[test]
fn each_fault_is_found() {
    for fault in ProducerFault::ALL {
        find_fault(&fault, 20_000, |seed| run_producer(seed, Some(fault)));
    }
}
