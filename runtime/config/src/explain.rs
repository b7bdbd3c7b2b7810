//! Builds the reference of all settings, which `ordain check --explain` prints. This module must not contain the
//! description of a setting: the descriptions are the doc comments in the tables of `section!`.

use std::fmt::Write;

use super::format::write_formats;
use super::reader::ReferenceRow;
use super::unsupported::unsupported_feature;

/// The path of the setting whose values the reference describes one by one.
const FORMAT_PLACE: &str = "streams.source.amqp.format";

/// Returns every setting with its meaning, form, bounds and default, and with the reason for the default, in the order
/// of the tables of `section!`.
pub fn explain() -> String {
    let mut out = String::new();
    for row in super::reference() {
        let table = match row.name {
            "streams" | "sinks" => format!("[{}.NAME]", row.name),
            name => format!("[{name}]"),
        };
        write_row(&mut out, &table, row.name, row, 0);
    }
    out
}

/// Appends one row. `place` is the row's path in the reference: the names of the enclosing tables, and the row's own
/// name. If an enclosing table has several kinds, the path also contains its kind.
fn write_row(out: &mut String, title: &str, place: &str, row: &ReferenceRow, depth: usize) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}{title}");
    for line in row.meaning.lines() {
        let _ = writeln!(out, "{indent}   {line}");
    }
    if row.rows.is_empty() {
        let _ = writeln!(out, "{indent}    {}", value_line(row));
    }
    if place == FORMAT_PLACE {
        write_formats(out, &format!("{indent}    "));
    }
    if let Some(reason) = row.because {
        let _ = writeln!(out, "{indent}    Why: {reason}.");
    }
    if let Some(feature) = unsupported_feature(place) {
        let _ =
            writeln!(out, "{indent}    Not yet supported by this version of Ordain: {feature}.");
    }
    for inside in row.rows {
        let name = inside.name.strip_prefix("kind = ").unwrap_or(inside.name).trim_matches('"');
        write_row(out, inside.name, &format!("{place}.{name}"), inside, depth + 1);
    }
}

/// Returns form, bounds and default in one line.
fn value_line(row: &ReferenceRow) -> String {
    let mut text = row.form.to_owned();
    if let Some((low, high)) = row.bounds {
        let _ = write!(text, ", from {low} to {high}");
    }
    match (row.default, row.optional) {
        (Some(default), _) => text + ". Default: " + default,
        (None, true) => text + ". Optional",
        (None, false) => text + ". Required",
    }
}
