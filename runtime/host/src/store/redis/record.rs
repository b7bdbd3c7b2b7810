//! A job as Redis keeps it: its record with what only the store knows of it in front, all at fixed
//! places, because scripts read and write them (`scripts/common.lua`).

use ordain_core::{Job, JobWrite};

use crate::store::codec::{JobView, Reader, Undecodable, encode_job};

const FORMAT: u8 = 1;
const DUE: u8 = 1;
const EXPIRES: u8 = 2;
const SPILLED: u8 = 4;
const IDS: u8 = 8;

/// The longest time from now, in ms: more than 10,000 years, and exact in a script's numbers.
const FAR: u64 = 1 << 50;

/// A stored job, checked whole and not copied.
pub(super) struct Record<'a> {
    /// The time of its due entry.
    pub(super) due_at: Option<u64>,
    /// From when on there is no such job any more.
    pub(super) expire_at: Option<u64>,
    /// The job.
    pub(super) job: JobView<'a>,
}

impl<'a> Record<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("job's envelope", bytes, FORMAT)?;
        let flags = reader.u8("flags")?;
        let due_at = reader.u64("due time")?;
        let expire_at = reader.u64("expiry")?;
        reader.u64("expiry entry")?;
        let job = JobView::parse(reader.rest())?;
        let given = |flag: u8, time: u64| (flags & flag != 0).then_some(time);
        Ok(Self { due_at: given(DUE, due_at), expire_at: given(EXPIRES, expire_at), job })
    }

    pub(super) fn expired(&self, now: u64) -> bool {
        self.expire_at.is_some_and(|at| at <= now)
    }
}

/// Appends the record of a write as the commit's script takes it: with times from now, to which it
/// adds the time of the commit.
pub(super) fn encode(write: &JobWrite, out: &mut Vec<u8>) {
    let Job { spilled, ids_from, .. } = &write.job;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    out.push(FORMAT);
    out.push(
        flag(write.due_in.is_some(), DUE)
            | flag(write.expire_in.is_some(), EXPIRES)
            | flag(spilled.count > 0, SPILLED)
            | flag(*ids_from > 0, IDS),
    );
    out.extend_from_slice(&write.due_in.unwrap_or(0).min(FAR).to_le_bytes());
    out.extend_from_slice(&write.expire_in.unwrap_or(0).min(FAR).to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    encode_job(&write.job, 0, out);
}
