//! The process of a server. A test can start, pause, stop and kill the process while other threads use the server.

use std::fs;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::process::Process;
use crate::wait::wait_until;

/// Empty before the first start, and after [`Self::kill`] or [`Self::stop`]. Dropping the value kills the process.
#[derive(Debug, Default)]
pub(crate) struct ServerProcess(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    process: Option<Process>,
    paused: bool,
}

impl ServerProcess {
    pub(crate) fn set(&self, process: Process) {
        *self.state() = State { process: Some(process), paused: false };
    }

    /// Returns whether the process is running or paused.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.ended(), Some(Ok(None)))
    }

    /// `Ok(None)` while the process is running; `None` before the first start, and after [`Self::kill`] or
    /// [`Self::stop`].
    pub(crate) fn ended(&self) -> Option<Result<Option<ExitStatus>>> {
        Some(self.state().process.as_mut()?.ended())
    }

    /// Returns the id of the process, or `None` before the first start, and after [`Self::kill`] or [`Self::stop`].
    pub(crate) fn id(&self) -> Option<u32> {
        self.state().process.as_ref().map(Process::id)
    }

    /// Ends the process immediately by SIGKILL. Does nothing if the process is not running.
    pub(crate) fn kill(&self) -> Result<()> {
        let mut state = self.state();
        state.paused = false;
        state.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Ends the process cleanly by SIGTERM, and waits for its end.
    pub(crate) fn stop(&self) -> Result<ExitStatus> {
        let mut state = self.state();
        let mut process = state.process.take().context("the server is not running")?;
        if std::mem::take(&mut state.paused) {
            process.signal("CONT")?;
        }
        process.signal("TERM")?;
        process.wait()
    }

    /// Pauses the process by SIGSTOP, or resumes it by SIGCONT. While the process is paused, the system still accepts
    /// connections, but the server does not reply.
    pub(crate) fn set_paused(&self, paused: bool) -> Result<()> {
        let mut state = self.state();
        let process = state.process.as_mut().context("the server is not running")?;
        process.signal(if paused { "STOP" } else { "CONT" })?;
        if paused {
            // A thread of the process may still run for a moment after the signal.
            wait_until("a paused process", || Ok(all_threads_stopped(process.id())))?;
        }
        state.paused = paused;
        Ok(())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state().paused
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panics must still be able to end its servers, so a poisoned lock is no error.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether every thread of a process is stopped.
pub fn all_threads_stopped(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name of the thread, which is in parentheses and may contain any characters.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
