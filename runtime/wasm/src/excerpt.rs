//! The beginning and the end of a text of any size. A message about a fault has its cause at the beginning or at the
//! end, and a stack between. This module must never keep more than both edges of the text.

/// Size, in bytes, of the beginning and of the end that an excerpt keeps.
pub(super) const EDGE_BYTES: usize = 1 << 10;

/// The first and the last [`EDGE_BYTES`] of a text, which is the concatenation of all pushed bytes.
#[derive(Debug, Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    /// The last bytes that are not in `head`.
    tail: Vec<u8>,
    /// The size of the whole text.
    length: usize,
}

impl Excerpt {
    /// Returns the excerpt of a text as text.
    pub(super) fn of(text: &str) -> String {
        let mut excerpt = Self::default();
        excerpt.push(text.as_bytes());
        excerpt.text()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        let room = EDGE_BYTES - self.head.len();
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(EDGE_BYTES)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(EDGE_BYTES);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(rest);
    }

    pub(super) fn clear(&mut self) {
        self.head.clear();
        self.tail.clear();
        self.length = 0;
    }

    /// Returns the text. If the middle is missing, a note in its place states the size of the middle. Neither edge
    /// contains a partial character.
    pub(super) fn text(&self) -> String {
        if self.length == self.head.len() + self.tail.len() {
            let whole = [&self.head[..], &self.tail].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        let head = &self.head[..end_of_last_character(&self.head)];
        let tail = &self.tail[start_of_first_character(&self.tail)..];
        let missing = self.length - head.len() - tail.len();
        format!(
            "{}\n… {missing} bytes are left out …\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(tail)
        )
    }
}

/// The largest number of bytes that follow the first byte of a character in UTF-8.
const CONTINUATION_LIMIT: usize = 3;

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the position after the last complete character. Bytes that are not UTF-8 count as complete.
fn end_of_last_character(bytes: &[u8]) -> usize {
    let earliest = bytes.len().saturating_sub(CONTINUATION_LIMIT);
    let first = (earliest..bytes.len()).rev().find(|at| !is_continuation(bytes[*at]));
    let Some(first) = first else { return bytes.len() };
    match std::str::from_utf8(&bytes[first..]) {
        Err(error) if error.error_len().is_none() => first,
        _ => bytes.len(),
    }
}

/// Returns the position of the first byte that does not continue a character. Bytes that are not UTF-8 count as the
/// beginning of a character.
fn start_of_first_character(bytes: &[u8]) -> usize {
    let first = bytes.iter().take(CONTINUATION_LIMIT + 1).position(|byte| !is_continuation(*byte));
    first.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_is_kept_whole() {
        assert_eq!(Excerpt::of(""), "");
        let whole = "ä".repeat(EDGE_BYTES);
        assert_eq!(Excerpt::of(&whole), whole);
    }

    #[test]
    fn long_text_keeps_its_edges_and_states_the_size_of_its_middle() {
        let text = format!("{}{}{}", "a".repeat(EDGE_BYTES), "b".repeat(5), "c".repeat(EDGE_BYTES));
        let expected = format!(
            "{}\n… 5 bytes are left out …\n{}",
            "a".repeat(EDGE_BYTES),
            "c".repeat(EDGE_BYTES)
        );
        assert_eq!(Excerpt::of(&text), expected);
        // The size of each write makes no difference.
        for size in [1, 7, EDGE_BYTES - 1, EDGE_BYTES + 1] {
            let mut excerpt = Excerpt::default();
            text.as_bytes().chunks(size).for_each(|chunk| excerpt.push(chunk));
            assert_eq!(excerpt.text(), expected);
        }
    }

    #[test]
    fn characters_are_not_cut() {
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "💥".repeat(1_000));
            let excerpt = Excerpt::of(&text);
            assert!(!excerpt.contains('\u{fffd}'), "{excerpt}");
            let kept = excerpt.chars().filter(|c| "x💥".contains(*c)).map(char::len_utf8);
            let kept: usize = kept.sum();
            assert!(excerpt.contains(&format!("… {} bytes", text.len() - kept)), "{excerpt}");
            assert!(kept > 2 * EDGE_BYTES - 8, "{excerpt}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let mut excerpt = Excerpt::default();
        excerpt.push(&[0xff; 3 * EDGE_BYTES]);
        let text = excerpt.text();
        assert_eq!(text.matches('\u{fffd}').count(), 2 * EDGE_BYTES);
        assert!(text.contains("… 1024 bytes"));
    }

    #[test]
    fn cleared_excerpt_is_empty() {
        let mut excerpt = Excerpt::default();
        excerpt.push(&[b'x'; 3 * EDGE_BYTES]);
        excerpt.clear();
        excerpt.push(b"y");
        assert_eq!(excerpt.text(), "y");
    }
}
