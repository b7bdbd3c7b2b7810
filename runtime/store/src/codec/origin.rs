//! The record of an origin at a destination. An origin is the outbox of a partition in one shard: committed messages
//! that are to be published. The record contains the last outbox position whose messages the store has assigned. Blocks
//! beside the record contain the ids and numbers of the assigned messages that may still be in the outbox.
//!
//! The new messages of each call of [`MessageLog::assign`](crate::MessageLog::assign) form a separate block. A call
//! with only new messages therefore writes only the record and one block, even if the outbox is large. The commit
//! numbers usually ascend from block to block. A call with repeated messages therefore finds their blocks with a binary
//! search by commit number.
//!
//! All numbers have fixed widths, so that a Redis script can build the records.

use super::wire::{RecordDecodeError, RecordReader};
use crate::OutboxPosition;

/// The format byte of a record.
pub const ORIGIN_FORMAT: u8 = 1;

/// The progress of an origin at a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginRecord {
    /// The epoch of the origin's last owner.
    pub epoch: u64,
    /// The last outbox position whose messages the store has assigned for this owner.
    pub last: OutboxPosition,
    /// The highest outbox position whose messages the store has assigned for any owner. The messages of all later
    /// outbox positions are new.
    pub highest: OutboxPosition,
    /// The number of the first block.
    pub first: u64,
    /// The number after the last block.
    pub next: u64,
    /// `true` if a block may contain a commit that is earlier than a commit in the previous block. This happens when a
    /// changed configuration routes another sink to this destination: an old commit can then have messages that are new
    /// to the destination. While the flag is set, a search reads all blocks.
    pub is_unordered: bool,
}

impl Default for OriginRecord {
    fn default() -> Self {
        let start = OutboxPosition::default();
        Self { epoch: 0, last: start, highest: start, first: 1, next: 1, is_unordered: false }
    }
}

impl OriginRecord {
    /// Records that the store has assigned the messages at an outbox position, for an owner with this epoch.
    pub fn record_assigned(&mut self, epoch: u64, position: OutboxPosition) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.last = OutboxPosition::default();
        }
        self.last = self.last.max(position);
        self.highest = self.highest.max(position);
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ORIGIN_FORMAT];
        out.extend_from_slice(&self.epoch.to_le_bytes());
        put_position(self.last, &mut out);
        put_position(self.highest, &mut out);
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.push(u8::from(self.is_unordered));
        out
    }

    /// Decodes a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordDecodeError> {
        let mut reader = RecordReader::new("record of an origin", bytes, ORIGIN_FORMAT)?;
        let epoch = reader.u64("epoch")?;
        let last = read_position(&mut reader)?;
        let highest = read_position(&mut reader)?;
        let first = reader.u64("first block")?;
        let next = reader.u64("next block")?;
        let is_mixed = match reader.u8("flag of unordered blocks")? {
            0 => false,
            1 => true,
            _ => return Err(reader.damaged("flag of unordered blocks")),
        };
        reader.end()?;
        if first > next {
            return Err(reader.damaged("blocks"));
        }
        Ok(Self { epoch, last, highest, first, next, is_unordered: is_mixed })
    }
}

/// The numbered messages of one outbox position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedChunk {
    /// The outbox position.
    pub position: OutboxPosition,
    /// For each message, the digest of its id, and its number; the number is 0 if the store has given the message no
    /// number.
    pub messages: Vec<(u64, u64)>,
}

/// Encodes a block: the new messages of one call, by outbox position.
pub fn encode_assigned(chunks: &[AssignedChunk]) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in chunks {
        put_position(chunk.position, &mut out);
        out.extend_from_slice(&(chunk.messages.len() as u32).to_le_bytes());
        for (id, sequence) in &chunk.messages {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
    }
    out
}

/// Decodes a block.
pub fn decode_assigned(bytes: &[u8]) -> Result<Vec<AssignedChunk>, RecordDecodeError> {
    let mut reader = RecordReader::without_format("block of an origin", bytes);
    let mut chunks = Vec::new();
    while !reader.is_empty() {
        let position = read_position(&mut reader)?;
        let count = reader.u32("number of messages")? as usize;
        let encoded = reader.take(count.saturating_mul(16), "messages")?;
        let (words, _) = encoded.as_chunks::<8>();
        let numbers = words.iter().map(|word| u64::from_le_bytes(*word));
        let messages = numbers.clone().step_by(2).zip(numbers.skip(1).step_by(2)).collect();
        chunks.push(AssignedChunk { position, messages });
    }
    Ok(chunks)
}

fn put_position(position: OutboxPosition, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.commit.to_le_bytes());
    out.extend_from_slice(&position.chunk.to_le_bytes());
}

fn read_position(reader: &mut RecordReader<'_>) -> Result<OutboxPosition, RecordDecodeError> {
    Ok(OutboxPosition { commit: reader.u64("commit")?, chunk: reader.u32("part")? })
}
