//! Runs the host as a child process, and kills it.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use serde_json::Value;

use crate::check_stop;
use crate::folder::DemoFolder;
use crate::receipts::ReceiptCounter;

/// Time limit for the next growth of the receipts. If a run hangs, the demo reports an error.
const GROWTH_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval between two checks of a run.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The largest number of dead letters that the demo reads: more than the largest number of events.
const LETTER_LIMIT: &str = "100000000";

/// The host: this program, as a child process on the demo's folder.
pub(crate) struct Host<'a> {
    program: PathBuf,
    folder: &'a DemoFolder,
    stop: &'a AtomicBool,
    bar: &'a ProgressBar,
    counter: ReceiptCounter,
}

impl<'a> Host<'a> {
    pub(crate) fn new(
        folder: &'a DemoFolder,
        stop: &'a AtomicBool,
        bar: &'a ProgressBar,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the program `ordain`")?;
        Ok(Self { program, folder, stop, bar, counter: ReceiptCounter::new(folder.receipts()) })
    }

    /// Starts the host, and kills it when the sink file has this number of receipts. Returns the number of receipts at
    /// the kill.
    pub(crate) fn run_and_kill(&mut self, receipts: u64) -> Result<u64> {
        let mut run = self.start()?;
        if let Some(status) = self.watch(&mut run, Some(receipts))? {
            ensure!(status.success(), "the run failed ({status}): see the error above");
            bail!(
                "the run ended before it wrote {receipts} receipts, so the demo could not kill it: use a larger number \
                 for --events"
            );
        }
        run.kill()?;
        Ok(self.counter.count()?)
    }

    /// Starts the host, and waits until it has processed the remaining events.
    pub(crate) fn run_to_end(&mut self) -> Result<()> {
        let mut run = self.start()?;
        let status = self.watch(&mut run, None)?.context("the run has no goal")?;
        ensure!(status.success(), "the run failed ({status}): see the error above");
        Ok(())
    }

    /// Returns the dead letters, as the command `ordain dead list` prints them.
    pub(crate) fn dead_letters(&self) -> Result<Vec<Value>> {
        let mut command = self.command();
        command.args(["dead", "list", "orders", "--json", "--limit", LETTER_LIMIT]);
        let output = command.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the command `dead list` failed: {}", output.status);
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
    }

    /// Returns a command of the host in the demo's folder. The demo contains invalid events on purpose. The log level
    /// `error` suppresses the warnings about the dead letters of these events.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(self.folder.path()).args(["--log", "error"]).stdin(Stdio::null());
        command.env("TMPDIR", self.folder.scratch());
        command
    }

    fn start(&self) -> Result<RunningHost> {
        let mut command = self.command();
        // With `--json`, the report goes to standard output, which the demo ignores. In a process group of its own, the
        // host does not receive the signal with which a user interrupts the demo in a terminal.
        command.args(["run", "--once", "--json"]).stdout(Stdio::null()).process_group(0);
        let child = command.spawn();
        child.map(RunningHost).with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// Waits until the sink file has `goal` receipts, or the host ends. Returns the status if the host has ended.
    fn watch(&mut self, run: &mut RunningHost, goal: Option<u64>) -> Result<Option<ExitStatus>> {
        let mut written = self.counter.count()?;
        let mut grown_at = Instant::now();
        loop {
            check_stop(self.stop)?;
            let now = self.counter.count()?;
            if now != written {
                written = now;
                grown_at = Instant::now();
                self.bar.set_position(written);
            }
            if goal.is_some_and(|goal| written >= goal) {
                return Ok(None);
            }
            if let Some(status) = run.0.try_wait()? {
                return Ok(Some(status));
            }
            ensure!(
                grown_at.elapsed() < GROWTH_TIMEOUT,
                "the run hangs: its {written} receipts have not grown in {GROWTH_TIMEOUT:?}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A running host, which is killed when this value is dropped.
struct RunningHost(Child);

impl RunningHost {
    /// Kills the process with SIGKILL, and waits for its end. Returns an error if the process had already ended.
    fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        let status = self.0.wait()?;
        ensure!(
            status.code().is_none(),
            "the run ended ({status}) before the demo killed it: use a larger number for --events"
        );
        Ok(())
    }
}

impl Drop for RunningHost {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
