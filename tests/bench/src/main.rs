//! Measurements. Every comparison runs all its sides in one go, one after the other and several
//! times, and prints medians and ratios: what a machine does at one hour says little about
//! another.
//!
//! `cargo xtask bench NAME` builds what is needed and starts this.

mod amqp;
mod chain;
mod core;
mod crossing;
mod embedded;
mod events;
mod ingress;
mod instances;
mod isolation;
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

/// As in the host.
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
    /// The sequencer alone, and the crossing into a handler.
    Core(Common),
    /// From file to file through the handler `orders`, on the embedded store.
    Embedded(Common),
    /// Commits into each store, beside plain writes of the same bytes.
    Store(Common),
    /// From RabbitMQ through a handler, on Redis, beside consumers written by hand.
    Amqp(amqp::AmqpArgs),
    /// Through streams that feed each other, on each store, and what numbers cost.
    Chain(chain::ChainArgs),
    /// What several hosts cost that share partitions, and how long a hand-over takes.
    Instances(instances::InstancesArgs),
    /// Events over HTTP, and what becomes of more than may come.
    Ingress(ingress::IngressArgs),
    /// True if a key whose event is missing, with many behind it, slows down others.
    Isolation(isolation::IsolationArgs),
    /// How long gaps last, beside what they must.
    Recovery(recovery::RecoveryArgs),
    /// How much longer events wait while versions of their handler are swapped.
    Swap(swap::SwapArgs),
    /// One side by itself, in this process.
    #[command(hide = true)]
    Side {
        #[command(subcommand)]
        side: Side,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// The folder with the handlers.
    #[arg(long)]
    plugins: PathBuf,
    /// The host.
    #[arg(long)]
    ordain: PathBuf,
    /// Runs of each side; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// The sequencer with a number of keys.
    Core(core::Side),
    /// Decode, call, encode, on one thread.
    Bare(embedded::Bare),
    /// One that takes from RabbitMQ.
    Amqp(amqp::Consumer),
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
        Command::Embedded(common) => (embedded::bench(&common)?, common.json),
        Command::Store(common) => (store::bench(&common)?, common.json),
        Command::Instances(args) => (instances::bench(&args)?, args.common.json),
        Command::Ingress(args) => (ingress::bench(&args)?, args.common.json),
        Command::Isolation(args) => (isolation::bench(&args)?, args.common.json),
        Command::Recovery(args) => (recovery::bench(&args)?, args.common.json),
        Command::Swap(args) => (swap::bench(&args)?, args.common.json),
        Command::Amqp(args) => (amqp::bench(&args)?, args.common.json),
        Command::Chain(args) => (chain::bench(&args)?, args.common.json),
        Command::Side { side: Side::Amqp(side) } => return side.run(),
        Command::Side { side: Side::Core(side) } => return side.run(),
        Command::Side { side: Side::Bare(side) } => return side.run(),
    };
    report.print(json)
}
