//! Functions that several commands share. The functions start cargo, add the WebAssembly target, build the host (the
//! program `ordain`) and the handlers, and find or install servers and clients.

mod cargo_tools;
mod clients;
mod languages;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub(crate) use cargo_tools::{cargo_deny, cargo_fuzz};
pub(crate) use clients::clients;
pub(crate) use languages::languages;
pub(crate) use servers::{lua_programs, servers};

/// The compilation target of components.
const TARGET: &str = "wasm32-wasip2";
/// The packages of the example handlers.
pub(crate) const PLUGINS: [&str; 6] =
    ["orders", "ledger", "tally", "faulty", "probe", "conformance"];

/// Prints the next step, with the minutes and seconds since the first step.
pub(crate) fn announce(text: &str) {
    static START_TIME: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = START_TIME.elapsed().as_secs();
    eprintln!("\x1b[1m==>\x1b[0m {}:{:02} {text}", seconds / 60, seconds % 60);
}

/// Returns the root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
}

/// Returns the folder of cargo's output.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Returns a cargo command that runs in the root of the workspace and uses the versions in `Cargo.lock`.
pub(crate) fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A cargo command that a developer starts does not have the variables of a package. If the cargo commands of
    // `xtask` had these variables, cargo would see other values at each change between the two kinds of commands. At
    // each change, cargo would run all build scripts that read the variables.
    remove_package_variables(&mut cargo);
    cargo.current_dir(root()).arg(command);
    // `cargo fmt` and `cargo fuzz` have no option `--locked`.
    if !["fmt", "fuzz"].contains(&command) {
        cargo.arg("--locked");
    }
    cargo
}

/// Removes the environment variables that cargo sets for the package `xtask` from the environment of a command.
pub(crate) fn remove_package_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let of_a_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if of_a_package.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// Runs a command to its end. If the command fails, the error contains the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start: {shown}"))?;
    if !status.success() {
        bail!("failed ({status}): {shown}");
    }
    Ok(())
}

/// Runs a command to its end, and returns its standard output. If the command fails, the error contains the command and
/// its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("cannot start: {shown}"))?;
    if !output.status.success() {
        bail!("failed ({}): {shown}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns a command as a user would type it.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Adds the WebAssembly target if it is missing.
pub(crate) fn wasm_target() -> Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    let sysroot = PathBuf::from(String::from_utf8(sysroot.stdout)?.trim());
    if sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir() {
        return Ok(());
    }
    announce(&format!("adding the target {TARGET} for handlers"));
    run(Command::new("rustup").args(["target", "add", TARGET])).with_context(|| {
        format!("the target {TARGET} is missing: install Rust with rustup, see https://rustup.rs")
    })
}

/// Builds the example handlers, copies them into the folder `plugins` of cargo's output, and returns this folder.
pub(crate) fn plugins() -> Result<PathBuf> {
    wasm_target()?;
    announce("building the handlers");
    let mut build = cargo("build");
    build.args(["--profile", "plugin", "--target", TARGET]);
    for plugin in PLUGINS {
        build.args(["--package", plugin]);
    }
    run(&mut build)?;
    let folder = target_dir().join("plugins");
    std::fs::create_dir_all(&folder)?;
    for plugin in PLUGINS {
        let file = format!("{plugin}.wasm");
        let from = target_dir().join(TARGET).join("plugin").join(&file);
        std::fs::copy(&from, folder.join(&file))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(folder)
}

/// Builds the host, and returns the path of its program.
pub(crate) fn host() -> Result<PathBuf> {
    announce(
        "building the host (the first build takes some minutes: the host contains a compiler)",
    );
    run(cargo("build").args(["--release", "--workspace", "--bin", "ordain"]))?;
    Ok(target_dir().join("release").join("ordain"))
}
