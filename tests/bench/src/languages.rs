//! `languages`: compares the handler `orders` in several languages. All languages have the same events, and the test
//! `languages` checks that all of them handle the events alike.
//!
//! The benchmark runs the host from file to file. The rate and the processor time are differences between a long and a
//! short run, so they contain neither the start of the host nor the first calls of the handler.

mod instances;
mod order_data;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::{Usage, measure};
use crate::report::{Figure, Report, Row};
use crate::sides::Sides;
use crate::{CommonArgs, embedded, events};
pub(crate) use instances::InstancesSide;
use instances::{InstanceFigures, least_memory_mib};

/// The languages: the names of the folders that contain the components.
const LANGUAGES: [&str; 6] = ["rust", "c", "go", "js", "js-spidermonkey", "python"];
/// The language whose figures count as 1.
const BASELINE: &str = "rust";
/// The number of keys, whose events alternate.
const KEYS: u64 = 1_000;
/// Number of events of the short run: two events of each key.
const SHORT_RUN_EVENTS: u64 = 2 * KEYS;

/// A size of the events' data.
#[derive(Debug, Clone, Copy)]
struct DataSize {
    name: &'static str,
    bytes: usize,
    /// The benchmark divides the option `--events` by this number, because larger events take longer.
    divisor: u64,
}

const SIZES: [DataSize; 3] = [
    DataSize { name: "0.1 KB", bytes: 100, divisor: 1 },
    DataSize { name: "1 KB", bytes: 1_000, divisor: 2 },
    DataSize { name: "8 KB", bytes: 8_000, divisor: 5 },
];

/// The figures of the rows with a size whose ratios the report contains.
const EVENT_FIGURES: [(&str, Figure); 3] = [
    ("events/s", |row| Some(row.events_per_s)),
    ("CPU time", |row| row.cpu_s_per_million),
    ("limit", |row| row.limit_mib),
];
/// The figures of the rows without a size whose ratios the report contains.
const COMPONENT_FIGURES: [(&str, Figure); 5] = [
    ("compile", |row| row.compile_ms),
    ("load", |row| row.load_ms),
    ("file", |row| row.file_kb),
    ("first call", |row| row.first_call_us),
    ("instance", |row| row.instance_mib),
];

#[derive(Debug, Args)]
pub(crate) struct LanguagesArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of events with 0.1 KB of data. The run with 1 KB has half of this number, the run with 8 KB a fifth.
    #[arg(long, default_value_t = 200_000)]
    events: u64,
}

pub(crate) fn bench(args: &LanguagesArgs) -> Result<Report> {
    let languages = args.sides.of(&LANGUAGES, |language| *language)?;
    let folder = tempfile::tempdir()?;
    let bench = Bench { args, folder: folder.path() };
    for size in SIZES {
        eprintln!("writing events with {} of data", size.name);
        bench.write_events(size)?;
    }
    let mut cases = Vec::new();
    for language in &languages {
        bench.copy_component(language)?;
        cases.push(Case { language, size: None });
    }
    for size in SIZES {
        cases.extend(languages.iter().map(|language| Case { language, size: Some(size) }));
    }
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); cases.len()];
    for run in 1..=args.common.runs {
        for (case, rows) in cases.iter().zip(&mut rows) {
            let what = format!("run {run} of {}: {}", args.common.runs, case.name());
            eprintln!("{what}");
            rows.push(bench.measure(*case, run == 1).context(what)?);
        }
    }
    Ok(report(rows.iter().map(|runs| Row::median(runs)).collect(), &languages))
}

fn report(rows: Vec<Row>, languages: &[&'static str]) -> Report {
    let mut report = Report::new("languages", rows);
    for language in languages.iter().filter(|language| **language != BASELINE) {
        let sizes = SIZES.map(Some).into_iter().chain([None]);
        for size in sizes {
            let figures = if size.is_some() { &EVENT_FIGURES[..] } else { &COMPONENT_FIGURES };
            let of = |language| Case { language, size }.name();
            let [over, under] = [of(language), of(BASELINE)];
            for (name, figure) in figures {
                let suffix = size.map_or_else(String::new, |size| format!(", {}", size.name));
                let name = format!("{name}{suffix}: {language}/{BASELINE}");
                report = report.ratio_of(name, (&over, *figure), (&under, *figure));
            }
        }
    }
    report.note(
        "The handler `orders` of each SDK, from file to file on the embedded store, with 1,000 keys; half of the \
         events emit a message. The handler reads one field of the data. events/s and CPU s/million (equal to \
         microseconds per event): the whole host, without its start. compile ms, load ms: `ordain plugins check`, \
         including the start of the process, without and with compiled code in the cache. first call us: creation \
         of an instance and its first call, with 1 KB of data. instance MiB: memory that an instance adds, after \
         1,000 events with 1 KB of data. limit MiB: least `plugins.memory` with which 10,000 events take effect at \
         the first try.",
    )
}

/// A row of the report.
#[derive(Debug, Clone, Copy)]
struct Case {
    language: &'static str,
    /// The size of the events' data; `None` for the row about the component itself.
    size: Option<DataSize>,
}

impl Case {
    fn name(&self) -> String {
        match self.size {
            Some(size) => format!("{}, {}", self.language, size.name),
            None => self.language.to_owned(),
        }
    }
}

/// The arguments of the benchmark, and the folder with its files.
struct Bench<'a> {
    args: &'a LanguagesArgs,
    folder: &'a Path,
}

impl Bench<'_> {
    /// Returns the numbers of events of the short and the long run: a whole number of events of each key.
    fn event_counts(&self, size: DataSize) -> Result<[u64; 2]> {
        let long = self.args.events / size.divisor / KEYS * KEYS;
        ensure!(
            long > SHORT_RUN_EVENTS,
            "--events must be at least {}",
            (SHORT_RUN_EVENTS + KEYS)
                * SIZES.map(|size| size.divisor).into_iter().max().unwrap_or(1)
        );
        Ok([SHORT_RUN_EVENTS, long])
    }

    fn events_file(&self, size: DataSize, count: u64) -> PathBuf {
        self.folder.join(format!("{}-{count}.ndjson", size.bytes))
    }

    fn write_events(&self, size: DataSize) -> Result<()> {
        for count in self.event_counts(size)? {
            let file = self.events_file(size, count);
            events::write_with(&file, KEYS, count, |data, number, amount_cents| {
                order_data::write(data, size.bytes, number, amount_cents);
            })?;
        }
        Ok(())
    }

    /// Returns the folder of handlers of a language. Each language has a folder, and so a cache, of its own.
    fn plugins(&self, language: &str) -> PathBuf {
        self.folder.join("plugins").join(language)
    }

    fn component(&self, language: &str) -> PathBuf {
        self.plugins(language).join("orders.wasm")
    }

    fn copy_component(&self, language: &str) -> Result<()> {
        fs::create_dir_all(self.plugins(language))?;
        let built = self.args.common.plugins.join(language).join("orders.wasm");
        fs::copy(&built, self.component(language))
            .with_context(|| format!("cannot copy {}", built.display()))?;
        Ok(())
    }

    /// Measures a case. Searches for the least memory only in the first run, because the search takes long, and its
    /// result does not vary.
    fn measure(&self, case: Case, is_first_run: bool) -> Result<Row> {
        let mut row = match case.size {
            Some(size) => self.measure_events(case.language, size)?,
            None => self.measure_component(case.language)?,
        };
        if let Some(size) = case.size.filter(|_| is_first_run) {
            row.limit_mib = Some(least_memory_mib(&self.plugins(case.language), size.bytes)?);
        }
        Ok(Row { side: case.name(), ..row })
    }

    fn measure_events(&self, language: &str, size: DataSize) -> Result<Row> {
        let [short, long] = self.event_counts(size)?;
        let before = self.run_host(language, size, short)?;
        let after = self.run_host(language, size, long)?;
        let events = (long - short) as f64;
        let seconds = after.seconds - before.seconds;
        ensure!(seconds > 0.0, "the long run was faster than the short run: use more --events");
        Ok(Row {
            events_per_s: events / seconds,
            cpu_s_per_million: Some((after.cpu_seconds - before.cpu_seconds) / (events / 1e6)),
            ..Row::default()
        })
    }

    fn run_host(&self, language: &str, size: DataSize, count: u64) -> Result<Usage> {
        let home = self.folder.join("home");
        let plugins = self.plugins(language);
        let file = self.events_file(size, count);
        let usage = embedded::host(&self.args.common, &plugins, &home, &file, KEYS, count)?;
        fs::remove_dir_all(&home)?;
        Ok(usage)
    }

    fn measure_component(&self, language: &str) -> Result<Row> {
        let plugins = self.plugins(language);
        let cache = plugins.join(".cache");
        if cache.exists() {
            fs::remove_dir_all(&cache)?;
        }
        let compiled = self.check_component(language)?;
        let loaded = self.check_component(language)?;
        let mut side = Command::new(std::env::current_exe()?);
        side.args(["side", "instances", "--plugins"]).arg(&plugins);
        let output = side.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: InstanceFigures = serde_json::from_slice(&output.stdout)?;
        Ok(Row {
            compile_ms: Some(compiled.seconds * 1e3),
            load_ms: Some(loaded.seconds * 1e3),
            file_kb: Some(fs::metadata(self.component(language))?.len() as f64 / 1e3),
            first_call_us: Some(figures.first_call_us),
            instance_mib: Some(figures.instance_mib),
            ..Row::default()
        })
    }

    /// Loads a component in a process of the host, which compiles the component if the cache does not contain its code.
    fn check_component(&self, language: &str) -> Result<Usage> {
        let home = self.folder.join("check");
        fs::create_dir_all(&home)?;
        embedded::write_config(&home, &self.plugins(language))?;
        let mut command = Command::new(self.args.common.ordain.canonicalize()?);
        command.current_dir(&home).args(["plugins", "check"]).arg(self.component(language));
        measure(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }
}
