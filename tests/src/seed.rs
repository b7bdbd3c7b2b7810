//! The seed of the random numbers with which tests choose the moments of their kills.

use anyhow::Result;

const VARIABLE: &str = "ORDAIN_KILL_SEED";

/// Returns the seed in the environment variable `ORDAIN_KILL_SEED`, or a random seed if the variable is not set. Prints
/// the seed, so that the next run of a failed test can use it again.
pub fn kill_seed() -> Result<u64> {
    let seed: u64 = match std::env::var(VARIABLE) {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    println!("seed of the kills: {seed} ({VARIABLE}={seed} uses it again)");
    Ok(seed)
}
