//! Commands of `xtask` that run beside other steps. For example, the fuzzer is built and runs while the tests wait for
//! servers.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};

use crate::setup::{announce, target_dir};

/// A command of `xtask` that runs beside other steps. Its output goes to a file, so that the output of the other steps
/// stays readable.
pub(crate) struct SideStep {
    name: &'static str,
    child: Child,
    output: PathBuf,
    is_finished: bool,
}

impl SideStep {
    /// Starts `cargo xtask` with these arguments. `name` is also the name of the file with the output.
    pub(crate) fn start(name: &'static str, args: &[&str]) -> Result<Self> {
        Self::spawn(name, Command::new(std::env::current_exe()?).args(args))
    }

    /// Starts `cargo xtask` with these arguments and with the lowest priority. The command takes only the processor
    /// time that the other steps leave.
    pub(crate) fn start_with_low_priority(name: &'static str, args: &[&str]) -> Result<Self> {
        let mut nice = Command::new("nice");
        Self::spawn(name, nice.args(["-n", "19"]).arg(std::env::current_exe()?).args(args))
    }

    fn spawn(name: &'static str, command: &mut Command) -> Result<Self> {
        let folder = target_dir().join("side-steps");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let output = folder.join(format!("{name}.log"));
        announce(&format!("beside the next steps: {name} (output: {})", output.display()));
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        let child = command.stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot start the step {name}"))?;
        Ok(Self { name, child, output, is_finished: false })
    }

    /// Waits for the end of the command, and prints and returns its output. Fails if the command failed.
    pub(crate) fn finish(mut self) -> Result<String> {
        announce(&format!("waiting for the end of the step {}", self.name));
        let status = self.child.wait()?;
        self.is_finished = true;
        let output = fs::read(&self.output).with_context(|| self.output.display().to_string())?;
        let output = String::from_utf8_lossy(&output).into_owned();
        print!("{output}");
        ensure!(status.success(), "the step {} failed ({status}): see its output above", self.name);
        Ok(output)
    }
}

impl Drop for SideStep {
    /// Waits for the end of the command if another step has failed. If the command were killed, the programs that it
    /// has started, such as an installation, would continue.
    fn drop(&mut self) {
        if !self.is_finished {
            let shown = self.output.display();
            announce(&format!("waiting for the end of the step {} (output: {shown})", self.name));
            let _ = self.child.wait();
        }
    }
}
