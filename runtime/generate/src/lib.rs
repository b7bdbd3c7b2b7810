//! `ordain generate`: a seeded stream of events with a known set of faults, for tests, benchmarks and
//! demonstrations.
//!
//! The same options produce the same bytes on every machine. This crate must therefore not use the machine's math
//! library, or a random number generator whose algorithm may change. It may use the clock only to pace the output.
//! Memory grows with the number of keys and the reorder distance, never with the number of events.

mod arrivals;
mod channel;
mod keys;
mod line;
mod manifest;
mod options;
mod orders;
mod population;
mod random;
mod run;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use ordain_util::text::print_lossy;

pub use manifest::{EventRef, KeyEntry, ManifestCounts, ManifestEntry};
pub use options::{ArrivalPattern, EventShape, KeyChoice, LoadOptions, PayloadSize, Probability};
pub use run::{LoadObserver, generate_to};

/// Size of the output buffer, in bytes. A system call for each line would cost more than the line.
const BUFFER_BYTES: usize = 256 << 10;

/// Number of events between updates of the progress bar.
const PROGRESS_INTERVAL_EVENTS: u64 = 16_384;

/// The options of `ordain generate`.
#[derive(Debug, Clone, clap::Args)]
pub struct GenerateArgs {
    /// The load.
    #[command(flatten)]
    pub load: LoadOptions,
    /// Write events to FILE; - is standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Write the lost, repeated and swapped events and the count of each key to FILE, as NDJSON.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Write each event at its time, counted from the start, instead of at full speed.
    #[arg(long)]
    pub realtime: bool,
}

/// Generates a load. A reader that closes standard output early causes no error.
pub fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    args.load.check().map_err(anyhow::Error::msg)?;
    anyhow::ensure!(
        args.manifest.as_ref() != Some(&args.out),
        "--manifest and --out name the same file: each needs its own file"
    );
    let standard = args.out == Path::new("-");
    let mut out: Box<dyn Write> =
        if standard { Box::new(io::stdout().lock()) } else { Box::new(create(&args.out)?) };
    let mut manifest = args.manifest.as_deref().map(create).transpose()?.map(buffered);
    let mut pace = PacingObserver::new(args);
    let mut buffer = buffered(&mut out);
    let manifest = manifest.as_mut().map(|writer| writer as &mut dyn Write);
    let done = generate_to(&args.load, &mut buffer, manifest, &mut pace);
    let done = done.and_then(|counts| buffer.flush().map(|()| counts));
    pace.bar.finish_and_clear();
    match done {
        Ok(counts) => {
            if !standard {
                print_lossy(&counts.to_string());
            }
            Ok(())
        }
        Err(error) if standard && error.kind() == io::ErrorKind::BrokenPipe => {
            // The rest of the buffer has no reader, so `into_parts` discards the rest without another write.
            drop(buffer.into_parts());
            Ok(())
        }
        Err(error) => Err(error).context("cannot write the events or the manifest"),
    }
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("{} cannot be written", path.display()))
}

fn buffered<W: Write>(inner: W) -> BufWriter<W> {
    BufWriter::with_capacity(BUFFER_BYTES, inner)
}

/// An observer that shows the progress and delays events until their time.
struct PacingObserver {
    bar: ProgressBar,
    realtime: bool,
    start: Instant,
}

impl PacingObserver {
    fn new(args: &GenerateArgs) -> Self {
        // Lines and a progress bar would mix on one terminal.
        let lines_shown = args.out == Path::new("-") && io::stdout().is_terminal();
        let bar = if io::stderr().is_terminal() && !lines_shown {
            ProgressBar::new(args.load.events)
        } else {
            ProgressBar::hidden()
        };
        let style = "{bar:30} {human_pos} of {human_len} events, {per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        Self { bar, realtime: args.realtime, start: Instant::now() }
    }
}

impl LoadObserver for PacingObserver {
    fn before(&mut self, index: u64, after: Duration, out: &mut dyn Write) -> io::Result<()> {
        if index.is_multiple_of(PROGRESS_INTERVAL_EVENTS) {
            self.bar.set_position(index);
        }
        if self.realtime
            && let Some(early) = after.checked_sub(self.start.elapsed())
            && early >= Duration::from_millis(1)
        {
            out.flush()?;
            std::thread::sleep(early);
        }
        Ok(())
    }
}
