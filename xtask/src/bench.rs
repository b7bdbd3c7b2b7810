//! `cargo xtask bench`: runs a benchmark.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::{announce, cargo, host, languages, plugins, run, target_dir};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Name of the benchmark; without a name, the command lists the benchmarks.
    name: Option<String>,
    /// Number of runs of each side (a program or configuration that the benchmark compares); the result is the median.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Options of the benchmark, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    options: Vec<String>,
}

/// The benchmarks that need the compilers and the components of all languages.
const LANGUAGES: [&str; 2] = ["dev", "languages"];

/// Names and descriptions of the benchmarks.
const BENCHES: [(&str, &str); 13] = [
    (
        "amqp",
        "events from RabbitMQ through a handler, with Redis, compared to hand-written consumers",
    ),
    (
        "chain",
        "events through chained streams, on each store, and the cost of numbering the events",
    ),
    ("core", "the sequencer alone, and the call of a handler"),
    (
        "decode",
        "the conversion of messages of RabbitMQ into events, with the key in the routing key and in the body",
    ),
    (
        "dev",
        "the time from a change of a handler to the outcome of the first event, in each language",
    ),
    ("embedded", "events from file to file through a handler, on the embedded store"),
    ("ingress", "events over HTTP, below and above the limits of the host"),
    (
        "instances",
        "the cost of several hosts that share partitions, and the duration of a hand-over",
    ),
    (
        "isolation",
        "the effect that a key with a missing event and many later events has on the other keys",
    ),
    ("languages", "the handler `orders` in each language, compared to Rust"),
    ("recovery", "the duration of gaps, compared to the expected duration"),
    ("store", "commits to each store, compared to plain writes of the same bytes"),
    ("swap", "the additional latency of events while the version of their handler changes"),
];

pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    let Some(name) = &args.name else {
        for (name, meaning) in BENCHES {
            announce(&format!("{name}: {meaning}"));
        }
        return Ok(());
    };
    if !BENCHES.iter().any(|(known, _)| known == name) {
        bail!("unknown benchmark {name:?}; `cargo xtask bench` lists the benchmarks");
    }
    let ordain = host()?;
    let plugins = if LANGUAGES.contains(&name.as_str()) { languages(&ordain)? } else { plugins()? };
    run(cargo("build").args(["--release", "--workspace", "--bin", "ordain-bench"]))?;
    announce(&format!("measuring {name}; do not use the machine for anything else"));
    let mut bench = Command::new(target_dir().join("release").join("ordain-bench"));
    bench.arg(name).arg("--plugins").arg(plugins).arg("--ordain").arg(ordain);
    bench.args(["--runs", &args.runs.to_string()]);
    run(bench.args(args.json.then_some("--json")).args(&args.options))
}
