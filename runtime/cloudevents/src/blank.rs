//! Blanks around the events of a text with one event per line. Every reader of such a text (a file, a body of a
//! request, `ordain publish`) must skip the same blanks, so only this module defines the blanks.

/// Returns whether a character is blank: white space, a NUL, or a byte order mark. If a program truncates a file while
/// another program appends to the file, the file may then begin with NULs. Some editors write a byte order mark before
/// the first line.
fn is_blank_char(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\0' | '\u{feff}')
}

/// Returns whether a byte is a blank ASCII character. A reader that receives a line in pieces can skip blank bytes
/// before it has the whole line.
pub fn is_blank_byte(byte: u8) -> bool {
    byte.is_ascii() && is_blank_char(char::from(byte))
}

/// Removes the blanks before and after an event. If the line is not UTF-8, returns the whole line.
pub fn trim_blanks(line: &[u8]) -> &[u8] {
    // A line that begins with `{` and ends with `}` has no blanks to remove. Nearly all lines are of this kind.
    if line.starts_with(b"{") && line.ends_with(b"}") {
        return line;
    }
    std::str::from_utf8(line).map_or(line, |text| text.trim_matches(is_blank_char).as_bytes())
}

/// Returns whether a line contains only blanks, and therefore no event.
pub fn is_blank(line: &[u8]) -> bool {
    trim_blanks(line).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_white_space_nuls_and_byte_order_marks() {
        for blank in ["", " \t ", "\r", "\u{feff}", "\0\0", "\u{a0}", "\u{2028} \0\u{feff}\u{85}"] {
            assert!(is_blank(blank.as_bytes()), "{blank:?}");
            let line = format!("{blank}{{\"a\": 1}}{blank}");
            assert_eq!(trim_blanks(line.as_bytes()), b"{\"a\": 1}", "{blank:?}");
        }
        for line in [&b"x"[..], b"\xff", b" \xff ", b"{}", "\u{200b}".as_bytes()] {
            assert!(!is_blank(line), "{line:?}");
        }
    }
}
