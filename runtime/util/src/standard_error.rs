//! Writes to standard error. The log must not cost the effect: a reader that has stopped reading, such as a stopped log
//! collector or a terminal that a user has paused, must never stop a run.
//!
//! While a [`WriterGuard`] exists, one thread therefore writes everything, and all other threads only append to a queue
//! with a limit. In a process without a guard, such as a command that soon ends, each thread writes directly.
//!
//! If the queue is full, a line waits for room before it is dropped, so that a healthy reader loses no line of a burst.
//! All lines together wait for at most [`ROOM_TIMEOUT`] each time that the queue becomes full. The writer thread takes
//! the whole queue at once, so the queue can become full again only after the reader has read everything that the
//! thread took before. A stopped reader therefore delays the run once. A reader that reads a full queue within
//! [`ROOM_TIMEOUT`] loses no line, and a slower reader loses lines instead of slowing the run.

use std::backtrace::Backtrace;
use std::io;
use std::panic;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::tcgetwinsize;

/// Maximum size of the queue, in bytes: room for a burst of some 20,000 lines. The writer thread holds at most as much
/// in addition.
const QUEUE_LIMIT_BYTES: usize = 4 << 20;

/// The time for which threads wait for room each time that the queue becomes full: short enough to delay no event
/// noticeably, long enough for a healthy reader (40 MiB per second) on a busy machine.
const ROOM_TIMEOUT: Duration = Duration::from_millis(100);

/// The time for which the end of a process waits until the queue is written: enough for a healthy reader, and short for
/// a supervisor that waits for the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of one write, in bytes, except for a longer line (`PIPE_BUF`). A pipe keeps the bytes of such a write
/// together, so that lines and the messages on standard output do not mix if both go to the same pipe.
const WRITE_BYTES: usize = 4096;

/// Moves the cursor of a terminal to the beginning of its row, and erases the row.
const ERASE_ROW: &[u8] = b"\r\x1b[2K";

/// The number of columns of a terminal that does not report its size.
const DEFAULT_COLUMNS: usize = 80;

/// Formats a line, with its line end, that reports a number of dropped lines.
pub type DropNote = fn(u64) -> String;

/// The queue, and the signals to the threads that wait for a change of the queue.
struct Output {
    queue: Mutex<Queue>,
    /// Notified when the writer thread has something to write.
    work: Condvar,
    /// Notified when the writer thread has taken the content of the queue, and when it has written that content.
    progress: Condvar,
}

/// The content that the writer thread has not taken yet, and the state of the output.
struct Queue {
    /// `None` while no writer thread exists: each thread then writes directly.
    note: Option<DropNote>,
    text: Vec<u8>,
    /// The time until which threads wait for room. `None` if the queue has not been full since the writer thread took
    /// its content.
    room_deadline: Option<Instant>,
    /// The number of lines that were dropped after the last line of `text`.
    dropped: u64,
    /// The number of lines that the process did not write since its start.
    dropped_total: u64,
    /// The newest status line, if the writer thread has not taken it yet.
    status: Option<String>,
    /// True while the writer thread writes.
    is_writing: bool,
    /// True after the last line of the log. A task that still runs must write no line after that line.
    is_complete: bool,
}

static OUTPUT: Output =
    Output { queue: Mutex::new(Queue::new()), work: Condvar::new(), progress: Condvar::new() };

/// A guard for the time in which one thread writes standard error. Dropping the guard calls [`finish`].
#[derive(Debug)]
#[must_use]
pub struct WriterGuard(());

impl Drop for WriterGuard {
    fn drop(&mut self) {
        finish();
    }
}

/// Starts the thread that writes standard error. The texts of panics go to this thread too. If the system refuses the
/// thread, each thread continues to write directly.
pub fn start(note: DropNote) -> WriterGuard {
    let mut queue = OUTPUT.lock();
    if thread::Builder::new().name("stderr".to_owned()).spawn(run_writer).is_ok() {
        queue.note = Some(note);
        panic::set_hook(Box::new(|info| {
            let thread = thread::current();
            let name = thread.name().unwrap_or("<unnamed>");
            log(&format!("\nthread '{name}' {info}\n{}\n", Backtrace::capture()));
        }));
    }
    WriterGuard(())
}

/// Ends the log, removes the status line, and waits for at most [`DRAIN_TIMEOUT`] until the queue is written.
pub fn finish() {
    let mut queue = OUTPUT.lock();
    queue.is_complete = true;
    if queue.note.is_some() {
        queue.status = Some(String::new());
        OUTPUT.work.notify_one();
        drop(OUTPUT.progress.wait_timeout_while(queue, DRAIN_TIMEOUT, |queue| {
            queue.is_writing || !queue.is_empty()
        }));
    }
}

/// Writes a line of the log, with its line end. Drops the line if the queue stays full, and after the end of the log.
pub fn log(line: &str) {
    let mut queue = OUTPUT.lock();
    while !queue.is_complete && !queue.accepts(line.len()) {
        let deadline = *queue.room_deadline.get_or_insert_with(|| Instant::now() + ROOM_TIMEOUT);
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            queue.count_dropped(count_lines(line.as_bytes()));
            return;
        }
        queue = OUTPUT.progress.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
    if !queue.is_complete {
        queue.append(line);
    }
}

/// Prints a text, with its line end, that a process prints only once, such as a report. The queue therefore accepts the
/// text even if it is full.
pub fn print(text: &str) {
    OUTPUT.lock().append(text);
}

/// Prints the last line of the log, with its line end.
pub fn print_last(line: &str) {
    let mut queue = OUTPUT.lock();
    queue.is_complete = true;
    queue.append(line);
}

/// Replaces the status line, which the terminal shows below the log. The line has no line end. Does nothing without a
/// writer thread, and after the end of the log.
pub fn set_status(line: String) {
    let mut queue = OUTPUT.lock();
    if queue.note.is_some() && !queue.is_complete {
        queue.status = Some(line);
        OUTPUT.work.notify_one();
    }
}

/// Returns the number of lines that were not written since the start of the process, because the queue was full or
/// because a write failed.
pub fn dropped_lines() -> u64 {
    OUTPUT.lock().dropped_total
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    const fn new() -> Self {
        Self {
            note: None,
            text: Vec::new(),
            room_deadline: None,
            dropped: 0,
            dropped_total: 0,
            status: None,
            is_writing: false,
            is_complete: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.status.is_none()
    }

    /// Returns whether the queue has room for a line. After a dropped line, the queue has no room until the writer
    /// thread has taken its content, so that one note reports all dropped lines.
    fn accepts(&self, bytes: usize) -> bool {
        let has_room = self.text.len() + bytes <= QUEUE_LIMIT_BYTES || self.text.is_empty();
        has_room && self.dropped == 0
    }

    fn count_dropped(&mut self, lines: u64) {
        self.dropped += lines;
        self.dropped_total += lines;
    }

    /// Appends a text to the queue, or writes the text if no writer thread exists.
    fn append(&mut self, text: &str) {
        if self.note.is_none() {
            self.dropped_total += write(text.as_bytes());
            return;
        }
        self.append_note();
        self.text.extend_from_slice(text.as_bytes());
        OUTPUT.work.notify_one();
    }

    /// If lines were dropped, appends the note about them.
    fn append_note(&mut self) {
        if let Some(note) = self.note.filter(|_| self.dropped > 0) {
            self.text.extend_from_slice(note(self.dropped).as_bytes());
            self.dropped = 0;
        }
    }

    /// Takes the text, which ends with the note about dropped lines.
    fn take_text(&mut self) -> Vec<u8> {
        self.append_note();
        self.room_deadline = None;
        std::mem::take(&mut self.text)
    }
}

/// Writes the content of the queue until the process ends.
fn run_writer() {
    let mut shown_status = String::new();
    let mut queue = OUTPUT.lock();
    loop {
        queue = OUTPUT
            .work
            .wait_while(queue, |queue| queue.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let text = queue.take_text();
        let status = queue.status.take();
        queue.is_writing = true;
        drop(queue);
        OUTPUT.progress.notify_all();
        if !shown_status.is_empty() {
            write(ERASE_ROW);
        }
        let lost = write(&text);
        shown_status = status.unwrap_or(shown_status);
        if !shown_status.is_empty() {
            write(full_row(&shown_status).as_bytes());
        }
        queue = OUTPUT.lock();
        queue.dropped_total += lost;
        queue.is_writing = false;
        OUTPUT.progress.notify_all();
    }
}

/// Returns a status line that fills exactly one row of the terminal. The cursor is then at the end of the row, so that
/// a message that the terminal shows from standard output begins in the next row.
fn full_row(status: &str) -> String {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { DEFAULT_COLUMNS } else { columns };
    format!("{status:<columns$.columns$}")
}

/// Writes a text to the file descriptor, and returns the number of lines that could not be written. A closed reader or
/// a full disk is no error. Does not lock [`io::stderr`], for which other threads would wait.
fn write(mut text: &[u8]) -> u64 {
    let stderr = io::stderr();
    while !text.is_empty() {
        match rustix::io::write(&stderr, &text[..write_bytes(text)]) {
            Ok(written) if written > 0 => text = &text[written..],
            Err(Errno::INTR) => {}
            // Another program that shares the terminal or pipe has made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            Ok(_) | Err(_) => break,
        }
    }
    count_lines(text)
}

/// Returns the number of bytes of the next write: as many whole lines as [`WRITE_BYTES`] allows, but at least one line.
fn write_bytes(text: &[u8]) -> usize {
    let is_end = |byte: &u8| *byte == b'\n';
    if text.len() <= WRITE_BYTES {
        return text.len();
    }
    let last = text[..WRITE_BYTES].iter().rposition(is_end);
    last.or_else(|| text.iter().position(is_end)).map_or(text.len(), |end| end + 1)
}

fn count_lines(text: &[u8]) -> u64 {
    text.split(|byte| *byte == b'\n').count() as u64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(lines: u64) -> String {
        format!("{lines} dropped\n")
    }

    #[test]
    fn note_follows_the_last_line_before_the_dropped_lines() {
        let mut queue = Queue { note: Some(note), ..Queue::new() };
        queue.append("first\n");
        queue.count_dropped(2);
        queue.count_dropped(1);
        assert!(!queue.accepts(1));
        queue.append("report\n");
        assert_eq!(queue.take_text(), b"first\n3 dropped\nreport\n");
        assert!(queue.accepts(1));
        queue.append("next\n");
        queue.count_dropped(1);
        assert_eq!(queue.take_text(), b"next\n1 dropped\n");
        assert_eq!(queue.dropped_total, 4);
    }

    #[test]
    fn queue_has_a_limit() {
        let mut queue = Queue::new();
        assert!(queue.accepts(2 * QUEUE_LIMIT_BYTES));
        queue.text = vec![b'x'; QUEUE_LIMIT_BYTES - 10];
        assert!(queue.accepts(10) && !queue.accepts(11));
    }

    #[test]
    fn write_contains_whole_lines() {
        let short = "x".repeat(WRITE_BYTES / 2 - 2) + "\n";
        let long = "x".repeat(2 * WRITE_BYTES) + "\n";
        assert_eq!(write_bytes(short.as_bytes()), short.len());
        assert_eq!(write_bytes(short.repeat(5).as_bytes()), 2 * short.len());
        assert_eq!(write_bytes(format!("{short}{long}").as_bytes()), short.len());
        assert_eq!(write_bytes(format!("{long}{short}").as_bytes()), long.len());
        assert_eq!(write_bytes("x".repeat(2 * WRITE_BYTES).as_bytes()), 2 * WRITE_BYTES);
        assert_eq!([count_lines(b""), count_lines(b"a\nb\n"), count_lines(b"a\nb")], [0, 2, 1]);
    }
}
