//! Deliberate faults: a checker that does not find them would be worth nothing.

use ordain_core::Fault;
use ordain_sim::{Breakage, Options, run};

/// Seeds within which every fault has to be found.
const SEEDS: u64 = 3_000;

/// The seed that found it, or a complaint.
fn hunt(name: &str, options: &Options) -> Result<(), String> {
    for seed in 0..SEEDS {
        let outcome = run(seed, options);
        if let Some(violation) = outcome.violation {
            let profile = outcome.profile;
            println!("{name:<28} seed {seed:>4} ({profile:?}): {violation:.150}");
            return Ok(());
        }
    }
    Err(format!("{name} was not found in {SEEDS} seeds"))
}

#[test]
fn every_fault_of_the_sequencer_is_found() {
    let missed: Vec<String> = Fault::ALL
        .iter()
        .filter_map(|fault| {
            let options = Options { fault: Some(*fault), ..Options::default() };
            hunt(fault.name(), &options).err()
        })
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn every_breakage_of_the_store_is_found() {
    let missed: Vec<String> = Breakage::ALL
        .iter()
        .filter_map(|breakage| {
            let options = Options { breakage: Some(*breakage), ..Options::default() };
            hunt(&format!("{breakage:?}"), &options).err()
        })
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
