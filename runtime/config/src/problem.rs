//! Errors in a configuration. A [`ConfigError`] contains all errors of a file, each with its line and a description of
//! a valid value. An error must never contain a secret, so the reader of a secret setting does not put the text of the
//! setting into the error.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ordain_util::io_error::may_pass;

/// An error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigProblem {
    /// Line in the file, from 1; 0 if the error concerns the whole file.
    pub line: usize,
    /// The setting, for example `streams.orders.gap.timeout`; empty if the error concerns no setting.
    pub setting: String,
    /// The fault, and a description of a valid value.
    pub message: String,
    /// True if the same configuration may be valid later, because the machine caused the error: for example, a file
    /// cannot be read now.
    pub is_temporary: bool,
}

impl ConfigProblem {
    /// Returns the text of the problem, with its file and line.
    pub(super) fn in_file(&self, file: &Path) -> String {
        let line = if self.line > 0 { format!("{}:", self.line) } else { String::new() };
        format!("{}:{line} {self}", file.display())
    }
}

/// An invalid configuration. Its text has one line for each error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The configuration file.
    pub file: PathBuf,
    /// The errors, sorted by line; at least one.
    pub problems: Vec<ConfigProblem>,
}

impl ConfigError {
    pub(super) fn of_file(file: &Path, message: String, is_temporary: bool) -> Self {
        let problem = ConfigProblem { line: 0, setting: String::new(), message, is_temporary };
        Self { file: file.to_owned(), problems: vec![problem] }
    }

    /// Sets `is_temporary` of all problems. `error` is the error of the operating system that caused the problems. The
    /// problems are temporary if the access that failed may succeed later ([`may_pass`]).
    #[must_use]
    pub fn caused_by(mut self, error: &io::Error) -> Self {
        for problem in &mut self.problems {
            problem.is_temporary = may_pass(error);
        }
        self
    }

    /// Returns whether the same configuration may be valid later, because all its errors are temporary.
    pub fn is_temporary(&self) -> bool {
        self.problems.iter().all(|problem| problem.is_temporary)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&problem.in_file(&self.file))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.setting.is_empty() {
            write!(f, "{}: ", self.setting)?;
        }
        f.write_str(&self.message)
    }
}

/// The line of each setting in a file, by the full name of the setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingLines(BTreeMap<String, usize>);

impl SettingLines {
    pub(super) fn insert(&mut self, setting: &str, line: usize) {
        self.0.insert(setting.to_owned(), line);
    }

    /// Returns whether the file sets a setting.
    pub fn has(&self, setting: &str) -> bool {
        self.0.contains_key(setting)
    }

    /// Returns whether the file sets at least one setting of a table.
    pub(super) fn has_inside(&self, table: &str) -> bool {
        let prefix = format!("{table}.");
        self.0.range(prefix.clone()..).next().is_some_and(|(name, _)| name.starts_with(&prefix))
    }

    /// Returns the line of a setting. If the file leaves the setting out, returns the line of the innermost table in
    /// the file that would contain the setting. Returns 0 if the file has no such table.
    pub fn line_of(&self, setting: &str) -> usize {
        let mut name = setting;
        loop {
            if let Some(line) = self.0.get(name) {
                return *line;
            }
            match name.rfind(['.', '[']) {
                Some(end) => name = &name[..end],
                None => return 0,
            }
        }
    }
}
