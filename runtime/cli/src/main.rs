//! `ordain`: ordered, exactly-once event handlers in WebAssembly.
//!
//! Each command is a module here. This crate puts the others together: it opens the store, starts engine
//! and listeners, and hands each what it needs.
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

mod check;
mod cli;
mod dead;
mod instances;
mod keys;
mod logs;
mod look;
mod plugins;
mod publish;
mod remote;
mod run;
mod show;
mod status;
mod store;
mod totals;

use std::process::ExitCode;

use clap::Parser;

/// Events, states and messages are made on one thread and freed on another, millions of times.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
