//! Installs the clients of RabbitMQ that `tests/clients` uses into the folder `clients` of cargo's output, in the
//! versions that `requirements.txt` and `package-lock.json` pin.

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
    let python = to.join("python");
    install(&from, &python, "requirements.txt", &python.join("bin/python"), install_python)?;
    let javascript = to.join("javascript");
    install(&from, &javascript, "package-lock.json", Path::new("node"), install_javascript)
}

/// Runs `install` with the folders `from` and `to`, unless `to` already has the right installation. `versions` is the
/// name of the file that pins the versions. An earlier installation is right if this file and the version of the
/// `interpreter` have not changed. After an upgrade of the system, the interpreter of an earlier installation may have
/// another version, or may be missing.
fn install(
    from: &Path,
    to: &Path,
    versions: &str,
    interpreter: &Path,
    install: fn(&Path, &Path) -> Result<()>,
) -> Result<()> {
    let pinned = fs::read(from.join(versions))?;
    let current = || Some([&pinned[..], &version(interpreter)?].concat());
    let marker = to.join("installed");
    if fs::read(&marker).is_ok_and(|installed| Some(installed) == current()) {
        return Ok(());
    }
    announce(&format!("installing the clients in tests/clients/{versions}"));
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    fs::create_dir_all(to)?;
    install(from, to)?;
    let installed =
        current().with_context(|| format!("`{} --version` fails", interpreter.display()))?;
    Ok(fs::write(marker, installed)?)
}

/// Returns the output of `program --version`; `None` if the program does not run.
fn version(program: &Path) -> Option<Vec<u8>> {
    let output = Command::new(program).arg("--version").output().ok()?;
    output.status.success().then_some(output.stdout)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_has_no_version() {
        assert_eq!(version(Path::new("/missing/python")), None);
        assert!(version(Path::new("rustc")).is_some_and(|version| !version.is_empty()));
    }
}
