//! `cargo xtask demo`: processes disordered events with the host (the program `ordain`), kills the host in the middle,
//! and starts it again. The demo checks the result with code that is independent of the host.

mod check;
mod orders;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::setup::{announce, host, plugins, run, target_dir};

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Number of events to generate.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Seed of the events.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Number of open orders at a time. The number equals `REORDER`, so that a later event of an order often overtakes an
/// earlier event of the same order.
const OPEN_ORDERS: u64 = 2_000;
/// Largest number of later events that may overtake an event.
const REORDER: u64 = 2_000;
/// Size of the output file (`receipts.ndjson`), in bytes, at which the demo kills the host.
const KILL_AFTER_BYTES: u64 = 2 << 20;
/// Time limit for the run until the kill. After the restart, this is the time limit for the next growth of the
/// receipts, because the length of the second run depends on the number of events. If a run hangs, the demo reports an
/// error.
const STEP_TIMEOUT: Duration = Duration::from_mins(5);
/// Interval between two checks of a run.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The paths of the demo's folder, and of the files in this folder.
struct Files {
    folder: PathBuf,
    config: PathBuf,
    events: PathBuf,
    manifest: PathBuf,
    receipts: PathBuf,
    report: PathBuf,
}

impl Files {
    /// Returns the size of the receipts that the host has written, in bytes.
    fn receipts_bytes(&self) -> u64 {
        fs::metadata(&self.receipts).map_or(0, |file| file.len())
    }
}

pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let plugins = plugins()?;
    let ordain = host()?;
    let files = prepare(&plugins)?;
    generate(&ordain, args, &files)?;

    announce(
        "running the handler `orders` on the events, and killing the process in the middle (kill -9)",
    );
    let killed_at = run_and_kill(&ordain, &files)?;
    announce(&format!("killed after {killed_at} bytes of receipts; restarting"));
    let started = Instant::now();
    let report = finish(&ordain, &files)?;
    let took = started.elapsed();

    announce(
        "checking: code that is independent of Ordain replays every order from the input and compares the output",
    );
    let letters = dead_letters(&ordain, &files)?;
    let verdict = check::check(&files.events, &files.receipts, &letters)?;
    print(&report, &verdict, took);
    ensure!(verdict.wrong.is_empty(), "the result is incorrect: {}", verdict.wrong.join("; "));
    next(&ordain, &files);
    Ok(())
}

fn prepare(plugins: &Path) -> Result<Files> {
    let folder = target_dir().join("demo");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let file = |name: &str| folder.join(name);
    let files = Files {
        config: file("ordain.toml"),
        events: file("events.ndjson"),
        manifest: file("manifest.ndjson"),
        receipts: file("receipts.ndjson"),
        report: file("report.json"),
        folder,
    };
    let config = format!(
        "[plugins]\n\
         dir = \"{}\"\n\
         \n\
         [streams.orders]\n\
         handler = \"orders\"\n\
         source = {{ kind = \"file\", path = \"events.ndjson\" }}\n\
         \n\
         [sinks.receipts]\n\
         kind = \"file\"\n\
         path = \"receipts.ndjson\"\n",
        plugins.display()
    );
    fs::write(&files.config, config)?;
    Ok(files)
}

fn generate(ordain: &Path, args: &DemoArgs, files: &Files) -> Result<()> {
    announce(&format!(
        "generating {} events of orders: 2 % repeated, 1 % impossible steps, at most {REORDER} later events overtake \
         an event",
        args.events
    ));
    let events = args.events.to_string();
    let seed = args.seed.to_string();
    let keys = OPEN_ORDERS.to_string();
    let reorder = REORDER.to_string();
    let options = ["--events", &events, "--seed", &seed, "--keys", &keys, "--duplicates", "0.02"];
    let more = ["--reorder", &reorder, "--impossible", "0.01", "--end-of-sequence"];
    let mut command = Command::new(ordain);
    command.arg("generate").args(options).args(more);
    command.arg("--out").arg(&files.events).arg("--manifest").arg(&files.manifest);
    run(&mut command)
}

fn start(ordain: &Path, files: &Files) -> Command {
    let mut command = Command::new(ordain);
    // The demo contains invalid events on purpose. The log level `error` suppresses the warnings about the dead letters
    // of these events.
    command.args(["--log", "error", "run", "--once", "--json"]).arg(&files.config);
    command
}

/// Starts the host and kills it in the middle of the run. Returns the size of the receipts that the host had written,
/// in bytes.
fn run_and_kill(ordain: &Path, files: &Files) -> Result<u64> {
    let mut child = start(ordain, files).stdout(Stdio::null()).spawn()?;
    let started = Instant::now();
    let written = loop {
        let written = files.receipts_bytes();
        if written >= KILL_AFTER_BYTES {
            break written;
        }
        if let Some(status) = child.try_wait()? {
            bail!(
                "the run ended ({status}) before it could be killed: use a larger number for --events"
            );
        }
        if started.elapsed() > STEP_TIMEOUT {
            let _ = child.kill();
            bail!("the run wrote only {written} bytes in {STEP_TIMEOUT:?}");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    child.kill()?;
    child.wait()?;
    Ok(written)
}

/// Starts the host again, and waits until it has processed the remaining events. Returns the report of the run.
fn finish(ordain: &Path, files: &Files) -> Result<Value> {
    let report = fs::File::create(&files.report)?;
    let mut child = start(ordain, files).stdout(report).spawn()?;
    let mut written = files.receipts_bytes();
    let mut grown_at = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let now = files.receipts_bytes();
        if now != written {
            written = now;
            grown_at = Instant::now();
        }
        if grown_at.elapsed() > STEP_TIMEOUT {
            let _ = child.kill();
            bail!(
                "the restarted run has not ended, and its receipts ({written} bytes) have not grown in \
                 {STEP_TIMEOUT:?}"
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    ensure!(status.success(), "the run failed: {status}");
    serde_json::from_slice(&fs::read(&files.report)?)
        .context("the report of the run cannot be parsed")
}

fn dead_letters(ordain: &Path, files: &Files) -> Result<Vec<Value>> {
    let mut command = Command::new(ordain);
    command.args(["dead", "list", "orders", "--json", "--limit", "100000000", "--config"]);
    let output = command.arg(&files.config).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "`ordain dead list` failed: {}", output.status);
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}

fn print(report: &Value, verdict: &check::Verdict, took: Duration) {
    let second = report["delivered"].as_u64().unwrap_or(0);
    let rate = second as f64 / took.as_secs_f64();
    println!();
    println!("  orders                        {:>10}", verdict.keys);
    println!("  lines in                      {:>10}", verdict.lines);
    println!("    repeats among them          {:>10}", verdict.repeats);
    println!("    out of order among them     {:>10}", verdict.reordered);
    println!("  settled with effect           {:>10}", verdict.effects);
    println!("  settled without effect        {:>10}", verdict.rejected);
    println!("  receipts out                  {:>10}", verdict.receipts);
    println!(
        "  after the kill: read          {second:>10}   of which duplicates {}",
        report["duplicates"]
    );
    println!(
        "  after the kill: events/s      {rate:>10.0}   including start and end of the process"
    );
    println!();
    if verdict.wrong.is_empty() {
        println!(
            "  verdict: CORRECT. Every order processed each of its events once and in order, every"
        );
        println!("  impossible step is a dead letter, and every receipt was written exactly once,");
        println!("  although the process was killed in the middle.");
    } else {
        println!("  verdict: INCORRECT");
        for wrong in &verdict.wrong {
            println!("    {wrong}");
        }
    }
    println!();
}

fn next(ordain: &Path, files: &Files) {
    let ordain = ordain.display();
    let folder = files.folder.display();
    println!("  Try next, in {folder}:");
    println!("    {ordain} dead list orders --limit 5");
    println!("    {ordain} keys list orders --limit 5");
    println!("    {ordain} check --explain");
    println!("  Then write a handler of your own: README.md, \"Your own handler\".");
}
