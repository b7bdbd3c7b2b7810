//! `ordain`: ordered, exactly-once event handlers in WebAssembly.
//!
//! Each command is a module. This crate composes the other crates: it opens the store, starts the engine and
//! the listeners, and passes each part its dependencies.
#![deny(
    clippy::print_stderr,
    reason = "a closed standard error must not end the process: use `text::print_lossy`"
)]

mod admin_client;
mod check;
mod cli;
mod completions;
mod dead;
mod demo;
mod inspect;
mod instances;
mod keys;
mod logs;
mod new;
mod plugins;
mod project;
mod publish;
mod run;
mod runtime;
mod show;
mod signals;
mod status;
mod store;
mod streams;
mod totals;

use std::process::ExitCode;

use clap::Parser;

/// Replaces the default allocator by an allocator that is fast when a thread frees memory that another thread
/// allocated. In this program, millions of events, states and messages pass from one thread to another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::OrdainCli::parse().run()
}
