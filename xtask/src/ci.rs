//! `cargo xtask ci`: runs the checks that every change must pass. `cargo xtask setup` installs the programs that these
//! checks need.

use std::process::Command;

use anyhow::{Context, Result};

use crate::dist;
use crate::fuzz::SHORT_RUN;
use crate::graph::graph;
use crate::links::links;
use crate::lua::lua;
use crate::prose::{ProseArgs, prose};
use crate::setup::{
    announce, cargo, cargo_deny, cargo_fuzz, clients, lua_programs, root, run, servers,
};
use crate::side_step::SideStep;
use crate::tests::{TestArgs, install_basics, test, test_basics};

pub(crate) fn ci() -> Result<()> {
    announce("format");
    run(cargo("fmt").args(["--all", "--check"]))?;
    // The installations wait for the network most of the time.
    let installation = SideStep::start("setup", &["setup"])?;
    announce("lints");
    run(cargo("clippy")
        .args(["--release", "--workspace", "--all-targets"])
        .args(["--", "--deny", "warnings"]))?;
    run(cargo("clippy")
        .args(["--release", "--package", "ordain-sim", "--all-targets", "--all-features"])
        .args(["--", "--deny", "warnings"]))?;
    installation.finish()?;
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
    check_dependencies(&["licenses", "bans", "sources"])?;
    // The fuzzer is built with other compiler options than all other programs. Its build and its run take the processor
    // time that the tests leave while they wait for servers.
    let fuzzing = SideStep::start_with_low_priority("fuzz", &SHORT_RUN)?;
    test(&TestArgs::all())?;
    test_basics()?;
    announce("the files of a release, in empty systems");
    dist::check()?;
    fuzzing.finish()?;
    announce("this change passes");
    Ok(())
}

/// Installs the missing programs that [`ci`] needs: servers, other clients of `RabbitMQ`, linters, the fuzzer, and the
/// servers of other releases.
pub(crate) fn setup() -> Result<()> {
    lua_programs()?;
    servers()?;
    clients()?;
    cargo_deny()?;
    cargo_fuzz()?;
    install_basics()
}

pub(crate) fn advisories() -> Result<()> {
    announce("dependencies: security advisories (needs the network)");
    check_dependencies(&["advisories"])
        .context("advisories were found, or could NOT be checked: see above")
}

fn check_dependencies(checks: &[&str]) -> Result<()> {
    cargo_deny()?;
    run(Command::new("cargo-deny").current_dir(root()).args(["--locked", "check"]).args(checks))
}
