//! `ordain demo`: processes disordered events with the host (the program `ordain`), kills the host several times, and
//! checks the result with code that is independent of the host.
//!
//! The demo uses the host only as a user would: through its command line and its files.

mod check;
mod folder;
mod host;
mod orders;
mod receipts;
mod report;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ordain_generate::{LoadObserver, LoadOptions, Probability, generate_to};

use check::Expectation;
use folder::DemoFolder;
use host::Host;
use report::{DemoReport, count};

/// The smallest number of events. With fewer events, a run can end before the demo has killed it.
const MIN_EVENTS: u64 = 20_000;
/// The largest number of events. The check keeps about 200 bytes of each event in memory.
const MAX_EVENTS: u64 = 10_000_000;

/// The options of `ordain demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Number of events to generate.
    #[arg(long, default_value_t = 300_000,
          value_parser = clap::value_parser!(u64).range(MIN_EVENTS..=MAX_EVENTS))]
    events: u64,
    /// Seed of the events.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Keep the files of the demo in DIR, a new or empty folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Run another handler. For tests.
    #[arg(long, value_name = "FILE", hide = true)]
    handler: Option<PathBuf>,
}

/// Number of open orders at a time. The number equals `REORDER`, so that a later event of an order often overtakes an
/// earlier event of the same order.
const OPEN_ORDERS: u64 = 2_000;
/// Largest number of later events that may overtake an event.
const REORDER: u64 = 2_000;
/// Part of the events that arrive twice.
const REPEATED: f64 = 0.02;
/// Part of the events that are impossible steps.
const IMPOSSIBLE: f64 = 0.01;
/// Number of kills. The kills divide the run into parts with equal numbers of receipts.
const KILLS: u64 = 3;

/// Runs the demo, and prints its steps and its result to `out`. Returns whether the result is correct. Ends with an
/// error soon after `stop` becomes true. Removes all files unless the user keeps them.
pub fn demo(args: &DemoArgs, stop: &AtomicBool, out: &mut dyn Write) -> Result<bool> {
    let mut printer = Printer { out, is_silent: args.json };
    let folder = DemoFolder::create(args.keep.as_deref(), args.events, args.handler.as_deref())?;
    printer.line(&format!(
        "Generating {} events of orders. {:.0} % arrive twice, {:.0} % are impossible steps, and up to {} later events \
         overtake an event.",
        count(args.events),
        REPEATED * 100.0,
        IMPOSSIBLE * 100.0,
        count(REORDER)
    ))?;
    generate(args, &folder, stop)?;
    let expected = Expectation::from_events(&folder.events())?;
    check_stop(stop)?;

    printer.line(&format!(
        "Running the handler `orders` on the events. The demo kills the process {KILLS} times (kill -9)."
    ))?;
    let bar = progress_bar(expected.counts.receipts, "receipts");
    let mut host = Host::new(&folder, stop, &bar)?;
    let started = Instant::now();
    let mut kills = Vec::new();
    for number in 1..=KILLS {
        let written = host.run_and_kill(expected.counts.receipts * number / (KILLS + 1))?;
        bar.suspend(|| printer.line(&format!("  killed after {} receipts", count(written))))?;
        kills.push(written);
    }
    host.run_to_end()?;
    let took = started.elapsed();
    bar.finish_and_clear();

    printer.line("Checking each order with code that is independent of Ordain.")?;
    let letters = host.dead_letters()?;
    let differences = expected.differences(&folder.receipts(), &letters)?;
    check_stop(stop)?;
    let is_correct = differences.is_empty();
    let report = DemoReport {
        correct: is_correct,
        seed: args.seed,
        counts: &expected.counts,
        kills,
        seconds: took.as_secs_f64(),
        differences,
        folder: args.keep.as_deref(),
    };
    folder.remove_temporary()?;
    let text = if args.json { report.json() } else { report.text() };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(is_correct)
}

/// Prints the steps of the demo, unless the result is JSON.
struct Printer<'a> {
    out: &'a mut dyn Write,
    is_silent: bool,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) -> io::Result<()> {
        if self.is_silent { Ok(()) } else { writeln!(self.out, "{text}") }
    }
}

/// Returns an error if the user has interrupted the demo.
fn check_stop(stop: &AtomicBool) -> Result<()> {
    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

fn progress_bar(length: u64, unit: &str) -> ProgressBar {
    // A bar of indicatif draws nothing if standard error is no terminal.
    let bar = ProgressBar::new(length);
    let style = format!("  {{bar:30}} {{human_pos}} of {{human_len}} {unit}");
    bar.set_style(ProgressStyle::with_template(&style).expect("a valid template"));
    bar
}

fn generate(args: &DemoArgs, folder: &DemoFolder, stop: &AtomicBool) -> Result<()> {
    let load = LoadOptions {
        seed: args.seed,
        events: args.events,
        keys: OPEN_ORDERS,
        duplicates: Probability(REPEATED),
        reorder: REORDER,
        end_of_sequence: true,
        impossible: Probability(IMPOSSIBLE),
        ..LoadOptions::default()
    };
    let path = folder.events();
    let error = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(&path).with_context(error)?);
    let mut observer = GenerationObserver { bar: progress_bar(args.events, "events"), stop };
    let generated = generate_to(&load, &mut file, None, &mut observer);
    observer.bar.finish_and_clear();
    check_stop(stop)?;
    generated.and_then(|_| file.flush()).with_context(error)
}

/// Number of events between updates of the progress bar.
const PROGRESS_INTERVAL_EVENTS: u64 = 4_096;

/// Shows the progress of the generation, and ends the generation when the user interrupts the demo.
struct GenerationObserver<'a> {
    bar: ProgressBar,
    stop: &'a AtomicBool,
}

impl LoadObserver for GenerationObserver<'_> {
    fn before(&mut self, index: u64, _: Duration, _: &mut dyn Write) -> io::Result<()> {
        if index.is_multiple_of(PROGRESS_INTERVAL_EVENTS) {
            self.bar.set_position(index);
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    }
}
