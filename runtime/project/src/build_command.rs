//! Runs the build command of a project.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ordain_config::LoadedConfig;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{ProjectError, of_file};

/// The exit code of a shell that cannot find a program, and of `npm` for a missing program of a script.
const MISSING_PROGRAM_CODE: i32 = 127;
/// Interval between two checks whether the command has ended. The interval is a small part of the time of a build.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The destination of a command's output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BuildOutput<'a> {
    /// Standard error of this process.
    Stderr,
    /// A file. The error of a failed build contains the output.
    File(&'a Path),
}

/// Returns the folder of a project: the folder of its configuration.
pub(crate) fn project_folder(project: &LoadedConfig) -> &Path {
    match project.file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Runs the build command of a project, if it has one. If the future is dropped, the command and its children end.
pub(crate) async fn build(
    project: &LoadedConfig,
    output: BuildOutput<'_>,
) -> Result<(), ProjectError> {
    let Some(command) = project.config.dev.as_ref().and_then(|dev| dev.build.as_ref()) else {
        return Ok(());
    };
    let folder = project_folder(project);
    let [stdout, stderr] = match output {
        // Standard output is for the outcomes of events.
        BuildOutput::Stderr => {
            let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
            [Stdio::from(stderr), Stdio::inherit()]
        }
        BuildOutput::File(path) => {
            let file = File::create(path).map_err(of_file(path))?;
            [file.try_clone()?.into(), file.into()]
        }
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", &command.0]).current_dir(folder).stdin(Stdio::null());
    shell.env("PATH", path_with_this_program());
    // With a group of its own, the command ends together with all its children.
    let child = shell.stdout(stdout).stderr(stderr).process_group(0).spawn();
    let mut running = RunningBuild(child.map_err(of_file(folder))?);
    let status = loop {
        if let Some(status) = running.0.try_wait()? {
            break status;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    if status.success() {
        return Ok(());
    }
    let output = match output {
        BuildOutput::Stderr => String::new(),
        BuildOutput::File(path) => {
            String::from_utf8_lossy(&fs::read(path).map_err(of_file(path))?).into_owned()
        }
    };
    let mut words = status.to_string();
    if status.code() == Some(MISSING_PROGRAM_CODE) {
        words +=
            ", a program is missing; first run the first command in the README.md of the project";
    }
    Err(ProjectError::Build { command: command.0.clone(), status: words, output })
}

/// Returns the search path of the command. Commands of this program, such as `ordain plugins wrap`, run this program.
fn path_with_this_program() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent).map(Path::to_owned);
    let folders = folder.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or_else(|_| path.clone())
}

/// A running command. Dropping the value ends the command.
struct RunningBuild(Child);

impl Drop for RunningBuild {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // A failed signal means that the command has ended.
            if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::TERM);
            }
            let _ = self.0.wait();
        }
    }
}
