//! `ordain test`: runs the scripted tests of a project, each with its own store.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ordain_cloudevents::EventDecoder;
use ordain_config::{LoadedConfig, StreamConfig};
use ordain_core::{Event, LetterContent};
use ordain_store::{StoredKey, StoredLetter};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::build_command::{BuildOutput, build};
use crate::error::{ProjectError, of_file};
use crate::printer::{Colour, Printer, indented};
use crate::record::{EventRecord, Recorder};
use crate::sandbox::{Delays, Feed, Sandbox};
use crate::script::{Script, Step, compare};
use crate::session::{self, FinishedRun, blocked_reason};

/// The request to run the scripted tests of a project.
#[derive(Debug)]
pub struct TestRun<'a> {
    /// The configuration of the project.
    pub project: &'a LoadedConfig,
    /// The files to run. If this list is empty, all files in the folder of tests.
    pub files: Vec<PathBuf>,
    /// The folder of the store and of other temporary files.
    pub state: PathBuf,
    /// If true, replaces each expectation that is not met, and adds the missing expectations.
    pub update: bool,
    /// If true, runs the build command first.
    pub builds: bool,
    /// The form of the output.
    pub printer: Printer,
}

/// The number of events of scripted tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct TestTotals {
    /// The events whose outcome met the expectation.
    pub passed: usize,
    /// The events whose outcome did not meet the expectation.
    pub failed: usize,
    /// The events without an expectation.
    pub unchecked: usize,
    /// The expectations that were written.
    pub updated: usize,
}

/// The outcome of the event of a step, as the members of an expectation.
struct StepOutcome {
    outcome: Map<String, Value>,
    record: Option<EventRecord>,
    /// The part of the outcome that differs from the expectation; `None` if the expectation is met.
    difference: Option<Value>,
}

impl TestRun<'_> {
    /// Runs the tests.
    pub async fn run(&self) -> Result<TestTotals, ProjectError> {
        let scripts = self.scripts()?;
        let sandbox = Sandbox::create(&self.state, false)?;
        if self.builds {
            let log = sandbox.build_log();
            let is_json = self.printer.is_json();
            let output = if is_json { BuildOutput::File(&log) } else { BuildOutput::Stderr };
            build(self.project, output).await?;
        }
        sandbox.copy_handlers(self.project)?;
        let mut totals = TestTotals::default();
        for script in &scripts {
            self.run_script(script, &sandbox, &mut totals).await?;
        }
        self.print_totals(totals)?;
        Ok(totals)
    }

    /// Returns the stream that receives the events.
    fn stream(&self) -> Result<&str, ProjectError> {
        let name = self.project.config.dev_stream();
        Ok(name.map_err(|message| self.project.setting_error("dev.stream", message))?)
    }

    /// Reads all scripts before the first runs, so that an invalid script is reported early.
    fn scripts(&self) -> Result<Vec<Script>, ProjectError> {
        let paths = if self.files.is_empty() { self.script_files()? } else { self.files.clone() };
        let read =
            |path: &PathBuf| Script::parse(path, &fs::read_to_string(path).map_err(of_file(path))?);
        paths.iter().map(read).collect()
    }

    fn script_files(&self) -> Result<Vec<PathBuf>, ProjectError> {
        let dev = self.project.config.dev.as_ref();
        let folder = dev.map_or_else(
            || self.project.file.with_file_name("tests"),
            |dev| dev.tests.to_path_buf(),
        );
        let entries = fs::read_dir(&folder).map_err(of_file(&folder))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(of_file(&folder))?.path();
            if path.extension().is_some_and(|extension| extension == "ndjson") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() { Err(ProjectError::NoTests(folder)) } else { Ok(paths) }
    }

    async fn run_script(
        &self,
        script: &Script,
        sandbox: &Sandbox,
        totals: &mut TestTotals,
    ) -> Result<(), ProjectError> {
        sandbox.clear()?;
        let store = sandbox.open_store()?;
        let events = sandbox.events();
        fs::write(&events, script.events()).map_err(of_file(&events))?;
        let loaded = sandbox.configure(self.project, Feed::File, Delays::Short)?;
        let stream = self.stream()?.to_owned();
        // The script limits the number of records: one for each attempt of each of its events.
        let records = Arc::<Mutex<Vec<EventRecord>>>::default();
        let recorder = {
            let (records, stream) = (Arc::clone(&records), stream.clone());
            Recorder::new(move |record| {
                if record.stream == stream {
                    records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
                }
            })
        };
        let (_running, shutdown) = watch::channel(false);
        let finished = session::run(&loaded, store, true, &recorder, shutdown, &|_| Ok(())).await?;
        let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
        let outcomes = Matcher::new(&loaded, &stream, records, finished).outcomes(&script.steps);
        for (step, outcome) in script.steps.iter().zip(&outcomes) {
            self.count(script, step, outcome, totals)?;
        }
        if self.update {
            let is_written = |index: usize| {
                let StepOutcome { outcome, difference, .. } = &outcomes[index];
                let is_new = script.steps[index].expected.is_none() || difference.is_some();
                is_new.then(|| outcome.clone())
            };
            let text = script.updated(is_written);
            fs::write(&script.path, text).map_err(of_file(&script.path))?;
        }
        Ok(())
    }

    /// Counts and prints the outcome of one event.
    fn count(
        &self,
        script: &Script,
        step: &Step,
        outcome: &StepOutcome,
        totals: &mut TestTotals,
    ) -> Result<(), ProjectError> {
        let is_fault = outcome.record.as_ref().is_some_and(EventRecord::is_fault);
        let status = match (&step.expected, &outcome.difference) {
            (Some(_), None) => "passed",
            _ if self.update => "updated",
            (Some(_), Some(_)) => "failed",
            // A fault is never right unless the test expects it.
            (None, _) if is_fault => "failed",
            (None, _) => "unchecked",
        };
        *match status {
            "passed" => &mut totals.passed,
            "updated" => &mut totals.updated,
            "failed" => &mut totals.failed,
            _ => &mut totals.unchecked,
        } += 1;
        let printer = self.printer;
        if printer.is_json() {
            let record = outcome.record.as_ref();
            printer.json(&json!({
                "file": script.path.display().to_string(),
                "line": step.line,
                "status": status,
                "expected": step.expected.as_ref().map(|expected| &expected.members),
                "actual": outcome.outcome,
                "execution": record.map(EventRecord::json),
            }))?;
        } else if status == "failed" {
            printer.text(&self.failure(script, step, outcome))?;
        }
        Ok(())
    }

    /// Returns the description of an event that failed its test.
    fn failure(&self, script: &Script, step: &Step, outcome: &StepOutcome) -> String {
        let line = step.expected.as_ref().map_or(step.line, |expected| expected.line);
        let place = format!("{}:{line}", display_path(&script.path));
        let event = match &outcome.record {
            Some(record) => {
                let event = &record.event;
                format!("{} of {} (sequence {})", event.kind(), event.key(), record.sequence)
            }
            None => "the event".to_owned(),
        };
        let printer = self.printer;
        let mut text = format!("{}: {}\n", printer.paint(Colour::Bold, &place), event);
        let actual = outcome.difference.clone();
        let actual = actual.unwrap_or_else(|| outcome.outcome.clone().into());
        text += &match &step.expected {
            Some(expected) => {
                let expected = format!("{:#}", Value::Object(expected.members.clone()));
                indented(&printer.diff(&expected, &format!("{actual:#}")))
            }
            None => indented(
                &printer.paint(Colour::Red, &format!("without an expectation: {actual:#}")),
            ),
        };
        for line in outcome.record.iter().flat_map(|record| &record.log) {
            text +=
                &indented(&printer.paint(Colour::Dim, &format!("{} {}", line.level, line.text)));
        }
        text
    }

    fn print_totals(&self, totals: TestTotals) -> Result<(), ProjectError> {
        let TestTotals { passed, failed, unchecked, updated } = totals;
        let printer = self.printer;
        if printer.is_json() {
            printer.json(&json!({
                "passed": passed, "failed": failed, "unchecked": unchecked, "updated": updated,
            }))?;
            return Ok(());
        }
        let mut text = format!("{passed} passed, {failed} failed");
        for (number, what) in [(unchecked, "without an expectation"), (updated, "updated")] {
            if number > 0 {
                text += &format!(", {number} {what}");
            }
        }
        let colour = if failed == 0 { Colour::Green } else { Colour::Red };
        printer.text(&(printer.paint(colour, &text) + "\n"))?;
        Ok(())
    }
}

/// Returns a path relative to the present folder, if the path is in this folder.
fn display_path(path: &Path) -> String {
    let present = std::env::current_dir().unwrap_or_default();
    let path = path.strip_prefix(present).unwrap_or(path);
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}

/// A finished run of a script, in which the command finds the outcome of each event.
struct Matcher<'a> {
    stream: &'a StreamConfig,
    decoder: EventDecoder,
    records: Vec<EventRecord>,
    letters: Vec<StoredLetter>,
    blocked: Vec<(String, String)>,
}

impl<'a> Matcher<'a> {
    fn new(
        loaded: &'a LoadedConfig,
        name: &str,
        records: Vec<EventRecord>,
        finished: FinishedRun,
    ) -> Self {
        let stream = &loaded.config.streams[name];
        let limit = loaded.config.runtime.event_size.bytes();
        let decoder = EventDecoder::new(stream.ordering, limit);
        let letters = finished.letters.into_iter().filter(|(stream, _)| **stream == *name);
        let blocked = finished.blocked.into_iter().filter(|(stream, _)| **stream == *name);
        let reason = |(_, key): (_, StoredKey)| Some((key.key.to_string(), blocked_reason(&key)?));
        Self {
            stream,
            decoder: decoder.with_locations(stream.source.locations()),
            records,
            letters: letters.map(|(_, letter)| letter).collect(),
            blocked: blocked.filter_map(reason).collect(),
        }
    }

    /// Returns the outcomes of the events, in the order of the script.
    fn outcomes(&self, steps: &[Step]) -> Vec<StepOutcome> {
        let mut seen: Vec<Event> = Vec::new();
        steps.iter().map(|step| self.outcome(step, &mut seen)).collect()
    }

    fn outcome(&self, step: &Step, seen: &mut Vec<Event>) -> StepOutcome {
        let (record, outcome) = match self.decoder.decode(step.event.as_bytes()) {
            Err(error) => (None, not_executed(&format!("{}: {}", error.cause, error.message))),
            Ok(event) if seen.contains(&event) => {
                (None, not_executed("repeat of an earlier event"))
            }
            Ok(event) => {
                let mut executed = self.records.iter().rev();
                // After several attempts, the last one counts.
                let record = executed.find(|record| *record.event == event).cloned();
                let outcome = match &record {
                    Some(record) => record.outcome(),
                    None => not_executed(&self.reason(&event)),
                };
                seen.push(event);
                (record, outcome)
            }
        };
        let expected = step.expected.as_ref();
        let difference = expected.and_then(|expected| compare(&expected.members, &outcome));
        StepOutcome { outcome, record, difference }
    }

    /// Returns the reason why an event was not executed.
    fn reason(&self, event: &Event) -> String {
        let is_of_event = |stored: &&StoredLetter| match &stored.letter.content {
            LetterContent::Event(found) => **found == *event,
            LetterContent::Nothing | LetterContent::Raw(_) => false,
        };
        if let Some(letter) = self.letters.iter().find(is_of_event) {
            return format!("{}: {}", letter.letter.cause, letter.letter.error);
        }
        let types = self.stream.types.as_ref();
        if !types.is_none_or(|types| types.iter().any(|pattern| pattern.matches(event.kind()))) {
            return format!("the setting `types` excludes the type {:?}", event.kind());
        }
        let blocked = self.blocked.iter().find(|(key, _)| key == event.key());
        blocked
            .map_or_else(|| "repeat of an earlier event".to_owned(), |(_, reason)| reason.clone())
    }
}

fn not_executed(reason: &str) -> Map<String, Value> {
    Map::from_iter([("not_executed".to_owned(), reason.into())])
}
