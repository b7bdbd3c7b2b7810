//! A wall clock for servers. A test can set the clock forward and back. A library (`clock.c`), which the server loads
//! before libc, adds an offset to the time of the system.

use std::fs;

use anyhow::Result;
use tempfile::TempDir;

use crate::preload::compile_preload;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");

/// A clock, which shows the time of the system until the test sets another time. The clock must outlive the servers
/// that use it.
#[derive(Debug)]
pub struct Clock {
    folder: TempDir,
}

impl Clock {
    /// Compiles the library, and creates a clock that shows the time of the system.
    pub fn new() -> Result<Self> {
        let clock = Self { folder: tempfile::tempdir()? };
        compile_preload(SOURCE, &clock.folder.path().join("clock.so"))?;
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock to the time of the system plus this number of seconds.
    pub fn set(&self, seconds: i64) -> Result<()> {
        Ok(fs::write(self.folder.path().join("offset"), seconds.to_ne_bytes())?)
    }

    /// Returns the environment variables with which a server, or the program `ordain`, uses the clock.
    pub fn env(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let variables = [("LD_PRELOAD", "clock.so"), ("ORDAIN_CLOCK_OFFSET", "offset")];
        variables.map(|(variable, name)| (variable.to_owned(), path(name))).into()
    }
}
