//! Reading events that wait in the store: spilled ones, and those that were too far ahead.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join;
use ordain_core::{Cause, Event, Key, LetterContent, SpillPage};

use super::Redis;
use super::list::{Bounds, kept_letter, letters_of_shard};
use super::value::{array, bytes, number, parts, strange};
use crate::store::codec::{decode_spilled, put_letter_key};
use crate::store::{OfKey, Partition, StoreError};

/// Bytes of events found at once, after the first; a later round of replay finds the others.
const FIND_BYTES: usize = 16 << 20;
/// More events than those bytes have.
const FIND_EVENTS: usize = FIND_BYTES;

/// An event with its sequence.
type Numbered = (u64, Arc<Event>);

/// See [`Store::read_spill`](crate::store::Store::read_spill).
pub(super) async fn read_spill(
    store: &Redis,
    partition: &Partition,
    key: &Key,
    from: u64,
    limit: usize,
    bytes: usize,
) -> Result<OfKey<SpillPage>, StoreError> {
    let page = spilled(store, partition, key, from..=u64::MAX, limit, bytes).await?;
    Ok(page.map(|(read, end)| up_to(bytes, read, end)))
}

/// As many as have so many bytes of memory, one at least.
fn up_to(bytes: usize, read: Vec<Numbered>, end: bool) -> SpillPage {
    let (mut events, mut memory) = (Vec::new(), 0);
    for (sequence, event) in read {
        memory += event.memory();
        if !events.is_empty() && memory > bytes {
            return (events, false);
        }
        events.push((sequence, event));
    }
    (events, end)
}

/// See [`Store::find`](crate::store::Store::find).
pub(super) async fn find(
    store: &Redis,
    partition: &Partition,
    key: &Key,
    missing: &[RangeInclusive<u64>],
    within: u64,
) -> Result<OfKey<Vec<Numbered>>, StoreError> {
    let (mut found, mut memory) = (Vec::new(), 0);
    for range in missing {
        let first = found.len();
        let spilled = spilled(store, partition, key, range.clone(), FIND_EVENTS, FIND_BYTES);
        let letters = far_ahead(store, partition, key, range, within);
        let (spilled, letters) = try_join(spilled, letters).await?;
        match spilled {
            Ok((spilled, _)) => found.extend(spilled),
            Err(words) => return Ok(Err(words)),
        }
        found.extend(letters);
        // A stable sort: what is spilled stays before a letter of the same sequence.
        found[first..].sort_by_key(|(sequence, _)| *sequence);
        memory += found[first..].iter().map(|(_, event)| event.memory()).sum::<usize>();
        if memory >= FIND_BYTES {
            break;
        }
    }
    found.dedup_by_key(|(sequence, _)| *sequence);
    Ok(Ok(found))
}

/// Spilled events of these sequences, and whether there are no more of them.
async fn spilled(
    store: &Redis,
    partition: &Partition,
    key: &Key,
    range: RangeInclusive<u64>,
    limit: usize,
    limit_bytes: usize,
) -> Result<OfKey<SpillPage>, StoreError> {
    let script = &store.scripts.spill;
    let names = store.of_stream(store.shard_of(key), &partition.stream, ["data", "spilled"]);
    let mut call = store.call_of(script, &names);
    call.arg(key.as_bytes()).arg(limit.max(1)).arg(limit_bytes);
    call.arg(&range.start().to_be_bytes()[..]).arg(&range.end().to_be_bytes()[..]);
    let [end, found] = parts(store.run(script, call).await?, script.name)?;
    let mut found = array(found, script.name)?.into_iter();
    let mut events = Vec::new();
    while let (Some(sequence), Some(event)) = (found.next(), found.next()) {
        let both = bytes(sequence).zip(bytes(event)).ok_or_else(|| strange(script.name))?;
        match read_event(key, &both.0, &both.1) {
            Ok(event) => events.push(event),
            Err(words) => return Ok(Err(words)),
        }
    }
    Ok(Ok((events, number(&end) == Some(1))))
}

fn read_event(key: &str, sequence: &Bytes, event: &Bytes) -> OfKey<Numbered> {
    let sequence = <[u8; 8]>::try_from(&sequence[..])
        .map(u64::from_be_bytes)
        .map_err(|_| "the sequence of a spilled event is cut off".to_owned())?;
    let event = if event.len() < 8 { Bytes::new() } else { event.slice(8..) };
    decode_spilled(key, sequence, event).map(|event| (sequence, event))
}

/// Events that are kept as `far-ahead` letters put no longer than `within` ms ago.
async fn far_ahead(
    store: &Redis,
    partition: &Partition,
    key: &Key,
    range: &RangeInclusive<u64>,
    within: u64,
) -> Result<Vec<Numbered>, StoreError> {
    let mut prefix = Vec::new();
    put_letter_key(key, &mut prefix);
    let bounds = Bounds::of_sequences(&prefix, range);
    let shard = store.shard_of(key);
    let stream = &partition.stream;
    let (now, letters) =
        letters_of_shard(store, stream, shard, &bounds, FIND_EVENTS, FIND_BYTES).await?;
    let put_from = now.saturating_sub(within);
    let event = |(place, record): (Bytes, Bytes)| -> Option<Numbered> {
        // A letter that cannot be read is no replay source, and no reason to stop.
        let stored = kept_letter(store, &place, record, now)?;
        let letter = stored.letter;
        match letter.content {
            LetterContent::Event(event)
                if letter.cause == Cause::FarAhead && stored.at >= put_from =>
            {
                Some((letter.id.sequence, event))
            }
            _ => None,
        }
    };
    Ok(letters.into_iter().filter_map(event).collect())
}
