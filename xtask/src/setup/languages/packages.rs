//! Installs packages of npm and `PyPI`. Everything that these commands download stays in the folder `languages` of
//! cargo's output, so that the tests of new projects can install the same packages without a registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::super::{announce, run, target_dir};

/// Returns a command of npm in a folder. The command runs no scripts of packages.
pub(super) fn npm(folder: &Path, args: &[&str]) -> Command {
    let mut npm = Command::new("npm");
    npm.current_dir(folder).args(args);
    npm.args(["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    npm.env("npm_config_cache", target_dir().join("languages/npm"));
    npm
}

/// Returns the Python of an environment in the folder `tools`. The environment contains packages in pinned versions.
/// Installs the packages if the environment does not contain them.
pub(super) fn python_with(tools: &Path, packages: &[&str]) -> Result<PathBuf> {
    let environment = tools.join("python");
    let python = environment.join("bin/python");
    let wheels = target_dir().join("languages/wheels");
    let marker = environment.join("installed");
    let current = format!("{} from {}", packages.join(" "), wheels.display());
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == current) {
        return Ok(python);
    }
    announce(&format!("installing {}", packages.join(" ")));
    if environment.exists() {
        fs::remove_dir_all(&environment)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let pip = |command: &str| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
        pip.args(["--only-binary", ":all:"]).args(packages);
        pip
    };
    run(pip("download").arg("--dest").arg(&wheels))?;
    run(pip("install").args(["--no-index", "--find-links"]).arg(&wheels))?;
    fs::write(&marker, current)?;
    Ok(python)
}
