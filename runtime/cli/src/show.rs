//! How things are shown: in a terminal as text, for scripts as JSON. Nothing that comes from an
//! event or a server reaches a terminal unescaped.

use std::io::{self, Write};

use serde_json::Value;

use super::row::Row;
use ordain_util::text::{clean, clean_lines};

/// Prints to standard output.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(clean_lines(text).as_bytes())?;
    out.flush()
}

/// Prints JSON, on one line or over several.
pub(crate) fn json(value: &Value, one_line: bool) -> io::Result<()> {
    let json = if one_line { value.to_string() } else { format!("{value:#}") };
    text(&format!("{json}\n"))
}

/// Prints a row as JSON, on one line or over several.
pub(crate) fn row(row: &Row, one_line: bool) -> io::Result<()> {
    match row.tree().filter(|_| !one_line) {
        Some(tree) => json(&tree, false),
        None => text(&json_line(row)),
    }
}

/// A row as a line of JSON.
pub(crate) fn json_line(row: &Row) -> String {
    format!("{}\n", clean(&row.json()))
}
