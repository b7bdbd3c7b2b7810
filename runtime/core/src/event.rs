//! Events from a source and messages to a sink. All parts of Ordain share events and messages by reference, and must
//! copy their content only to store it or to send it.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::json::json_digest;
use crate::packed::{HeaderIter, PackedStrings, UnpackError, pack_headers};

/// The key of an event, such as an order id, an account or a session. The events of one key are executed in order.
pub type Key = Arc<str>;

/// The number of a delivery. The driver (the code that calls the sequencer) numbers the deliveries of a source from 1
/// without holes. A repeated delivery of the same event has its own number.
pub type DeliveryNumber = u64;

/// The exclusive upper bound of sequences. `u64::MAX` itself is not a valid sequence, because the next sequence of the
/// key would not fit in a `u64`.
pub const SEQUENCE_END: u64 = u64::MAX;

/// Returns the number of the shard that holds `key`. A shard is a slice of the store.
///
/// The function is part of the storage format. If the function changed, the store would look for key records in the
/// wrong shard.
pub fn shard_of(key: &str, shards: u32) -> u32 {
    (xxh3_64(key.as_bytes()) % u64::from(shards.max(1))) as u32
}

/// Returns a 64-bit digest of any bytes. The digest is the same on every machine and in every version of Ordain.
pub fn digest(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The fields of an event, as a decoder has read them. [`Event::new`] packs these fields into an event.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the accessors of `Event` have the meanings")]
pub struct EventParts<'a> {
    pub key: &'a str,
    pub sequence: Option<u64>,
    pub id: &'a str,
    pub kind: &'a str,
    pub source: &'a str,
    pub time_us: Option<u64>,
    pub content_type: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub data: &'a [u8],
    pub end: bool,
}

/// An event of a stream. Events are immutable, and a clone shares the strings of the original.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// Key, id, type, source, content type, headers, data.
    parts: PackedStrings<7>,
    sequence: Option<u64>,
    time_us: Option<u64>,
    content: u64,
    /// `content` compares the data as JSON.
    is_json: bool,
    end: bool,
    is_store_numbered: bool,
}

/// The offset of the sequence, in bytes, in the stored form of an event that has a sequence.
pub const EVENT_SEQUENCE_OFFSET: usize = 2;

const EVENT_FORMAT: u8 = 1;
const HAS_SEQUENCE: u8 = 1;
const HAS_TIME: u8 = 2;
const IS_END: u8 = 4;
const HAS_DELAY: u8 = 8;
const HAS_KEY: u8 = 16;
const IS_STORE_NUMBERED: u8 = 32;
/// Without this flag, the stored time is in ms, as earlier versions of Ordain wrote it.
const TIME_IS_IN_US: u8 = 64;
const IS_FORWARDED: u8 = 128;
/// A stored form with another flag is damaged, or a newer version of Ordain wrote it.
const EVENT_FLAGS: u8 = HAS_SEQUENCE | HAS_TIME | TIME_IS_IN_US | IS_END | IS_STORE_NUMBERED;
const MESSAGE_FLAGS: u8 = HAS_DELAY | HAS_KEY | IS_END | IS_FORWARDED;

impl Event {
    /// Creates an event, and packs its fields into one buffer.
    pub fn new(parts: &EventParts<'_>) -> Self {
        let headers = pack_headers(parts.headers.iter().copied());
        Self::from_packed(
            PackedStrings::new([
                parts.key.as_bytes(),
                parts.id.as_bytes(),
                parts.kind.as_bytes(),
                parts.source.as_bytes(),
                parts.content_type.as_bytes(),
                &headers,
                parts.data,
            ]),
            parts.sequence,
            parts.time_us,
            parts.end,
        )
    }

    fn from_packed(
        parts: PackedStrings<7>,
        sequence: Option<u64>,
        time_us: Option<u64>,
        end: bool,
    ) -> Self {
        let json = json_content(parts.bytes(2), parts.bytes(6));
        let content = json.unwrap_or_else(|| byte_content(parts.bytes(2), parts.bytes(6)));
        let is_json = json.is_some();
        Self { parts, sequence, time_us, content, is_json, end, is_store_numbered: false }
    }

    /// Returns the event with the given value of [`Self::is_store_numbered`].
    #[must_use]
    pub fn with_store_numbered(self, is_store_numbered: bool) -> Self {
        Self { is_store_numbered, ..self }
    }

    /// Returns the form in which Ordain keeps and publishes a producer's event if the store numbers the events of the
    /// destination. In this form, an event that the producer has not numbered is store-numbered. An event without an id
    /// is an exception: it does not become store-numbered, because its receiver may give it another id.
    #[must_use]
    pub fn numbered_by_store(&self) -> Self {
        self.clone().with_store_numbered(self.sequence.is_none() && !self.id().is_empty())
    }

    /// Returns the key of the event. The events of one key are executed in order.
    pub fn key(&self) -> &str {
        self.parts.text(0)
    }

    /// Returns the sequence of the event: the number that the producer or the store gave the event within its key.
    /// Returns `None` if the event has no such number.
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Returns the id that the producer gave the event; empty if the event has none.
    pub fn id(&self) -> &str {
        self.parts.text(1)
    }

    /// Returns a digest of the id alone.
    ///
    /// If a process sends a message of an outbox to the store again, the store recognises the message by this digest.
    /// The digest need not include the source, because all messages of an outbox have the same source.
    pub fn id_digest(&self) -> u64 {
        digest(self.parts.bytes(1))
    }

    /// Returns a digest of the source; 0 if the event has no source.
    pub fn source_digest(&self) -> u32 {
        match self.parts.bytes(3) {
            [] => 0,
            source => (digest(source) as u32).max(1),
        }
    }

    /// Returns a digest of the source and the id. Source and id together identify an event, as CloudEvents defines. For
    /// an event without a source, returns the digest of the id.
    pub fn identity_digest(&self) -> u64 {
        let source = self.parts.bytes(3);
        if source.is_empty() {
            return self.id_digest();
        }
        let mut hash = Xxh3Default::new();
        hash.update(&(source.len() as u64).to_le_bytes());
        hash.update(source);
        hash.update(self.parts.bytes(1));
        hash.digest()
    }

    /// Returns the digests under which the store may have recorded this event: the digest of source and id, and the
    /// digest of the id alone. If an earlier copy of the event had no source, or if an earlier version of Ordain
    /// recorded the event, the store has recorded the digest of the id alone.
    pub fn identity_digests(&self) -> [u64; 2] {
        [self.identity_digest(), self.id_digest()]
    }

    /// Returns the `type` attribute of the event.
    pub fn kind(&self) -> &str {
        self.parts.text(2)
    }

    /// Returns the `source` attribute of the event.
    pub fn source(&self) -> &str {
        self.parts.text(3)
    }

    /// Returns the time that the producer gave the event, in µs since the Unix epoch; `None` if the event has no time.
    pub fn time_us(&self) -> Option<u64> {
        self.time_us
    }

    /// Returns the time that the producer gave the event, in ms since the Unix epoch; `None` if the event has no time.
    pub fn time_ms(&self) -> Option<u64> {
        self.time_us.map(|time| time / 1_000)
    }

    /// Returns the media type of the data.
    pub fn content_type(&self) -> &str {
        self.parts.text(4)
    }

    /// Returns the attributes of the event that no other method returns, as name and value pairs in their original
    /// order.
    pub fn headers(&self) -> HeaderIter<'_> {
        HeaderIter::new(self.parts.bytes(5))
    }

    /// Returns the data (payload).
    pub fn data(&self) -> &[u8] {
        self.parts.bytes(6)
    }

    /// Returns whether this event is the last event of its key.
    pub fn end(&self) -> bool {
        self.end
    }

    /// Returns a digest of the type and the data.
    ///
    /// A producer or a library that repeats an event may change the form of JSON data. Two forms of the same JSON
    /// therefore have the same digest ([`json_digest`]). The content type does not matter. If the data is not JSON, the
    /// digest covers the bytes of the data.
    pub fn content(&self) -> u64 {
        self.content
    }

    /// Returns the digests under which an earlier event with the same content may be recorded. The first digest is
    /// [`Self::content`]. If the data is JSON, the second digest covers the bytes of the data, because earlier versions
    /// of Ordain recorded such digests. The second digest is computed only if the caller reads it.
    pub fn content_digests(&self) -> impl Iterator<Item = u64> {
        let json = self.is_json.then_some(self);
        let earlier =
            json.into_iter().map(|event| byte_content(event.parts.bytes(2), event.data()));
        std::iter::once(self.content).chain(earlier)
    }

    /// Returns whether the event is store-numbered: the store gave this event of a producer its sequence. The stored
    /// form of the event and the message to the broker contain this value.
    ///
    /// A store that went back in time can give the sequence of a lost event to another event. Each repeat of a
    /// store-numbered event has passed through the store, which recognises events by source and id. The source and the
    /// id therefore distinguish a repeat from another event with the same type and data.
    pub fn is_store_numbered(&self) -> bool {
        self.is_store_numbered
    }

    /// Returns the digest that the sequencer records for this event when it holds, spills or settles the event. For a
    /// store-numbered event, the digest covers the type, the data, the source and the id. For any other event, the
    /// digest covers the type and the data.
    pub fn repeat_digest(&self) -> u64 {
        if self.is_store_numbered { self.whole_digest(self.content) } else { self.content }
    }

    /// Returns the digests under which the sequencer may have recorded an earlier copy of this event: two digests for
    /// each of [`Self::content_digests`]. The first of the two covers only the type and the data. The sequencer has
    /// recorded this digest if the copy was not store-numbered, for example because an earlier version of Ordain
    /// published the copy. The second of the two also covers the source and the id. If the sequencer has recorded an
    /// event of the key with the same sequence under one of these digests, this event is a repeat of that event.
    /// Otherwise, the two events differ.
    pub fn repeat_digests(&self) -> impl Iterator<Item = u64> {
        self.content_digests().flat_map(move |content| [content, self.whole_digest(content)])
    }

    /// `content` is a digest of the type and the data.
    fn whole_digest(&self, content: u64) -> u64 {
        digest([content, self.identity_digest()].map(u64::to_le_bytes).as_flattened())
    }

    /// Returns whether this event is a repeat of an earlier event of the key with the same sequence.
    pub fn repeats(&self, earlier: &Self) -> bool {
        let recorded = earlier.repeat_digest();
        self.repeat_digests().any(|digest| digest == recorded)
    }

    /// Returns the approximate memory use of the event, in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.parts.len()
    }

    /// Appends the stored form of the event to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_with(self.sequence, out);
    }

    /// Appends the stored form of the event, with `sequence` in place of the event's own sequence. `None` omits the
    /// sequence. The stored sequence begins at [`EVENT_SEQUENCE_OFFSET`], with the lowest byte first.
    pub fn encode_with(&self, sequence: Option<u64>, out: &mut Vec<u8>) {
        let time_us = self.time_us.unwrap_or(0);
        let is_in_us = !time_us.is_multiple_of(1_000);
        out.reserve(self.encoded_len());
        out.put_u8(EVENT_FORMAT);
        out.put_u8(
            if sequence.is_some() { HAS_SEQUENCE } else { 0 }
                | if self.time_us.is_some() { HAS_TIME } else { 0 }
                | if is_in_us { TIME_IS_IN_US } else { 0 }
                | if self.end { IS_END } else { 0 }
                | if self.is_store_numbered { IS_STORE_NUMBERED } else { 0 },
        );
        out.put_u64_le(sequence.unwrap_or(0));
        out.put_u64_le(if is_in_us { time_us } else { time_us / 1_000 });
        self.parts.encode(out);
    }

    /// Returns the length of the output of [`Self::encode`].
    pub fn encoded_len(&self) -> usize {
        18 + self.parts.encoded_len()
    }

    /// Decodes an event from its stored form.
    pub fn decode(mut input: Bytes) -> Result<Self, UnpackError> {
        if input.len() < 18 {
            return Err(UnpackError("event"));
        }
        if input.get_u8() != EVENT_FORMAT {
            return Err(UnpackError("event format"));
        }
        let flags = input.get_u8();
        if flags & !EVENT_FLAGS != 0 {
            return Err(UnpackError("event flags (a newer version may have written them)"));
        }
        let sequence = input.get_u64_le();
        let time = input.get_u64_le();
        let time_us = if flags & TIME_IS_IN_US != 0 { time } else { time.saturating_mul(1_000) };
        let parts = PackedStrings::decode(input, 5)?;
        HeaderIter::new(parts.bytes(5)).check()?;
        Ok(Self::from_packed(
            parts,
            (flags & HAS_SEQUENCE != 0).then_some(sequence),
            (flags & HAS_TIME != 0).then_some(time_us),
            flags & IS_END != 0,
        )
        .with_store_numbered(flags & IS_STORE_NUMBERED != 0))
    }
}

fn byte_content(kind: &[u8], data: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(kind);
    hash.update(&[0]);
    hash.update(data);
    hash.digest()
}

/// `None` if the data is not JSON.
fn json_content(kind: &[u8], data: &[u8]) -> Option<u64> {
    let json = json_digest(data)?;
    Some(digest([digest(kind), json].map(u64::to_le_bytes).as_flattened()))
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:?} #{:?} id {:?})", self.key(), self.sequence, self.id())
    }
}

/// The fields of a message, as a handler has emitted them. [`Message::new`] packs these fields into a message.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the accessors of `Message` have the meanings")]
pub struct MessageParts<'a> {
    pub sink: &'a str,
    pub key: Option<&'a str>,
    pub kind: &'a str,
    pub content_type: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub data: &'a [u8],
    pub delay_ms: Option<u64>,
    pub end: bool,
}

/// A message to a sink. A handler emitted the message, or the message passes on an event that the handler does not
/// execute. The outbox publisher publishes the message after the commit that contains the message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Sink, key, type, content type, headers, data.
    parts: PackedStrings<6>,
    delay_ms: Option<u64>,
    has_key: bool,
    end: bool,
    is_forwarded: bool,
}

impl Message {
    /// Creates a message, and packs its fields into one buffer.
    pub fn new(parts: &MessageParts<'_>) -> Self {
        let headers = pack_headers(parts.headers.iter().copied());
        Self {
            parts: PackedStrings::new([
                parts.sink.as_bytes(),
                parts.key.unwrap_or_default().as_bytes(),
                parts.kind.as_bytes(),
                parts.content_type.as_bytes(),
                &headers,
                parts.data,
            ]),
            delay_ms: parts.delay_ms,
            has_key: parts.key.is_some(),
            end: parts.end,
            is_forwarded: false,
        }
    }

    /// Creates the message that passes an event on to a sink. The message has the event's key, type, content type,
    /// headers, data and end mark.
    pub fn forwarded(event: &Event, sink: &str) -> Self {
        let [kind, content_type, headers, data] =
            [2, 4, 5, 6].map(|index| event.parts.bytes(index));
        Self {
            parts: PackedStrings::new([sink.as_bytes(), &[], kind, content_type, headers, data]),
            delay_ms: None,
            has_key: false,
            end: event.end,
            is_forwarded: true,
        }
    }

    /// Returns the name of the sink to which the message goes.
    pub fn sink(&self) -> &str {
        self.parts.text(0)
    }

    /// Returns the key that the message has in the sink. Returns `None` if the message has the same key as the event
    /// for which the handler emitted it.
    pub fn key(&self) -> Option<&str> {
        self.has_key.then(|| self.parts.text(1))
    }

    /// Returns the `type` attribute of the message.
    pub fn kind(&self) -> &str {
        self.parts.text(2)
    }

    /// Returns the media type of the data.
    pub fn content_type(&self) -> &str {
        self.parts.text(3)
    }

    /// Returns the headers of the message, in the order in which the handler set them.
    pub fn headers(&self) -> HeaderIter<'_> {
        HeaderIter::new(self.parts.bytes(4))
    }

    /// Returns the data (payload).
    pub fn data(&self) -> &[u8] {
        self.parts.bytes(5)
    }

    /// Returns the minimum delay between the commit of the message and its publication, in ms; `None` if the message
    /// has no delay. The host of this release rejects a message with a delay.
    pub fn delay_ms(&self) -> Option<u64> {
        self.delay_ms
    }

    /// Returns whether this message is the last message of its key in a sequenced sink (a sink for which the store
    /// numbers the messages of each key).
    pub fn end(&self) -> bool {
        self.end
    }

    /// Returns whether the message passes an event on. If so, the headers of the message come from the producer of the
    /// event, not from a handler.
    pub fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// Returns the approximate memory use of the message, in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.parts.len()
    }

    /// Appends the stored form of the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        out.put_u8(EVENT_FORMAT);
        out.put_u8(
            if self.delay_ms.is_some() { HAS_DELAY } else { 0 }
                | if self.has_key { HAS_KEY } else { 0 }
                | if self.end { IS_END } else { 0 }
                | if self.is_forwarded { IS_FORWARDED } else { 0 },
        );
        out.put_u64_le(self.delay_ms.unwrap_or(0));
        self.parts.encode(out);
    }

    /// Returns the length of the output of [`Self::encode`].
    pub fn encoded_len(&self) -> usize {
        10 + self.parts.encoded_len()
    }

    /// Decodes a message from its stored form.
    pub fn decode(mut input: Bytes) -> Result<Self, UnpackError> {
        if input.len() < 10 {
            return Err(UnpackError("message"));
        }
        if input.get_u8() != EVENT_FORMAT {
            return Err(UnpackError("message format"));
        }
        let flags = input.get_u8();
        if flags & !MESSAGE_FLAGS != 0 {
            return Err(UnpackError("message flags (a newer version may have written them)"));
        }
        let delay = input.get_u64_le();
        let parts = PackedStrings::decode(input, 4)?;
        HeaderIter::new(parts.bytes(4)).check()?;
        Ok(Self {
            parts,
            delay_ms: (flags & HAS_DELAY != 0).then_some(delay),
            has_key: flags & HAS_KEY != 0,
            end: flags & IS_END != 0,
            is_forwarded: flags & IS_FORWARDED != 0,
        })
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message(to {:?} key {:?} type {:?})", self.sink(), self.key(), self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, source: &str, data: &[u8]) -> Event {
        Event::new(&EventParts { key: "k", id, source, data, ..EventParts::default() })
    }

    #[test]
    fn stored_form_shows_whether_the_store_numbered_the_event() {
        for is_store_numbered in [false, true] {
            let event = event("1", "/a", b"x").with_store_numbered(is_store_numbered);
            let mut stored = Vec::new();
            event.encode_with(Some(7), &mut stored);
            let decoded = Event::decode(stored.into()).expect("an event");
            assert_eq!(decoded.is_store_numbered(), is_store_numbered);
            assert_eq!(decoded.repeat_digest(), event.repeat_digest());
        }
    }

    /// Earlier versions of Ordain stored times in ms. This version still stores a time in whole ms in this form.
    #[test]
    fn stored_form_contains_the_time_in_ms_or_us() {
        for (time_us, flags, stored_time) in [
            (None, 0, 0),
            (Some(0), HAS_TIME, 0),
            (Some(1_764_072_000_125_000), HAS_TIME, 1_764_072_000_125),
            (Some(1_764_072_000_125_001), HAS_TIME | TIME_IS_IN_US, 1_764_072_000_125_001),
        ] {
            let event = Event::new(&EventParts { key: "k", time_us, ..EventParts::default() });
            let mut stored = Vec::new();
            event.encode(&mut stored);
            let found = u64::from_le_bytes(stored[10..18].try_into().expect("eight bytes"));
            assert_eq!((stored[1], found), (flags, stored_time));
            let decoded = Event::decode(stored.into()).expect("an event");
            assert!(decoded == event);
            assert_eq!(decoded.time_ms(), time_us.map(|time| time / 1_000));
        }
    }

    #[test]
    fn stored_form_with_unknown_flags_is_refused() {
        let mut stored = Vec::new();
        event("1", "/a", b"x").encode(&mut stored);
        for (bit, is_known) in (0..8).map(|bit| (1 << bit, EVENT_FLAGS & (1 << bit) != 0)) {
            stored[1] = bit;
            assert_eq!(Event::decode(stored.clone().into()).is_ok(), is_known, "{bit:x}");
        }
        let mut stored = Vec::new();
        Message::new(&MessageParts::default()).encode(&mut stored);
        for (bit, is_known) in (0..8).map(|bit| (1 << bit, MESSAGE_FLAGS & (1 << bit) != 0)) {
            stored[1] = bit;
            assert_eq!(Message::decode(stored.clone().into()).is_ok(), is_known, "{bit:x}");
        }
        assert_eq!((EVENT_FLAGS.count_ones(), MESSAGE_FLAGS.count_ones()), (5, 4));
    }

    #[test]
    fn forwarded_message_has_the_values_of_its_event() {
        let parts = EventParts {
            key: "k",
            sequence: Some(4),
            id: "1",
            kind: "order.paid",
            source: "/shop",
            content_type: "text/plain",
            headers: &[("tenant", "a"), ("traceparent", "00-1")],
            data: b"x",
            end: true,
            ..EventParts::default()
        };
        let message = Message::forwarded(&Event::new(&parts), "others");
        let mut stored = Vec::new();
        message.encode(&mut stored);
        let decoded = Message::decode(stored.into()).expect("a message");
        assert_eq!(decoded, message);
        assert_eq!((message.sink(), message.key(), message.delay_ms()), ("others", None, None));
        assert_eq!((message.kind(), message.content_type()), (parts.kind, parts.content_type));
        assert_eq!(message.headers().collect::<Vec<_>>(), parts.headers);
        assert_eq!((message.data(), message.end()), (parts.data, true));
        assert!(message.is_forwarded());
        assert!(!Message::new(&MessageParts::default()).is_forwarded());
    }

    #[test]
    fn only_events_with_an_id_and_no_own_number_become_store_numbered() {
        let own = EventParts { key: "k", id: "1", sequence: Some(3), ..EventParts::default() };
        assert!(!Event::new(&own).numbered_by_store().is_store_numbered());
        assert!(!event("", "/a", b"x").numbered_by_store().is_store_numbered());
        assert!(event("1", "", b"x").numbered_by_store().is_store_numbered());
    }

    /// An event with the same content as a store-numbered event, but with another source or id, is a different event.
    /// If the earlier event is not store-numbered, only the content is compared.
    #[test]
    fn source_and_id_distinguish_store_numbered_events() {
        let earlier = event("1", "/a", b"x");
        let marked = earlier.numbered_by_store();
        let others = [event("2", "/a", b"x"), event("1", "/b", b"x"), event("1", "/a", b"y")];
        for other in others {
            let has_same_content = other.content() == earlier.content();
            for later in [other.clone(), other.numbered_by_store()] {
                assert!(!later.repeats(&marked), "{later:?}");
                assert_eq!(later.repeats(&earlier), has_same_content, "{later:?}");
            }
        }
        for earlier in [&earlier, &marked] {
            assert!(event("1", "/a", b"x").repeats(earlier));
            assert!(event("1", "/a", b"x").numbered_by_store().repeats(earlier));
        }
    }

    fn typed(content_type: &str, data: &str) -> Event {
        let data = data.as_bytes();
        Event::new(&EventParts { key: "k", id: "1", content_type, data, ..EventParts::default() })
    }

    #[test]
    fn json_is_compared_as_json() {
        let compact = r#"{"a":[1,"ü"],"b":{}}"#;
        let loose = r#"{"b": {}, "a": [1, "\u00fc"]}"#;
        for content_type in
            ["", "application/json", "application/a+json; charset=utf-8", "text/plain"]
        {
            let earlier = typed("application/json", compact);
            for earlier in [earlier.clone(), earlier.numbered_by_store()] {
                assert!(typed(content_type, loose).repeats(&earlier), "{content_type}");
                assert!(!typed(content_type, "{}").repeats(&earlier), "{content_type}");
            }
            assert_eq!(typed(content_type, loose).content(), typed("", compact).content());
        }
        // Data that is not JSON is compared by its bytes.
        assert!(!typed("application/json", "[1").repeats(&typed("application/json", "[ 1")));
        assert!(typed("application/json", "[1").repeats(&typed("application/json", "[1")));
    }

    #[test]
    fn content_type_does_not_distinguish_events() {
        for data in [r#"{ "a": 1 }"#, "[1", ""] {
            let events = ["", "application/json", "text/plain"].map(|kind| typed(kind, data));
            assert!(events.iter().all(|event| event.content() == events[0].content()), "{data}");
        }
    }

    /// An earlier version of Ordain recorded digests of the bytes of JSON.
    #[test]
    fn record_of_an_earlier_version_is_recognised() {
        let event = typed("application/json", r#"{ "a": 1 }"#);
        let recorded = byte_content(b"", event.data());
        assert!(event.content() != recorded);
        assert!(event.content_digests().any(|digest| digest == recorded));
        let whole = event.whole_digest(recorded);
        assert!(event.repeat_digests().any(|digest| digest == whole));
        assert_eq!(event.content_digests().count(), 2);
        assert_eq!(typed("text/plain", "x").content_digests().count(), 1);
    }
}
