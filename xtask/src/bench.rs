//! `cargo xtask bench`.

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::say;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    name: Option<String>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Names and meanings.
const BENCHES: [(&str, &str); 0] = [];

pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    match &args.name {
        None => {
            for (name, meaning) in BENCHES {
                say(&format!("{name}: {meaning}"));
            }
            Ok(())
        }
        Some(name) => bail!("there is no benchmark {name:?}; `cargo xtask bench` lists them"),
    }
}
