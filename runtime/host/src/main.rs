//! `ordain`: ordered, exactly-once event handlers in WebAssembly.

use std::process::ExitCode;

use clap::Parser;
use ordain::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
