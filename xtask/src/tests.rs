//! `cargo xtask test`.

use anyhow::Result;
use clap::Args;

use crate::setup::{cargo, host, plugins, run, say};

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Only tests whose names contain this.
    filter: Option<String>,
}

impl TestArgs {
    /// No filter.
    pub(crate) fn all() -> Self {
        Self { filter: None }
    }
}

pub(crate) fn test(args: &TestArgs) -> Result<()> {
    plugins()?;
    host()?;
    let filter: Vec<&str> = args.filter.iter().map(String::as_str).collect();

    say("the sequencer under simulation, with and without deliberate faults");
    let mut simulation = cargo("test");
    simulation.args(["--release", "--package", "ordain-sim", "--features", "faults"]);
    run(simulation.args(&filter))?;

    say("everything else");
    let mut others = cargo("test");
    others.args(["--release", "--workspace", "--exclude", "ordain-sim"]);
    run(others.args(&filter))?;

    say("all tests passed");
    Ok(())
}
