//! A job as the embedded store keeps it: its record, with what only the store knows of it in
//! front. Must not change anything in the record itself except the partition.

use ordain_core::Job;

use crate::store::codec::{JobView, Reader, Undecodable, encode_job, put_varint, set_partition};

const FORMAT: u8 = 1;

/// What the store knows of a job. Times are the store's, 0 where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Envelope {
    /// The time of its due entry.
    pub(super) due_at: u64,
    /// From when on there is no such job any more.
    pub(super) expire_at: u64,
    /// The time of its expiry entry, which is never later than `expire_at`: a job that is
    /// written again and again with a new expiry leaves its entry where it is.
    pub(super) expiry_entry: u64,
    /// Bytes of its state.
    pub(super) state_size: Option<u64>,
}

impl Envelope {
    pub(super) fn expired(&self, now: u64) -> bool {
        self.expire_at != 0 && self.expire_at <= now
    }

    pub(super) fn due_in(&self, now: u64) -> Option<u64> {
        (self.due_at != 0).then(|| self.due_at.saturating_sub(now))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        put_varint(self.due_at, out);
        put_varint(self.expire_at, out);
        put_varint(self.expiry_entry, out);
        put_varint(self.state_size.map_or(0, |size| size + 1), out);
    }
}

/// A stored job, checked whole and not copied.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) envelope: Envelope,
    pub(super) job: JobView<'a>,
    job_bytes: &'a [u8],
}

impl<'a> Record<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("job's envelope", bytes, FORMAT)?;
        let envelope = Envelope {
            due_at: reader.varint("due time")?,
            expire_at: reader.varint("expiry")?,
            expiry_entry: reader.varint("expiry entry")?,
            state_size: reader.varint("state size")?.checked_sub(1),
        };
        let job_bytes = reader.rest();
        Ok(Self { envelope, job: JobView::parse(job_bytes)?, job_bytes })
    }

    /// The same job with another envelope.
    pub(super) fn with_envelope(&self, envelope: &Envelope) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.job_bytes.len() + 32);
        envelope.encode(&mut out);
        out.extend_from_slice(self.job_bytes);
        out
    }

    /// The same job in another partition.
    pub(super) fn with_partition(&self, partition: u32) -> Vec<u8> {
        let mut out = self.with_envelope(&self.envelope);
        let job_at = out.len() - self.job_bytes.len();
        set_partition(&mut out[job_at..], partition);
        out
    }
}

/// A new record, with `now` in place of the job's zero times.
pub(super) fn encode(envelope: &Envelope, job: &Job, now: u64, out: &mut Vec<u8>) {
    envelope.encode(out);
    encode_job(job, now, out);
}
