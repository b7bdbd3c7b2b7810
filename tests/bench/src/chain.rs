//! `chain`: measures a chain of one, two or three streams on each store. Transactions pass through all streams of the
//! chain, because each stream feeds the next stream. The benchmark also measures the cost of numbering the messages.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use serde_json::{Value, json};

use crate::CommonArgs;
use crate::process::measure;
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};

/// Number of events of each stage (a stream of the chain, with its sink).
const EVENTS: u64 = 200_000;
/// Number of keys of the first stage. [`ORDERS`] is the number of keys of each later stage.
const LEDGERS: u64 = 1_000;
const ORDERS: u64 = 10_000;

#[derive(Debug, clap::Args)]
pub(crate) struct ChainArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
}

#[derive(Debug, Clone, Copy)]
struct Side {
    name: &'static str,
    redis: bool,
    stages: usize,
    /// True if the store numbers the messages of the last stage.
    numbered: bool,
}

const fn side(name: &'static str, redis: bool, stages: usize, numbered: bool) -> Side {
    Side { name, redis, stages, numbered }
}

const SIDES: [Side; 8] = [
    side("embedded_1", false, 1, false),
    side("embedded_1_numbered", false, 1, true),
    side("embedded_2", false, 2, false),
    side("embedded_3", false, 3, false),
    side("redis_1", true, 1, false),
    side("redis_1_numbered", true, 1, true),
    side("redis_2", true, 2, false),
    side("redis_3", true, 3, false),
];

/// The streams. The sink of each stream feeds the next stream.
const STREAMS: [&str; 3] = ["ledgers", "orders", "months"];
const SINKS: [&str; 3] = ["transactions", "postings", "statements"];

pub(crate) fn bench(args: &ChainArgs) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let events = folder.path().join("events.ndjson");
    write(&events)?;
    let sides = args.sides.of(&SIDES, |side| side.name)?;
    let rows = medians(
        args.common.runs,
        &sides,
        |side| side.name,
        |side| run(&args.common, side, &events, &folder.path().join("home")),
    )?;
    let cost = |store: &str| {
        let cpu = |name: String| rows.iter().find(|row| row.side == name)?.cpu_s_per_million;
        Some(cpu(format!("{store}_1_numbered"))? - cpu(format!("{store}_1"))?)
    };
    let costs: Vec<String> = ["embedded", "redis"]
        .into_iter()
        .filter_map(|store| Some(format!("{:.1} µs on {store}", cost(store)?)))
        .collect();
    let mut report = Report::new("chain", rows);
    for store in ["embedded", "redis"] {
        let side = |stages: &str| format!("{store}_{stages}");
        report = report.ratio(&side("2"), &side("1")).ratio(&side("3"), &side("1"));
        report = report.ratio(&side("1_numbered"), &side("1"));
    }
    Ok(report
        .note(format!("the cost of numbering, in processor time per event: {}", costs.join(", ")))
        .note(
            "Each transaction passes each stage once. Between two stages, the store numbers the event, keeps the \
             event for replay, and queues it. Every row includes the start and the end of the process.",
        ))
}

/// Writes the events of all ledgers. Each event contains one transaction.
fn write(path: &Path) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for at in 0..EVENTS {
        let ledger = at % LEDGERS;
        let order = at.wrapping_mul(7_919) % ORDERS;
        let transaction = json!({
            "order": format!("order-{order}"), "month": "2026-01", "cents": at % 1_000,
        });
        let event = json!({
            "specversion": "1.0", "id": at.to_string(), "source": "/bench", "type": "ledger.batch",
            "subject": format!("ledger-{ledger}"), "sequence": (at / LEDGERS + 1).to_string(),
            "data": { "transactions": [transaction] },
        });
        writeln!(out, "{event}")?;
    }
    Ok(out.flush()?)
}

fn config(common: &CommonArgs, side: Side, redis: Option<&Redis>) -> Result<String> {
    let plugins = common.plugins.canonicalize()?;
    let mut text = format!("[plugins]\ndir = \"{}\"\n", plugins.display());
    if let Some(redis) = redis {
        text += &format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    }
    text += "[streams]\n";
    for (at, stream) in STREAMS.iter().take(side.stages).enumerate() {
        let source = match at {
            0 => "{ kind = \"file\", path = \"events.ndjson\" }",
            _ => "{ kind = \"stream\" }",
        };
        text += &format!("{stream} = {{ handler = \"ledger\", source = {source} }}\n");
    }
    text += "[sinks]\n";
    for (at, sink) in SINKS.iter().take(side.stages).enumerate() {
        let next = STREAMS[..side.stages].get(at + 1);
        let to = next.map_or_else(
            || format!("kind = \"file\", path = \"-\", sequenced = {}", side.numbered),
            |next| format!("kind = \"stream\", stream = \"{next}\", sequenced = true"),
        );
        text += &format!("{sink} = {{ {to} }}\n");
    }
    Ok(text)
}

fn run(common: &CommonArgs, side: Side, events: &Path, home: &Path) -> Result<Row> {
    let redis = if side.redis { Some(Redis::start(&["appendfsync everysec"])?) } else { None };
    fs::create_dir(home)?;
    fs::hard_link(events, home.join("events.ndjson"))?;
    fs::write(home.join("ordain.toml"), config(common, side, redis.as_ref())?)?;
    let out = home.join("out.ndjson");
    let report = home.join("report.json");
    let mut command = Command::new(common.ordain.canonicalize()?);
    command.current_dir(home).args(["--log", "warn", "run", "--once", "--json"]);
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&report)?);
    let usage = measure(&mut command)?;
    // A run that executes only a part of the events would seem fast, so the benchmark checks the counts.
    let text = fs::read_to_string(&report)?;
    let report: Value = text
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .with_context(|| format!("the host printed no report: {text}"))?;
    let expected = EVENTS * side.stages as u64;
    ensure!(
        report["settled"] == expected,
        "the host settled {} of {expected} events",
        report["settled"]
    );
    let messages = BufReader::new(File::open(&out)?).lines().count() as u64;
    // The events close no month, so the third stage emits nothing.
    let expected = if side.stages == 3 { 0 } else { EVENTS };
    ensure!(messages == expected, "the host emitted {messages} messages instead of {expected}");
    let of_redis = redis.as_ref().map(Redis::cpu).transpose()?;
    fs::remove_dir_all(home)?;
    let millions = EVENTS as f64 / 1e6;
    Ok(Row {
        side: side.name.to_owned(),
        events_per_s: EVENTS as f64 / usage.seconds,
        cpu_s_per_million: Some((usage.cpu_seconds + of_redis.unwrap_or(0.0)) / millions),
        redis_cpu_s_per_million: of_redis.map(|seconds| seconds / millions),
        peak_mib: Some(usage.peak_mib),
        ..Row::default()
    })
}
