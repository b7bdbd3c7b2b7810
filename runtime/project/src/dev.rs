//! `ordain dev`: builds the handlers of a project, runs them over events, and prints the outcome of each event. Repeats
//! this after each change of the project.

use std::fs::{self, File};
use std::io::{self, BufRead, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_config::LoadedConfig;
use serde_json::json;
use tokio::sync::watch;

use crate::build_command::{BuildOutput, build};
use crate::error::{ProjectError, of_file};
use crate::file_watch::{FileWatch, fingerprint};
use crate::printer::{Colour, Printer, indented};
use crate::record::Recorder;
use crate::run_output::{RunOutput, Totals};
use crate::sandbox::{Delays, Feed, Sandbox};
use crate::session::{self, Notice, OpeningStore};

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

impl DevRun {
    /// Runs the project. With `once`, returns whether no handler had a fault. Otherwise runs until the future is
    /// dropped.
    pub async fn run(&self) -> Result<bool, ProjectError> {
        let sandbox = Sandbox::create(&self.state, self.keep)?;
        let mut store = sandbox.open_store()?;
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
            let totals = self.run_build(&built, &input, &sandbox, store, shutdown).await?;
            return Ok(totals.faults == 0);
        }
        if input == EventInput::Stdin {
            let events = sandbox.events();
            fs::write(&events, "").map_err(of_file(&events))?;
            std::thread::spawn(move || copy_stdin(&events));
        }
        let mut built = self.next_build(None, &input, &sandbox).await?;
        loop {
            (built, store) = self.run_until_change(built, store, &input, &sandbox).await?;
        }
    }

    /// Runs a build until the next build has succeeded, or until the events have changed. Returns the next build, and
    /// the store for its run.
    async fn run_until_change(
        &self,
        built: Built,
        store: OpeningStore,
        input: &EventInput,
        sandbox: &Sandbox,
    ) -> Result<(Built, OpeningStore), ProjectError> {
        let (stop, shutdown) = watch::channel(false);
        let mut next = pin!(self.next_build(Some(&built), input, sandbox));
        let mut run = pin!(self.run_build(&built, input, sandbox, store, shutdown));
        let (next_built, result) = tokio::select! {
            built = &mut next => {
                stop.send_replace(true);
                (Some(built?), run.await)
            }
            result = &mut run => (None, result),
        };
        if let Err(error) = result {
            self.print_error(&error)?;
        }
        let built = match next_built {
            Some(built) => built,
            // While this command waits for a change, other commands can inspect a kept store.
            None if self.keep => next.await?,
            None => {
                let store = self.next_store(input, sandbox)?;
                return Ok((next.await?, store));
            }
        };
        Ok((built, self.next_store(input, sandbox)?))
    }

    /// Starts to open the store of the next run. If the next run gets the same events again, every key begins anew, so
    /// that the outcomes of two builds can be compared. With events over HTTP, or with `keep`, the states of the keys
    /// remain.
    fn next_store(
        &self,
        input: &EventInput,
        sandbox: &Sandbox,
    ) -> Result<OpeningStore, ProjectError> {
        if !self.keep && !matches!(input, EventInput::Http(_)) {
            sandbox.clear()?;
        }
        sandbox.open_store()
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
        store: OpeningStore,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Totals, ProjectError> {
        let started = Instant::now();
        let once = self.once || matches!(input, EventInput::File(_));
        let loaded = Self::configure_run(&built.project, input, once, sandbox)?;
        let output = Arc::new(RunOutput::new(self.printer));
        let printed = Arc::clone(&output);
        let recorder = Recorder::new(move |record| printed.record(&record));
        let report = |notice: &Notice| output.notice(notice);
        let finished = tokio::select! {
            finished = session::run(&loaded, store, once, &recorder, shutdown, &report) => finished?,
            error = output.failure() => return Err(error.into()),
        };
        let totals = output.totals()?;
        if once {
            output.end(&finished, totals, built.duration, started.elapsed())?;
        }
        Ok(totals)
    }

    /// Copies the handlers and the events of a run, and returns its configuration.
    fn configure_run(
        project: &LoadedConfig,
        input: &EventInput,
        once: bool,
        sandbox: &Sandbox,
    ) -> Result<LoadedConfig, ProjectError> {
        sandbox.copy_handlers(project)?;
        if let EventInput::File(path) = input {
            fs::copy(path, sandbox.events()).map_err(of_file(path))?;
        }
        let feed = match input {
            EventInput::Http(address) => Feed::Http(*address),
            _ => Feed::File,
        };
        let delays = if once { Delays::ShortGaps } else { Delays::Configured };
        sandbox.configure(project, feed, delays)
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
