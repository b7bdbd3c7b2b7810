//! The names of the headers that have a meaning for Ordain. The decoder reads or omits these headers, and the encoder
//! writes most of them.

/// The header with the key of an event. The routing key of the message may differ from this key.
pub(super) const KEY_HEADER: &str = "X-Key";
/// The header with the sequence of an event: its number within its key.
pub(super) const SEQUENCE_HEADER: &str = "X-Sequence-ID";
pub(super) const END_HEADER: &str = "X-End-Of-Sequence";
/// The header by which a stream recognises an event that Ordain has published to the stream. Ordain adds this header
/// only if the stream reads some values from other places than the places into which Ordain writes them. A message with
/// this header contains the id, sequence, type and time in the default places, and the key in [`KEY_HEADER`]. The value
/// is the CloudEvents source of the stream, so that other streams on the same exchange ignore the header.
pub(super) const DEFAULT_PLACES_HEADER: &str = "X-Ordain-Event";
/// The header of a producer's event to which the store gave its sequence ([`Event::is_store_numbered`]). The value is
/// `true`.
///
/// [`Event::is_store_numbered`]: ordain_core::Event::is_store_numbered
pub(super) const STORE_NUMBERED_HEADER: &str = "X-Ordain-Numbered";
pub(super) const CAUSE_HEADER: &str = "deadcause";
/// The header with the id of a dead letter in its original form. The message in the dead letter may have its own id in
/// the usual places.
pub(super) const LETTER_HEADER: &str = "X-Ordain-Letter";
/// The header with the original routing key of the message, in a dead letter in its original form. The dead letter
/// itself may have another routing key.
pub(super) const ORIGINAL_ROUTING_KEY_HEADER: &str = "x-original-routing-key";
/// The header with the original exchange of the message, in a dead letter in its original form.
pub(super) const ORIGINAL_EXCHANGE_HEADER: &str = "x-original-exchange";
/// The CloudEvents name of [`SEQUENCE_HEADER`], in binary mode (one header for each CloudEvents attribute).
pub(super) const CE_SEQUENCE_HEADER: &str = "cloudEvents:sequence";
/// The CloudEvents name of [`END_HEADER`], in binary mode.
pub(super) const CE_END_HEADER: &str = "cloudEvents:endofsequence";
/// The header with the time of an event, in ms since the Unix epoch.
pub(super) const TIME_MS_HEADER: &str = "timestamp_in_ms";
/// The header with the version of CloudEvents. Every message from Ordain has this header, because CloudEvents requires
/// it in binary mode.
pub(super) const VERSION_HEADER: &str = "cloudEvents:specversion";
pub(super) const SOURCE_HEADER: &str = "cloudEvents:source";
/// The header with the id of a message. The AMQP property `message_id` contains the id too, unless the id is too long.
pub(super) const ID_HEADER: &str = "cloudEvents:id";
/// The header with the type of a message, which the AMQP property `type` contains too, unless the type is too long.
pub(super) const TYPE_HEADER: &str = "cloudEvents:type";
pub(super) const TIME_HEADER: &str = "cloudEvents:time";
/// The header with the media type of data, if the media type is too long for the AMQP property `content_type`.
pub(super) const LONG_CONTENT_TYPE_HEADER: &str = "cloudEvents:datacontenttype";
/// The CloudEvents attribute that contains the key of a message from Ordain.
pub(super) const SUBJECT_ATTRIBUTE: &str = "subject";
pub(super) const SUBJECT_HEADER: &str = "cloudEvents:subject";
/// The prefix that Ordain adds to a reserved name of a header.
pub(super) const RENAMED_PREFIX: &str = "x-original-";
/// Headers that a queue adds to redelivered messages. The decoder omits these headers, because the event must be the
/// same at each delivery.
pub(super) const QUEUE_HEADERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];
/// The prefix of the names of headers that contain CloudEvents attributes, in a message with the header
/// [`HTTP_VERSION_HEADER`]. CloudEvents defines this prefix for HTTP; some libraries also use it in messages.
pub(super) const HTTP_ATTRIBUTE_PREFIX: &str = "ce-";
/// The header that is present in every CloudEvent whose headers have the prefix [`HTTP_ATTRIBUTE_PREFIX`].
pub(super) const HTTP_VERSION_HEADER: &str = "ce-specversion";
/// The prefixes of the names of headers that contain CloudEvents attributes, in every message.
pub(super) const ATTRIBUTE_PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
