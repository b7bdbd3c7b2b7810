//! `ordain`: ordered, exactly-once event handlers in WebAssembly.

use std::process::ExitCode;

use clap::Parser;
use ordain::cli::Cli;

/// Events, states and messages are made on one thread and freed on another, millions of times.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
