//! Writes to standard error. A reader that has stopped reading, such as a stopped log collector or a paused terminal,
//! must not stop the process: the process would then execute no events, and would not end after a signal.

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The maximum size of one write, in bytes (`PIPE_BUF`). If the system reports that a pipe accepts data, a write of
/// this size does not wait for the reader.
const WRITE_BYTES: usize = 4096;

/// The time for which a write waits until standard error accepts data.
const STALL_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The result of the last write.
struct StandardError {
    /// True if standard error did not accept data within [`STALL_TIMEOUT`]. The next write then does not wait again.
    is_stalled: bool,
    /// True if the last write ended within a line.
    is_line_open: bool,
}

static STATE: Mutex<StandardError> =
    Mutex::new(StandardError { is_stalled: false, is_line_open: false });

/// Writes lines to standard error. Ignores errors, because a closed reader or a full disk must not stop the process.
/// Returns `false` if standard error accepts no data now, so that at least the end of the text is lost.
pub fn write_lossy(text: &[u8]) -> bool {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).write(text)
}

impl StandardError {
    fn write(&mut self, text: &[u8]) -> bool {
        let mut stderr = io::stderr().lock();
        for part in text.chunks(WRITE_BYTES) {
            let timeout = if self.is_stalled { NO_TIME } else { STALL_TIMEOUT };
            self.is_stalled = !accepts_data(&stderr, timeout);
            if self.is_stalled {
                return false;
            }
            // A new line ends the remains of a text whose end was lost.
            let is_continued = part.as_ptr() != text.as_ptr();
            if self.is_line_open && !is_continued && stderr.write_all(b"\n").is_err() {
                return true;
            }
            if stderr.write_all(part).is_err() {
                return true;
            }
            self.is_line_open = !part.ends_with(b"\n");
        }
        true
    }
}

/// Waits until standard error accepts data. Returns `false` if standard error accepts no data within the timeout.
/// Returns `true` if a write would return an error.
fn accepts_data(stderr: &io::StderrLock<'_>, timeout: Timespec) -> bool {
    loop {
        match poll(&mut [PollFd::new(stderr, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => return false,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}
