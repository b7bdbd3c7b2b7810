//! Lines of a byte stream with their positions, each up to a limit.

use std::io::{self, Read};

use super::Position;

/// How much is read at a time.
const CHUNK: usize = 1 << 18;

/// Splits what it reads into lines.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The part of `buffer` that is not yet given out.
    start: usize,
    end: usize,
    /// Up to here there is no line end.
    searched: usize,
    limit: usize,
    position: Position,
    /// Bytes of the present line that were dropped, as it is longer than `limit`.
    dropped: u64,
}

/// What comes next.
pub(super) enum Next<'a> {
    /// A line without its end, and where the next one starts.
    Line(&'a [u8], Position),
    /// The beginning of a line that is longer than the limit, its whole length, and where the
    /// next one starts.
    TooLong(&'a [u8], u64, Position),
    /// There is nothing more at this moment.
    End,
}

enum Found {
    Line { from: usize, to: usize, dropped: u64 },
    End,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R, position: Position, limit: usize) -> Self {
        let buffer = vec![0; CHUNK.max(2 * limit)];
        Self { input, buffer, start: 0, end: 0, searched: 0, limit, position, dropped: 0 }
    }

    /// Where the next line starts.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// The next line. With `last`, a line that the input ends without ending counts too; without
    /// it, it is left until the rest has been written.
    pub(super) fn next(&mut self, last: bool) -> io::Result<Next<'_>> {
        Ok(match self.find(last)? {
            Found::End => Next::End,
            Found::Line { from, to, dropped } => {
                let line = &self.buffer[from..to];
                if dropped > 0 || line.len() > self.limit {
                    let whole = line.len() as u64 + dropped;
                    Next::TooLong(&line[..line.len().min(self.limit)], whole, self.position)
                } else {
                    Next::Line(line, self.position)
                }
            }
        })
    }

    /// Whether a line can be given out without reading.
    pub(super) fn has_line(&mut self) -> bool {
        self.line_end().is_some()
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = memchr::memchr(b'\n', &self.buffer[self.searched..self.end]);
        let end = found.map(|at| self.searched + at);
        self.searched = end.unwrap_or(self.end);
        end
    }

    fn find(&mut self, last: bool) -> io::Result<Found> {
        loop {
            if let Some(end) = self.line_end() {
                return Ok(self.give_out(end, 1));
            }
            if !self.fill()? {
                let some = self.end > self.start || self.dropped > 0;
                return Ok(if last && some { self.give_out(self.end, 0) } else { Found::End });
            }
        }
    }

    /// Gives out the line that ends at `to`, with an end of `end` bytes.
    fn give_out(&mut self, to: usize, end: usize) -> Found {
        let from = self.start;
        let dropped = std::mem::take(&mut self.dropped);
        self.position.offset += (to + end - from) as u64 + dropped;
        self.position.line += 1;
        self.start = to + end;
        self.searched = self.start;
        let to = if to > from && self.buffer[to - 1] == b'\r' { to - 1 } else { to };
        Found::Line { from, to, dropped }
    }

    /// Reads more; `false` if there is nothing more now.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.searched -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            // One line fills the buffer: keep its beginning, and count the rest.
            let keep = self.limit + 1;
            self.dropped += (self.end - keep) as u64;
            self.end = keep;
            self.searched = keep;
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => {
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

    fn read(text: &[u8], limit: usize, last: bool) -> Vec<(Vec<u8>, u64, u64)> {
        let mut lines = Lines::new(text, Position::default(), limit);
        let mut read = Vec::new();
        loop {
            match lines.next(last).expect("reading a slice cannot fail") {
                Next::Line(line, position) => {
                    read.push((line.to_vec(), line.len() as u64, position.offset));
                }
                Next::TooLong(line, whole, position) => {
                    read.push((line.to_vec(), whole, position.offset));
                }
                Next::End => return read,
            }
        }
    }

    #[test]
    fn lines_have_their_positions() {
        let lines = read(b"one\r\n\nthree", 10, true);
        assert_eq!(
            lines,
            [(b"one".to_vec(), 3, 5), (Vec::new(), 0, 6), (b"three".to_vec(), 5, 11)]
        );
        assert_eq!(read(b"one\ntwo", 10, false).len(), 1, "the second is not finished");
    }

    #[test]
    fn a_line_beyond_the_limit_is_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 3 * CHUNK + 17];
        text.extend_from_slice(b"\nnext\n");
        let lines = read(&text, 8, true);
        assert_eq!(lines[0], (b"xxxxxxxx".to_vec(), 3 * CHUNK as u64 + 17, 3 * CHUNK as u64 + 18));
        assert_eq!(lines[1].0, b"next");
    }
}
