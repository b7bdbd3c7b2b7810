//! `cargo xtask demo`: orders in disorder, a hard kill on the way, and a check of what came out
//! that shares no code with the host.

mod check;
mod orders;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::setup::{host, plugins, run, say, target_dir};

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Events to make.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Seed of the events.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Orders that are open at a time, and how many later events may come before one: as many, so that
/// a good part of the events meets a later one of its own order.
const OPEN_ORDERS: u64 = 2_000;
const REORDER: u64 = 2_000;
/// Receipts that must have been written before the process is killed.
const KILL_AFTER: u64 = 2 << 20;
/// The longest that anything of this may take: a demo that hangs says so.
const PATIENCE: Duration = Duration::from_mins(5);

/// The files of the demo.
struct Files {
    folder: PathBuf,
    config: PathBuf,
    events: PathBuf,
    manifest: PathBuf,
    receipts: PathBuf,
}

pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let plugins = plugins()?;
    let ordain = host()?;
    let files = prepare(&plugins)?;
    generate(&ordain, args, &files)?;

    say("running the handler `orders` over them, and killing it hard on the way (kill -9)");
    let killed_at = run_and_kill(&ordain, &files)?;
    say(&format!("killed with {killed_at} bytes of receipts written; starting it again"));
    let started = Instant::now();
    let report = finish(&ordain, &files)?;
    let took = started.elapsed();

    say("checking: every order is replayed by a program that has only the input and the output");
    let letters = dead_letters(&ordain, &files)?;
    let verdict = check::check(&files.events, &files.receipts, &letters)?;
    print(&report, &verdict, took);
    ensure!(verdict.wrong.is_empty(), "the result is wrong: {}", verdict.wrong.join("; "));
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
    say(&format!(
        "making {} events of orders: 2 % repeated, reordered within {REORDER}, 1 % impossible steps",
        args.events
    ));
    let (events, seed) = (args.events.to_string(), args.seed.to_string());
    let (keys, reorder) = (OPEN_ORDERS.to_string(), REORDER.to_string());
    let options = ["--events", &events, "--seed", &seed, "--keys", &keys, "--duplicates", "0.02"];
    let more = ["--reorder", &reorder, "--impossible", "0.01", "--end-of-sequence"];
    let mut command = Command::new(ordain);
    command.arg("generate").args(options).args(more);
    command.arg("--out").arg(&files.events).arg("--manifest").arg(&files.manifest);
    run(&mut command)
}

fn start(ordain: &Path, files: &Files) -> Command {
    let mut command = Command::new(ordain);
    // The dead letters are what was asked for.
    command.args(["--log", "error", "run", "--once", "--json"]).arg(&files.config);
    command
}

/// Starts the run and kills it in the middle. Returns how much it had written.
fn run_and_kill(ordain: &Path, files: &Files) -> Result<u64> {
    let mut child = start(ordain, files).stdout(Stdio::null()).spawn()?;
    let started = Instant::now();
    let written = loop {
        let written = fs::metadata(&files.receipts).map_or(0, |file| file.len());
        if written >= KILL_AFTER {
            break written;
        }
        if let Some(status) = child.try_wait()? {
            bail!("it ended by itself ({status}) before it could be killed: try more --events");
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            bail!("it wrote only {written} bytes in {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    child.kill()?;
    child.wait()?;
    Ok(written)
}

fn finish(ordain: &Path, files: &Files) -> Result<Value> {
    let output = start(ordain, files).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "it failed: {}", output.status);
    serde_json::from_slice(&output.stdout).context("its report cannot be read")
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
        "  after the kill: read          {second:>10}   of which known already {}",
        report["duplicates"]
    );
    println!("  after the kill: events/s      {rate:>10.0}   with start and end of the process");
    println!();
    if verdict.wrong.is_empty() {
        println!("  verdict: RIGHT. Every order took each of its events once and in order, every");
        println!("  impossible step is a dead letter, and every receipt was written exactly once,");
        println!("  although the process was killed on the way.");
    } else {
        println!("  verdict: WRONG");
        for wrong in &verdict.wrong {
            println!("    {wrong}");
        }
    }
    println!();
}

fn next(ordain: &Path, files: &Files) {
    let (ordain, folder) = (ordain.display(), files.folder.display());
    println!("  Try next, in {folder}:");
    println!("    {ordain} dead list orders --limit 5");
    println!("    {ordain} keys list orders --limit 5");
    println!("    {ordain} check --explain");
    println!("  Then write a handler of your own: README.md, \"Your own handler\".");
}
