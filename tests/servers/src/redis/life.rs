//! The life of a server's process: started, paused, stopped, killed. It never touches what the
//! server has written.

use std::io;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Process, find};
use crate::redis::options::Kind;
use crate::redis::{CONFIG, Redis};
use crate::wait::wait_until;

impl Redis {
    /// Starts the process and waits until it answers.
    pub(crate) fn launch(&self) -> Result<()> {
        let mut args = vec![CONFIG];
        args.extend((self.options.kind() == Kind::Sentinel).then_some("--sentinel"));
        let program = find("redis-server")?;
        let process = Process::start(&program, &args, &[], self.folder.path(), &self.log_file())?;
        let id = process.id().to_string();
        self.process.set(process);
        wait_until("an answer of redis-server", || {
            if let Some(Some(status)) = self.process.ended().transpose()? {
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
        self.process.is_running()
    }

    /// Ends it at once by SIGKILL. Nothing where it does not run.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it in order by SIGTERM, and waits for that.
    pub fn stop(&self) -> Result<()> {
        let status = self.process.stop()?;
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
        self.process.set_paused(true)
    }

    /// Lets it go on by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.set_paused(false)
    }

    /// Stops this replica when it is in step with its master, and cuts it off: it receives none of the later writes.
    pub(crate) fn fall_behind(&self, master: &Self) -> Result<()> {
        let offset = |server: &Self, name: &str| -> Result<u64> {
            Ok(server.info("replication")?.get(name).context("an offset")?.parse()?)
        };
        let written = offset(master, "master_repl_offset")?;
        wait_until("a replica in step", || Ok(offset(self, "slave_repl_offset")? >= written))?;
        self.pause()?;
        master.command(&["CLIENT", "KILL", "TYPE", "replica"]).map(drop)
    }

    /// Does something while the server does nothing.
    pub(crate) fn still<T>(&self, work: impl FnOnce() -> io::Result<T>) -> Result<T> {
        let pause = self.is_running() && !self.process.is_paused();
        if pause {
            self.pause()?;
        }
        let result = work();
        if pause {
            self.resume()?;
        }
        Ok(result?)
    }
}
