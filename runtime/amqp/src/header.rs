//! The names of the headers of Ordain's messages, which the encoder writes and the decoder reads.

/// The header with the key of a message, independent of its routing key.
pub(super) const KEY: &str = "X-Key";
/// The header with the producer's number of the event within its key.
pub(super) const SEQUENCE: &str = "X-Sequence-ID";
/// The header that marks the last event of a key.
pub(super) const END: &str = "X-End-Of-Sequence";
/// The CloudEvents name of [`SEQUENCE`], in binary mode.
pub(super) const CE_SEQUENCE: &str = "cloudEvents:sequence";
/// The CloudEvents name of [`END`], in binary mode.
pub(super) const CE_END: &str = "cloudEvents:endofsequence";
/// The header with the producer's time, in ms since the Unix epoch.
pub(super) const TIME_MS: &str = "timestamp_in_ms";
/// Prefixes of the names of CloudEvents attributes.
pub(super) const PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
