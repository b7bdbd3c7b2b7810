//! Splits a byte stream into lines with their positions. The splitter returns only the beginning of a line that exceeds
//! the size limit. At the beginning of a line, the splitter skips blanks (including NUL bytes), so these blanks do not
//! count against the limit. If a program truncates a file while another program appends to the file, any number of NUL
//! bytes may precede the next event.

use std::io::{self, Read};

use ordain_cloudevents::{FilePosition, ReadFingerprint, is_blank_byte};
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// Minimum size, in bytes, of the buffer for data that is not returned yet. If twice the size limit of a line exceeds
/// `READ_BYTES`, the size of the buffer is twice this limit.
const READ_BYTES: usize = 1 << 18;

pub(super) struct LineSplitter<R> {
    input: R,
    buffer: Vec<u8>,
    /// Start of the part of `buffer` that is not returned yet. The buffer keeps up to [`TAIL_LIMIT_BYTES`] bytes before
    /// this index.
    start: usize,
    end: usize,
    /// From this index to `end`, the buffer matches the input without a gap.
    contiguous_from: usize,
    /// The first bytes of the input, at most [`TAIL_LIMIT_BYTES`].
    head: Vec<u8>,
    /// Between `start` and this index, the buffer contains no line end.
    searched: usize,
    limit: usize,
    position: FilePosition,
    /// Number of bytes of the current line that were dropped because the line exceeds `limit`.
    dropped: u64,
}

pub(super) enum NextLine<'a> {
    /// A line without its line end and without the blanks at its beginning, and the position of the next line.
    Line(&'a [u8], FilePosition),
    /// The beginning of a line that exceeds the limit, the line's whole length, and the position of the next line.
    TooLong(&'a [u8], u64, FilePosition),
    End,
}

impl<R: Read> LineSplitter<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        let buffer = vec![0; TAIL_LIMIT_BYTES + READ_BYTES.max(2 * limit)];
        Self {
            input,
            buffer,
            start: 0,
            end: 0,
            contiguous_from: 0,
            head: Vec::with_capacity(TAIL_LIMIT_BYTES),
            searched: 0,
            limit,
            position: FilePosition::default(),
            dropped: 0,
        }
    }

    /// Creates a splitter for an input that continues at a position. `head` has the first bytes of the input, and
    /// `tail` has the bytes immediately before `position`.
    pub(super) fn resume(
        input: R,
        limit: usize,
        position: FilePosition,
        head: &TailFingerprint,
        tail: &TailFingerprint,
    ) -> Self {
        let mut lines = Self::new(input, limit);
        let kept = tail.bytes().len();
        lines.buffer[..kept].copy_from_slice(tail.bytes());
        lines.start = kept;
        lines.end = kept;
        lines.searched = kept;
        lines.head.extend_from_slice(head.bytes());
        lines.position = position;
        lines
    }

    pub(super) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the last bytes that were read, at most [`TAIL_LIMIT_BYTES`], including the bytes of an incomplete line.
    pub(super) fn tail(&self) -> TailFingerprint {
        let unended = self.dropped + (self.end - self.start) as u64;
        TailFingerprint::new(
            self.position.offset + unended,
            &self.buffer[self.contiguous_from..self.end],
        )
    }

    pub(super) fn fingerprint(&self) -> ReadFingerprint {
        let returned = &self.buffer[self.contiguous_from.min(self.start)..self.start];
        ReadFingerprint::new(&self.head, &TailFingerprint::new(self.position.offset, returned))
    }

    /// Returns the next complete line, or [`NextLine::End`] if the input has none now.
    pub(super) fn next(&mut self) -> io::Result<NextLine<'_>> {
        loop {
            self.skip_blanks();
            if let Some(end) = self.line_end() {
                return Ok(self.take_line(end, 1));
            }
            if !self.fill()? {
                return Ok(NextLine::End);
            }
        }
    }

    /// Returns the position up to which the splitter has returned or skipped the input.
    pub(super) fn position(&self) -> FilePosition {
        self.position
    }

    /// Skips the available blanks at the beginning of a line, but no line end.
    pub(super) fn skip_blanks(&mut self) {
        if self.dropped > 0 {
            return;
        }
        let rest = &self.buffer[self.start..self.end];
        let is_text = |byte: &u8| *byte == b'\n' || !is_blank_byte(*byte);
        let blanks = rest.iter().position(is_text).unwrap_or(rest.len());
        self.start += blanks;
        self.searched = self.searched.max(self.start);
        self.position.offset += blanks as u64;
    }

    /// Returns the incomplete last line, or [`NextLine::End`] if the input ends with a complete line. Call this method
    /// only after the end of the input.
    pub(super) fn last_line(&mut self) -> NextLine<'_> {
        if self.end == self.start && self.dropped == 0 {
            return NextLine::End;
        }
        self.take_line(self.end, 0)
    }

    /// Returns whether a line is available without another read.
    pub(super) fn has_line(&mut self) -> bool {
        self.line_end().is_some()
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = memchr::memchr(b'\n', &self.buffer[self.searched..self.end]);
        let end = found.map(|at| self.searched + at);
        self.searched = end.unwrap_or(self.end);
        end
    }

    /// Removes a carriage return at the end of the line. `end` is the length of the line end; 0 if the line is
    /// incomplete.
    fn take_line(&mut self, to: usize, end: usize) -> NextLine<'_> {
        let from = self.start;
        let dropped = std::mem::take(&mut self.dropped);
        self.position.offset += (to + end - from) as u64 + dropped;
        self.position.line += 1;
        self.start = to + end;
        self.searched = self.start;
        let to = if to > from && self.buffer[to - 1] == b'\r' { to - 1 } else { to };
        let line = &self.buffer[from..to];
        if dropped > 0 || line.len() > self.limit {
            let whole = line.len() as u64 + dropped;
            return NextLine::TooLong(&line[..line.len().min(self.limit)], whole, self.position);
        }
        NextLine::Line(line, self.position)
    }

    /// Reads more data into the buffer. Returns `false` if the input has no data now.
    fn fill(&mut self) -> io::Result<bool> {
        let gone = self.start.saturating_sub(TAIL_LIMIT_BYTES);
        if gone > 0 {
            self.buffer.copy_within(gone..self.end, 0);
            self.start -= gone;
            self.end -= gone;
            self.searched -= gone;
            self.contiguous_from = self.contiguous_from.saturating_sub(gone);
        }
        if self.end == self.buffer.len() {
            // The current line fills the buffer: keep the beginning of the line, and count the rest as dropped.
            let keep = self.start + self.limit + 1;
            self.dropped += (self.end - keep) as u64;
            self.end = keep;
            self.searched = keep;
            self.contiguous_from = keep;
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    let first = read.min(TAIL_LIMIT_BYTES - self.head.len());
                    self.head.extend_from_slice(&self.buffer[self.end..self.end + first]);
                    self.end += read;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], limit: usize, rest: bool) -> Vec<(Vec<u8>, u64, u64)> {
        let mut lines = LineSplitter::new(text, limit);
        let mut read = Vec::new();
        let mut take = |next: NextLine<'_>| match next {
            NextLine::Line(line, position) => {
                read.push((line.to_vec(), line.len() as u64, position.offset));
                true
            }
            NextLine::TooLong(line, whole, position) => {
                read.push((line.to_vec(), whole, position.offset));
                true
            }
            NextLine::End => false,
        };
        while take(lines.next().expect("reading a slice cannot fail")) {}
        if rest {
            take(lines.last_line());
        }
        read
    }

    #[test]
    fn lines_have_their_positions() {
        let lines = read(b"one\r\n\nthree", 10, true);
        assert_eq!(
            lines,
            [(b"one".to_vec(), 3, 5), (Vec::new(), 0, 6), (b"three".to_vec(), 5, 11)]
        );
        assert_eq!(read(b"one\ntwo", 10, false).len(), 1, "the second line is incomplete");
    }

    #[test]
    fn line_beyond_the_limit_is_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 3 * READ_BYTES + 17];
        text.extend_from_slice(b"\nnext\n");
        let lines = read(&text, 8, true);
        assert_eq!(
            lines[0],
            (b"xxxxxxxx".to_vec(), 3 * READ_BYTES as u64 + 17, 3 * READ_BYTES as u64 + 18)
        );
        assert_eq!(lines[1].0, b"next");
    }

    #[test]
    fn head_and_tail_match_the_input() {
        let mut text = Vec::new();
        // Lines of all lengths, including lines beyond the limit and the buffer. The last line has no line end.
        for length in [
            0,
            1,
            7,
            TAIL_LIMIT_BYTES,
            40_000,
            3 * READ_BYTES,
            5,
            TAIL_LIMIT_BYTES + 1,
            READ_BYTES,
            2 * READ_BYTES,
            3,
        ] {
            text.extend((0..length).map(|at| b'a' + (at % 23) as u8));
            text.extend_from_slice(b"\n");
        }
        text.extend_from_slice(b"half");
        let has = |probe: &TailFingerprint| {
            let end = probe.end() as usize;
            text[end - probe.bytes().len()..end] == *probe.bytes()
        };
        let mut lines = LineSplitter::new(&*text, 50_000);
        while let NextLine::Line(_, position) | NextLine::TooLong(_, _, position) =
            lines.next().expect("reading a slice cannot fail")
        {
            let tail = lines.tail();
            assert!(has(&tail) && tail.end() >= position.offset, "{position:?}");
            assert_eq!(lines.fingerprint().end(), position.offset);
            assert_eq!(lines.head(), &text[..TAIL_LIMIT_BYTES.min(tail.end() as usize)]);
        }
        assert_eq!(lines.tail(), TailFingerprint::new(text.len() as u64, &text));
    }
}
