//! The program that measures Ordain. Each subcommand is a comparison of several sides; a side is a program, or the host
//! with a certain configuration or load. A comparison runs all its sides one after the other, several times, and prints
//! medians and ratios. One run of this program measures all sides, because figures that were measured at different
//! hours cannot be compared.
//!
//! `cargo xtask bench NAME` builds the necessary programs, and starts this program.

mod amqp;
mod chain;
mod content;
mod core;
mod crossing;
mod decode;
mod dev;
mod embedded;
mod events;
mod ingress;
mod instances;
mod isolation;
mod languages;
mod open;
mod process;
mod recovery;
mod report;
mod sides;
mod store;
mod swap;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use report::Report;

/// The allocator of this program, which is the same as in the host.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(name = "ordain-bench", about = "Measures Ordain")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the sequencer alone, and the call of a handler
    Core(CommonArgs),
    /// Measure the conversion of RabbitMQ messages into events, with several settings and with compressed bodies
    Decode(CommonArgs),
    /// Measure the time from a change of a handler to the outcome of the first event, in each language
    Dev(dev::DevArgs),
    /// Measure the handler `orders` with events from a file and messages to a file, on the embedded store
    Embedded(CommonArgs),
    /// Measure commits to each store, compared with plain writes of the same bytes
    Store(CommonArgs),
    /// Measure a handler with events from RabbitMQ, on Redis, compared with handwritten consumers
    Amqp(amqp::AmqpArgs),
    /// Measure a chain of streams, in which each stream sends events to the next stream, on each store, and the cost of
    /// numbering these events
    Chain(chain::ChainArgs),
    /// Measure the cost of several hosts that share partitions, and the delay of events while a partition moves to
    /// another host
    Instances(instances::InstancesArgs),
    /// Measure events over HTTP, below and above the limits of the host
    Ingress(ingress::IngressArgs),
    /// Measure how a key with a missing event and many later events affects the other keys
    Isolation(isolation::IsolationArgs),
    /// Measure the handler `orders` in each language, compared with the handler in Rust
    Languages(languages::LanguagesArgs),
    /// Measure the time until a missing event arrives, compared with the expected time
    Recovery(recovery::RecoveryArgs),
    /// Measure the additional delay of events while the host swaps versions of their handler
    Swap(swap::SwapArgs),
    /// Run a single side in this process
    #[command(hide = true)]
    Side {
        #[command(subcommand)]
        side: Side,
    },
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// Folder that contains the handlers (WebAssembly components)
    #[arg(long)]
    plugins: PathBuf,
    /// Path of the program `ordain` (the host)
    #[arg(long)]
    ordain: PathBuf,
    /// Number of runs of each side (a program or configuration that the benchmark compares); the result is the median
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Run the sequencer with a number of keys
    Core(core::Side),
    /// Run the side `bare` of `embedded`: decode events, call the handler and encode messages, on one thread
    Bare(embedded::BareSide),
    /// Run a consumer of RabbitMQ
    Amqp(amqp::Consumer),
    /// Measure the WebAssembly instances of a handler
    Instances(languages::InstancesSide),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let (report, json): (Report, bool) = match command {
        Command::Core(common) => (core::bench(&common)?, common.json),
        Command::Decode(common) => (decode::bench(&common)?, common.json),
        Command::Dev(args) => (dev::bench(&args)?, args.common.json),
        Command::Embedded(common) => (embedded::bench(&common)?, common.json),
        Command::Store(common) => (store::bench(&common)?, common.json),
        Command::Instances(args) => (instances::bench(&args)?, args.common.json),
        Command::Ingress(args) => (ingress::bench(&args)?, args.common.json),
        Command::Isolation(args) => (isolation::bench(&args)?, args.common.json),
        Command::Languages(args) => (languages::bench(&args)?, args.common.json),
        Command::Recovery(args) => (recovery::bench(&args)?, args.common.json),
        Command::Swap(args) => (swap::bench(&args)?, args.common.json),
        Command::Amqp(args) => (amqp::bench(&args)?, args.common.json),
        Command::Chain(args) => (chain::bench(&args)?, args.common.json),
        Command::Side { side: Side::Amqp(side) } => return side.run(),
        Command::Side { side: Side::Core(side) } => return side.run(),
        Command::Side { side: Side::Bare(side) } => return side.run(),
        Command::Side { side: Side::Instances(side) } => return side.run(),
    };
    report.print(json)
}
