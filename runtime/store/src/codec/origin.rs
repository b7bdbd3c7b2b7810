//! What a destination knows of an origin: how far it has given its messages, and the numbers of those
//! that may still be in its outbox.
//!
//! A record says how far; what was new in one call is a block behind it. So a call whose messages were
//! never seen reads the record, and writes it with one block, however much the outbox has. Of one that
//! comes again the blocks are found by the commits, which ascend from block to block as a rule.
//!
//! All numbers have fixed widths, so that a script can put the records together.

use super::wire::{Reader, Undecodable};
use crate::Place;

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
    /// Whether the commits of blocks may not ascend: a message was new in an old commit, because a sink leads
    /// here since. Then all blocks are read.
    pub is_mixed: bool,
}

/// Of an origin that has given nothing.
impl Default for OriginRecord {
    fn default() -> Self {
        let nowhere = Place::default();
        Self { epoch: 0, last: nowhere, highest: nowhere, first: 1, next: 1, is_mixed: false }
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
        out.push(u8::from(self.is_mixed));
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("record of an origin", bytes, ORIGIN_FORMAT)?;
        let epoch = reader.u64("epoch")?;
        let (last, highest) = (place(&mut reader)?, place(&mut reader)?);
        let (first, next) = (reader.u64("first block")?, reader.u64("next block")?);
        let is_mixed = match reader.u8("order of blocks")? {
            0 => false,
            1 => true,
            _ => return Err(reader.bad("order of blocks")),
        };
        reader.end()?;
        if first > next {
            return Err(reader.bad("blocks"));
        }
        Ok(Self { epoch, last, highest, first, next, is_mixed })
    }
}

/// What was given of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenPart {
    /// The place.
    pub place: Place,
    /// Digests of the ids, and the numbers; 0 where there are none.
    pub messages: Vec<(u64, u64)>,
}

/// A block: what was new in one call.
pub fn encode_given(parts: &[GivenPart]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        put_place(part.place, &mut out);
        out.extend_from_slice(&(part.messages.len() as u32).to_le_bytes());
        for (id, sequence) in &part.messages {
            out.extend_from_slice(&id.to_le_bytes());
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
        let count = reader.u32("number of messages")? as usize;
        let messages = reader.take(count.saturating_mul(16), "messages")?;
        let (numbers, _) = messages.as_chunks::<8>();
        let numbers = numbers.iter().map(|it| u64::from_le_bytes(*it));
        let messages = numbers.clone().step_by(2).zip(numbers.skip(1).step_by(2)).collect();
        parts.push(GivenPart { place, messages });
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
