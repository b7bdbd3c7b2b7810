//! Random runs of owners and instances that share a store that goes back in time (loses its newest writes).
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Fault, SharingFault};
use ordain_sim::{Violation, find_fault, run_protocol, run_repetition, run_sharing, seed_count};

/// Number of seeds for the runs of owners if `ORDAIN_SIM_SEEDS` is not set.
const SEEDS: u64 = 30_000;
/// Number of seeds for the runs of owners that repeat lost commits if `ORDAIN_SIM_SEEDS` is not set.
const REPETITION_SEEDS: u64 = 20_000;
/// Number of seeds for the runs of instances if `ORDAIN_SIM_SEEDS` is not set.
const SHARING_SEEDS: u64 = 20_000;
/// At least one run must detect each fault within this number of seeds.
const SEEDS_OF_FAULT: u64 = 20_000;

/// Names of the notable states and steps that the runs of owners must show.
const STATES: &[&str] = &[
    "everything is done",
    "an event waits in the store",
    "a key is taken over and back",
    "a write is refused",
    "an owner hands over",
    "an owner is fenced",
    "an owner stops",
    "the whole store goes back",
    "the leases go back",
    "a shard goes back",
    "a commit arrives late",
    "a load arrives late",
    "a connection breaks",
    "an entry leaves an outbox",
];

/// Names of the notable states and steps that the runs of owners that repeat lost commits must show.
const REPETITION_STATES: &[&str] = &[
    "everything is done",
    "an event waits in the store",
    "a write is refused",
    "an owner stops",
    "an owner repeats a lost commit",
    "the whole store goes back",
    "a shard goes back",
];

/// Names of the notable states and steps that the runs of instances must show.
const SHARING_STATES: &[&str] = &[
    "all instances share all partitions",
    "two instances believe that they have a partition",
    "an instance waits until another instance's channel is closed",
    "the leases and members go back",
    "an instance is killed",
    "an instance never reaches the store again",
    "the store forgets an instance",
];

/// Without a fault, no run breaks a property of the protocol, and the runs show all notable states and steps.
#[test]
fn no_run_breaks_a_property_of_the_protocol() {
    check_runs(SEEDS, STATES, |seed| run_protocol(seed, None));
}

/// Without a fault, no run of owners that repeat lost commits breaks a property of the protocol, and the runs show all
/// notable states and steps.
#[test]
fn no_run_with_repeated_commits_breaks_a_property() {
    check_runs(REPETITION_SEEDS, REPETITION_STATES, |seed| run_repetition(seed, None));
}

#[test]
fn each_fault_of_the_protocol_is_found() {
    for fault in Fault::ALL {
        let run = if fault.is_of_repetition() { run_repetition } else { run_protocol };
        find_fault(&fault, SEEDS_OF_FAULT, |seed| run(seed, Some(fault)));
    }
}

/// Without a fault, no run breaks a property of the sharing of partitions, and the runs show all notable states and
/// steps.
#[test]
fn no_run_breaks_a_property_of_sharing() {
    check_runs(SHARING_SEEDS, SHARING_STATES, |seed| run_sharing(seed, None));
}

#[test]
fn each_fault_of_sharing_is_found() {
    for fault in SharingFault::ALL {
        find_fault(&fault, SEEDS_OF_FAULT, |seed| run_sharing(seed, Some(fault)));
    }
}

/// The notable states and steps of a run, or the broken property.
type Run = Result<BTreeSet<&'static str>, Violation>;

/// No run may break a property, and enough runs must reach each of the states.
fn check_runs(seeds: u64, states: &[&'static str], run: impl Fn(u64) -> Run) {
    let seeds = seed_count(seeds);
    let mut all: BTreeMap<&'static str, u64> = states.iter().map(|state| (*state, 0)).collect();
    for seed in 0..seeds {
        let reached = run(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
        for state in reached {
            *all.entry(state).or_default() += 1;
        }
    }
    println!("{seeds} seeds; number of runs that reach each state: {all:#?}");
    for (state, count) in all {
        assert!(count > seeds / 100, "too few cases: {state:?} in {count} of {seeds} seeds");
    }
}
