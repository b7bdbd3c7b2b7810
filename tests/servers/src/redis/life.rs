//! Starts, pauses, stops and kills the process of a server. This module never touches files that the server has
//! written.

use std::fs;
use std::io;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Process, find};
use crate::redis::options::Kind;
use crate::redis::{CONFIG, Redis};
use crate::wait::wait_until;

impl Redis {
    /// Starts the process and waits until the server replies.
    pub(crate) fn launch(&self) -> Result<()> {
        let mut args = vec![CONFIG];
        args.extend((self.options.kind() == Kind::Sentinel).then_some("--sentinel"));
        let program = find("redis-server")?;
        let env = self.options.env();
        let process = Process::start(&program, &args, env, self.folder.path(), &self.log_file())?;
        let id = process.id().to_string();
        self.process.set(process);
        wait_until("a reply of redis-server", || {
            if let Some(Some(status)) = self.process.ended().transpose()? {
                bail!("redis-server ended ({status})");
            }
            // A command fails while the server does not listen yet, or still loads its data. The check compares process
            // ids, because another server may listen on the port.
            Ok(self.command(&["PING"]).is_ok()
                && self.info("server").is_ok_and(|info| info.get("process_id") == Some(&id)))
        })
        .with_context(|| format!("the server's log ends:\n{}", self.log_tail()))
    }

    /// Returns whether the process is running or paused.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Ends the process immediately by SIGKILL. Does nothing if the process is not running.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Ends the process cleanly by SIGTERM, and waits for its end.
    pub fn stop(&self) -> Result<()> {
        let status = self.process.stop()?;
        ensure!(status.success(), "redis-server ended with {status}:\n{}", self.log_tail());
        Ok(())
    }

    /// Starts the server in the same folder on the same port, and waits until it has loaded its data. If the process is
    /// running, kills it first.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        self.launch()
    }

    /// Makes the next writes of the server to its append-only file fail, like writes to a full disk. Other files of the
    /// server are smaller, and can grow to the present size of that file. [`Self::free_disk`] or a restart ends the
    /// effect.
    pub fn fill_disk(&self) -> Result<()> {
        let files = fs::read_dir(self.data().join("appendonlydir"))?;
        let sizes = files.map(|file| Ok(file?.metadata()?.len()));
        let sizes: Vec<u64> = sizes.collect::<io::Result<_>>()?;
        let largest = sizes.into_iter().max().context("the server has no append-only file")?;
        self.limit_files(&largest.to_string())
    }

    /// Makes writes succeed again after [`Self::fill_disk`].
    pub fn free_disk(&self) -> Result<()> {
        self.limit_files("unlimited")
    }

    /// Limits the size of each file of the process. `bytes` may be `unlimited`.
    fn limit_files(&self, bytes: &str) -> Result<()> {
        let id = self.process.id().context("the server is not running")?.to_string();
        let limit = format!("--fsize={bytes}:");
        let status = Command::new("prlimit").args(["--pid", &id, &limit]).status()?;
        ensure!(status.success(), "`prlimit --pid {id} {limit}` failed");
        Ok(())
    }

    /// Pauses the server by SIGSTOP: the system still accepts connections, but the server does not reply.
    pub fn pause(&self) -> Result<()> {
        self.process.set_paused(true)
    }

    /// Resumes the server by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.set_paused(false)
    }

    /// Waits until this replica has all writes of its master, pauses the replica, and closes its link to the master.
    /// The replica then receives no later write until it is resumed.
    pub(crate) fn fall_behind(&self, master: &Self) -> Result<()> {
        self.until_caught_up(master)?;
        self.pause()?;
        master.command(&["CLIENT", "KILL", "TYPE", "replica"]).map(drop)
    }

    /// Waits until this replica has all writes that its master has now.
    pub(crate) fn until_caught_up(&self, master: &Self) -> Result<()> {
        let offset = |server: &Self, name: &str| -> Result<u64> {
            Ok(server.info("replication")?.get(name).context("an offset")?.parse()?)
        };
        let written = offset(master, "master_repl_offset")?;
        wait_until("a replica that has all writes of its master", || {
            Ok(offset(self, "slave_repl_offset")? >= written)
        })
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.process.is_paused()
    }

    /// Runs `work` while the server is paused or down. Pauses a running server, and resumes it afterwards.
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
