//! The life of a server's process: started, paused, stopped, killed. It never touches what the
//! server has written.

use std::fs;
use std::io;
use std::sync::{MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Process, find};
use crate::redis::options::Kind;
use crate::redis::{CONFIG, Redis};
use crate::wait::wait_until;

#[derive(Debug, Default)]
pub(crate) struct Running {
    process: Option<Process>,
    paused: bool,
}

impl Redis {
    /// Starts the process and waits until it answers.
    pub(crate) fn launch(&self) -> Result<()> {
        let mut args = vec![CONFIG];
        args.extend((self.options.kind() == Kind::Sentinel).then_some("--sentinel"));
        let program = find("redis-server")?;
        let process = Process::start(&program, &args, self.folder.path(), &self.log_file())?;
        let id = process.id().to_string();
        *self.running() = Running { process: Some(process), paused: false };
        wait_until("an answer of redis-server", || {
            if let Some(process) = &mut self.running().process
                && let Some(status) = process.ended()?
            {
                bail!("redis-server ended ({status})");
            }
            // Not there yet, or still loading. The id, as somebody else may listen there.
            Ok(self.command(&["PING"]).is_ok()
                && self.info("server").is_ok_and(|info| info.get("process_id") == Some(&id)))
        })
        .with_context(|| format!("its log ends:\n{}", self.log_tail()))
    }

    /// Whether it runs, or stands still.
    pub fn is_running(&self) -> bool {
        let mut running = self.running();
        running.process.as_mut().is_some_and(|process| matches!(process.ended(), Ok(None)))
    }

    /// Ends it at once by SIGKILL. Nothing where it does not run.
    pub fn kill(&self) -> Result<()> {
        let mut running = self.running();
        running.paused = false;
        running.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Ends it in order by SIGTERM, and waits for that.
    pub fn stop(&self) -> Result<()> {
        let mut running = self.running();
        let mut process = running.process.take().context("the server does not run")?;
        if std::mem::take(&mut running.paused) {
            process.signal("CONT")?;
        }
        process.signal("TERM")?;
        let status = process.wait()?;
        ensure!(status.success(), "it ended with {status}:\n{}", self.log_tail());
        Ok(())
    }

    /// Starts it in the same folder on the same port, and waits until it has loaded its data. One
    /// that runs is killed before.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        self.launch()
    }

    /// Lets it stand still by SIGSTOP: connections are accepted by the system, and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.set_paused(true)
    }

    /// Lets it go on by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.set_paused(false)
    }

    fn set_paused(&self, paused: bool) -> Result<()> {
        let mut running = self.running();
        let process = running.process.as_mut().context("the server does not run")?;
        process.signal(if paused { "STOP" } else { "CONT" })?;
        if paused {
            // The signal is sent, and a thread may still be about to take it.
            wait_until("a process that stands still", || Ok(stands_still(process.id())))?;
        }
        running.paused = paused;
        Ok(())
    }

    /// Does something while the server does nothing.
    pub(crate) fn still<T>(&self, work: impl FnOnce() -> io::Result<T>) -> Result<T> {
        let pause = self.is_running() && !self.running().paused;
        if pause {
            self.pause()?;
        }
        let result = work();
        if pause {
            self.resume()?;
        }
        Ok(result?)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // A test that has failed still ends its servers.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether every thread of a process is stopped.
fn stands_still(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is behind the name, which is in parentheses and may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
