//! Libraries that a program loads before libc (`LD_PRELOAD`), so that a test can change the results of system
//! functions.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Compiles the C file with the path `source` to a library that a program can load before libc.
pub fn compile_preload(source: &str, library: &Path) -> Result<()> {
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-O1", "-o"])
        .arg(library)
        .arg(source)
        .status()
        .context("cannot run `cc`")?;
    ensure!(compiled.success(), "`cc` ended with {compiled}");
    Ok(())
}
