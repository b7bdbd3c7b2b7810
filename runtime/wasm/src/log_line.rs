//! Log lines of handlers, and the function that receives the lines.

use std::sync::Arc;

/// The origin of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogOrigin {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The logging interface.
    Log,
}

/// A line of a guest's output.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// The handler's version.
    pub version: &'a str,
    /// The stream.
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

/// A function that receives the log lines of handlers.
pub type LogTarget = Arc<dyn Fn(&LogLine<'_>) + Send + Sync>;

/// Writes a line to the program's log. This function is the default [`LogTarget`].
pub fn log_to_tracing(line: &LogLine<'_>) {
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
    match line.level {
        tracing::Level::TRACE => log!(TRACE),
        tracing::Level::DEBUG => log!(DEBUG),
        tracing::Level::INFO => log!(INFO),
        tracing::Level::WARN => log!(WARN),
        tracing::Level::ERROR => log!(ERROR),
    }
}
