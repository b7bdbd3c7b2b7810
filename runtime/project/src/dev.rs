//! `ordain dev`: builds the handlers of a project, runs them over events, and prints the outcome of each event. Repeats
//! this after each change of the project.

use std::fs::{self, File};
use std::io::{self, BufRead, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use ordain_config::LoadedConfig;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::build_command::{BuildOutput, build};
use crate::error::{ProjectError, of_file};
use crate::file_watch::{FileWatch, fingerprint};
use crate::printer::{Colour, Printer, indented};
use crate::record::{EventRecord, RecordedOutcome, Recorder};
use crate::sandbox::{Delays, Feed, Sandbox};
use crate::session::{self, FinishedRun, Notice, notices};

/// The request to run a project for development.
#[derive(Debug)]
pub struct DevRun {
    /// The configuration of the project.
    pub config: PathBuf,
    /// The events.
    pub events: EventInput,
    /// The folder of the store and of other temporary files.
    pub state: PathBuf,
    /// If true, builds and runs once, and then ends.
    pub once: bool,
    /// If true, keeps the store of an earlier command, and of earlier builds.
    pub keep: bool,
    /// The form of the output.
    pub printer: Printer,
}

/// The origin of the events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventInput {
    /// The setting `dev.events`; standard input if the configuration has no such setting.
    Configured,
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// Requests to this address.
    Http(SocketAddr),
}

/// A build that succeeded.
struct Built {
    project: LoadedConfig,
    /// The fingerprint of the watched files before the build.
    code: u64,
    duration: Duration,
}

/// The number of executions of a run, by their outcome.
#[derive(Debug, Default)]
struct Totals {
    applied: usize,
    rejected: usize,
    retries: usize,
    faults: usize,
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

impl DevRun {
    /// Runs the project. With `once`, returns whether no handler had a fault. Otherwise runs until the future is
    /// dropped.
    pub async fn run(&self) -> Result<bool, ProjectError> {
        let sandbox = Sandbox::create(&self.state, self.keep)?;
        let mut input = self.events.clone();
        if input == EventInput::Configured {
            let dev = LoadedConfig::load(&self.config)?.config.dev;
            let file = dev.and_then(|dev| dev.events);
            input = file.map_or(EventInput::Stdin, |file| EventInput::File(file.0));
        }
        if self.once {
            let built = self.build(&sandbox).await?;
            if input == EventInput::Stdin {
                copy_stdin(&sandbox.events())?;
            }
            let (_running, shutdown) = watch::channel(false);
            let totals = self.run_build(&built, &input, &sandbox, shutdown).await?;
            return Ok(totals.faults == 0);
        }
        if input == EventInput::Stdin {
            let events = sandbox.events();
            fs::write(&events, "").map_err(of_file(&events))?;
            std::thread::spawn(move || copy_stdin(&events));
        }
        let mut built = self.next_build(None, &input, &sandbox).await?;
        loop {
            built = self.run_until_change(built, &input, &sandbox).await?;
        }
    }

    /// Runs a build until the next build has succeeded, or until the events have changed.
    async fn run_until_change(
        &self,
        built: Built,
        input: &EventInput,
        sandbox: &Sandbox,
    ) -> Result<Built, ProjectError> {
        let (stop, shutdown) = watch::channel(false);
        let mut next = pin!(self.next_build(Some(&built), input, sandbox));
        let mut run = pin!(self.run_build(&built, input, sandbox, shutdown));
        tokio::select! {
            next = &mut next => {
                stop.send_replace(true);
                if let Err(error) = run.await {
                    self.print_error(&error)?;
                }
                next
            }
            result = &mut run => {
                if let Err(error) = result {
                    self.print_error(&error)?;
                }
                next.await
            }
        }
    }

    /// Waits until the project differs from `last`, and builds it. If only the events have changed, builds nothing.
    /// Prints the error of a failed build, and waits for the next change. Without `last`, builds at once.
    async fn next_build(
        &self,
        last: Option<&Built>,
        input: &EventInput,
        sandbox: &Sandbox,
    ) -> Result<Built, ProjectError> {
        let mut known = last.map(|built| built.code);
        let mut project = last.map(|built| built.project.clone());
        let events: Vec<PathBuf> = match input {
            EventInput::File(path) => vec![path.clone()],
            _ => Vec::new(),
        };
        let fed = fingerprint(&events);
        loop {
            let code_paths = self.code_paths(project.as_ref());
            let mut watch = FileWatch::start(&[&code_paths[..], &events].concat())?;
            while known.is_some_and(|known| known == fingerprint(&code_paths)) {
                if let Some(last) = last.filter(|last| known == Some(last.code))
                    && fingerprint(&events) != fed
                {
                    let (project, code) = (last.project.clone(), last.code);
                    return Ok(Built { project, code, duration: Duration::ZERO });
                }
                watch.changed().await;
            }
            // The configuration may name other files to watch.
            project = LoadedConfig::load(&self.config).ok().or(project);
            known = Some(fingerprint(&self.code_paths(project.as_ref())));
            match self.build(sandbox).await {
                Ok(built) => return Ok(built),
                Err(error) => self.print_error(&error)?,
            }
        }
    }

    /// Returns the configuration, and the watched files and folders.
    fn code_paths(&self, project: Option<&LoadedConfig>) -> Vec<PathBuf> {
        let dev = project.and_then(|project| project.config.dev.as_ref());
        let watched = dev.map(|dev| dev.watch.iter().map(|path| path.0.clone()));
        std::iter::once(self.config.clone()).chain(watched.into_iter().flatten()).collect()
    }

    /// Loads the configuration, runs the build command, and copies the handlers.
    async fn build(&self, sandbox: &Sandbox) -> Result<Built, ProjectError> {
        let project = LoadedConfig::load(&self.config)?;
        let code = fingerprint(&self.code_paths(Some(&project)));
        let started = Instant::now();
        if !self.printer.is_json() {
            self.printer.text(&self.printer.paint(Colour::Dim, "building\n"))?;
        }
        let log = sandbox.build_log();
        let is_json = self.printer.is_json();
        let output = if is_json { BuildOutput::File(&log) } else { BuildOutput::Stderr };
        build(&project, output).await?;
        Ok(Built { project, code, duration: started.elapsed() })
    }

    /// Runs the handlers of a build, and prints the outcomes.
    async fn run_build(
        &self,
        built: &Built,
        input: &EventInput,
        sandbox: &Sandbox,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Totals, ProjectError> {
        let started = Instant::now();
        let Built { project, duration, .. } = built;
        sandbox.copy_handlers(project)?;
        let is_live = matches!(input, EventInput::Http(_));
        if !self.keep && !is_live {
            // Every key begins anew, so that the outcomes of two builds can be compared.
            sandbox.clear()?;
        }
        if let EventInput::File(path) = input {
            fs::copy(path, sandbox.events()).map_err(of_file(path))?;
        }
        let once = self.once || matches!(input, EventInput::File(_));
        let feed = match input {
            EventInput::Http(address) => Feed::Http(*address),
            _ => Feed::File,
        };
        let delays = if once { Delays::ShortGaps } else { Delays::Configured };
        let loaded = sandbox.configure(project, feed, delays)?;
        let (recorder, mut records) = Recorder::new();
        let (sender, mut noticed) = mpsc::unbounded_channel();
        let mut run = pin!(session::run(&loaded, once, &recorder, shutdown, &sender));
        let mut totals = Totals::default();
        let finished = loop {
            tokio::select! {
                biased;
                Some(record) = records.recv() => {
                    totals.add(&record);
                    self.printer.record(&record)?;
                }
                Some(notice) = noticed.recv() => self.print_notice(&notice)?,
                finished = &mut run => break finished?,
            }
        };
        while let Ok(record) = records.try_recv() {
            totals.add(&record);
            self.printer.record(&record)?;
        }
        if once {
            self.print_end(&finished, &totals, *duration, started.elapsed())?;
        }
        Ok(totals)
    }

    fn print_notice(&self, notice: &Notice) -> io::Result<()> {
        let Notice { stream, key, text } = notice;
        if self.printer.is_json() {
            return self.printer.json(&json!({ "stream": stream, "key": key, "notice": text }));
        }
        let slash = if key.is_empty() { "" } else { "/" };
        let line = format!("{stream}{slash}{key}: {text}\n");
        self.printer.text(&self.printer.paint(Colour::Yellow, &line))
    }

    /// Prints the events that no handler executed, and the totals of a run.
    fn print_end(
        &self,
        finished: &FinishedRun,
        totals: &Totals,
        build: Duration,
        run: Duration,
    ) -> io::Result<()> {
        for notice in notices(&finished.letters, &finished.blocked) {
            self.print_notice(&notice)?;
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
            [(*retries as u64, "retries"), (*faults as u64, "faults"), (repeats, "repeats")]
        {
            if number > 0 {
                text += &format!(", {number} {what}");
            }
        }
        let (build, run) = (build.as_secs_f64(), run.as_secs_f64());
        text += &format!("; built in {build:.2} s, ran in {run:.2} s\n");
        let colour = if *faults == 0 { Colour::Green } else { Colour::Red };
        self.printer.text(&self.printer.paint(colour, &text))
    }

    /// Prints an error that a change of the project can correct.
    fn print_error(&self, error: &ProjectError) -> io::Result<()> {
        let text = format!("{error}");
        if self.printer.is_json() {
            let output = match error {
                ProjectError::Build { output, .. } => Some(output),
                _ => None,
            };
            return self.printer.json(&json!({ "error": text, "output": output }));
        }
        let text = self.printer.paint(Colour::Red, &format!("error: {text}\n"));
        self.printer.text(&(text + &indented("waiting for a change\n")))
    }
}

/// Appends standard input to a file, line by line, up to the end of standard input.
fn copy_stdin(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    for line in io::stdin().lock().split(b'\n') {
        let mut line = line?;
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(())
}

/// Returns the folder of the temporary files of a command in a project.
pub fn state_folder(config: &Path, command: &str) -> PathBuf {
    let folder = match config.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    folder.join("target").join(format!("ordain-{command}"))
}
