//! What a destination knows of an origin: how far it has given its messages, and the numbers of those
//! that may still be in its outbox.
//!
//! A record says how far; what was new in one call is a block behind it. So a call whose messages were
//! never seen reads the record, and writes it with one block, however much the outbox has.
//!
//! All numbers have fixed widths, so that a script can put the records together.

use super::wire::{Reader, Undecodable};
use crate::store::Place;

/// Opens a record.
pub const ORIGIN_FORMAT: u8 = 1;

/// How far an origin has given its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginRecord {
    /// The epoch of its last owner.
    pub epoch: u64,
    /// The last place that was given under it.
    pub last: Place,
    /// The highest place that was ever given: what is behind it is new.
    pub highest: Place,
    /// The first block that there is.
    pub first: u64,
    /// The one behind the last.
    pub next: u64,
}

/// Of an origin that has given nothing.
impl Default for OriginRecord {
    fn default() -> Self {
        let nowhere = Place::default();
        Self { epoch: 0, last: nowhere, highest: nowhere, first: 1, next: 1 }
    }
}

impl OriginRecord {
    /// Notes that an owner of this epoch has given what is at a place.
    pub fn given(&mut self, epoch: u64, place: Place) {
        if epoch != self.epoch {
            (self.epoch, self.last) = (epoch, Place::default());
        }
        self.last = self.last.max(place);
        self.highest = self.highest.max(place);
    }

    /// The record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ORIGIN_FORMAT];
        out.extend_from_slice(&self.epoch.to_le_bytes());
        put_place(self.last, &mut out);
        put_place(self.highest, &mut out);
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("record of an origin", bytes, ORIGIN_FORMAT)?;
        let epoch = reader.u64("epoch")?;
        let (last, highest) = (place(&mut reader)?, place(&mut reader)?);
        let (first, next) = (reader.u64("first block")?, reader.u64("next block")?);
        reader.end()?;
        if first > next {
            return Err(reader.bad("blocks"));
        }
        Ok(Self { epoch, last, highest, first, next })
    }
}

/// What was given of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenPart {
    /// The place.
    pub place: Place,
    /// Of the ids, by which it is seen that the store went back and the place has other messages.
    pub digest: u64,
    /// The numbers; none where there are none.
    pub sequences: Vec<u64>,
}

/// A block: what was new in one call.
pub fn encode_given(parts: &[GivenPart]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        put_place(part.place, &mut out);
        out.extend_from_slice(&part.digest.to_le_bytes());
        out.extend_from_slice(&(part.sequences.len() as u32).to_le_bytes());
        for sequence in &part.sequences {
            out.extend_from_slice(&sequence.to_le_bytes());
        }
    }
    out
}

/// Reads a block.
pub fn decode_given(bytes: &[u8]) -> Result<Vec<GivenPart>, Undecodable> {
    let mut reader = Reader::bare("block of an origin", bytes);
    let mut parts = Vec::new();
    while !reader.is_empty() {
        let place = place(&mut reader)?;
        let digest = reader.u64("digest")?;
        let count = reader.u32("number of messages")? as usize;
        let numbers = reader.take(count.saturating_mul(8), "numbers")?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let sequences = numbers.iter().map(|it| u64::from_le_bytes(*it)).collect();
        parts.push(GivenPart { place, digest, sequences });
    }
    Ok(parts)
}

/// Appends a place.
fn put_place(place: Place, out: &mut Vec<u8>) {
    out.extend_from_slice(&place.commit.to_le_bytes());
    out.extend_from_slice(&place.part.to_le_bytes());
}

fn place(reader: &mut Reader<'_>) -> Result<Place, Undecodable> {
    Ok(Place { commit: reader.u64("commit")?, part: reader.u32("part")? })
}
