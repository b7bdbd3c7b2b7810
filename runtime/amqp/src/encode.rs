//! Converts a message, a dead letter or a producer's event into an AMQP message. The same input must always become the
//! same AMQP message, so this module must never read a clock: the time of publishing is an argument.
//!
//! The body is the data. The message has the headers of CloudEvents in binary mode, so that CloudEvents libraries can
//! read the message. It also has headers that only Ordain uses. The id, the type and the content type are also AMQP
//! properties, which are short strings of up to 255 bytes: a longer value is only in its header.
//!
//! If the name of a header from a handler or producer has a meaning for RabbitMQ or for the decoder, the encoder
//! renames the header. Only Ordain can therefore set the id or the sequence of a message, and no header makes the
//! broker refuse the message. All headers together fit into a frame of 128 KiB, RabbitMQ's default.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_core::{DeadLetter, Event, LetterContent, Message};

use super::header::{
    ATTRIBUTE_PREFIXES, DEFAULT_PLACES_HEADER, END_HEADER, HTTP_VERSION_HEADER, ID_HEADER,
    KEY_HEADER, LETTER_HEADER, LONG_CONTENT_TYPE_HEADER, QUEUE_HEADERS, RENAMED_PREFIX,
    SEQUENCE_HEADER, SOURCE_HEADER, STORE_NUMBERED_HEADER, SUBJECT_ATTRIBUTE, SUBJECT_HEADER,
    TIME_HEADER, TIME_MS_HEADER, TYPE_HEADER, VERSION_HEADER,
};
use super::original_letter::original_letter;
use super::value::field_name;
use crate::decode::Compression;
use ordain_cloudevents::{
    REASON_ATTRIBUTES, letter_attributes, message_id, message_type, source_of, time_text,
};
use ordain_config::{
    EventLocations, KeyLocation, MessageProperty, Place, RoutingKeyTemplate, RoutingKeyValues,
};
use ordain_store::OutboxMessage;
use ordain_util::text::truncated;

/// The headers from which RabbitMQ reads an array of additional routing keys. RabbitMQ closes the channel if the value
/// of such a header has another type.
pub(super) const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];
/// The address of RabbitMQ's direct replies. A client that writes this address into the property `reply_to` requests a
/// reply on its own channel. RabbitMQ closes the channel if the client does not consume from this address.
pub(super) const DIRECT_REPLY_ADDRESS: &str = "amq.rabbitmq.reply-to";
/// Approximate maximum size, in bytes, of each header that contains a part of the reason of a dead letter. All headers
/// must fit into one frame.
const REASON_LIMIT: usize = 16 << 10;
/// The delivery mode of persistent messages, which durable queues write to disk.
pub(super) const PERSISTENT_DELIVERY_MODE: u8 = 2;

#[derive(Debug)]
pub(super) struct AmqpMessage {
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: MessageBody,
    pub(super) fallback: LetterFallback,
}

/// The stream and the key of a message. Messages with the same stream and key must keep their order.
pub(super) type OrderingKey = (Vec<u8>, Vec<u8>);

/// The form in which Ordain publishes a dead letter after the broker has refused the original form. The properties and
/// headers of the original form come from a producer, and a queue may be unable to store some of them. For example, a
/// queue of type stream cannot convert decimal numbers to AMQP 1.0, so RabbitMQ closes the channel.
#[derive(Debug, Default)]
pub(super) enum LetterFallback {
    /// There is no second form.
    #[default]
    None,
    /// The second form, whose body is a JSON document.
    Document(Box<AmqpMessage>),
    /// The message already is in its second form. It keeps this ordering key of its original form.
    Used(OrderingKey),
}

impl AmqpMessage {
    /// Returns whether `returned` is this message. Compares the routing key and the id. The broker may have changed
    /// other properties, as RabbitMQ's timestamp plugin does.
    pub(super) fn matches_return(&self, returned: &Delivery) -> bool {
        self.routing_key == returned.routing_key && self.id() == id(&returned.properties)
    }

    /// Returns the id of the message; empty if the message has no id.
    pub(super) fn id(&self) -> &[u8] {
        id(&self.properties)
    }

    /// Returns the stream and the key of the message. The CloudEvents source names the stream. For a dead letter in its
    /// original form, this method reads the stream and the key from the id of the letter.
    pub(super) fn ordering_key(&self) -> OrderingKey {
        if let LetterFallback::Used(key) = &self.fallback {
            return key.clone();
        }
        let header = |name| header(&self.properties, name);
        let mut id = header(LETTER_HEADER).split(|byte| *byte == b'/');
        match (id.next(), id.next()) {
            (Some(stream), Some(key)) => (stream.to_vec(), key.to_vec()),
            _ => (header(SOURCE_HEADER).to_vec(), header(KEY_HEADER).to_vec()),
        }
    }

    /// Changes the message to its second form, with the same ordering key. Returns `false` for a message without a
    /// second form.
    pub(super) fn use_fallback(&mut self) -> bool {
        let key = self.ordering_key();
        match std::mem::take(&mut self.fallback) {
            LetterFallback::Document(document) => {
                *self = Self { fallback: LetterFallback::Used(key), ..*document };
                true
            }
            other => {
                self.fallback = other;
                false
            }
        }
    }
}

/// Returns the id of a message that Ordain published; empty if the message has no id. The property `message_id` may
/// contain the key instead of the id. In a dead letter in its original form, the usual places contain the id of the
/// message, and another header contains the id of the dead letter.
pub(super) fn id(properties: &BasicProperties) -> &[u8] {
    let letter_id = header(properties, LETTER_HEADER);
    match (header(properties, ID_HEADER), properties.message_id()) {
        _ if !letter_id.is_empty() => letter_id,
        ([], Some(id)) => id.as_str().as_bytes(),
        (id, _) => id,
    }
}

/// Returns the text of a header; empty if the header is missing or is no long string.
pub(super) fn header<'a>(properties: &'a BasicProperties, name: &str) -> &'a [u8] {
    match properties.headers().as_ref().and_then(|headers| headers.inner().get(name)) {
        Some(AMQPValue::LongString(text)) => text.as_bytes(),
        _ => &[],
    }
}

/// The body of a message. It shares memory with the data of the outbox message or event that was encoded.
#[derive(Debug, Clone)]
pub(super) enum MessageBody {
    Message(Message),
    Event(Arc<Event>),
    Raw(Bytes),
    Nothing,
}

impl MessageBody {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Message(message) => message.data(),
            Self::Event(event) => event.data(),
            Self::Raw(bytes) => bytes,
            Self::Nothing => &[],
        }
    }
}

/// Encodes a message of `stream`. `sequence` is the number that the store has given to the message; `None` if the
/// messages of the sink have no numbers. `published_at` is the time of publishing, in seconds since the Unix epoch.
pub(super) fn message(
    stream: &str,
    message: &OutboxMessage,
    sequence: Option<u64>,
    template: &RoutingKeyTemplate,
    published_at: u64,
) -> AmqpMessage {
    let inner = &message.emitted.message;
    let key = inner.key().unwrap_or(&message.key);
    let author = if inner.is_forwarded() { HeaderAuthor::Producer } else { HeaderAuthor::Handler };
    let kind = message_type(inner);
    let reply_to = template.reply_queue(inner.headers());
    let is_reply = template.names_reply_queue();
    // In a message that is a reply, this header contains only the address to which the message goes. The reply itself
    // must not request a reply, so it does not get the property `reply_to`.
    let reply_header = MessageProperty::ReplyTo.header_name();
    let headers = inner.headers().filter(|(name, _)| !is_reply || *name != reply_header);
    let mut envelope = PropertiesBuilder::new(&source_of(stream), key, headers, &[], author);
    envelope.id(&message_id(stream, message));
    envelope.kind(kind);
    envelope.content_type(inner.content_type());
    envelope.timestamp(published_at);
    if let Some(sequence) = sequence {
        envelope.headers.insert(SEQUENCE_HEADER.into(), long_string(&sequence.to_string()));
    }
    if inner.end() {
        envelope.headers.insert(END_HEADER.into(), AMQPValue::Boolean(true));
    }
    AmqpMessage {
        routing_key: routing_key(template, RoutingKeyValues { stream, key, kind, reply_to }),
        properties: envelope.properties(),
        body: MessageBody::Message(inner.clone()),
        fallback: LetterFallback::None,
    }
}

/// Encodes a dead letter of `stream`. The result has the headers and data of the event as they arrived, and the reason
/// in additional headers. The letter has its own id and source. If the letter is about a message that is not an event,
/// the result is the original form of the letter. If the original form is impossible, the result contains the document
/// of the message (see `raw_message`). If `sequence` is `None`, the result has the event's own sequence. With a
/// sequence, the original form is impossible. The AMQP timestamp is the time of the event. For an event without a time,
/// the timestamp is `published_at`, the time of publishing in seconds since the Unix epoch.
pub(super) fn letter(
    stream: &str,
    letter: &DeadLetter,
    sequence: Option<u64>,
    template: &RoutingKeyTemplate,
    published_at: u64,
) -> AmqpMessage {
    let enveloped = enveloped_letter(stream, letter, sequence, template, published_at);
    let original = match sequence {
        None => original_letter(stream, letter, template),
        Some(_) => None,
    };
    match original {
        Some(original) => {
            AmqpMessage { fallback: LetterFallback::Document(Box::new(enveloped)), ..original }
        }
        None => enveloped,
    }
}

/// Encodes a dead letter as [`letter`] does, but never in its original form.
fn enveloped_letter(
    stream: &str,
    letter: &DeadLetter,
    sequence: Option<u64>,
    template: &RoutingKeyTemplate,
    published_at: u64,
) -> AmqpMessage {
    let event: Option<&Event> = match &letter.content {
        LetterContent::Event(event) => Some(event),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    };
    let attributes = letter_attributes(stream, letter);
    let headers = event.into_iter().flat_map(Event::headers);
    let mut envelope = PropertiesBuilder::new(
        &source_of(stream),
        &letter.id.key,
        headers,
        &REASON_ATTRIBUTES,
        HeaderAuthor::Producer,
    );
    envelope.id(&attributes.id);
    envelope.kind(attributes.kind);
    envelope.content_type(attributes.content_type);
    match event.and_then(Event::time_us) {
        Some(us) => envelope.time(us, true),
        None => envelope.timestamp(published_at),
    }
    insert_reason(&mut envelope.headers, &attributes.reason);
    if let Some(sequence) = sequence.or_else(|| event.and_then(Event::sequence)) {
        envelope.headers.insert(SEQUENCE_HEADER.into(), long_string(&sequence.to_string()));
    }
    AmqpMessage {
        routing_key: letter_routing_key(template, stream, letter, attributes.kind),
        properties: envelope.properties(),
        body: match &letter.content {
            LetterContent::Nothing => MessageBody::Nothing,
            LetterContent::Raw(bytes) => MessageBody::Raw(bytes.clone()),
            LetterContent::Event(event) => MessageBody::Event(Arc::clone(event)),
        },
        fallback: LetterFallback::None,
    }
}

pub(super) fn insert_reason(headers: &mut FieldTable, reason: &[(&'static str, Cow<'_, str>)]) {
    for (name, value) in reason {
        headers.insert((*name).into(), long_string(&truncated(value.to_string(), REASON_LIMIT)));
    }
}

/// The form of the events that Ordain publishes to a stream.
#[derive(Debug)]
pub(super) struct EventForm {
    /// The place from which the stream reads the key, if this is a single place other than the routing key.
    key_place: Option<Place>,
    /// The value of the header [`DEFAULT_PLACES_HEADER`], with which the decoder reads the default places; `None` if
    /// the decoder reads the values without this header.
    marker: Option<String>,
}

impl EventForm {
    /// Creates the form of the events of a stream that reads the values of its events from `locations`.
    pub(super) fn new(stream: &str, locations: &EventLocations) -> Self {
        Self {
            key_place: locations.key.as_ref().and_then(KeyLocation::single).cloned(),
            marker: (!locations.has_only_written_places()).then(|| source_of(stream)),
        }
    }
}

/// Encodes a producer's event in the form that the stream reads. `sequence` is the sequence of the event; `None` if the
/// event has no sequence. Also writes the key into the place from which the stream reads the key, because the exchange
/// may choose the partition by this place. If this place is a header, the encoder renames any header of the event that
/// has the same name.
pub(super) fn event(event: &Arc<Event>, sequence: Option<u64>, form: &EventForm) -> AmqpMessage {
    let key_place = form.key_place.as_ref();
    let key_header = match key_place {
        Some(Place::Header(name)) => Some(name.as_str()),
        Some(Place::Property(property)) => Some(property.header_name()),
        _ => None,
    };
    let mut envelope = PropertiesBuilder::new(
        event.source(),
        event.key(),
        event.headers(),
        key_header.as_slice(),
        HeaderAuthor::Producer,
    );
    if let Some(Place::Property(MessageProperty::MessageId)) = key_place {
        envelope.headers.insert(ID_HEADER.into(), long_string(event.id()));
    } else {
        envelope.id(event.id());
    }
    envelope.kind(event.kind());
    envelope.content_type(event.content_type());
    if let Some(sequence) = sequence {
        envelope.headers.insert(SEQUENCE_HEADER.into(), long_string(&sequence.to_string()));
    }
    if event.is_store_numbered() {
        envelope.headers.insert(STORE_NUMBERED_HEADER.into(), AMQPValue::Boolean(true));
    }
    if let Some(us) = event.time_us() {
        envelope.time(us, key_place != Some(&Place::Property(MessageProperty::Timestamp)));
    }
    if event.end() {
        envelope.headers.insert(END_HEADER.into(), AMQPValue::Boolean(true));
    }
    match key_place {
        Some(Place::Header(name)) => {
            envelope.headers.insert(name.as_str().into(), long_string(event.key()));
        }
        Some(Place::Property(property)) => envelope.key_property(*property, event.key()),
        _ => {}
    }
    if let Some(marker) = &form.marker {
        envelope.headers.insert(DEFAULT_PLACES_HEADER.into(), long_string(marker));
    }
    let properties = envelope.properties();
    AmqpMessage {
        routing_key: short_routing_key(event.key().to_owned()),
        properties,
        body: MessageBody::Event(Arc::clone(event)),
        fallback: LetterFallback::None,
    }
}

/// Returns the routing key, truncated to AMQP's limit. The routing key of a handler's message is never too long,
/// because Ordain checks its length before the commit. Three kinds of routing keys may be too long: the routing key of
/// a dead letter, of an event that Ordain passes on, and of a message that was committed before a change of the
/// template. The key of the event is not lost, because a header contains the whole key.
fn routing_key(template: &RoutingKeyTemplate, values: RoutingKeyValues<'_>) -> ShortString {
    short_routing_key(template.fill(values))
}

/// Returns the routing key of a dead letter of type `kind`. A dead letter is no reply, so the template gets no queue
/// for a reply.
pub(super) fn letter_routing_key(
    template: &RoutingKeyTemplate,
    stream: &str,
    letter: &DeadLetter,
    kind: &str,
) -> ShortString {
    let values = RoutingKeyValues { stream, key: &letter.id.key, kind, reply_to: "" };
    routing_key(template, values)
}

/// Truncates a routing key to AMQP's limit.
pub(super) fn short_routing_key(mut routing_key: String) -> ShortString {
    routing_key.truncate(routing_key.floor_char_boundary(RoutingKeyTemplate::LIMIT_BYTES));
    routing_key.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeaderAuthor {
    /// A handler, which sets the properties of its message on purpose.
    Handler,
    /// A producer, whose event Ordain passes on. The message must not expire, and the data is not compressed.
    Producer,
}

struct PropertiesBuilder {
    properties: BasicProperties,
    headers: FieldTable,
}

impl PropertiesBuilder {
    /// Starts the properties of a message with `headers` from a handler or producer. A header with the name of a
    /// property becomes the property. If the property cannot be set, this method keeps the header under another name.
    /// It also renames each header whose name is reserved or in `taken`.
    fn new<'a>(
        source: &str,
        key: &str,
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        taken: &[&str],
        author: HeaderAuthor,
    ) -> Self {
        let mut envelope = Self {
            properties: BasicProperties::default().with_delivery_mode(PERSISTENT_DELIVERY_MODE),
            headers: FieldTable::default(),
        };
        let mut has_subject = false;
        for (name, value) in headers {
            has_subject |= name == SUBJECT_ATTRIBUTE;
            let property = MessageProperty::of_header(name);
            let is_taken = is_reserved(name) || property.is_some() || taken.contains(&name);
            if let Some(property) = property.filter(|_| !taken.contains(&name))
                && envelope.handler_property(property, value, author)
            {
                continue;
            }
            let name = if is_taken { format!("{RENAMED_PREFIX}{name}") } else { name.to_owned() };
            envelope.headers.insert(field_name(&name), long_string(value));
        }
        envelope.headers.insert(VERSION_HEADER.into(), long_string("1.0"));
        envelope.headers.insert(KEY_HEADER.into(), long_string(key));
        // CloudEvents forbids attributes with an empty value.
        if !key.is_empty() && !has_subject {
            envelope.headers.insert(SUBJECT_HEADER.into(), long_string(key));
        }
        if !source.is_empty() {
            envelope.headers.insert(SOURCE_HEADER.into(), long_string(source));
        }
        envelope
    }

    fn id(&mut self, id: &str) {
        if !id.is_empty() {
            self.headers.insert(ID_HEADER.into(), long_string(id));
            self.property(id, BasicProperties::with_message_id);
        }
    }

    fn kind(&mut self, kind: &str) {
        if !kind.is_empty() {
            self.headers.insert(TYPE_HEADER.into(), long_string(kind));
            self.property(kind, BasicProperties::with_type);
        }
    }

    /// Sets the media type of the data. A media type that is too long for the property becomes a header.
    fn content_type(&mut self, content_type: &str) {
        let is_set = content_type.is_empty()
            || self.property(content_type, BasicProperties::with_content_type);
        if !is_set {
            self.headers.insert(LONG_CONTENT_TYPE_HEADER.into(), long_string(content_type));
        }
    }

    /// Sets a property, unless the value is too long. Returns whether the property is set.
    fn property(
        &mut self,
        value: &str,
        set: impl Fn(BasicProperties, ShortString) -> BasicProperties,
    ) -> bool {
        let Ok(value) = ShortString::try_new(value) else { return false };
        self.properties = set(std::mem::take(&mut self.properties), value);
        true
    }

    /// Sets a property that a header from a handler or producer names. Returns whether the property is set. Omits a
    /// value with which the broker would refuse the message, because the sink would retry such a message endlessly. The
    /// broker accepts the property `user_id` only from the user with this name.
    fn handler_property(
        &mut self,
        property: MessageProperty,
        value: &str,
        author: HeaderAuthor,
    ) -> bool {
        let is_handler = author == HeaderAuthor::Handler;
        match property {
            MessageProperty::ContentEncoding if is_handler || Compression::of(value).is_none() => {
                self.property(value, BasicProperties::with_content_encoding)
            }
            MessageProperty::CorrelationId => {
                self.property(value, BasicProperties::with_correlation_id)
            }
            MessageProperty::ReplyTo if value != DIRECT_REPLY_ADDRESS => {
                self.property(value, BasicProperties::with_reply_to)
            }
            MessageProperty::AppId => self.property(value, BasicProperties::with_app_id),
            MessageProperty::Priority => value.parse().is_ok_and(|priority| {
                self.properties = std::mem::take(&mut self.properties).with_priority(priority);
                true
            }),
            MessageProperty::Expiration if is_handler => value
                .parse::<u32>()
                .is_ok_and(|ms| self.property(&ms.to_string(), BasicProperties::with_expiration)),
            _ => false,
        }
    }

    fn timestamp(&mut self, seconds: u64) {
        self.properties = std::mem::take(&mut self.properties).with_timestamp(seconds);
    }

    /// Sets the time, in µs since the Unix epoch. The AMQP property contains only whole seconds.
    fn time(&mut self, us: u64, has_timestamp: bool) {
        if let Ok(ms) = i64::try_from(us / 1_000) {
            self.headers.insert(TIME_MS_HEADER.into(), AMQPValue::LongLongInt(ms));
        }
        if let Some(text) = time_text(us) {
            self.headers.insert(TIME_HEADER.into(), long_string(&text));
        }
        if has_timestamp {
            self.timestamp(us / 1_000_000);
        }
    }

    /// Writes the key into a property that an exchange can hash. Omits a key that the property cannot contain. All
    /// events of such a key come over HTTP and lack the property, so they reach the same partition.
    fn key_property(&mut self, property: MessageProperty, key: &str) {
        let properties = std::mem::take(&mut self.properties);
        self.properties = match (property, ShortString::try_new(key), key.parse()) {
            (MessageProperty::MessageId, Ok(key), _) => properties.with_message_id(key),
            (MessageProperty::CorrelationId, Ok(key), _) => properties.with_correlation_id(key),
            (MessageProperty::Timestamp, _, Ok(key)) => properties.with_timestamp(key),
            _ => properties,
        };
    }

    fn properties(self) -> BasicProperties {
        self.properties.with_headers(self.headers)
    }
}

/// Returns whether a header of this name has a meaning for RabbitMQ or for the decoder.
fn is_reserved(name: &str) -> bool {
    [
        KEY_HEADER,
        SEQUENCE_HEADER,
        END_HEADER,
        TIME_MS_HEADER,
        DEFAULT_PLACES_HEADER,
        STORE_NUMBERED_HEADER,
        LETTER_HEADER,
    ]
    .contains(&name)
        || name == HTTP_VERSION_HEADER
        || ROUTING_HEADERS.contains(&name)
        || QUEUE_HEADERS.contains(&name)
        || ATTRIBUTE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn long_string(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[cfg(test)]
mod tests {
    use ordain_core::{Cause, EmittedMessage, EventParts, LetterId, MessageParts, OrderingMode};

    use super::*;
    use crate::decode::DeliveryDecoder;

    /// CloudEvents libraries need these headers in binary mode. Ordain's own decoder reads the same values, and gives
    /// the event no additional header.
    #[test]
    fn message_has_all_attributes_of_a_cloud_event() {
        let headers = [("tenant", "blue")];
        let parts = MessageParts { kind: "paid", headers: &headers, ..MessageParts::default() };
        let emitted = EmittedMessage {
            sequence: 3,
            index: 0,
            event_digest: 0,
            message: Message::new(&parts),
        };
        let outbox = OutboxMessage { key: "k/1".into(), incarnation: 5, emitted };
        let template = RoutingKeyTemplate("{key}".to_owned());
        let sent = message("s", &outbox, None, &template, 1_764_072_000);
        for (name, value) in [
            ("cloudEvents:specversion", "1.0"),
            ("cloudEvents:id", "s/k%2F1/5/3/0"),
            ("cloudEvents:type", "paid"),
            ("cloudEvents:source", "/ordain/s"),
            ("cloudEvents:subject", "k/1"),
            ("X-Key", "k/1"),
            ("tenant", "blue"),
        ] {
            assert_eq!(header(&sent.properties, name), value.as_bytes(), "{name}");
        }
        let properties = &sent.properties;
        assert_eq!(
            properties.message_id().as_ref().map(ShortString::as_str),
            Some("s/k%2F1/5/3/0")
        );
        assert_eq!(properties.kind().as_ref().map(ShortString::as_str), Some("paid"));
        assert_eq!(properties.timestamp(), &Some(1_764_072_000));
        let locations = EventLocations::DEFAULT;
        let source = "/ordain/t".to_owned();
        let decoder = DeliveryDecoder::new(source, OrderingMode::Fifo, 1 << 20, locations, false);
        let mut delivery = Delivery::mock(1, "x".into(), sent.routing_key, false, Vec::new());
        delivery.properties = sent.properties;
        let received = decoder.decode(&delivery).expect("an event");
        assert_eq!((received.key(), received.id()), ("k/1", "s/k%2F1/5/3/0"));
        assert_eq!(received.headers().collect::<Vec<_>>(), headers);
    }

    #[test]
    fn headers_with_names_of_properties_become_properties() {
        let headers = [
            ("property:content_encoding", "utf-8"),
            ("property:correlation_id", "c-1"),
            ("property:reply_to", "replies"),
            ("property:app_id", "shop"),
            ("property:priority", "7"),
            ("property:expiration", "60000"),
            ("property:user_id", "root"),
        ];
        let build = |headers: &[(&'static str, &'static str)], author| {
            PropertiesBuilder::new("/s", "k", headers.iter().copied(), &[], author).properties()
        };
        let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
        let sent = build(&headers, HeaderAuthor::Handler);
        assert_eq!(text(sent.content_encoding()).as_deref(), Some("utf-8"));
        assert_eq!(text(sent.correlation_id()).as_deref(), Some("c-1"));
        assert_eq!(text(sent.reply_to()).as_deref(), Some("replies"));
        assert_eq!(text(sent.app_id()).as_deref(), Some("shop"));
        assert_eq!(sent.priority(), &Some(7));
        assert_eq!(text(sent.expiration()).as_deref(), Some("60000"));
        assert_eq!(sent.user_id(), &None);
        assert_eq!(header(&sent, "x-original-property:user_id"), b"root");
        // The broker would refuse these values.
        let wrong = [
            ("property:reply_to", "amq.rabbitmq.reply-to"),
            ("property:priority", "256"),
            ("property:expiration", "soon"),
        ];
        let sent = build(&wrong, HeaderAuthor::Handler);
        assert_eq!((sent.reply_to(), sent.priority(), sent.expiration()), (&None, &None, &None));
        for (name, value) in wrong {
            assert_eq!(header(&sent, &format!("x-original-{name}")), value.as_bytes());
        }
        // An event or dead letter must neither expire nor be decompressed.
        let gzip = [("property:expiration", "1"), ("property:content_encoding", "gzip")];
        let sent = build(&gzip, HeaderAuthor::Producer);
        assert_eq!((sent.expiration(), sent.content_encoding()), (&None, &None));
        let sent = build(&headers, HeaderAuthor::Producer);
        assert_eq!(text(sent.correlation_id()).as_deref(), Some("c-1"));
        assert_eq!(text(sent.content_encoding()).as_deref(), Some("utf-8"));
    }

    /// An event that Ordain passes on must not expire in the sink. The message has the type of the event. Every
    /// CloudEvent has a type, so the message of an event without a type has a fixed type.
    #[test]
    fn forwarded_event_does_not_expire() {
        for (kind, expected) in [("paid", "paid"), ("", "ordain.untyped")] {
            let headers = [("property:expiration", "1"), ("property:correlation_id", "c-1")];
            let parts = EventParts { key: "k", kind, headers: &headers, ..EventParts::default() };
            let message = Message::forwarded(&Event::new(&parts), "others");
            let emitted = EmittedMessage { sequence: 3, index: 0, event_digest: 0, message };
            let outbox = OutboxMessage { key: "k".into(), incarnation: 5, emitted };
            let template = RoutingKeyTemplate("{key}".to_owned());
            let sent = super::message("s", &outbox, None, &template, 1_764_072_000).properties;
            let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
            assert_eq!(text(sent.kind()).as_deref(), Some(expected));
            assert_eq!(header(&sent, "cloudEvents:type"), expected.as_bytes());
            assert_eq!(sent.expiration(), &None);
            assert_eq!(header(&sent, "x-original-property:expiration"), b"1");
            assert_eq!(text(sent.correlation_id()).as_deref(), Some("c-1"));
        }
    }

    /// The handler names the queue. The reply itself requests no reply.
    #[test]
    fn reply_has_the_queue_of_the_request_as_routing_key() {
        let headers = [("property:reply_to", "replies-1"), ("property:correlation_id", "c-1")];
        let parts = MessageParts { kind: "price", headers: &headers, ..MessageParts::default() };
        let message = Message::new(&parts);
        let emitted = EmittedMessage { sequence: 3, index: 0, event_digest: 0, message };
        let outbox = OutboxMessage { key: "k".into(), incarnation: 5, emitted };
        let sent = |template: &str| {
            let template = RoutingKeyTemplate(template.to_owned());
            super::message("s", &outbox, None, &template, 1_764_072_000)
        };
        let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
        let reply = sent("{property:reply_to}");
        assert_eq!(reply.routing_key.as_str(), "replies-1");
        assert_eq!(reply.properties.reply_to(), &None);
        assert_eq!(text(reply.properties.correlation_id()).as_deref(), Some("c-1"));
        let other = sent("{key}");
        assert_eq!(other.routing_key.as_str(), "k");
        assert_eq!(text(other.properties.reply_to()).as_deref(), Some("replies-1"));
    }

    #[test]
    fn event_has_its_time_and_subject() {
        let headers = [("subject", "other")];
        let parts = EventParts {
            key: "k",
            id: "1",
            source: "/s",
            time_us: Some(1_764_072_000_125_250),
            headers: &headers,
            ..EventParts::default()
        };
        let form = EventForm::new("s", &EventLocations::DEFAULT);
        let sent = event(&Arc::new(Event::new(&parts)), None, &form).properties;
        assert_eq!(header(&sent, "cloudEvents:time"), b"2025-11-25T12:00:00.12525Z");
        let ms = sent.headers().as_ref().and_then(|headers| headers.inner().get(TIME_MS_HEADER));
        assert_eq!(ms, Some(&AMQPValue::LongLongInt(1_764_072_000_125)));
        assert_eq!(sent.timestamp(), &Some(1_764_072_000));
        // The event has a header `subject`, so the encoder does not write the key into the subject.
        assert_eq!(header(&sent, "cloudEvents:subject"), b"");
        assert_eq!(header(&sent, "subject"), b"other");
    }

    /// A dead letter that returns to its stream must have the time of its event.
    #[test]
    fn letter_has_the_time_of_its_event() {
        let letter = |time_us| {
            let parts = EventParts { key: "k", id: "1", time_us, ..EventParts::default() };
            let letter = DeadLetter {
                id: LetterId { key: "k".into(), sequence: 0, tag: 1 },
                cause: Cause::Rejected,
                error: "no".to_owned(),
                origin: None,
                version: None,
                content: LetterContent::Event(Arc::new(Event::new(&parts))),
            };
            super::letter("s", &letter, None, &RoutingKeyTemplate("{key}".to_owned()), 9).properties
        };
        let sent = letter(Some(1_764_072_000_125_250));
        assert_eq!(header(&sent, "cloudEvents:time"), b"2025-11-25T12:00:00.12525Z");
        assert_eq!(sent.timestamp(), &Some(1_764_072_000));
        assert_eq!(letter(None).timestamp(), &Some(9));
    }

    /// The decoder omits the headers that a queue adds to a message, so the encoder renames such headers of an event.
    #[test]
    fn event_keeps_headers_with_the_names_of_queue_headers() {
        let headers = QUEUE_HEADERS.map(|name| (name, "7"));
        let parts = EventParts { key: "k", id: "1", headers: &headers, ..EventParts::default() };
        let form = EventForm::new("s", &EventLocations::DEFAULT);
        let sent = event(&Arc::new(Event::new(&parts)), None, &form);
        let source = "/ordain/s".to_owned();
        let decoder = DeliveryDecoder::new(
            source,
            OrderingMode::Fifo,
            1 << 20,
            EventLocations::DEFAULT,
            false,
        );
        let mut delivery = Delivery::mock(1, "x".into(), sent.routing_key, false, Vec::new());
        delivery.properties = sent.properties;
        let received = decoder.decode(&delivery).expect("an event");
        let mut found: Vec<_> = received.headers().collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [("x-original-x-acquired-count", "7"), ("x-original-x-delivery-count", "7")]
        );
    }
}
