//! The host (the program `ordain`) as a process, with its own folder.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::plugins::plugin;

/// Returns the path of the host that was built with the tests.
pub fn binary() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("the test is not in a target folder")?;
    let binary = profile.join("ordain");
    ensure!(binary.exists(), "{} does not exist: run `cargo xtask test`", binary.display());
    Ok(binary)
}

/// Copies a folder with the owners, rights and times of its files. `to` must not exist yet.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(copied.success(), "`cp` failed: {copied}");
    Ok(())
}

/// A temporary folder in which a test runs `ordain`. The folder contains a configuration, the folder of handlers, and
/// the files that the configuration names.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// Makes a home with some of the repository's handlers and a configuration.
    pub fn new(handlers: &[&str], config: &str) -> Result<Self> {
        let home = Self { folder: tempfile::tempdir()? };
        fs::create_dir(home.path("plugins"))?;
        for handler in handlers {
            fs::copy(plugin(handler)?, home.path(&format!("plugins/{handler}.wasm")))?;
        }
        home.write("ordain.toml", config)?;
        Ok(home)
    }

    /// Returns the path of a file or folder of the home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the home, and replaces an earlier file with this name. If the file is a configuration without
    /// the section `[admin]`, adds this section with a free port, because all hosts on a machine would use the same
    /// default port.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let mut text = text.as_ref().to_vec();
        let is_config = Path::new(name).extension().is_some_and(|extension| extension == "toml");
        if is_config && !String::from_utf8_lossy(&text).contains("[admin]") {
            text.extend_from_slice(b"\n[admin]\nlisten = \"127.0.0.1:0\"\n");
        }
        Ok(fs::write(self.path(name), text)?)
    }

    /// Reads a file of the home. Returns an empty text if the file does not exist or is not UTF-8.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Builds a command that runs `ordain` with these arguments in the home.
    pub fn ordain(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary()?);
        command.current_dir(self.folder.path()).args(args).stdin(Stdio::null());
        Ok(command)
    }

    /// Replaces a file atomically with a new file.
    pub fn replace(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let other = self.path(&format!("{name}.other"));
        fs::write(&other, text)?;
        Ok(fs::rename(other, self.path(name))?)
    }

    /// Appends bytes to an existing file of the home.
    pub fn append(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let mut file = fs::File::options().append(true).open(self.path(name))?;
        Ok(file.write_all(text.as_ref())?)
    }

    /// Returns the number of complete lines of a file.
    pub fn lines(&self, name: &str) -> usize {
        self.read(name).matches('\n').count()
    }

    /// Runs `ordain` with these arguments until it ends. Returns its output and its exit status.
    pub fn output(&self, args: &[&str]) -> Result<Output> {
        Ok(self.ordain(args)?.output()?)
    }

    /// Runs `run --once --json`, which must succeed. Returns its report.
    pub fn run_once(&self) -> Result<Value> {
        let output = self.output(&["--log", "warn", "run", "--once", "--json"])?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the run failed ({}): {log}", output.status);
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("the host printed no report: {log}"))
    }

    /// Runs `run --once --json` for a sink that writes to standard output, and writes that output to a file of the
    /// home. Returns the report, which the host writes to standard error in this case.
    pub fn run_once_to(&self, out: &str) -> Result<Value> {
        let mut command = self.ordain(&["--log", "error", "run", "--once", "--json"])?;
        let output = command.stdout(fs::File::create(self.path(out))?).output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the run failed ({}): {report}", output.status);
        serde_json::from_str(&report)
            .with_context(|| format!("the host printed no report: {report}"))
    }

    /// Starts `run --once` for a test that kills the process.
    pub fn start(&self) -> Result<Child> {
        let mut command = self.ordain(&["--log", "warn", "run", "--once"])?;
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Runs a command that must succeed and print one JSON value per line, such as a listing with `--json`. Returns the
    /// values.
    pub fn rows(&self, args: &[&str]) -> Result<Vec<Value>> {
        self.printed(args)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn printed(&self, args: &[&str]) -> Result<String> {
        let output = self.output(args)?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{args:?} failed ({}): {log}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the path of the home's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
