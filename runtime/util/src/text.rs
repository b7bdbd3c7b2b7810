//! Prepares texts for printing. Ordain prints texts from events, handlers and file names, which come from other
//! parties. Such a text must never control a terminal, be invisible, or fill a store.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::standard_error;

/// Returns the text with escapes in place of all control characters, and of common characters that change the direction
/// of text or have no width.
pub fn escape_invisible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writes four digits, so that the result is also a valid JSON escape.
            c if is_invisible(c) => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Applies [`escape_invisible`] to each line of a text, and keeps the line ends. If a JSON text has no tab or carriage
/// return between its tokens, the result has the same JSON value as `text`. The line ends are between tokens, and the
/// escapes are valid in JSON strings.
pub fn escape_invisible_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_invisible(c)) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<_> = text.split('\n').map(escape_invisible).collect();
    Cow::Owned(lines.join("\n"))
}

/// Decodes a text in Latin-1 (ISO 8859-1). Every sequence of bytes is valid Latin-1.
pub fn latin1_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Returns whether a character is in the list of characters that are written as escapes: control characters, and common
/// characters that change the direction of text or have no width. The code of each character in the list has at most
/// four hexadecimal digits.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
        || matches!(c, '\u{61c}' | '\u{feff}')
}

/// Prints a line to standard error. Ignores errors, because a closed reader or a full disk must not stop the process.
pub fn print_lossy(line: &str) {
    standard_error::print(&format!("{line}\n"));
}

/// Returns an argument quoted for a shell. If the argument contains a backtick, or a character that
/// [`escape_invisible`] escapes, the result has the form `$'…'`, which Bash and some other shells support. A text often
/// encloses a command in backticks, so a backtick inside the command would look like the end of the command.
pub fn shell_quoted(argument: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@+%=".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) && !argument.starts_with('-') {
        return Cow::Borrowed(argument);
    }
    let needs_escape = |c: char| is_invisible(c) || c == '`';
    if !argument.contains(needs_escape) {
        return Cow::Owned(format!("'{}'", argument.replace('\'', r"'\''")));
    }
    let mut quoted = "$'".to_owned();
    for c in argument.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if needs_escape(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    quoted += &format!("\\{byte:03o}");
                }
            }
            c => quoted.push(c),
        }
    }
    Cow::Owned(quoted + "'")
}

/// Returns at most the first `bytes` bytes of a text, without a partial character, and appends `…` if the text was
/// longer.
pub fn truncated(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    // Release the memory of the removed part.
    text.shrink_to_fit();
    text
}

/// Formats numbers as ranges, as in `0-3, 7`.
pub fn display_ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges = Vec::<(u32, u32)>::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns a number with its noun: `1 event`, `2 events`.
pub fn pluralized(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_numbers_form_a_range() {
        for (numbers, text) in [
            (&[][..], ""),
            (&[7], "7"),
            (&[0, 1, 2, 3], "0-3"),
            (&[1, 2, 4, 6, 7, u32::MAX], "1-2, 4, 6-7, 4294967295"),
        ] {
            assert_eq!(display_ranges(&numbers.iter().copied().collect()), text);
        }
    }

    #[test]
    fn memory_of_the_removed_part_is_released() {
        let text = truncated("x".repeat(1 << 20), 10);
        assert_eq!(text, "xxxxxxxxxx…");
        assert!(text.capacity() < 100);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escape_invisible("plain, ä, 日本, 👍"), "plain, ä, 日本, 👍");
        assert_eq!(escape_invisible("a\x1b[2J\r\n\t\u{7f}\u{9b}"), r"a\u001b[2J\r\n\t\u007f\u009b");
        for c in
            ('\u{200b}'..='\u{200f}').chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}')
        {
            assert_eq!(escape_invisible(&format!("<{c}>")), format!("<\\u{:04x}>", u32::from(c)));
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "a": ["\u{202e}x\u{7f}\u{85}\n", "\x1b"] });
        for text in [value.to_string(), format!("{value:#}")] {
            let clean = escape_invisible_lines(&text);
            assert!(!clean.contains(|c| c != '\n' && is_invisible(c)), "{clean}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&clean).ok(), Some(value.clone()));
        }
    }

    #[test]
    fn argument_is_one_word_of_a_shell() {
        assert_eq!(shell_quoted("order-17/a"), "order-17/a");
        assert_eq!(shell_quoted("it's me"), r"'it'\''s me'");
        assert_eq!([shell_quoted(""), shell_quoted("-x")], ["''", "'-x'"]);
        assert_eq!(shell_quoted("it's\na\\"), r"$'it\'s\012a\\'");
        assert_eq!(shell_quoted("`\u{202e}1"), r"$'\140\342\200\2561'");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(truncated("short".to_owned(), 5), "short");
        assert_eq!(truncated("ääää".to_owned(), 5), "ää…");
    }

    #[test]
    fn noun_follows_the_number() {
        assert_eq!([0, 1, 2].map(|n| pluralized(n, "key")), ["0 keys", "1 key", "2 keys"]);
    }
}
