//! A child process that ends when its parent, the test's process, ends for any reason.
//!
//! Linux can send a signal to a child when its parent ends. But Linux already sends this signal when the *thread* that
//! started the child ends, and the thread of a test may end long before the test's process. Therefore a shell starts
//! the program, and reads from a pipe. When the test's process ends, the system closes the writing end of the pipe, and
//! the shell kills the program.

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::wait::wait_for;

/// A script that starts the program, prints the program's process id, and ends when the program ends. A line on
/// standard input makes the script kill the program. The end of standard input means that the test's process has ended:
/// the script then kills the program and removes the folder. The program ignores the signal SIGXFSZ. Otherwise, this
/// signal would end the program when a file reaches its size limit.
const SHELL: &str = r#"
trap '' XFSZ
exec 3<&0
folder=$1 log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 3<&- &
server=$!
{
    read -r _ <&3 || : >"$folder/orphan"
    kill -KILL "$server"
} >/dev/null 2>&1 &
watch=$!
echo "$server"
wait "$server"
status=$?
kill -KILL "$watch"
wait "$watch"
[ -e "$folder/orphan" ] && rm -rf -- "$folder"
exit "$status"
"#;

/// A running program. Dropping the value kills the program.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    /// The process id of the program, not of the shell.
    id: u32,
    /// The shell kills the program when it reads a line or the end of its standard input.
    hold: Option<ChildStdin>,
}

impl Process {
    /// Starts a shell that runs a program in the folder `folder`, with additional environment variables, and appends
    /// the program's output to `log`. If the test's process ends while the program runs, the shell kills the program
    /// and removes `folder`.
    pub(crate) fn start(
        program: &Path,
        args: &[&str],
        env: &[(String, String)],
        folder: &Path,
        log: &Path,
    ) -> Result<Self> {
        File::options().create(true).append(true).open(log)?;
        let mut shell = Command::new("sh");
        shell.args(["-c", SHELL, "sh"]).arg(folder).arg(log).arg(program).args(args);
        shell.current_dir(folder).envs(env.iter().map(|(name, value)| (name, value)));
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = shell.spawn().context("cannot start `sh`")?;
        let hold = shell.stdin.take();
        let mut id = String::new();
        let output = shell.stdout.take().context("the output of the shell is not piped")?;
        BufReader::new(output).read_line(&mut id)?;
        let id = id.trim().parse().context("the shell printed no process id")?;
        Ok(Self { shell, id, hold })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the exit status of the program, or `None` while it is running.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.shell.try_wait()?)
    }

    /// Sends a signal. `name` is the signal's name without `SIG`.
    pub(crate) fn signal(&mut self, name: &str) -> Result<()> {
        ensure!(self.ended()?.is_none(), "the process has ended");
        send_signal(self.id, name)
    }

    /// Waits for the end of the program, at most a minute. Returns the exit status of the program.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        wait_for("the end of the process", || self.ended())
    }

    /// Ends the program immediately, as `kill -9` does, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut hold) = self.hold.take() {
            // The write fails if the program has ended by itself.
            let _ = hold.write_all(b"kill\n");
            self.wait()?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error here must not hide the error of a failed test.
        let _ = self.kill();
    }
}

/// Sends a signal to a process. `name` is the signal's name without `SIG`.
pub fn send_signal(id: u32, name: &str) -> Result<()> {
    let id = id.to_string();
    let status = Command::new("kill").args(["-s", name, &id]).status()?;
    ensure!(status.success(), "`kill -s {name} {id}` failed");
    Ok(())
}

/// Returns the path of the program with this name in the folders of the variable `PATH`.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).with_context(|| {
        format!("`{name}` is not in the PATH: run `cargo xtask test`, which installs it")
    })
}

#[test]
fn error_of_a_missing_program_names_the_installation_command() {
    let error = find("no-such-server").expect_err("the program does not exist");
    assert!(error.to_string().contains("cargo xtask test"), "{error}");
}
