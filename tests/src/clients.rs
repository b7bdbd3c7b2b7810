//! Runs the programs in `tests/clients`, which use other clients of RabbitMQ. `cargo xtask test` installs the clients.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::plugins::{root, target_dir};

/// Runs a Python program with its arguments. Returns its standard output.
pub fn python(program: &str, args: &[&str]) -> Result<String> {
    let python = target_dir()?.join("clients/python/bin/python");
    ensure_installed(&python)?;
    // Without `-P`, Python would also import modules from the folder of the program.
    output(Command::new(python).arg("-P"), program, args)
}

/// Runs a JavaScript program with its arguments. Returns its standard output.
pub fn javascript(program: &str, args: &[&str]) -> Result<String> {
    let modules = target_dir()?.join("clients/javascript/node_modules");
    ensure_installed(&modules)?;
    output(Command::new("node").env("NODE_PATH", modules), program, args)
}

/// Runs a Ruby program with its arguments. Returns its standard output.
pub fn ruby(program: &str, args: &[&str]) -> Result<String> {
    output(&mut Command::new("ruby"), program, args)
}

fn ensure_installed(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{} does not exist: run `cargo xtask test`", path.display());
    Ok(())
}

fn output(command: &mut Command, program: &str, args: &[&str]) -> Result<String> {
    let path = root().join("tests/clients").join(program);
    let output = command.arg(path).args(args).output().context("the program cannot be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {}\n{errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
