//! Installs the clients of RabbitMQ that `tests/clients` uses into the folder `clients` of cargo's output, in the versions
//! that `requirements.txt` and `package-lock.json` pin.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::servers::client_programs;
use super::{announce, root, run, target_dir};

/// Installs the clients for Python and JavaScript, unless the pinned versions are already installed.
pub(crate) fn clients() -> Result<()> {
    client_programs()?;
    let from = root().join("tests/clients");
    let to = target_dir().join("clients");
    install(&from, &to.join("python"), "requirements.txt", install_python)?;
    install(&from, &to.join("javascript"), "package-lock.json", install_javascript)
}

/// Runs `install` with the folders `from` and `to`, unless an earlier installation into `to` had the same `versions`:
/// the name of the file that pins the versions.
fn install(
    from: &Path,
    to: &Path,
    versions: &str,
    install: fn(&Path, &Path) -> Result<()>,
) -> Result<()> {
    let pinned = fs::read(from.join(versions))?;
    let marker = to.join("installed");
    if fs::read(&marker).is_ok_and(|installed| installed == pinned) {
        return Ok(());
    }
    announce(&format!("installing the clients in tests/clients/{versions}"));
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    fs::create_dir_all(to)?;
    install(from, to)?;
    Ok(fs::write(marker, pinned)?)
}

fn install_python(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("python3").args(["-m", "venv"]).arg(to))?;
    run(Command::new(to.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--require-hashes", "--only-binary", ":all:", "--requirement"])
        .arg(from.join("requirements.txt")))
}

fn install_javascript(from: &Path, to: &Path) -> Result<()> {
    for file in ["package.json", "package-lock.json"] {
        fs::copy(from.join(file), to.join(file))?;
    }
    run(Command::new("npm").current_dir(to).args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]))
}
