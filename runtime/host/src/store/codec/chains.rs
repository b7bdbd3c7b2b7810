//! What a destination knows: of each key how far it has counted, of each origin how far it has given
//! its messages, and what it keeps of them.
//!
//! All numbers have fixed widths, so that a script can put the records together.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, digest};

use super::wire::{Reader, Undecodable};
use crate::store::{Item, Place, Queued};

/// Opens the record of a key's count.
pub const COUNTER_FORMAT: u8 = 1;

/// How far a key has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// The next number.
    pub next: u64,
    /// When it is forgotten, in ms since the Unix epoch; 0: it has not ended.
    pub end: u64,
}

impl Counter {
    /// The record.
    pub fn encode(self) -> [u8; 17] {
        let mut out = [COUNTER_FORMAT; 17];
        out[1..9].copy_from_slice(&self.next.to_le_bytes());
        out[9..].copy_from_slice(&self.end.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("count of a key", bytes, COUNTER_FORMAT)?;
        let counter = Self { next: reader.u64("next")?, end: reader.u64("end")? };
        reader.end().map(|()| counter)
    }
}

/// A digest of the ids of messages.
pub fn ids_digest(items: &[Item]) -> u64 {
    let ids: Vec<u8> = items.iter().flat_map(|it| it.event.id_digest().to_le_bytes()).collect();
    digest(&ids)
}

/// Where the content of a message that is kept stands: behind the time at which it goes.
pub const RETAINED_CONTENT_AT: usize = 8;

/// A message as it is kept, behind the time at which it goes: its content, so that two are compared
/// without being taken apart, and the event with its number.
pub fn encode_retained(event: &Event, sequence: Option<u64>) -> Vec<u8> {
    let mut value = Vec::with_capacity(8 + event.encoded_len());
    value.extend_from_slice(&event.content().to_be_bytes());
    event.encode_with(sequence, &mut value);
    value
}

/// Reads one with its time, or says what is wrong with it.
pub fn decode_retained(value: &Bytes) -> Result<Arc<Event>, String> {
    let event_at = RETAINED_CONTENT_AT + 8;
    if value.len() < event_at {
        return Err("a message that is kept is cut off".to_owned());
    }
    let event = Event::decode(value.slice(event_at..));
    event.map(Arc::new).map_err(|error| format!("a message that is kept: {error}"))
}

/// Opens a record.
pub const ORIGIN_FORMAT: u8 = 1;

/// Reads what waits for a stream.
pub fn decode_queued(value: Bytes) -> Queued {
    Event::decode(value.clone()).map_err(|error| (value, error.to_string()))
}

/// What is known of an origin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginRecord {
    /// The epoch of its last owner.
    pub epoch: u64,
    /// The last place that was given under it.
    pub last: Place,
    /// What was given and may still be in the outbox, in the order in which it came.
    pub parts: Vec<KnownPart>,
}

/// What was given of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPart {
    /// The place.
    pub place: Place,
    /// Of the ids, by which it is seen that the store went back and the place has other messages.
    pub digest: u64,
    /// The numbers; none where there are none.
    pub sequences: Vec<u64>,
}

/// What a record says to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'a> {
    /// It has come before, and has these numbers.
    Known(&'a [u64]),
    /// It is new.
    New,
    /// It is of an earlier time, and nobody waits for an answer.
    Late,
}

impl OriginRecord {
    /// What is known of a part that an owner of this epoch gives.
    pub fn told(&self, epoch: u64, place: Place, digest: u64) -> Told<'_> {
        let known = self.parts.iter().find(|part| part.place == place);
        match known {
            Some(known) if known.digest == digest => Told::Known(&known.sequences),
            None if epoch == self.epoch && place <= self.last => Told::Late,
            // Another one of the same place was lost with the commit that it was of.
            Some(_) | None => Told::New,
        }
    }

    /// Notes that an owner of this epoch has given what is at a place.
    pub fn given(&mut self, epoch: u64, place: Place) {
        if epoch != self.epoch {
            (self.epoch, self.last) = (epoch, Place::default());
        }
        self.last = self.last.max(place);
    }

    /// Notes a new part.
    pub fn put(&mut self, part: KnownPart) {
        self.parts.retain(|known| known.place != part.place);
        self.parts.push(part);
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(ORIGIN_FORMAT);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        put_place(self.last, out);
        for part in &self.parts {
            put_place(part.place, out);
            out.extend_from_slice(&part.digest.to_le_bytes());
            out.extend_from_slice(&(part.sequences.len() as u32).to_le_bytes());
            for sequence in &part.sequences {
                out.extend_from_slice(&sequence.to_le_bytes());
            }
        }
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("record of an origin", bytes, ORIGIN_FORMAT)?;
        let epoch = reader.u64("epoch")?;
        let last = place(&mut reader)?;
        let mut parts = Vec::new();
        while !reader.is_empty() {
            let place = place(&mut reader)?;
            let digest = reader.u64("digest")?;
            let count = reader.u32("number of messages")? as usize;
            let numbers = reader.take(count.saturating_mul(8), "numbers")?;
            let (numbers, _) = numbers.as_chunks::<8>();
            let sequences = numbers.iter().map(|it| u64::from_le_bytes(*it)).collect();
            parts.push(KnownPart { place, digest, sequences });
        }
        Ok(Self { epoch, last, parts })
    }
}

/// Appends a place.
fn put_place(place: Place, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.commit.to_le_bytes());
    out.extend_from_slice(&place.part.to_le_bytes());
}

fn place(reader: &mut Reader<'_>) -> Result<Place, Undecodable> {
    Ok(Place { commit: reader.u64("commit")?, part: reader.u32("part")? })
}
