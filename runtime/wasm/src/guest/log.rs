//! The output of a guest (the WebAssembly code of a handler): written to the log of the stream line by line, and
//! limited for each event. The event takes effect even if its output exceeds the limit. This module also keeps the
//! beginning and the end of standard error, because most languages write the text of an uncaught error only to standard
//! error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::excerpt::Excerpt;
use super::super::log_line::{LogLine, LogOrigin};
use super::super::settings::DisplaySize;
use super::super::wire::LogLevel;
use super::EventIdentity;
use ordain_util::text::escape_invisible;

/// Number of bytes that count for each line in addition to its text, so that the limit applies to empty lines too.
const LINE_OVERHEAD_BYTES: usize = 16;

/// The output of the event that a WebAssembly instance executes now. The instance and its two output streams share this
/// value, and all three run on one thread.
pub(super) struct EventLog {
    limit: usize,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    event: Option<EventIdentity>,
    written_bytes: usize,
    /// `true` if the event may log nothing more.
    is_full: bool,
    /// The size of the output that was not logged, because the event's output exceeded the limit. Each line end counts
    /// as [`LINE_OVERHEAD_BYTES`].
    suppressed_bytes: usize,
    /// The incomplete line of standard output, and the incomplete line of standard error.
    partial_lines: [Vec<u8>; 2],
    /// The output to standard error, for the message of a failure.
    stderr: Excerpt,
}

impl EventLog {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_event(&self, event: &EventIdentity) {
        let mut state = self.state();
        state.event = Some(event.clone());
        state.written_bytes = 0;
        state.is_full = self.limit == 0;
        state.suppressed_bytes = 0;
        state.stderr.clear();
    }

    /// Logs the incomplete lines. If the event's output exceeded the limit, also logs the size of the output that was
    /// not logged.
    pub(super) fn end_event(&self) {
        let mut state = self.state();
        for origin in [LogOrigin::Stdout, LogOrigin::Stderr] {
            let line = std::mem::take(&mut state.partial_lines[origin as usize]);
            if !line.is_empty() {
                emit_line(&state, origin, default_level(origin), &line);
            }
        }
        // If the limit is 0, the operator wants no output at all, so this method does not report the size.
        if state.suppressed_bytes > 0 && self.limit > 0 {
            let words = format!(
                "log output cut: the handler wrote more than {} for the event (`plugins.log`); {} bytes are not logged \
                 (each line counts as its text plus {LINE_OVERHEAD_BYTES} bytes)",
                DisplaySize(self.limit),
                state.suppressed_bytes
            );
            emit_line(&state, LogOrigin::Log, tracing::Level::WARN, words.as_bytes());
        }
    }

    /// Returns an excerpt of the event's output to standard error.
    pub(super) fn stderr_excerpt(&self) -> String {
        self.state().stderr.text()
    }

    /// Writes a message from the logging interface. The message may have several lines.
    pub(super) fn message(&self, level: LogLevel, text: &str) {
        let mut state = self.state();
        let level = match level {
            LogLevel::Trace => tracing::Level::TRACE,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Error => tracing::Level::ERROR,
        };
        if !state.accepts(level) {
            return;
        }
        for line in text.trim_end_matches('\n').split('\n') {
            if let Some(taken) = state.take_allowed(self.limit, line.as_bytes()) {
                emit_line(&state, LogOrigin::Log, level, taken);
            }
            state.end_line(self.limit);
        }
    }

    /// Writes bytes of standard output or standard error.
    pub(super) fn write(&self, origin: LogOrigin, bytes: &[u8]) {
        let mut state = self.state();
        if origin == LogOrigin::Stderr {
            state.stderr.push(bytes);
        }
        if !state.accepts(default_level(origin)) {
            return;
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let taken = state.take_allowed(self.limit, text);
            let is_allowed = taken.is_some();
            state.partial_lines[origin as usize].extend_from_slice(taken.unwrap_or_default());
            if ends {
                let line = std::mem::take(&mut state.partial_lines[origin as usize]);
                if is_allowed || !line.is_empty() {
                    emit_line(&state, origin, default_level(origin), &line);
                }
                state.end_line(self.limit);
            }
        }
    }
}

fn emit_line(state: &LogState, origin: LogOrigin, level: tracing::Level, line: &[u8]) {
    let Some(event) = &state.event else { return };
    event.turn.stream.log.write(&LogLine {
        version: &event.turn.version,
        stream: &event.turn.stream.name,
        key: &event.turn.key,
        sequence: event.sequence,
        origin,
        level,
        text: &escape_invisible(&String::from_utf8_lossy(line)),
    });
}

impl LogState {
    /// Returns whether lines of this level are logged at all.
    fn accepts(&self, level: tracing::Level) -> bool {
        self.event.as_ref().is_some_and(|event| event.turn.stream.log.accepts(level))
    }

    /// Returns the part of the bytes that the event may still log; `None` if the event may log nothing more.
    fn take_allowed<'a>(&mut self, limit: usize, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let left = limit.saturating_sub(self.written_bytes);
        if self.is_full || (left == 0 && !bytes.is_empty()) {
            self.is_full = true;
            self.suppressed_bytes += bytes.len();
            return None;
        }
        let taken = &bytes[..bytes.len().min(left)];
        self.is_full = taken.len() < bytes.len();
        self.suppressed_bytes += bytes.len() - taken.len();
        self.written_bytes += taken.len();
        Some(taken)
    }

    fn end_line(&mut self, limit: usize) {
        if self.is_full {
            self.suppressed_bytes += LINE_OVERHEAD_BYTES;
        } else {
            self.written_bytes += LINE_OVERHEAD_BYTES;
            self.is_full = self.written_bytes > limit;
        }
    }
}

fn default_level(origin: LogOrigin) -> tracing::Level {
    match origin {
        LogOrigin::Stdout | LogOrigin::Log => tracing::Level::INFO,
        LogOrigin::Stderr => tracing::Level::WARN,
    }
}
