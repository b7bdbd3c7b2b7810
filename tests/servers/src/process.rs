//! A process that ends with the one that started it, however that ends.
//!
//! A signal at the parent's death would come with the end of the *thread* that started it, and
//! tests run on threads that end. So a shell stands between: it holds the reading end of a pipe,
//! of which the system closes the other end when this process ends, and then it kills.

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::wait::wait_for;

/// Starts the program, prints its id, and ends with it. A line on standard input kills it; the end
/// of standard input means that nobody is left to do anything, so it removes the folder as well.
const SHELL: &str = r#"
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

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    /// The program's, not the shell's.
    id: u32,
    /// What is written here, or its end, kills.
    hold: Option<ChildStdin>,
}

impl Process {
    /// Starts a program in a folder of its own, with some more environment, and what it prints
    /// appended to `log`.
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
        let output = shell.stdout.take().context("it is piped")?;
        BufReader::new(output).read_line(&mut id)?;
        let id = id.trim().parse().context("the shell named no process")?;
        Ok(Self { shell, id, hold })
    }

    /// The program's process id.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// How it has ended, or nothing while it runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.shell.try_wait()?)
    }

    /// Sends a signal, by its name without `SIG`.
    pub(crate) fn signal(&mut self, name: &str) -> Result<()> {
        ensure!(self.ended()?.is_none(), "the process has ended");
        let id = self.id.to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status()?;
        ensure!(status.success(), "`kill -s {name} {id}` failed");
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        wait_for("the end of the process", || self.ended())
    }

    /// Ends it at once, as `kill -9` does, and waits for that.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut hold) = self.hold.take() {
            // It fails where the program has ended by itself.
            let _ = hold.write_all(b"kill\n");
            self.wait()?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that has failed has its own error to show.
        let _ = self.kill();
    }
}

/// Where a program is, by its name.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).with_context(|| {
        format!("there is no `{name}` in the PATH: run `cargo xtask test`, which installs it")
    })
}

#[test]
fn a_missing_program_names_what_installs_it() {
    let error = find("no-such-server").expect_err("there is none");
    assert!(error.to_string().contains("cargo xtask test"), "{error}");
}
