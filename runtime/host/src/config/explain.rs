//! The reference of all settings as text, from the one place where each is described.

use std::fmt::Write;

use super::section::Row;

/// Every setting with its meaning, form, bounds, default and reason, in the order of the file.
pub fn explain() -> String {
    let mut out = String::new();
    for row in super::reference() {
        let table = match row.name {
            "streams" | "sinks" => format!("[{}.NAME]", row.name),
            name => format!("[{name}]"),
        };
        block(&mut out, &table, row, 0);
    }
    out
}

fn block(out: &mut String, title: &str, row: &Row, depth: usize) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}{title}");
    for line in row.meaning.lines() {
        let _ = writeln!(out, "{indent}   {line}");
    }
    if row.rows.is_empty() {
        let _ = writeln!(out, "{indent}    {}", value(row));
    }
    if let Some(because) = row.because {
        let _ = writeln!(out, "{indent}    Why: {because}.");
    }
    for inside in row.rows {
        block(out, inside.name, inside, depth + 1);
    }
}

/// Form, bounds and default in one line.
fn value(row: &Row) -> String {
    let mut text = row.form.to_owned();
    if let Some((low, high)) = row.bounds {
        let _ = write!(text, ", from {low} to {high}");
    }
    match (row.default, row.optional) {
        (Some(default), _) => text + ". Default: " + default,
        (None, true) => text + ". May be left out",
        (None, false) => text + ". Must be given",
    }
}
