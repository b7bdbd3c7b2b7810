//! A program that writes, rotates and compresses event files, and the home of the host that reads these files.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text, unnumbered};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

pub(super) const EVENTS: &str = "events.ndjson";
pub(super) const SINK_FILE: &str = "out.ndjson";
const KEYS: usize = 5;

/// A program that writes event files, and the home of the host that reads them.
pub(super) struct Writer {
    pub(super) home: Home,
    /// The lines of the events with sequences. The test compares the output with these lines.
    pub(super) numbered: Vec<String>,
    /// The lines without sequences, as the program writes them.
    pub(super) lines: Vec<String>,
    pub(super) written: usize,
}

pub(super) fn config(path: &str) -> String {
    let source = format!(
        "ordering = \"fifo\"\nid_window = 1025\nsource = {{ kind = \"file\", path = \"{path}\", prefetch = 1 }}"
    );
    tally::CONFIG.replace("source = { kind = \"file\", path = \"events.ndjson\" }", &source)
}

impl Writer {
    /// Creates the home of the host, and the lines of `events` events of each key.
    pub(super) fn new(path: &str, events: u64) -> Result<Self> {
        Self::with(path, in_turn(KEYS, events))
    }

    /// Creates the home of the host, and the lines of `events` events of each key. Writes the first `count` lines to
    /// the file of events, and runs the host once.
    pub(super) fn after_run(events: u64, count: usize) -> Result<Self> {
        let mut writer = Self::new(EVENTS, events)?;
        writer.create(EVENTS, count)?;
        writer.home.run_once()?;
        Ok(writer)
    }

    /// Creates the home of the host, and the lines of `events` events of each key. Writes the first `count` lines to
    /// the file of events, starts the host, and waits until the output has the messages of these lines.
    pub(super) fn running(events: u64, count: usize) -> Result<(Self, Service)> {
        let mut writer = Self::new(EVENTS, events)?;
        writer.create(EVENTS, count)?;
        let mut service = writer.start()?;
        writer.until_all(&mut service)?;
        Ok((writer, service))
    }

    /// Creates the home of the host, and the lines of `events` events of one key. The handler needs about half a
    /// millisecond for each event, so the reader of the files often waits for the handler.
    pub(super) fn slow(path: &str, events: u64) -> Result<Self> {
        let event = |sequence| line("slow-a", sequence, &json!({ "n": sequence }));
        Self::with(path, (1..=events).map(event).collect())
    }

    fn with(path: &str, numbered: Vec<String>) -> Result<Self> {
        let lines = unnumbered(&numbered)?;
        let home = Home::new(&["tally"], &config(path))?;
        Ok(Self { home, numbered, lines, written: 0 })
    }

    /// Returns the next `count` lines as one text, and counts these lines as written.
    pub(super) fn next(&mut self, count: usize) -> String {
        let next = &self.lines[self.written..self.written + count];
        self.written += count;
        text(next)
    }

    pub(super) fn create(&mut self, name: &str, count: usize) -> Result<()> {
        let next = self.next(count);
        self.home.write(name, next)
    }

    pub(super) fn append(&mut self, name: &str, count: usize) -> Result<()> {
        let next = self.next(count);
        self.home.append(name, next)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.home.path(from), self.home.path(to))?)
    }

    /// Moves each older file to the next number, and the file of events to `events.ndjson.1`.
    pub(super) fn rotate(&self) -> Result<()> {
        for number in (1..9).rev() {
            let from = format!("{EVENTS}.{number}");
            if self.home.path(&from).exists() {
                self.rename(&from, &format!("{EVENTS}.{}", number + 1))?;
            }
        }
        self.rename(EVENTS, &format!("{EVENTS}.1"))
    }

    /// Copies the file of events to `events.ndjson.1`, and then truncates the file of events. First renames an earlier
    /// copy to `events.ndjson.2`.
    pub(super) fn copy_and_truncate(&self) -> Result<()> {
        let first = format!("{EVENTS}.1");
        if self.home.path(&first).exists() {
            self.rename(&first, &format!("{EVENTS}.2"))?;
        }
        fs::copy(self.home.path(EVENTS), self.home.path(&first))?;
        self.truncate(EVENTS)
    }

    pub(super) fn truncate(&self, name: &str) -> Result<()> {
        Ok(File::options().write(true).open(self.home.path(name))?.set_len(0)?)
    }

    pub(super) fn compress(&self, name: &str) -> Result<()> {
        self.gzip(name, "-f")
    }

    pub(super) fn uncompress(&self, name: &str) -> Result<()> {
        self.gzip(name, "-d")
    }

    /// Gives the file of events a number, and compresses the file.
    pub(super) fn compress_as(&self, number: usize) -> Result<()> {
        let name = format!("{EVENTS}.{number}");
        self.rename(EVENTS, &name)?;
        self.compress(&name)
    }

    pub(super) fn gzip(&self, name: &str, option: &str) -> Result<()> {
        let path = self.home.path(name);
        let status = Command::new("gzip").arg(option).arg(&path).status()?;
        ensure!(status.success(), "gzip {}: {status}", path.display());
        Ok(())
    }

    /// Runs the host once with `--strict`. The run must end with the exit code 1. Returns its log.
    pub(super) fn run_strictly(&self) -> Result<String> {
        let output = self.home.output(&["run", "--once", "--strict"])?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
        Ok(log)
    }

    pub(super) fn start(&self) -> Result<Service> {
        Service::start(&self.home, &["run"])
    }

    /// Starts the host without the capabilities with which root can read every file.
    pub(super) fn start_as_ordinary_user(&self) -> Result<Service> {
        let is_root = fs::metadata("/proc/self")?.uid() == 0;
        let by = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"].map(str::to_owned);
        Service::start_by(&self.home, if is_root { &by[..] } else { &[] }, &["run"])
    }

    pub(super) fn set_mode(&self, name: &str, mode: u32) -> Result<()> {
        Ok(fs::set_permissions(self.home.path(name), fs::Permissions::from_mode(mode))?)
    }

    /// Starts the host, and waits for the first messages.
    pub(super) fn start_reading(&self) -> Result<Service> {
        let mut service = self.start()?;
        service.until("the first messages", || self.home.lines(SINK_FILE) > 0)?;
        Ok(service)
    }

    /// Waits until the messages of all written lines are in the output.
    pub(super) fn until_all(&self, service: &mut Service) -> Result<()> {
        let waited = service.until("all messages", || self.home.lines(SINK_FILE) >= self.written);
        waited.with_context(|| format!("{} of {}", self.home.lines(SINK_FILE), self.written))
    }

    pub(super) fn check_output(&self) -> Result<()> {
        let written = &self.numbered[..self.written];
        tally::check(&by_key(written)?, &self.home.read(SINK_FILE))
    }

    pub(super) fn letters(&self) -> Result<Vec<Value>> {
        self.home.rows(&["dead", "list", "cases", "--json"])
    }

    pub(super) fn check(&self) -> Result<()> {
        self.check_output()?;
        let letters = self.letters()?;
        ensure!(letters.is_empty(), "{letters:?}");
        Ok(())
    }

    /// Waits until the messages of all written lines are in the output, ends the host, and checks the output and that
    /// no dead letter exists.
    pub(super) fn finish(&self, service: &mut Service) -> Result<()> {
        self.until_all(service)?;
        service.end()?;
        self.check()
    }
}
