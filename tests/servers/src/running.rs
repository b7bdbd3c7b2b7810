//! The process of a server, which a test starts, pauses, stops and kills while others talk to it.

use std::fs;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::process::Process;
use crate::wait::wait_until;

/// A process, or none. Dropping it kills it.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    process: Option<Process>,
    paused: bool,
}

impl Running {
    /// From now on it is this one.
    pub(crate) fn set(&self, process: Process) {
        *self.state() = State { process: Some(process), paused: false };
    }

    /// Whether it runs, or stands still.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.ended(), Some(Ok(None)))
    }

    /// How it ended by itself, where it was started.
    pub(crate) fn ended(&self) -> Option<Result<Option<ExitStatus>>> {
        Some(self.state().process.as_mut()?.ended())
    }

    /// The id of the process, where it was started.
    pub(crate) fn id(&self) -> Option<u32> {
        self.state().process.as_ref().map(Process::id)
    }

    /// Ends it at once by SIGKILL. Nothing where it does not run.
    pub(crate) fn kill(&self) -> Result<()> {
        let mut state = self.state();
        state.paused = false;
        state.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Ends it in order by SIGTERM, and waits for that.
    pub(crate) fn stop(&self) -> Result<ExitStatus> {
        let mut state = self.state();
        let mut process = state.process.take().context("the server does not run")?;
        if std::mem::take(&mut state.paused) {
            process.signal("CONT")?;
        }
        process.signal("TERM")?;
        process.wait()
    }

    /// Lets it stand still by SIGSTOP, where connections are accepted by the system and nothing
    /// answers, or go on by SIGCONT.
    pub(crate) fn set_paused(&self, paused: bool) -> Result<()> {
        let mut state = self.state();
        let process = state.process.as_mut().context("the server does not run")?;
        process.signal(if paused { "STOP" } else { "CONT" })?;
        if paused {
            // The signal is sent, and a thread may still be about to take it.
            wait_until("a process that stands still", || Ok(stands_still(process.id())))?;
        }
        state.paused = paused;
        Ok(())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state().paused
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that has failed still ends its servers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether every thread of a process is stopped.
pub fn stands_still(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is behind the name, which is in parentheses and may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
