//! `cargo xtask demo`: builds the host (the program `ordain`), and runs `ordain demo`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::setup::{host, run};

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The arguments of `ordain demo`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    run(Command::new(host()?).arg("demo").args(&args.args))
}
