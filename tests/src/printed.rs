//! Commands that the host prints in its log, its reports, its errors and the output of its other commands. A user must
//! be able to run each of these commands unchanged.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use crate::host::{Home, binary};

/// Returns the commands in a text. Ordain encloses commands in backticks.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|words| words.starts_with("ordain "))
}

/// Runs a command in Bash, with the host in the `PATH`.
fn start_in_shell(home: &Home, command: &str) -> Result<Output> {
    let folder = binary()?.parent().context("a folder")?.to_owned();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
    let mut shell = Command::new("bash");
    shell.current_dir(home.folder()).env("PATH", path).args(["-c", command]);
    Ok(shell.output()?)
}

/// Runs a command, which must succeed. Returns its standard output.
fn run_in_shell(home: &Home, command: &str) -> Result<String> {
    let output = start_in_shell(home, command)?;
    let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
    let stderr = stderr?;
    ensure!(output.status.success(), "`{command}` failed ({}): {stderr}", output.status);
    Ok(stdout?)
}

/// Runs the first command in a text that begins with `start`. The command must succeed. Returns its standard output.
pub fn run_first(home: &Home, text: &str, start: &str) -> Result<String> {
    let command = commands(text).find(|command| command.starts_with(start));
    run_in_shell(home, command.with_context(|| format!("no command {start:?} in {text}"))?)
}

/// Runs all commands in a text, and the commands that these commands print. Each command must succeed. Returns the
/// commands with their outputs.
pub fn run_all(home: &Home, text: &str) -> Result<Vec<(String, String)>> {
    let mut waiting: Vec<String> = commands(text).map(str::to_owned).collect();
    let mut known = BTreeSet::new();
    let mut outputs = Vec::new();
    while let Some(command) = waiting.pop() {
        if !known.insert(command.clone()) {
            continue;
        }
        let stdout = run_in_shell(home, &command)?;
        waiting.extend(commands(&stdout).map(str::to_owned));
        outputs.push((command, stdout));
    }
    Ok(outputs)
}
