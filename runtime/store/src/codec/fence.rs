//! The fence of a partition in a shard (a slice of the store). The fence contains the owner's claim, the number of the
//! partition's last commit in the shard, and the reply to that commit. If the owner does not receive the reply, it
//! repeats the commit, and the store returns the stored reply.
//!
//! All numbers have fixed widths, so that a Redis script can build the record.

use ordain_core::{AppliedCommit, CommitReply, ExistingSpill, WriteRefusal};

use super::wire::{RecordDecodeError, RecordReader};
use crate::Claim;

/// The format byte of a record.
pub const FENCE_FORMAT: u8 = 3;

/// The offset of the last commit's number. The claim lies between the format byte and the commit number.
pub const FENCE_NUMBER_AT: usize = 1 + 16;
/// The offset of the reply to the last commit. The reply begins with the time of the commit, and extends to the end of
/// the record.
pub const FENCE_REPLY_AT: usize = FENCE_NUMBER_AT + 8;

/// The reasons for refusals. In the reply, one of these bytes follows the index of each refused write.
pub mod refused {
    /// The key record does not have the next sequence that the write expects. The record's next sequence follows this
    /// byte in the reply.
    pub const NEXT_CODE: u8 = 0;
    /// The key record does not exist.
    pub const ABSENT_CODE: u8 = 1;
    /// The key record belongs to another partition. The record's next sequence follows this byte in the reply.
    pub const PARTITION_CODE: u8 = 2;
    /// The key record cannot be read. The text of the error follows this byte in the reply.
    pub const CORRUPT_CODE: u8 = 3;
    /// The key record names a newer rollout than the write.
    pub const VERSION_CODE: u8 = 4;
}

/// The fence record of one (partition, shard).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceRecord {
    /// The claim, which identifies the owner that may commit.
    pub claim: Claim,
    /// The number of the last commit; 0 if there was no commit.
    pub number: u64,
    /// The reply to the last commit; meaningless if there was no commit.
    pub applied: AppliedCommit,
}

/// The result of comparing a commit with a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceVerdict {
    /// The commit has the next number, and the store must apply it.
    Apply,
    /// The store must not apply the commit, and answers with this reply.
    Answer(CommitReply),
}

impl FenceVerdict {
    /// Returns the reply to a commit in a shard without a fence: the shard has lost the owner's claim.
    pub fn unclaimed() -> CommitReply {
        let found = "the shard has lost the claim of this owner".to_owned();
        CommitReply::RolledBack { found, last: None }
    }
}

impl FenceRecord {
    /// Decides whether the store may apply commit `number` of an owner with this claim.
    pub fn evaluate(&self, claim: Claim, number: u64) -> FenceVerdict {
        let rolled_back =
            |found| FenceVerdict::Answer(CommitReply::RolledBack { found, last: None });
        let ours = claim.epoch;
        let theirs = self.claim.epoch;
        if theirs > ours {
            return FenceVerdict::Answer(CommitReply::Fenced);
        }
        if theirs < ours {
            return rolled_back(format!(
                "the shard has the claim of an earlier owner (epoch {theirs}, not {ours})"
            ));
        }
        if self.claim.random != claim.random {
            return rolled_back(format!(
                "the shard has the claim of another owner in epoch {ours}"
            ));
        }
        if number == self.number && number > 0 {
            return FenceVerdict::Answer(CommitReply::Applied(self.applied.clone()));
        }
        if Some(number) == self.number.checked_add(1) {
            return FenceVerdict::Apply;
        }
        let found = format!("the store's last commit is number {}", self.number);
        FenceVerdict::Answer(CommitReply::RolledBack { found, last: Some(self.number) })
    }
}

/// Appends the record.
pub fn encode_fence(fence: &FenceRecord, out: &mut Vec<u8>) {
    out.push(FENCE_FORMAT);
    out.extend_from_slice(&fence.claim.epoch.to_le_bytes());
    out.extend_from_slice(&fence.claim.random.to_le_bytes());
    out.extend_from_slice(&fence.number.to_le_bytes());
    out.extend_from_slice(&fence.applied.time.to_le_bytes());
    put_count(fence.applied.refused.len(), out);
    for (write, refusal) in &fence.applied.refused {
        put_count(*write, out);
        put_refusal(refusal, out);
    }
    put_count(fence.applied.existing_letters.len(), out);
    for letter in &fence.applied.existing_letters {
        put_count(*letter, out);
    }
    for present in &fence.applied.existing_spills {
        put_count(present.write, out);
        out.extend_from_slice(&present.sequence.to_le_bytes());
        out.push(u8::from(present.same));
    }
}

/// Decodes the record.
pub fn decode_fence(bytes: &[u8]) -> Result<FenceRecord, RecordDecodeError> {
    let mut reader = RecordReader::new("fence", bytes, FENCE_FORMAT)?;
    let claim = Claim { epoch: reader.u64("epoch")?, random: reader.u64("claim")? };
    Ok(FenceRecord { claim, number: reader.u64("number")?, applied: read_applied(reader)? })
}

/// Decodes the part of the record from [`FENCE_REPLY_AT`] on: the reply to the last commit.
pub fn decode_applied(bytes: &[u8]) -> Result<AppliedCommit, RecordDecodeError> {
    read_applied(RecordReader::without_format("answer to a commit", bytes))
}

fn read_applied(mut reader: RecordReader<'_>) -> Result<AppliedCommit, RecordDecodeError> {
    let mut applied = AppliedCommit { time: reader.u64("time")?, ..AppliedCommit::default() };
    for _ in 0..reader.u32("refusals")? {
        let write = read_position(&mut reader)?;
        applied.refused.push((write, read_refusal(&mut reader)?));
    }
    for _ in 0..reader.u32("known letters")? {
        applied.existing_letters.push(read_position(&mut reader)?);
    }
    while !reader.is_empty() {
        applied.existing_spills.push(ExistingSpill {
            write: read_position(&mut reader)?,
            sequence: reader.u64("sequence")?,
            same: match reader.u8("flag of equal content")? {
                0 => false,
                1 => true,
                _ => return Err(reader.damaged("flag of equal content")),
            },
        });
    }
    Ok(applied)
}

fn read_position(reader: &mut RecordReader<'_>) -> Result<usize, RecordDecodeError> {
    Ok(reader.u32("position")? as usize)
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_refusal(refusal: &WriteRefusal, out: &mut Vec<u8>) {
    match refusal {
        WriteRefusal::Next(None) => out.push(refused::ABSENT_CODE),
        WriteRefusal::Next(Some(next)) => {
            out.push(refused::NEXT_CODE);
            out.extend_from_slice(&next.to_le_bytes());
        }
        WriteRefusal::Partition(next) => {
            out.push(refused::PARTITION_CODE);
            out.extend_from_slice(&next.to_le_bytes());
        }
        WriteRefusal::Version => out.push(refused::VERSION_CODE),
        WriteRefusal::Corrupt(words) => {
            out.push(refused::CORRUPT_CODE);
            put_count(words.len(), out);
            out.extend_from_slice(words.as_bytes());
        }
    }
}

fn read_refusal(reader: &mut RecordReader<'_>) -> Result<WriteRefusal, RecordDecodeError> {
    match reader.u8("refusal")? {
        refused::ABSENT_CODE => Ok(WriteRefusal::Next(None)),
        refused::NEXT_CODE => Ok(WriteRefusal::Next(Some(reader.u64("refusal")?))),
        refused::PARTITION_CODE => Ok(WriteRefusal::Partition(reader.u64("refusal")?)),
        refused::VERSION_CODE => Ok(WriteRefusal::Version),
        refused::CORRUPT_CODE => {
            let length = reader.u32("refusal")? as usize;
            let words = reader.take(length, "refusal")?;
            Ok(WriteRefusal::Corrupt(String::from_utf8_lossy(words).into_owned()))
        }
        _ => Err(reader.damaged("refusal")),
    }
}
