//! A running host. A test can send signals to the host, kill it, and wait for its end.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
pub use ordain_servers::wait_until;
use ordain_servers::{all_threads_stopped, send_signal};

use crate::host::{Home, binary};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The size of a file, in bytes, that a host cannot exceed if a test starts the host with [`Service::start_limited`].
/// Depending on the shell, the actual limit is this size or half of it. Only a file that the test itself has extended
/// to this size reaches the limit.
pub const FILE_LIMIT: u64 = 1 << 30;

/// A running process of the host. Dropping the value kills the process.
pub struct Service {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// The arguments for a host that waits only a fifth of the usual time for brokers and stores. Tests that must see the
/// end of such a wait use these arguments.
pub const RUN_WITH_SHORT_WAITS: [&str; 2] = ["--wait-divisor=5", "run"];

impl Service {
    /// Starts `ordain` with arguments in a home. Writes the output of `ordain` to files in the home, and truncates the
    /// files of an earlier start.
    pub fn start(home: &Home, args: &[&str]) -> Result<Self> {
        Self::spawn(home, home.ordain(args)?)
    }

    /// Starts `ordain` with additional environment variables.
    pub fn start_with(home: &Home, args: &[&str], env: &[(&str, PathBuf)]) -> Result<Self> {
        let mut command = home.ordain(args)?;
        command.envs(env.iter().map(|(name, value)| (name, value)));
        Self::spawn(home, command)
    }

    /// Starts the host through another program. `by` contains the program and its first arguments. The path of the host
    /// and `args` follow as arguments. If `by` is empty, starts the host directly.
    pub fn start_by(home: &Home, by: &[String], args: &[&str]) -> Result<Self> {
        let Some((program, own)) = by.split_first() else { return Self::start(home, args) };
        let mut command = Command::new(program);
        command.current_dir(home.folder()).args(own).arg(binary()?).args(args);
        command.stdin(Stdio::null());
        Self::spawn(home, command)
    }

    /// Starts `ordain` with a limit on the size of files ([`FILE_LIMIT`]). A write beyond the limit fails, like a write
    /// to a full disk.
    pub fn start_limited(home: &Home, args: &[&str]) -> Result<Self> {
        // `trap` ignores the signal SIGXFSZ, which would end the host at the limit. The unit of `ulimit -f` is 512 or
        // 1,024 bytes, depending on the shell.
        let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", FILE_LIMIT / 1_024);
        let mut command = Command::new("sh");
        command.current_dir(home.folder()).args(["-c", &limited]).arg(binary()?).args(args);
        command.stdin(Stdio::null());
        Self::spawn(home, command)
    }

    fn spawn(home: &Home, mut command: Command) -> Result<Self> {
        let stdout = home.path("stdout");
        let stderr = home.path("stderr");
        command.stdout(fs::File::create(&stdout)?).stderr(fs::File::create(&stderr)?);
        Ok(Self { child: command.spawn()?, stdout, stderr })
    }

    /// Returns the process id of the host.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard output that the host has written since its start.
    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Returns the log of the host: the standard error that the host has written since its start.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Returns the path of the file that contains the log.
    pub fn stderr_path(&self) -> PathBuf {
        self.stderr.clone()
    }

    /// Returns whether the host is running.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends a signal to the host. `name` is the name of the signal without `SIG`.
    pub fn signal(&self, name: &str) -> Result<()> {
        send_signal(self.id(), name)
    }

    /// Pauses the host by SIGSTOP, and waits until all its threads are stopped.
    pub fn pause(&self) -> Result<()> {
        self.signal("STOP")?;
        wait_until("a paused process", || Ok(all_threads_stopped(self.id())))
    }

    /// Resumes the host by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal("CONT")
    }

    /// Waits until a condition holds. Fails if the host ends first. `what` names the condition in an error.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
        wait_until(what, || {
            if is_so() {
                return Ok(true);
            }
            match self.child.try_wait()? {
                Some(status) => bail!("the host ended ({status}) before {what}: {}", self.stderr()),
                None => Ok(false),
            }
        })
    }

    /// Waits until the log contains these words.
    pub fn until_says(&mut self, words: &str) -> Result<()> {
        self.until_any(&[words])
    }

    /// Waits until the log contains one of these texts.
    pub fn until_any(&mut self, texts: &[&str]) -> Result<()> {
        let log = self.stderr.clone();
        let logged = self.until(&format!("{texts:?} in its log"), || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            texts.iter().any(|text| log.contains(text))
        });
        logged.with_context(|| self.stderr())
    }

    /// Waits until the log has at least `count` lines that each contain all of `words`.
    pub fn until_lines(&mut self, count: usize, words: &[&str]) -> Result<()> {
        let log = self.stderr.clone();
        let logged = self.until(&format!("{count} lines of its log with {words:?}"), || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let matching = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
            matching.count() >= count
        });
        logged.with_context(|| self.stderr())
    }

    /// Waits until the host ends. Returns its exit status.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let mut ended = None;
        wait_until("the end of the process", || {
            ended = self.child.try_wait()?;
            Ok(ended.is_some())
        })?;
        ended.context("the host has not ended")
    }

    /// Waits until the host ends, which it must do with exit code 0. Returns the largest resident memory that the host
    /// used, in KiB.
    pub fn peak_memory(&mut self) -> Result<u64> {
        let status = format!("/proc/{}/status", self.id());
        let mut peak = 0;
        loop {
            // After the process has ended, its status lacks this line.
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let now = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
            peak = now.unwrap_or(peak);
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the host ended with {status}: {}", self.stderr());
                return Ok(peak);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Before the first line of its log, the host does not handle signals.
    fn until_logging(&mut self) -> Result<()> {
        let log = self.stderr_path();
        self.until("the first line of its log", || {
            fs::metadata(&log).is_ok_and(|file| file.len() > 0)
        })
    }

    /// Stops the host cleanly as soon as the host handles signals, and waits until it has ended. The exit code must be
    /// 0.
    pub fn end(&mut self) -> Result<()> {
        self.until_logging()?;
        self.signal("TERM")?;
        let status = self.wait()?;
        ensure!(status.success(), "the host ended with {status}: {}", self.stderr());
        Ok(())
    }

    /// Kills the host. Unlike after a power failure, data in the caches of the operating system survives.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ignore an error: the host may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
