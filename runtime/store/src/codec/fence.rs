//! The fence of a shard with the answer to its last commit, which is kept so that a commit whose
//! answer was lost gets the same one again.
//!
//! All numbers have fixed widths, so that a script can put the record together.

use ordain_core::{Applied, CommitReply, Present, Refusal};

use super::wire::{Reader, Undecodable};
use crate::Claim;

/// Opens a record.
pub const FENCE_FORMAT: u8 = 3;

/// Where the number of the last commit stands; before it, behind the format, the claim.
pub const FENCE_NUMBER_AT: usize = 1 + 16;
/// Where the answer to that commit stands, up to the end. It begins with the commit's time.
pub const FENCE_ANSWER_AT: usize = FENCE_NUMBER_AT + 8;

/// Why a write was refused: what opens a refusal in the answer.
pub mod refused {
    /// The job has another next sequence, which follows.
    pub const NEXT: u8 = 0;
    /// There is no job.
    pub const ABSENT: u8 = 1;
    /// The job is another partition's. Its next sequence follows.
    pub const PARTITION: u8 = 2;
    /// The job cannot be read. The reason follows.
    pub const CORRUPT: u8 = 3;
    /// The job was executed under a newer decision.
    pub const VERSION: u8 = 4;
}

/// What a store holds for one (partition, shard).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceRecord {
    /// Who may commit.
    pub claim: Claim,
    /// The number of the last commit; 0 if there was none.
    pub number: u64,
    /// What that commit answered; of no meaning if there was none.
    pub applied: Applied,
}

/// What a fence says to a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Apply,
    /// It is answered without being applied.
    Answer(CommitReply),
}

impl Verdict {
    /// What a shard says that nobody has claimed.
    pub fn unclaimed() -> CommitReply {
        CommitReply::Rewound { found: "there is no claim at all".to_owned(), last: None }
    }
}

impl FenceRecord {
    /// Whether a commit under a claim may be applied.
    pub fn judge(&self, claim: Claim, number: u64) -> Verdict {
        let rewound = |found| Verdict::Answer(CommitReply::Rewound { found, last: None });
        let (ours, theirs) = (claim.epoch, self.claim.epoch);
        if theirs > ours {
            return Verdict::Answer(CommitReply::Fenced);
        }
        if theirs < ours {
            return rewound(format!(
                "the claim is of epoch {theirs}, and the commit's of epoch {ours}"
            ));
        }
        if self.claim.random != claim.random {
            return rewound(format!("the claim is another one of epoch {ours}"));
        }
        if number == self.number && number > 0 {
            return Verdict::Answer(CommitReply::Applied(self.applied.clone()));
        }
        if Some(number) == self.number.checked_add(1) {
            return Verdict::Apply;
        }
        let found = format!("commit {} is the last one", self.number);
        Verdict::Answer(CommitReply::Rewound { found, last: Some(self.number) })
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
    put_count(fence.applied.known.len(), out);
    for letter in &fence.applied.known {
        put_count(*letter, out);
    }
    for present in &fence.applied.present {
        put_count(present.write, out);
        out.extend_from_slice(&present.sequence.to_le_bytes());
        out.push(u8::from(present.same));
    }
}

/// Reads the record.
pub fn decode_fence(bytes: &[u8]) -> Result<FenceRecord, Undecodable> {
    let mut reader = Reader::new("fence", bytes, FENCE_FORMAT)?;
    let claim = Claim { epoch: reader.u64("epoch")?, random: reader.u64("claim")? };
    Ok(FenceRecord { claim, number: reader.u64("number")?, applied: read_applied(reader)? })
}

/// Reads the last part of the record: the answer to the last commit.
pub fn decode_applied(bytes: &[u8]) -> Result<Applied, Undecodable> {
    read_applied(Reader::bare("answer to a commit", bytes))
}

fn read_applied(mut reader: Reader<'_>) -> Result<Applied, Undecodable> {
    let mut applied = Applied { time: reader.u64("time")?, ..Applied::default() };
    for _ in 0..reader.u32("refusals")? {
        let write = read_position(&mut reader)?;
        applied.refused.push((write, read_refusal(&mut reader)?));
    }
    for _ in 0..reader.u32("known letters")? {
        applied.known.push(read_position(&mut reader)?);
    }
    while !reader.is_empty() {
        applied.present.push(Present {
            write: read_position(&mut reader)?,
            sequence: reader.u64("sequence")?,
            same: match reader.u8("sameness")? {
                0 => false,
                1 => true,
                _ => return Err(reader.bad("sameness")),
            },
        });
    }
    Ok(applied)
}

fn read_position(reader: &mut Reader<'_>) -> Result<usize, Undecodable> {
    Ok(reader.u32("position")? as usize)
}

/// A number or a position of things in one batch.
fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_refusal(refusal: &Refusal, out: &mut Vec<u8>) {
    match refusal {
        Refusal::Next(None) => out.push(refused::ABSENT),
        Refusal::Next(Some(next)) => {
            out.push(refused::NEXT);
            out.extend_from_slice(&next.to_le_bytes());
        }
        Refusal::Partition(next) => {
            out.push(refused::PARTITION);
            out.extend_from_slice(&next.to_le_bytes());
        }
        Refusal::Version => out.push(refused::VERSION),
        Refusal::Corrupt(words) => {
            out.push(refused::CORRUPT);
            put_count(words.len(), out);
            out.extend_from_slice(words.as_bytes());
        }
    }
}

fn read_refusal(reader: &mut Reader<'_>) -> Result<Refusal, Undecodable> {
    match reader.u8("refusal")? {
        refused::ABSENT => Ok(Refusal::Next(None)),
        refused::NEXT => Ok(Refusal::Next(Some(reader.u64("refusal")?))),
        refused::PARTITION => Ok(Refusal::Partition(reader.u64("refusal")?)),
        refused::VERSION => Ok(Refusal::Version),
        refused::CORRUPT => {
            let length = reader.u32("refusal")? as usize;
            let words = reader.take(length, "refusal")?;
            Ok(Refusal::Corrupt(String::from_utf8_lossy(words).into_owned()))
        }
        _ => Err(reader.bad("refusal")),
    }
}
