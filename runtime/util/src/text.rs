//! Texts on their way to people. Much of what Ordain prints was written by others: events, handlers
//! and file names. None of it may steer a terminal, hide itself or fill a store.

use std::borrow::Cow;
use std::io::Write;

/// A text in which every character that would not be seen as itself is written as an escape:
/// control characters, and those that turn the direction of what follows or have no width.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Four digits, so that it is an escape of JSON as well.
            c if is_unseen(c) => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Several lines, each [`clean`]. JSON stays what it was: there, line ends are only between values.
pub fn clean_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_unseen(c)) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<_> = text.split('\n').map(clean).collect();
    Cow::Owned(lines.join("\n"))
}

/// All of them have four hexadecimal digits.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
        || matches!(c, '\u{61c}' | '\u{feff}')
}

/// Prints a line to standard error. Where it cannot be written, because its reader is gone or a disk
/// is full, the work goes on: what was to be told is no part of it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// An argument as it can be given to a shell.
pub fn quoted(argument: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@+%=".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) && !argument.starts_with('-') {
        return Cow::Borrowed(argument);
    }
    Cow::Owned(format!("'{}'", clean(argument).replace('\'', r"'\''")))
}

/// At most so many bytes of a text, with a sign that there was more.
pub fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    // What was cut off, or made room for, is not to be kept as long as the rest.
    text.shrink_to_fit();
    text
}

/// `1 event`, `2 events`.
pub fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_not_kept() {
        let text = cut("x".repeat(1 << 20), 10);
        assert_eq!(text, "xxxxxxxxxx…");
        assert!(text.capacity() < 100);
    }

    #[test]
    fn nothing_unseen_is_left() {
        assert_eq!(clean("plain, ä, 日本, 👍"), "plain, ä, 日本, 👍");
        assert_eq!(clean("a\x1b[2J\r\n\t\u{7f}\u{9b}"), r"a\u001b[2J\r\n\t\u007f\u009b");
        for c in
            ('\u{200b}'..='\u{200f}').chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}')
        {
            assert_eq!(clean(&format!("<{c}>")), format!("<\\u{:04x}>", u32::from(c)));
        }
    }

    #[test]
    fn json_stays_what_it_was() {
        let value = serde_json::json!({ "a": ["\u{202e}x\u{7f}\u{85}\n", "\x1b"] });
        for text in [value.to_string(), format!("{value:#}")] {
            let clean = clean_lines(&text);
            assert!(!clean.contains(|c| c != '\n' && is_unseen(c)), "{clean}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&clean).ok(), Some(value.clone()));
        }
    }

    #[test]
    fn an_argument_is_one_word_of_a_shell() {
        assert_eq!(quoted("order-17/a"), "order-17/a");
        assert_eq!(quoted("it's me"), r"'it'\''s me'");
        assert_eq!([quoted(""), quoted("-x")], ["''", "'-x'"]);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short".to_owned(), 5), "short");
        assert_eq!(cut("ääää".to_owned(), 5), "ää…");
    }

    #[test]
    fn one_and_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "key")), ["0 keys", "1 key", "2 keys"]);
    }
}
