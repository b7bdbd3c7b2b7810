//! The headers of Ordain's messages, by name: what the encoder writes and the decoder reads.

/// The key of a message, independent of its routing key.
pub(super) const KEY: &str = "X-Key";
/// The producer's number of the event within its key.
pub(super) const SEQUENCE: &str = "X-Sequence-ID";
/// Whether it is the last one of its key.
pub(super) const END: &str = "X-End-Of-Sequence";
/// [`SEQUENCE`] as CloudEvents name it, in binary mode.
pub(super) const CE_SEQUENCE: &str = "cloudEvents:sequence";
/// [`END`] as CloudEvents name it, in binary mode.
pub(super) const CE_END: &str = "cloudEvents:endofsequence";
/// The producer's clock, in ms since the Unix epoch.
pub(super) const TIME_MS: &str = "timestamp_in_ms";
/// With what the names of CloudEvents attributes begin.
pub(super) const PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
