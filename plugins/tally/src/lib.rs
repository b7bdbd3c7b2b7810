//! Counts and hashes the events of a key. A checker can compute the same values from the input alone. The checker can
//! thus verify that each event took effect once and in order.
//!
//! The handler accepts any event. After each event it emits one message to the sink `tally`, of type `tally`, in JSON:
//! `{"key": …, "sequence": …, "count": …, "hash": "16 hexadecimal digits"}`, where `count` and `hash` cover this event
//! and all events before it. The state of a key is `count` and `hash`.
//!
//! If a key begins with `slow-`, each of its events needs about half a millisecond of additional processor time. A
//! sleep would not make the handler slow, because the host ends every sleep of a handler immediately.
//!
//! # The hash
//!
//! The hash is FNV-1a with 64 bits, over all events of the key in order. Before the first event the hash is
//! `0xcbf29ce484222325`. Each event adds the following bytes, and each byte changes the hash to
//! `(hash ^ byte) * 0x100000001b3` modulo 2⁶⁴:
//!
//! 1. the sequence, 8 bytes, little-endian;
//! 2. the length of the type in bytes, 8 bytes, little-endian; the type in UTF-8;
//! 3. the length of the data in bytes, 8 bytes, little-endian; the data.
//!
//! The hash covers the data as the handler receives it. For an event in structured JSON, this is the member `data`
//! without insignificant white space.
//!
//! Example: after event 1 of type `a` with the data `{}`, the hash is `ba712b9e35964256`. After a following event 2 of
//! type `b` without data, the hash is `172c7f1ccf982eb5`.

use std::fmt;
use std::hint::black_box;

use ordain_sdk::prelude::*;
use serde::{Deserializer, Serializer, de};

/// The sink and the type of all messages.
const SINK: &str = "tally";
/// The prefix of the keys whose events need additional processor time.
const SLOW_PREFIX: &str = "slow-";
/// The number of additional hash steps for a slow event.
const SLOW_STEPS: u64 = 40_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
struct Tally {
    count: u64,
    hash: Hash,
}

#[derive(Serialize)]
struct Report<'a> {
    key: &'a str,
    sequence: u64,
    count: u64,
    hash: Hash,
}

#[allow(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "a handler has this form"
)]
fn handle(event: Event<Raw>, tally: Option<Tally>) -> Result<Outcome<Tally>> {
    let Tally { count, hash } = tally.unwrap_or_default();
    let count = count + 1;
    let hash = hash.event(&event);
    if event.key.starts_with(SLOW_PREFIX) {
        black_box((0..SLOW_STEPS).fold(hash, |slow, step| slow.bytes(&step.to_le_bytes())));
    }
    let report = Report { key: &event.key, sequence: event.sequence, count, hash };
    let message = Message::json(SINK, SINK, &report).end_of_sequence(event.end_of_sequence);
    Ok(Outcome::put(Tally { count, hash }).emit(message))
}

ordain_sdk::handler!(handle);

/// The rolling hash. In JSON the hash is text, because many readers of JSON round large numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn event(self, event: &Event<Raw>) -> Self {
        self.bytes(&event.sequence.to_le_bytes())
            .with_length(event.kind.as_bytes())
            .with_length(&event.data)
    }

    fn with_length(self, bytes: &[u8]) -> Self {
        self.bytes(&(bytes.len() as u64).to_le_bytes()).bytes(bytes)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Self(bytes.iter().fold(self.0, step))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = <&str>::deserialize(deserializer)?;
        u64::from_str_radix(digits, 16).map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use ordain_sdk::testing::Runner;

    use super::*;

    #[test]
    fn count_and_hash_cover_all_events() {
        let mut run = Runner::new(handle);
        let first = run.event("a", Raw::from("{}")).unwrap();
        let expected = r#"{"key":"key","sequence":1,"count":1,"hash":"ba712b9e35964256"}"#;
        assert_eq!(first.messages[0].data, Raw::from(expected));
        let mut second = run.next_event("b", Raw::default());
        second.end_of_sequence = true;
        let second = run.send(second).unwrap();
        assert!(second.messages[0].end_of_sequence && !second.complete);
        let state = run.state().unwrap();
        assert_eq!((state.count, state.hash.to_string()), (2, "172c7f1ccf982eb5".into()));
    }

    #[test]
    fn different_events_have_different_hashes() {
        let hash = |events: &[(&str, &str)]| {
            let mut run = Runner::new(handle);
            for (kind, data) in events {
                run.event(kind, Raw::from(*data)).unwrap();
            }
            run.state().unwrap().hash
        };
        let one = hash(&[("a", "1"), ("b", "2")]);
        assert_eq!(one, hash(&[("a", "1"), ("b", "2")]));
        assert_ne!(one, hash(&[("b", "2"), ("a", "1")]));
        assert_ne!(one, hash(&[("a", "1"), ("b", "3")]));
        assert_ne!(hash(&[("ab", "c")]), hash(&[("a", "bc")]));
    }
}
