//! Prints the outcomes and the notices of a run as they arrive, and counts the outcomes.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;

use crate::printer::{Colour, Printer};
use crate::record::{EventRecord, RecordedOutcome};
use crate::session::{FinishedRun, Notice, notices};

/// The number of executions of a run, by their outcome.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) applied: usize,
    pub(crate) rejected: usize,
    pub(crate) retries: usize,
    pub(crate) faults: usize,
}

impl Totals {
    fn add(&mut self, record: &EventRecord) {
        *match &record.outcome {
            RecordedOutcome::Applied { .. } => &mut self.applied,
            RecordedOutcome::Rejected(_) => &mut self.rejected,
            RecordedOutcome::Failed(_) if record.is_fault() => &mut self.faults,
            RecordedOutcome::Failed(_) => &mut self.retries,
        } += 1;
    }
}

/// The output of a run. The worker that executed an event prints its outcome, and executes the next event afterwards.
/// Outcomes therefore need no queue: if the output is slow, the handlers wait.
pub(crate) struct RunOutput {
    printer: Printer,
    totals: Mutex<Totals>,
    /// The last failure to print an outcome.
    failure: Mutex<Option<io::Error>>,
    failed: Notify,
}

impl RunOutput {
    pub(crate) fn new(printer: Printer) -> Self {
        Self { printer, totals: Mutex::default(), failure: Mutex::default(), failed: Notify::new() }
    }

    /// Counts and prints an execution.
    pub(crate) fn record(&self, record: &EventRecord) {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).add(record);
        if let Err(error) = self.printer.record(record) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            self.failed.notify_one();
        }
    }

    /// Waits until an outcome could not be printed.
    pub(crate) async fn failure(&self) -> io::Error {
        loop {
            if let Some(error) = self.take_failure() {
                return error;
            }
            self.failed.notified().await;
        }
    }

    fn take_failure(&self) -> Option<io::Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the totals of a run that has ended.
    pub(crate) fn totals(&self) -> io::Result<Totals> {
        match self.take_failure() {
            Some(error) => Err(error),
            None => Ok(*self.totals.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(crate) fn notice(&self, notice: &Notice) -> io::Result<()> {
        let Notice { stream, key, text } = notice;
        if self.printer.is_json() {
            return self.printer.json(&json!({ "stream": stream, "key": key, "notice": text }));
        }
        let slash = if key.is_empty() { "" } else { "/" };
        let line = format!("{stream}{slash}{key}: {text}\n");
        self.printer.text(&self.printer.paint(Colour::Yellow, &line))
    }

    /// Prints the events that no handler executed, and the totals of a run.
    pub(crate) fn end(
        &self,
        finished: &FinishedRun,
        totals: Totals,
        build: Duration,
        run: Duration,
    ) -> io::Result<()> {
        for notice in notices(&finished.letters, &finished.blocked) {
            self.notice(&notice)?;
        }
        let Totals { applied, rejected, retries, faults } = totals;
        let repeats = finished.report.stats.duplicates;
        if self.printer.is_json() {
            return self.printer.json(&json!({
                "applied": applied,
                "rejected": rejected,
                "retries": retries,
                "faults": faults,
                "repeats": repeats,
                "build_ms": build.as_millis() as u64,
                "run_ms": run.as_millis() as u64,
            }));
        }
        let mut text = format!("{applied} applied, {rejected} rejected");
        for (number, what) in
            [(retries as u64, "retries"), (faults as u64, "faults"), (repeats, "repeats")]
        {
            if number > 0 {
                text += &format!(", {number} {what}");
            }
        }
        let (build, run) = (build.as_secs_f64(), run.as_secs_f64());
        text += &format!("; built in {build:.2} s, ran in {run:.2} s\n");
        let colour = if faults == 0 { Colour::Green } else { Colour::Red };
        self.printer.text(&self.printer.paint(colour, &text))
    }
}
