//! The languages, and the components of their examples.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ordain_tests::plugins::{plugin, target_dir};

/// The environment variable that names the folder with the components: `LANGUAGE/EXAMPLE.wasm`. Without the variable,
/// the components are in `plugins/languages` of cargo's output.
const FOLDER_VARIABLE: &str = "ORDAIN_LANGUAGES";

/// A language with an SDK, and its documented differences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Language {
    /// The name of the folder with the components.
    pub(crate) name: &'static str,
    /// The beginning of the reason of an uncaught error, whose message is `failed on request ☃`.
    pub(crate) fault_prefix: &'static str,
    /// True if the example `conformance` can write to standard error and then abort, without the SDK.
    pub(crate) aborts: bool,
    /// The log level of text that a handler prints as an error.
    pub(crate) error_text_level: &'static str,
}

pub(crate) const RUST: Language = Language {
    name: "rust",
    fault_prefix: "panicked at sdk/rust/examples/conformance/src/lib.rs:",
    aborts: true,
    error_text_level: "WARN",
};

/// JavaScript on `QuickJS`. The usual way to print, `console`, also sets the level of the log line.
pub(crate) const JAVASCRIPT: Language = Language {
    name: "js",
    fault_prefix: "Error: failed on request ☃\n    at ",
    aborts: false,
    error_text_level: "ERROR",
};

/// JavaScript on `SpiderMonkey`.
pub(crate) const SPIDERMONKEY: Language = Language { name: "js-spidermonkey", ..JAVASCRIPT };

pub(crate) const PYTHON: Language = Language {
    name: "python",
    fault_prefix: "RuntimeError: failed on request ☃\nTraceback (most recent call last):\n",
    aborts: false,
    error_text_level: "WARN",
};

pub(crate) const GO: Language = Language {
    name: "go",
    fault_prefix: "panic: failed on request ☃\n",
    aborts: false,
    error_text_level: "WARN",
};

/// C has no exceptions: the handler calls `ordain_fault`.
pub(crate) const C: Language = Language {
    name: "c",
    fault_prefix: "failed on request ☃\n    at fail (",
    aborts: true,
    error_text_level: "WARN",
};

/// Zig, with the SDK for C. Zig has only the example `orders`.
pub(crate) const ZIG: Language = Language { name: "zig", ..C };

impl Language {
    /// Returns the path of the component of an example. For Rust, builds the component if it is out of date.
    pub(crate) fn component(&self, example: &str) -> Result<PathBuf> {
        if self.name == RUST.name {
            return plugin(example);
        }
        let folder = match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => target_dir()?.join("plugins/languages"),
        };
        let file = folder.join(self.name).join(format!("{example}.wasm"));
        ensure!(
            file.exists(),
            "{} does not exist: build the examples of all languages with `cargo xtask plugins`",
            file.display()
        );
        Ok(file)
    }
}
