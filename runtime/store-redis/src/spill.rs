//! Reads the events of a key that wait in the store. Spilled events wait until their key can execute them. The events
//! of early dead letters wait for earlier events of the key.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join;
use ordain_core::{Cause, DeadLetter, Event, Key, LetterContent, SpillPage};

use super::RedisStore;
use super::list::letters::{LetterFilter, LetterRange, letters_of_shard};
use super::names::RedisKeyKind;
use super::value::{array, bytes, parts, unexpected_reply};
use ordain_store::codec::{decode_letter, decode_spilled, put_letter_key};
use ordain_store::{
    EarlyLetters, FOUND_BYTES_LIMIT, FoundEvents, KeyResult, Partition, SpillArea, StoreError,
};

/// The maximum number of spilled events that [`SpillArea::find_missing`] reads for one range of missing sequences. Also
/// the field `limit` of [`LetterFilter`] for [`SpillArea::find_missing`] and [`SpillArea::early_letters`]: the number
/// of dead letters at which a read of dead letters ends.
const FIND_EVENTS_LIMIT: usize = 2_000;

type NumberedEvent = (u64, Arc<Event>);

#[async_trait]
impl SpillArea for RedisStore {
    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<KeyResult<SpillPage>, StoreError> {
        let page = spilled(self, partition, key, from..=u64::MAX, limit, bytes).await?;
        Ok(page.map(|(read, end)| first_events(bytes, read, end)))
    }

    async fn find_missing(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<KeyResult<FoundEvents>, StoreError> {
        let mut found = FoundEvents { events: Vec::new(), until: u64::MAX };
        let mut memory = 0;
        for range in missing {
            if memory >= FOUND_BYTES_LIMIT {
                found.until = *range.start();
                break;
            }
            let first = found.events.len();
            let spilled =
                spilled(self, partition, key, range.clone(), FIND_EVENTS_LIMIT, FOUND_BYTES_LIMIT);
            let letters = early_letters(self, partition, key, range, within);
            let (spilled, letters) = match try_join(spilled, letters).await? {
                (Ok(spilled), (letters, is_end)) => {
                    (spilled, (letters.into_iter().filter_map(early_event).collect(), is_end))
                }
                (Err(words), _) => return Ok(Err(words)),
            };
            found.until = end_of_read(&spilled).min(end_of_read(&letters));
            found.events.extend(spilled.0);
            found.events.extend(letters.0);
            // The sort is stable, so a spilled event stays before the event of a letter with the same sequence.
            found.events[first..].sort_by_key(|(sequence, _)| *sequence);
            memory += found.events[first..].iter().map(|(_, event)| event.memory()).sum::<usize>();
            if found.until != u64::MAX {
                break;
            }
        }
        found.events.dedup_by_key(|(sequence, _)| *sequence);
        Ok(Ok(found))
    }

    async fn early_letters(
        &self,
        partition: &Partition,
        key: &Key,
        sequences: &RangeInclusive<u64>,
        within: u64,
    ) -> Result<KeyResult<EarlyLetters>, StoreError> {
        let (letters, is_end) = early_letters(self, partition, key, sequences, within).await?;
        // The next letter may have the same sequence as the last letter of an incomplete answer.
        let last = letters.last().filter(|_| !is_end).map(|letter| letter.id.sequence);
        let until = last.unwrap_or(sequences.end().saturating_add(1));
        Ok(Ok(EarlyLetters { letters, until }))
    }
}

/// Returns the first sequence that a read possibly has not reached: the sequence after the last event of the page.
/// Returns `u64::MAX` if no more events follow the page.
fn end_of_read((events, is_end): &SpillPage) -> u64 {
    let last = events.last().filter(|_| !is_end);
    last.map_or(u64::MAX, |(sequence, _)| sequence.saturating_add(1))
}

/// Returns the first events of `read` that together fit into `bytes` of memory. Always returns the first event, even if
/// it is larger than `bytes`. `end` states whether `read` contains the last requested event. The second value of the
/// result states the same for the returned events: it is `end`, or `false` if this function omitted events.
fn first_events(bytes: usize, read: Vec<NumberedEvent>, end: bool) -> SpillPage {
    let mut events = Vec::new();
    let mut memory = 0;
    for (sequence, event) in read {
        memory += event.memory();
        if !events.is_empty() && memory > bytes {
            return (events, false);
        }
        events.push((sequence, event));
    }
    (events, end)
}

/// Returns the first spilled events whose sequences are in `range`: at most `limit` events of about `limit_bytes`
/// bytes, but at least one event if the range has one. Also returns `true` if no more spilled events in `range` follow.
async fn spilled(
    store: &RedisStore,
    partition: &Partition,
    key: &Key,
    range: RangeInclusive<u64>,
    limit: usize,
    limit_bytes: usize,
) -> Result<KeyResult<SpillPage>, StoreError> {
    let script = &store.scripts.spill;
    let names = store.stream_keys(
        store.shard_of(key),
        &partition.stream,
        [RedisKeyKind::Data, RedisKeyKind::Spilled],
    );
    let mut from = Bytes::from([b"[", &range.start().to_be_bytes()[..]].concat());
    loop {
        let mut call = store.script_call(script, &names);
        call.arg(key.as_bytes()).arg(limit.max(1)).arg(limit_bytes);
        call.arg(&from[..]).arg(&range.end().to_be_bytes()[..]);
        let [behind, found] = parts(store.run_script(script, call).await?, script.name)?;
        let mut found = array(found, script.name)?.into_iter();
        let mut events = Vec::new();
        while let (Some(sequence), Some(event)) = (found.next(), found.next()) {
            let both =
                bytes(sequence).zip(bytes(event)).ok_or_else(|| unexpected_reply(script.name))?;
            match read_event(key, &both.0, &both.1) {
                Ok(event) => events.push(event),
                Err(words) => return Ok(Err(words)),
            }
        }
        match bytes(behind) {
            Some(behind) if events.is_empty() => from = behind,
            behind => return Ok(Ok((events, behind.is_none()))),
        }
    }
}

fn read_event(key: &str, sequence: &Bytes, event: &Bytes) -> KeyResult<NumberedEvent> {
    let sequence = <[u8; 8]>::try_from(&sequence[..])
        .map(u64::from_be_bytes)
        .map_err(|_| "the sequence of a spilled event is truncated".to_owned())?;
    let event = if event.len() < 8 { Bytes::new() } else { event.slice(8..) };
    decode_spilled(key, sequence, event).map(|event| (sequence, event))
}

/// Returns the first early dead letters ([`Cause::waits_for_earlier`]) in `range` that have an event, and that were
/// stored at most `within` ms ago. One call returns a limited number of letters, but at least one letter if there is
/// one. Also returns `true` if no more such letters follow.
async fn early_letters(
    store: &RedisStore,
    partition: &Partition,
    key: &Key,
    range: &RangeInclusive<u64>,
    within: u64,
) -> Result<(Vec<DeadLetter>, bool), StoreError> {
    let mut prefix = Vec::new();
    put_letter_key(key, &mut prefix);
    let mut bounds = LetterRange::of_sequences(&prefix, range);
    let wanted = LetterFilter {
        limit: FIND_EVENTS_LIMIT,
        bytes: FOUND_BYTES_LIMIT,
        causes: Cause::ALL.into_iter().filter(|cause| cause.waits_for_earlier()).collect(),
        within: within.min(store.dead_ttl),
    };
    loop {
        let part =
            letters_of_shard(store, &partition.stream, store.shard_of(key), &bounds, &wanted)
                .await?;
        // Skip an unreadable letter.
        let letters = part.letters.into_iter().filter_map(|(_, record)| {
            let letter = decode_letter(&record).ok()?.letter;
            matches!(letter.content, LetterContent::Event(_)).then_some(letter)
        });
        let letters: Vec<DeadLetter> = letters.collect();
        match part.continue_after {
            Some(behind) if letters.is_empty() => bounds.continue_after(&behind),
            behind => return Ok((letters, behind.is_none())),
        }
    }
}

fn early_event(letter: DeadLetter) -> Option<NumberedEvent> {
    match letter.content {
        LetterContent::Event(event) => Some((letter.id.sequence, event)),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    }
}
