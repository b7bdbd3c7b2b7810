//! Injects deliberate faults, one at a time. The checker must find every fault.

use std::collections::BTreeMap;
use std::fmt::Write;

use ordain_core::SequencerFault;
use ordain_sim::{BoundaryFault, Options, StoreFault, run};

/// Number of seeds within which the checker must find every fault.
const SEEDS: u64 = 20_000;
/// Number of seeds for which the test counts the violations that a fault causes.
const SAMPLE: u64 = 40;

/// Prints the first violation that a fault causes. Returns an error if no seed below [`SEEDS`] shows a violation.
fn hunt(name: &str, options: &Options) -> Result<(), String> {
    let mut finds: BTreeMap<&str, u64> = BTreeMap::new();
    let mut first = None;
    for seed in 0..SEEDS {
        if seed >= SAMPLE && first.is_some() {
            break;
        }
        // A violation that also happens without the fault does not prove that the checker finds the fault.
        if let Some(violation) = run(seed, options).violation
            && run(seed, &Options::default()).violation.is_none()
        {
            *finds.entry(violation.invariant).or_default() += 1;
            first.get_or_insert((seed, violation));
        }
    }
    let Some((seed, violation)) = first else {
        return Err(format!("the checker did not find {name} in {SEEDS} seeds"));
    };
    let mut how = String::new();
    for (invariant, count) in finds {
        let _ = write!(how, " {invariant} {count}");
    }
    println!("{name:<28} seed {seed:>3}: {:<90.90} of {SAMPLE}:{how}", violation.to_string());
    Ok(())
}

#[test]
fn every_fault_of_the_sequencer_is_found() {
    let missed: Vec<String> = SequencerFault::ALL
        .iter()
        .filter_map(|fault| {
            let options = Options { core_fault: Some(*fault), ..Options::default() };
            hunt(&format!("{fault:?}"), &options).err()
        })
        .collect();
    assert!(missed.is_empty(), "faults that were not found: {missed:#?}");
}

#[test]
fn every_fault_of_the_boundary_is_found() {
    let missed: Vec<String> = BoundaryFault::ALL
        .iter()
        .filter_map(|fault| {
            let options = Options { boundary_fault: Some(*fault), ..Options::default() };
            hunt(&format!("{fault:?}"), &options).err()
        })
        .collect();
    assert!(missed.is_empty(), "faults that were not found: {missed:#?}");
}

#[test]
fn every_fault_of_the_store_is_found() {
    let missed: Vec<String> = StoreFault::ALL
        .iter()
        .filter_map(|store_fault| {
            let options = Options { store_fault: Some(*store_fault), ..Options::default() };
            hunt(&format!("{store_fault:?}"), &options).err()
        })
        .collect();
    assert!(missed.is_empty(), "faults that were not found: {missed:#?}");
}
