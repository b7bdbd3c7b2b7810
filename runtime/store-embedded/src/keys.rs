//! The binary keys of all tables, called table keys here, to distinguish them from the keys of events.
//!
//! In one table, two different records must never have the same table key. A scan over the table keys of one stream or
//! key must never find records of another stream or key. The length of a stream's name therefore precedes the name.
//! Numbers are big-endian, so that they sort numerically. A table key contains the key of an event in one of three
//! forms:
//!
//! - as the last part of the table key;
//! - after the length of the key;
//! - escaped and with a terminator at its end, in table keys that must sort by the key.

use ordain_core::{Key, LetterId};

use ordain_store::codec::{put_letter_key, split_letter_place};
use ordain_store::{Destination, OriginOutbox, Partition};

const DUE_TAG: u8 = b'd';
const EXPIRY_TAG: u8 = b'e';
const LETTER_AGE_TAG: u8 = b'l';
const RETAINED_AGE_TAG: u8 = b'r';

const COMMITS_TAG: u8 = b'c';
const CLOCK_JUMP_TAG: u8 = b'j';
const CLOCK_TIME_TAG: u8 = b't';
const PUBLISHED_TAG: u8 = b'd';
const FENCE_TAG: u8 = b'f';
const MARK_TAG: u8 = b'm';

const QUEUE_TAG: u8 = b'q';
const COUNTER_TAG: u8 = b'c';
const ID_TAG: u8 = b'i';
const RETAINED_TAG: u8 = b'm';
const ORIGIN_TAG: u8 = b'o';

/// Returns the common prefix of the table keys of a stream, for the tables whose table keys begin with the stream. When
/// a process claims a partition, the store checks that the name has at most
/// [`STREAM_NAME_LIMIT`](ordain_store::STREAM_NAME_LIMIT) bytes.
pub(super) fn stream(name: &str) -> Vec<u8> {
    with_stream(&[], name, 0)
}

pub(super) fn after_stream(name: &str) -> Vec<u8> {
    let mut out = stream(name);
    // The last byte is the last byte of the name, or the length 0 of an empty name. The addition cannot overflow,
    // because UTF-8 has no byte 255.
    if let Some(last) = out.last_mut() {
        *last += 1;
    }
    out
}

/// Splits a table key into the stream at its beginning and the rest.
pub fn split_stream(key: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = key.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

/// Returns the table key of a key record in the table `jobs`. In the table `states`, the entry with the same table key
/// contains the state of the key.
pub(super) fn key_record(stream: &str, key: &str) -> Vec<u8> {
    let mut out = with_stream(&[], stream, key.len());
    out.extend_from_slice(key.as_bytes());
    out
}

/// Splits the table key of a key record into stream and key.
pub fn split_key_record(key: &[u8]) -> Option<(&str, &str)> {
    let (stream, key) = split_stream(key)?;
    Some((stream, std::str::from_utf8(key).ok()?))
}

/// Returns the table key of a spilled event in the table `spill`, or of an accepted id in the table `ids`.
pub(super) fn event(stream: &str, key: &str, sequence: u64) -> Vec<u8> {
    let mut out = with_stream(&[], stream, 2 + key.len() + 8);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(&sequence.to_be_bytes());
    out
}

pub(super) fn letter(stream: &str, id: &LetterId) -> Vec<u8> {
    let mut out = letter_sequence(stream, &id.key, id.sequence);
    out.extend_from_slice(&id.tag.to_be_bytes());
    out
}

/// Returns the id of the letter at a table key; `None` if the table key is not valid.
pub fn split_letter(table_key: &[u8]) -> Option<LetterId> {
    split_letter_place(split_stream(table_key)?.1)
}

pub(super) fn letter_sequence(stream: &str, key: &str, sequence: u64) -> Vec<u8> {
    let mut out = letter_key(stream, key);
    out.extend_from_slice(&sequence.to_be_bytes());
    out
}

pub(super) fn letter_key(stream: &str, key: &str) -> Vec<u8> {
    let mut out = with_stream(&[], stream, key.len() + 18);
    put_letter_key(key, &mut out);
    out
}

pub(super) fn due_from(partition: &Partition, at: u64) -> Vec<u8> {
    let mut out = due_all(partition);
    out.extend_from_slice(&at.to_be_bytes());
    out
}

pub(super) fn due_all(partition: &Partition) -> Vec<u8> {
    let mut out = with_stream(&[DUE_TAG], &partition.stream, 12);
    out.extend_from_slice(&partition.number.to_be_bytes());
    out
}

pub(super) fn due(partition: &Partition, at: u64, key: &str) -> Vec<u8> {
    let mut out = due_from(partition, at);
    out.extend_from_slice(key.as_bytes());
    out
}

pub(super) fn after(mut entry: Vec<u8>) -> Vec<u8> {
    entry.push(0);
    entry
}

/// Splits a due entry into time and key. `prefix` is the prefix of all due entries of the partition.
pub fn split_due(prefix: &[u8], entry: &[u8]) -> Option<(u64, Key)> {
    let (at, key) = entry.strip_prefix(prefix)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*at), std::str::from_utf8(key).ok()?.into()))
}

pub(super) fn expiry(at: u64, table_key: &[u8]) -> Vec<u8> {
    timed(EXPIRY_TAG, at, table_key)
}

pub(super) fn letter_age(at: u64, letter: &[u8]) -> Vec<u8> {
    timed(LETTER_AGE_TAG, at, letter)
}

/// Splits an expiry entry or an age entry of the table `times` into its time and the rest. The rest is the table key
/// that the entry names; for an entry of `retained_age`, it is a random number.
pub fn split_timed(entry: &[u8]) -> Option<(u64, &[u8])> {
    let (at, subject) = entry.get(1..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*at), subject))
}

/// Returns the table key of a commit's outbox entry.
pub(super) fn outbox(partition: &Partition, shard: u32, number: u64) -> Vec<u8> {
    let mut out = with_shard(&[], partition, shard, 8);
    out.extend_from_slice(&number.to_be_bytes());
    out
}

/// Returns the number at the end of a table key. For an outbox entry, this is the number of the commit. For a queue
/// entry, this is the number of the entry.
pub(super) fn outbox_number(entry: &[u8]) -> Option<u64> {
    entry.last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Returns the table key of the record that names the last published commit of a shard's outbox.
pub(super) fn published_commit(partition: &Partition, shard: u32) -> Vec<u8> {
    with_shard(&[PUBLISHED_TAG], partition, shard, 0)
}

pub(super) fn fence(partition: &Partition, shard: u32) -> Vec<u8> {
    with_shard(&[FENCE_TAG], partition, shard, 0)
}

pub(super) const FENCES_PREFIX: [u8; 1] = [FENCE_TAG];

/// Splits a fence's table key into partition and shard.
pub fn split_fence(key: &[u8]) -> Option<(Partition, u32)> {
    let (stream, numbers) = split_stream(key.strip_prefix(&FENCES_PREFIX)?)?;
    let (number, shard) = numbers.split_first_chunk::<4>()?;
    let shard = u32::from_be_bytes(shard.try_into().ok()?);
    Some((Partition { stream: stream.into(), number: u32::from_be_bytes(*number) }, shard))
}

pub(super) fn queued(partition: &Partition, shard: u32, number: u64) -> Vec<u8> {
    outbox(partition, shard, number)
}

/// Returns the table key of the [`QueueEndsRecord`](super::queue::QueueEndsRecord) of a queue.
pub(super) fn queue(partition: &Partition, shard: u32) -> Vec<u8> {
    with_shard(&[QUEUE_TAG], partition, shard, 0)
}

pub(super) fn key_counter(to: &Destination, key: &str) -> Vec<u8> {
    let mut out = with_destination(COUNTER_TAG, to, key.len());
    out.extend_from_slice(key.as_bytes());
    out
}

/// Returns the expiry time of a record in the table `log`, in ms since the Unix epoch; `None` if records of this kind
/// never expire, or if the value is too short.
pub(super) fn expiry_time(table_key: &[u8], value: &[u8]) -> Option<u64> {
    let at = match *table_key.first()? {
        RETAINED_TAG => 0,
        COUNTER_TAG => 9,
        ID_TAG => 16,
        _ => return None,
    };
    let until =
        value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)?;
    // A counter whose key has not ended does not expire.
    Some(if until == 0 { u64::MAX } else { until })
}

pub(super) fn retained(to: &Destination, key: &str, sequence: u64) -> Vec<u8> {
    of_key(RETAINED_TAG, to, key, sequence)
}

/// Returns the table key of a remembered id, by its digest.
pub(super) fn id(to: &Destination, key: &str, digest: u64) -> Vec<u8> {
    of_key(ID_TAG, to, key, digest)
}

/// Returns the table key of the record of an origin (an outbox from which messages come) in a shard of a destination.
pub(super) fn origin(to: &Destination, shard: u32, origin: &OriginOutbox) -> Vec<u8> {
    let OriginOutbox { partition, shard: of_outbox, .. } = origin;
    let mut out = with_destination(ORIGIN_TAG, to, 20 + partition.stream.len());
    out.extend_from_slice(&shard.to_be_bytes());
    out.extend_from_slice(&with_shard(&[], partition, *of_outbox, 0));
    out
}

pub(super) fn assigned_block(origin: &[u8], number: u64) -> Vec<u8> {
    [origin, &number.to_be_bytes()].concat()
}

/// Returns the table key of an entry in the time index for expiring records of a destination. `which` distinguishes
/// entries with the same time.
pub(super) fn retained_age(at: u64, which: u64) -> Vec<u8> {
    timed(RETAINED_AGE_TAG, at, &which.to_be_bytes())
}

/// The table key of the total number of groups of requests that the writer thread has synced.
pub(super) const GROUPS: [u8; 1] = [COMMITS_TAG];

/// The table key of the time at which a process first saw that the machine's clock was far ahead of the store's time.
pub(super) const CLOCK_JUMP: [u8; 1] = [CLOCK_JUMP_TAG];

/// The table key of the newest time that the store has written for another reason than a commit, for example when it
/// assigned messages. The time of a commit is in the fence.
pub(super) const CLOCK_TIME: [u8; 1] = [CLOCK_TIME_TAG];

pub(super) fn mark(name: &str) -> Vec<u8> {
    let mut out = vec![MARK_TAG];
    out.extend_from_slice(name.as_bytes());
    out
}

fn of_key(tag: u8, to: &Destination, key: &str, number: u64) -> Vec<u8> {
    let mut out = with_destination(tag, to, key.len() + 10);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out
}

fn with_destination(tag: u8, to: &Destination, room: usize) -> Vec<u8> {
    let to = to.to_string();
    let mut out = Vec::with_capacity(3 + to.len() + room);
    out.push(tag);
    out.extend_from_slice(&(to.len() as u16).to_be_bytes());
    out.extend_from_slice(to.as_bytes());
    out
}

fn with_stream(tag: &[u8], stream: &str, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(tag.len() + 1 + stream.len() + room);
    out.extend_from_slice(tag);
    out.push(stream.len() as u8);
    out.extend_from_slice(stream.as_bytes());
    out
}

fn with_shard(tag: &[u8], partition: &Partition, shard: u32, room: usize) -> Vec<u8> {
    let mut out = with_stream(tag, &partition.stream, 8 + room);
    out.extend_from_slice(&partition.number.to_be_bytes());
    out.extend_from_slice(&shard.to_be_bytes());
    out
}

fn timed(tag: u8, at: u64, subject: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + subject.len());
    out.push(tag);
    out.extend_from_slice(&at.to_be_bytes());
    out.extend_from_slice(subject);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_store::KEY_SIZE_LIMIT;

    #[test]
    fn streams_and_keys_do_not_overlap() {
        assert_ne!(key_record("a", "b"), key_record("ab", ""));
        assert_ne!(key_record("a", "\u{1}b"), key_record("\u{1}", "ab"));
        assert!(!key_record("ab", "c").starts_with(&stream("a")));
        assert!(!event("s", "aa", 1).starts_with(&event("s", "a", 1)[..5]));
        assert_eq!(split_key_record(&key_record("s", "k\0ü")), Some(("s", "k\0ü")));
    }

    #[test]
    fn letters_sort_by_key_and_sequence() {
        let keys = ["", "\0", "\0\0", "\0a", "\u{1}", "a", "a\0", "a\0b", "a\u{1}", "aa", "b"];
        let mut last = Vec::new();
        for key in keys {
            for sequence in [0, 1, 255, 256, u64::MAX] {
                let id = LetterId { key: key.into(), sequence, tag: 7 };
                let here = letter("s", &id);
                assert!(last < here, "{key:?} {sequence}");
                assert_eq!(split_letter(&here), Some(id));
                last = here;
            }
        }
        for (short, long) in [("", "\0"), ("a", "a\0"), ("a", "ab")] {
            assert!(!letter_key("s", long).starts_with(&letter_key("s", short)));
        }
    }

    /// The engine has a limit on the length of a table key. Even the longest key of an event, in the longest kind of
    /// table key, stays within this limit.
    #[test]
    fn longest_key_fits_into_a_table_key() {
        let name = "s".repeat(ordain_store::STREAM_NAME_LIMIT);
        let id = LetterId { key: "\0".repeat(KEY_SIZE_LIMIT).into(), sequence: 1, tag: 1 };
        let longest = letter_age(1, &letter(&name, &id));
        assert!(u16::try_from(longest.len()).is_ok(), "{} bytes", longest.len());
    }
}
