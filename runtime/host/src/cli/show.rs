//! How things are shown: in a terminal as text, for scripts as JSON. Nothing that comes from an
//! event reaches a terminal unescaped.

use std::io::{self, Write};

use serde_json::Value;

use crate::text::{clean, clean_lines};

/// Prints to standard output.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints JSON, on one line or over several.
pub(super) fn json(value: &Value, one_line: bool) -> io::Result<()> {
    let json = if one_line { value.to_string() } else { format!("{value:#}") };
    text(&format!("{}\n", clean_lines(&json)))
}

/// A value of JSON as a line.
pub(super) fn json_line(value: &Value) -> String {
    format!("{}\n", clean(&value.to_string()))
}
