//! Texts of rows.

use std::fmt;

use serde::{Deserialize, Serialize};

use ordain_util::text::escape_invisible;

/// A text of a row. The text may come from an event, a handler or another process. The displayed form therefore escapes
/// every character that could control a terminal or hide text. The JSON form contains the unescaped text.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RowText(String);

impl RowText {
    /// Returns the unescaped text, which must not reach a terminal.
    pub fn raw(&self) -> &str {
        &self.0
    }
}

impl From<String> for RowText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for RowText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for RowText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&escape_invisible(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_text_is_escaped_and_json_is_not() {
        let text = RowText::from("a\u{202e}\n");
        assert_eq!(format!("{text:<12}|"), "a\\u202e\\n   |");
        assert_eq!(serde_json::to_string(&text).unwrap(), "\"a\u{202e}\\n\"");
    }
}
