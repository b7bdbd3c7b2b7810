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
    /// The sequencer alone, and the call of a handler
    Core(CommonArgs),
    /// The conversion of messages of RabbitMQ into events, with several settings and with compressed bodies
    Decode(CommonArgs),
    /// Events from file to file through the handler `orders`, on the embedded store
    Embedded(CommonArgs),
    /// Commits into each store, compared with plain writes of the same bytes
    Store(CommonArgs),
    /// Events from RabbitMQ through a handler, on Redis, compared with handwritten consumers
    Amqp(amqp::AmqpArgs),
    /// Events through streams that feed each other, on each store, and the cost of numbering the events
    Chain(chain::ChainArgs),
    /// The cost of several hosts that share partitions, and the delay of events by a hand-over
    Instances(instances::InstancesArgs),
    /// Events over HTTP, below and above the limits of the host
    Ingress(ingress::IngressArgs),
    /// The effect of a key with a missing event and many later events on the other keys
    Isolation(isolation::IsolationArgs),
    /// The duration of gaps, compared with the expected duration
    Recovery(recovery::RecoveryArgs),
    /// The added delay of events while versions of their handler are swapped
    Swap(swap::SwapArgs),
    /// A single side, in this process
    #[command(hide = true)]
    Side {
        #[command(subcommand)]
        side: Side,
    },
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// The folder with the handlers
    #[arg(long)]
    plugins: PathBuf,
    /// The host's program
    #[arg(long)]
    ordain: PathBuf,
    /// Number of runs of each side; the result is the median
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// The sequencer with a number of keys
    Core(core::Side),
    /// The side `bare` of `embedded`: decodes events, calls the handler and encodes messages, on one thread
    Bare(embedded::BareSide),
    /// A consumer of RabbitMQ
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
        Command::Decode(common) => (decode::bench(&common)?, common.json),
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
