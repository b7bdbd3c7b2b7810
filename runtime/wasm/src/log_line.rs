//! A line that a handler writes, and where it goes.

use std::sync::Arc;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The logging interface.
    Log,
}

/// One line of a guest.
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
    /// Where the line came from.
    pub origin: Origin,
    /// How important it is.
    pub level: tracing::Level,
    /// The line, without its end, and without anything that is not seen as itself.
    pub text: &'a str,
}

/// What is done with the lines of guests.
pub type LogTarget = Arc<dyn Fn(&LogLine<'_>) + Send + Sync>;

/// The usual [`LogTarget`]: the program's own log.
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
