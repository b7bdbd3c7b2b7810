//! Prints the results of commands: as text for a terminal, as JSON for scripts. Data from an event or a server must
//! never reach a terminal unescaped.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use ordain_cloudevents::compact;
use ordain_util::text::{escape_invisible, escape_invisible_lines};

/// Prints a text to standard output, with escapes in place of invisible characters.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(escape_invisible_lines(text).as_bytes())?;
    out.flush()
}

/// Prints JSON, on one line or over several lines.
pub(crate) fn json(value: &Value, one_line: bool) -> io::Result<()> {
    let json = if one_line { value.to_string() } else { format!("{value:#}") };
    text(&format!("{json}\n"))
}

/// A row as JSON, which this process has serialized itself or received from another process. A received row is printed
/// with exactly the members that the other process sent.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct JsonRow(Box<RawValue>);

impl<T: Serialize> From<T> for JsonRow {
    fn from(row: T) -> Self {
        let json = to_raw_value(&row);
        Self(json.expect("texts, numbers and lists can always be serialized"))
    }
}

impl JsonRow {
    /// Returns the row as a line of JSON.
    pub(crate) fn line(&self) -> String {
        // `compact` fails if the JSON is nested too deeply. This program writes no such JSON, but a server may send
        // such JSON.
        let json = compact(self.0.get()).unwrap_or(Cow::Borrowed(self.0.get()));
        format!("{}\n", escape_invisible(&json))
    }

    /// Prints the row on one line or over several lines. A row that is nested too deeply to be parsed is always printed
    /// on one line.
    pub(crate) fn print(&self, one_line: bool) -> io::Result<()> {
        let tree = if one_line { None } else { serde_json::from_str(self.0.get()).ok() };
        match tree {
            Some(tree) => json(&tree, false),
            None => text(&self.line()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_row_keeps_its_members() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        let escape = r#"{"later":"a\u001b[2J","state":DEEP}"#.replace("DEEP", &deep);
        let row: JsonRow = serde_json::from_str(&escape).unwrap();
        assert_eq!(row.line(), format!("{escape}\n"));
        let row: JsonRow = serde_json::from_str("{\n\"a\" : \"\u{202e}\" }").unwrap();
        assert_eq!(row.line(), "{\"a\":\"\\u202e\"}\n");
    }
}
