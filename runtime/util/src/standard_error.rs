//! Writes to standard error. A reader that has stopped reading must never stop a run. Examples of such readers are a
//! stopped log collector, and a terminal that a user has paused.
//!
//! While a [`WriterGuard`] exists, one thread therefore writes everything, and all other threads only append to a queue
//! with a limit. In a process without a guard, such as a command that soon ends, each thread writes directly.
//!
//! If the queue is full, lines wait for room, so that a reader that continues to read loses no line. A slow reader then
//! slows the run, as with direct writes. If a reader does not read a portion of the queue (`PORTION_BYTES`) within
//! `PROGRESS_TIMEOUT`, the reader counts as stopped. The waiting lines are then dropped. All later lines are dropped
//! without a wait until the reader has resumed and read half of the queue. A stopped reader therefore delays the run
//! only once per stop.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io;
use std::panic::{self, PanicHookInfo};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::tcgetwinsize;

/// Maximum size of the queue, in bytes: room for a burst of some 20,000 lines. The writer thread holds one portion in
/// addition.
const QUEUE_LIMIT_BYTES: usize = 4 << 20;

/// Maximum size of a portion of the queue, in bytes, except for a longer text. The writer thread takes one portion at a
/// time. A large portion costs few locks; a small portion soon shows that the reader continues to read.
const PORTION_BYTES: usize = 64 << 10;

/// The maximum time for which lines wait for a reader to read the next portion of a full queue. The time is long enough
/// for a slow reader (128 KiB per second). The time is short, because a stopped reader delays the run by this time. A
/// panic waits at most for this time until its text is written.
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum time for which a process that ends waits until the queue is written. This time is long enough for a
/// healthy reader, and short enough for a supervisor that waits for the end of the process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of one write, in bytes (`PIPE_BUF`). Only a single line that is longer than this size needs a larger
/// write. A pipe keeps the bytes of such a write together, so that lines and the messages on standard output do not mix
/// if both go to the same pipe.
const WRITE_BYTES: usize = 4096;

/// Moves the cursor of a terminal to the beginning of its row, and erases the row.
const ERASE_ROW: &[u8] = b"\r\x1b[2K";

/// The number of columns of a terminal that does not report its size.
const DEFAULT_COLUMNS: usize = 80;

/// Formats a line, with its line end, that reports a number of dropped lines.
pub type DropNote = fn(u64) -> String;

/// The queue, and the signals to the threads that wait for a change of the queue.
struct LogOutput {
    queue: Mutex<LogQueue>,
    /// Notified when the writer thread has something to write.
    work: Condvar,
    /// Notified when the writer thread has written a portion of the queue.
    progress: Condvar,
}

/// The content that the writer thread has not taken yet, and the state of the output.
struct LogQueue {
    /// `None` while no writer thread exists: each thread then writes directly.
    note: Option<DropNote>,
    /// Whole texts, each with its line end.
    portions: VecDeque<Vec<u8>>,
    /// The size of all portions.
    bytes: usize,
    /// The time until which threads wait for the reader. `None` if no thread has waited since the writer thread wrote
    /// the last portion.
    deadline: Option<Instant>,
    /// The number of lines that were dropped after the last line of `portions`.
    dropped: u64,
    /// The number of lines that the process did not write since its start.
    dropped_total: u64,
    /// The newest status line, if the writer thread has not taken it yet.
    status: Option<String>,
    /// True while the writer thread writes.
    is_writing: bool,
    /// True after the last line of the log. A task that still runs must write no line after that line.
    is_complete: bool,
    /// True if the last direct write stopped inside a line.
    is_inside_line: bool,
}

static OUTPUT: LogOutput = LogOutput {
    queue: Mutex::new(LogQueue::new()),
    work: Condvar::new(),
    progress: Condvar::new(),
};

/// A guard for the time in which one thread writes standard error. Dropping the guard calls [`finish`] with
/// `DRAIN_TIMEOUT`.
#[derive(Debug)]
#[must_use]
pub struct WriterGuard(());

impl Drop for WriterGuard {
    fn drop(&mut self) {
        finish(DRAIN_TIMEOUT);
    }
}

/// Starts the thread that writes standard error. The texts of panics go to this thread too. If the system refuses the
/// thread, logs a warning, and each thread continues to write directly.
pub fn start(note: DropNote) -> WriterGuard {
    let mut queue = OUTPUT.lock();
    match thread::Builder::new().name("stderr".to_owned()).spawn(run_writer) {
        Ok(_) => {
            queue.note = Some(note);
            panic::set_hook(Box::new(log_panic));
        }
        Err(error) => {
            // Unlock the queue first, because the warning below locks it.
            drop(queue);
            tracing::warn!(
                "cannot start the thread that writes the log: {error}; log lines are written directly, so a reader \
                 of standard error that stops reading stops this process"
            );
        }
    }
    WriterGuard(())
}

/// Ends the log, removes the status line, and waits for at most `timeout` until the queue is written.
pub fn finish(timeout: Duration) {
    let mut queue = OUTPUT.lock();
    queue.is_complete = true;
    if queue.note.is_some() {
        queue.status = Some(String::new());
        OUTPUT.work.notify_one();
        OUTPUT.drain(queue, timeout);
    }
}

/// Writes a line of the log, with its line end. Drops the line if the queue stays full, and after the end of the log.
pub fn log(line: &str) {
    let mut queue = OUTPUT.lock();
    while !queue.is_complete && !queue.accepts(line.len()) {
        let timeout = queue.wait_timeout();
        if timeout.is_zero() {
            queue.count_dropped(count_lines(line.as_bytes()));
            return;
        }
        let waited = OUTPUT.progress.wait_timeout(queue, timeout);
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    if queue.is_complete {
        // After the last line of the log, no note may report dropped lines, so only the total counts this line.
        queue.dropped_total += count_lines(line.as_bytes());
    } else {
        queue.append(line);
    }
}

/// Logs a panic, and waits until its text is written, because the process can abort as soon as this function returns.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let mut text = format!("\nthread '{}' {info}\n", thread.name().unwrap_or("<unnamed>"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text += &format!("{backtrace}\n");
    }
    log(&text);
    let mut queue = OUTPUT.lock();
    if queue.is_unwritten() {
        let timeout = queue.wait_timeout();
        OUTPUT.drain(queue, timeout);
    }
}

/// Prints a text, with its line end, that a process prints only once, such as a report. The queue therefore accepts the
/// text even if the queue is full.
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

/// Returns the number of lines that were not written since the start of the process, because the queue was full,
/// because a write failed, or because the log has ended.
pub fn dropped_lines() -> u64 {
    OUTPUT.lock().dropped_total
}

impl LogOutput {
    fn lock(&self) -> MutexGuard<'_, LogQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most `timeout` until the queue is written.
    fn drain(&self, queue: MutexGuard<'_, LogQueue>, timeout: Duration) {
        drop(self.progress.wait_timeout_while(queue, timeout, |queue| queue.is_unwritten()));
    }
}

impl LogQueue {
    const fn new() -> Self {
        Self {
            note: None,
            portions: VecDeque::new(),
            bytes: 0,
            deadline: None,
            dropped: 0,
            dropped_total: 0,
            status: None,
            is_writing: false,
            is_complete: false,
            is_inside_line: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.portions.is_empty() && self.status.is_none()
    }

    fn is_unwritten(&self) -> bool {
        self.is_writing || !self.is_empty()
    }

    /// Returns whether the queue has room for a line. After a dropped line, the queue has no room until half of the
    /// queue is free, so that one note reports many dropped lines.
    fn accepts(&self, bytes: usize) -> bool {
        let has_room = self.bytes + bytes <= QUEUE_LIMIT_BYTES || self.portions.is_empty();
        has_room && self.dropped == 0
    }

    /// Returns the time for which a thread waits for the reader. The time is zero while the reader is stopped and while
    /// lines are dropped, so that a stopped reader delays the run only once.
    fn wait_timeout(&mut self) -> Duration {
        if self.dropped > 0 {
            return Duration::ZERO;
        }
        let now = Instant::now();
        self.deadline.get_or_insert(now + PROGRESS_TIMEOUT).saturating_duration_since(now)
    }

    fn count_dropped(&mut self, lines: u64) {
        self.dropped += lines;
        self.dropped_total += lines;
    }

    /// Appends a text to the queue, or writes the text if no writer thread exists.
    fn append(&mut self, text: &str) {
        if self.note.is_none() {
            self.dropped_total += write_lines(text.as_bytes(), &mut self.is_inside_line, write);
            return;
        }
        self.append_note();
        self.push(text.as_bytes());
        OUTPUT.work.notify_one();
    }

    /// If lines were dropped, appends the note about them.
    fn append_note(&mut self) {
        if let Some(note) = self.note.filter(|_| self.dropped > 0) {
            self.push(note(self.dropped).as_bytes());
            self.dropped = 0;
        }
    }

    fn push(&mut self, text: &[u8]) {
        self.bytes += text.len();
        match self.portions.back_mut() {
            Some(last) if last.len() + text.len() <= PORTION_BYTES => last.extend_from_slice(text),
            _ => self.portions.push_back(text.to_vec()),
        }
    }

    /// Takes the next portion, which the writer thread then writes. If half of the queue is then free, appends the note
    /// about dropped lines.
    fn take_portion(&mut self) -> Vec<u8> {
        let portion = self.portions.pop_front().unwrap_or_default();
        self.bytes -= portion.len();
        if self.bytes <= QUEUE_LIMIT_BYTES / 2 {
            self.append_note();
        }
        self.is_writing = true;
        portion
    }

    /// Ends the writing of a portion. `lost` is the number of lines that could not be written.
    fn finish_portion(&mut self, lost: u64) {
        self.dropped_total += lost;
        self.is_writing = false;
        self.deadline = None;
        OUTPUT.progress.notify_all();
    }
}

/// Writes the content of the queue until the process ends.
fn run_writer() {
    let mut shown_status = String::new();
    let mut is_inside_line = false;
    let mut queue = OUTPUT.lock();
    loop {
        queue = OUTPUT
            .work
            .wait_while(queue, |queue| queue.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let portion = queue.take_portion();
        let status = queue.status.take();
        drop(queue);
        if !shown_status.is_empty() {
            write(ERASE_ROW);
        }
        let lost = write_lines(&portion, &mut is_inside_line, write);
        shown_status = status.unwrap_or(shown_status);
        if !shown_status.is_empty() {
            write(full_row(&shown_status).as_bytes());
        }
        queue = OUTPUT.lock();
        queue.finish_portion(lost);
    }
}

/// Returns a status line that fills exactly one row of the terminal. The cursor is then at the end of the row, so that
/// a message that the terminal shows from standard output begins in the next row.
fn full_row(status: &str) -> String {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { DEFAULT_COLUMNS } else { columns };
    format!("{status:<columns$.columns$}")
}

/// Writes lines with `write`, and returns the number of lines that could not be written completely. If the previous
/// write stopped inside a line (`is_inside_line`), first ends that line.
fn write_lines(lines: &[u8], is_inside_line: &mut bool, write: impl Fn(&[u8]) -> usize) -> u64 {
    if *is_inside_line && !lines.is_empty() {
        if write(b"\n") == 0 {
            return count_lines(lines);
        }
        *is_inside_line = false;
    }
    let (written, lost) = lines.split_at(write(lines));
    *is_inside_line |= written.last().is_some_and(|byte| *byte != b'\n');
    count_lines(lost)
}

/// Writes a text to the file descriptor, and returns the number of written bytes. A closed reader or a full disk is no
/// error. Does not lock [`io::stderr`], for which other threads would wait.
fn write(text: &[u8]) -> usize {
    let stderr = io::stderr();
    let mut rest = text;
    while !rest.is_empty() {
        match rustix::io::write(&stderr, &rest[..write_bytes(rest)]) {
            Ok(written) if written > 0 => rest = &rest[written..],
            Err(Errno::INTR) => {}
            // Another program that shares the terminal or pipe has set the non-blocking mode.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            Ok(_) | Err(_) => break,
        }
    }
    text.len() - rest.len()
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
    use std::cell::{Cell, RefCell};

    use super::*;

    fn note(lines: u64) -> String {
        format!("{lines} dropped\n")
    }

    #[test]
    fn note_follows_the_last_line_before_the_dropped_lines() {
        let mut queue = LogQueue { note: Some(note), ..LogQueue::new() };
        queue.append("first\n");
        queue.count_dropped(2);
        queue.count_dropped(1);
        assert!(!queue.accepts(1));
        queue.append("report\n");
        assert_eq!(queue.take_portion(), b"first\n3 dropped\nreport\n");
        assert!(queue.accepts(1));
        queue.append("next\n");
        queue.count_dropped(1);
        assert_eq!(queue.take_portion(), b"next\n");
        assert_eq!(queue.take_portion(), b"1 dropped\n");
        assert_eq!((queue.dropped_total, queue.bytes), (4, 0));
    }

    #[test]
    fn stopped_reader_delays_only_the_first_lines() {
        let line = "x".repeat(PORTION_BYTES - 1) + "\n";
        let mut queue = LogQueue { note: Some(note), ..LogQueue::new() };
        while queue.accepts(line.len()) {
            queue.append(&line);
        }
        assert_eq!(queue.bytes, QUEUE_LIMIT_BYTES);
        assert!(queue.wait_timeout() > PROGRESS_TIMEOUT / 2);
        queue.deadline = Some(Instant::now());
        assert!(queue.wait_timeout().is_zero());
        queue.count_dropped(1);
        // The reader continues. The queue has no room until half of the queue is free, and no line waits for room.
        while queue.dropped > 0 {
            assert!(!queue.accepts(1) && queue.wait_timeout().is_zero());
            assert_eq!(queue.take_portion(), line.as_bytes());
            queue.finish_portion(0);
        }
        assert_eq!(queue.bytes, QUEUE_LIMIT_BYTES / 2 + b"1 dropped\n".len());
        assert!(queue.accepts(1) && queue.wait_timeout() > PROGRESS_TIMEOUT / 2);
        assert_eq!(queue.portions.back().map(Vec::as_slice), Some(&b"1 dropped\n"[..]));
    }

    #[test]
    fn queue_has_a_limit() {
        let mut queue = LogQueue::new();
        assert!(queue.accepts(2 * QUEUE_LIMIT_BYTES));
        queue.push(&vec![b'x'; QUEUE_LIMIT_BYTES - 10]);
        assert!(queue.accepts(10) && !queue.accepts(11));
    }

    #[test]
    fn torn_line_does_not_destroy_the_next_line() {
        let output = RefCell::new(Vec::new());
        let room = Cell::new(0);
        let write = |text: &[u8]| {
            let written = text.len().min(room.get());
            room.set(room.get() - written);
            output.borrow_mut().extend_from_slice(&text[..written]);
            written
        };
        let mut is_inside_line = false;
        let mut lost = 0;
        for (lines, bytes) in [("one\ntwo\n", 6), ("three\n", 0), ("four\nfive\n", 1), ("six\n", 9)]
        {
            room.set(bytes);
            lost += write_lines(lines.as_bytes(), &mut is_inside_line, write);
        }
        assert_eq!(output.into_inner(), b"one\ntw\nsix\n");
        assert_eq!((lost, is_inside_line), (4, false));
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
