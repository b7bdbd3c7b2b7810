//! The seeds that a test plays, and the search for a run that detects a deliberate fault.

use std::env;
use std::fmt::Debug;

use crate::Violation;

/// Returns the number in an environment variable; `None` if the variable is not set. Panics if the variable contains
/// another text.
pub fn number_in(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: a number is expected")))
}

/// Returns the number of seeds that a test plays: the number in `ORDAIN_SIM_SEEDS`, or `default` if this variable is
/// not set.
pub fn seed_count(default: u64) -> u64 {
    number_in("ORDAIN_SIM_SEEDS").unwrap_or(default)
}

/// Plays the runs of the seeds below `seeds` until a run detects a fault, and prints the seed of this run. Panics if no
/// run detects the fault.
pub fn find_fault<T>(fault: &impl Debug, seeds: u64, run: impl Fn(u64) -> Result<T, Violation>) {
    let found = (0..seeds).find_map(|seed| Some((seed, run(seed).err()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("no run detects {fault:?}"));
    println!("{fault:?}: seed {seed} breaks {:?}", violation.invariant);
}
