//! The names of the headers of Ordain's messages, which the encoder writes and the decoder reads.

/// The header with the key of a message, independent of its routing key.
pub(super) const KEY_HEADER: &str = "X-Key";
/// The header with the producer's number of the event within its key.
pub(super) const SEQUENCE_HEADER: &str = "X-Sequence-ID";
/// The header that marks the last event of a key.
pub(super) const END_HEADER: &str = "X-End-Of-Sequence";
/// The CloudEvents name of [`SEQUENCE_HEADER`], in binary mode.
pub(super) const CE_SEQUENCE_HEADER: &str = "cloudEvents:sequence";
/// The CloudEvents name of [`END_HEADER`], in binary mode.
pub(super) const CE_END_HEADER: &str = "cloudEvents:endofsequence";
/// The header with the producer's time, in ms since the Unix epoch.
pub(super) const TIME_MS_HEADER: &str = "timestamp_in_ms";
/// The header with the CloudEvents source of a message.
pub(super) const SOURCE_HEADER: &str = "cloudEvents:source";
/// The header for an id that is too long for the property.
pub(super) const LONG_ID_HEADER: &str = "cloudEvents:id";
/// Prefixes of the names of CloudEvents attributes.
pub(super) const ATTRIBUTE_PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
