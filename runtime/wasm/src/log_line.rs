//! Log lines of handlers, and the target that receives the lines.

/// The interface through which a handler wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogOrigin {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The logging interface.
    Log,
}

/// A line that a handler wrote to the log, to standard output or to standard error.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// The handler's version, as the store records it.
    pub version: &'a str,
    /// The name of the stream.
    pub stream: &'a str,
    /// The key of the event that was being handled.
    pub key: &'a str,
    /// The event's sequence.
    pub sequence: u64,
    /// The origin of the line.
    pub origin: LogOrigin,
    /// The level.
    pub level: tracing::Level,
    /// The line without its line break; control characters are escaped.
    pub text: &'a str,
}

/// A receiver of the log lines of handlers. A function that takes a line implements this trait, and accepts all levels.
pub trait LogTarget: Send + Sync {
    /// Returns whether the target writes lines of this level. Lines of a level that the target does not write do not
    /// count towards the limit of an event's output.
    fn accepts(&self, _level: tracing::Level) -> bool {
        true
    }

    /// Writes a line.
    fn write(&self, line: &LogLine<'_>);
}

impl<F: Fn(&LogLine<'_>) + Send + Sync> LogTarget for F {
    fn write(&self, line: &LogLine<'_>) {
        self(line);
    }
}

/// The program's log, which is the default [`LogTarget`].
pub(super) struct ProgramLog;

/// Calls a macro of `tracing` with a level that is known only at run time.
macro_rules! at_level {
    ($level:expr, $call:ident) => {
        match $level {
            tracing::Level::TRACE => $call!(TRACE),
            tracing::Level::DEBUG => $call!(DEBUG),
            tracing::Level::INFO => $call!(INFO),
            tracing::Level::WARN => $call!(WARN),
            tracing::Level::ERROR => $call!(ERROR),
        }
    };
}

impl LogTarget for ProgramLog {
    fn accepts(&self, level: tracing::Level) -> bool {
        macro_rules! is_enabled {
            ($level:ident) => {
                tracing::event_enabled!(
                    target: "handler",
                    tracing::Level::$level,
                    handler,
                    stream,
                    key,
                    sequence
                )
            };
        }
        at_level!(level, is_enabled)
    }

    fn write(&self, line: &LogLine<'_>) {
        macro_rules! log {
            ($level:ident) => {
                tracing::event!(
                    target: "handler",
                    tracing::Level::$level,
                    handler = line.version,
                    stream = line.stream,
                    key = line.key,
                    sequence = line.sequence,
                    "{}",
                    line.text
                )
            };
        }
        at_level!(line.level, log);
    }
}
