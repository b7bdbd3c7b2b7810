//! `cargo xtask bench`.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::{cargo, host, plugins, run, say, target_dir};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    name: Option<String>,
    /// Runs of each side; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Options of this measurement, behind `--`; `-- --help` lists them.
    #[arg(last = true)]
    options: Vec<String>,
}

/// Names and meanings.
const BENCHES: [(&str, &str); 10] = [
    ("amqp", "from RabbitMQ through a handler, on Redis, beside consumers written by hand"),
    ("chain", "through streams that feed each other, on each store, and what numbers cost"),
    ("core", "the sequencer alone, and the crossing into a handler"),
    ("embedded", "from file to file through a handler, on the embedded store"),
    ("ingress", "events over HTTP, and what becomes of more than may come"),
    ("instances", "what several hosts cost that share partitions, and how long a hand-over takes"),
    ("isolation", "whether a key whose event is missing, with many behind it, slows down others"),
    ("recovery", "how long gaps last, beside what they must"),
    ("store", "commits into each store, beside plain writes of the same bytes"),
    ("swap", "how much longer events wait while versions of their handler are swapped"),
];

pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    let Some(name) = &args.name else {
        for (name, meaning) in BENCHES {
            say(&format!("{name}: {meaning}"));
        }
        return Ok(());
    };
    if !BENCHES.iter().any(|(known, _)| known == name) {
        bail!("there is no benchmark {name:?}; `cargo xtask bench` lists them");
    }
    let plugins = plugins()?;
    let ordain = host()?;
    run(cargo("build").args(["--release", "--workspace", "--bin", "ordain-bench"]))?;
    say(&format!("measuring {name}; leave the machine alone meanwhile"));
    let mut bench = Command::new(target_dir().join("release").join("ordain-bench"));
    bench.arg(name).arg("--plugins").arg(plugins).arg("--ordain").arg(ordain);
    bench.args(["--runs", &args.runs.to_string()]);
    run(bench.args(args.json.then_some("--json")).args(&args.options))
}
