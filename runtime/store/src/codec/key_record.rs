//! The encoding of a key record.
//!
//! The record begins with the fields that a store compares before a write, and the fields that the store itself fills
//! in. These fields have fixed offsets, so a Redis script needs no full decoder. The decoder must read every field that
//! the encoder writes.
//!
//! Parsing checks the whole record even if the caller needs only the first fields. Otherwise a commit could change a
//! record that the next load cannot read. Redis scripts are an exception: they check only the format and the length.
//! This is safe, because an owner loads a key before it commits changes of the key, and the load checks the whole
//! record.

use std::sync::Arc;

use ordain_core::{
    AheadRange, Build, Cause, FailureInfo, FileDigest, KeyRecord, KeyStatus, Rollout, SEQUENCE_END,
    SpillExtent,
};

use super::gaps::{check_gaps, decode_gaps, encode_gaps};
use super::ids::{check_id_times, decode_id_times, encode_id_times};
use super::wire::{RecordDecodeError, RecordReader, put_bytes, put_option, put_varint};

/// The format byte of a record without [`KeyRecord::ahead`].
pub const KEY_RECORD_FORMAT: u8 = 5;
/// The format byte of a record with [`KeyRecord::ahead`].
pub const KEY_RECORD_AHEAD_FORMAT: u8 = 6;

/// The offset of [`KeyRecord::partition`], four bytes.
pub const PARTITION_AT: usize = 2;
/// The offset of [`KeyRecord::takeovers`], four bytes.
pub const TAKEOVERS_AT: usize = 6;
/// The offset of [`KeyRecord::next`], eight bytes.
pub const NEXT_AT: usize = 10;
/// The offset of the incarnation, eight bytes.
pub const INCARNATION_AT: usize = 18;
/// The offset of the failure's time, eight bytes.
pub const FAILURE_TIME_AT: usize = 26;
/// The offset of [`KeyRecord::rollout_number`], eight bytes.
pub const ROLLOUT_AT: usize = 34;
/// The offset of an eight-byte time. The decoder uses this time for each time that is 0 in [`KeyRecord::gaps`] and
/// [`KeyRecord::id_times`].
pub const NEW_TIME_AT: usize = 42;
/// The offset of the numbers with variable width, in this order: attempts, rounds and park count; count, first and last
/// of [`KeyRecord::spilled`]; [`KeyRecord::ids_from`].
pub const VARINTS_AT: usize = 50;

/// All statuses, in the order of their stored numbers.
const STATUSES: [KeyStatus; 5] = [
    KeyStatus::Active,
    KeyStatus::Waiting,
    KeyStatus::Retrying,
    KeyStatus::Parked,
    KeyStatus::Completed,
];

/// A view of a checked key record. The view borrows from the bytes of the record.
#[derive(Debug, Clone)]
pub struct KeyRecordView<'a> {
    /// [`KeyRecord::status`].
    pub status: KeyStatus,
    /// [`KeyRecord::partition`].
    pub partition: u32,
    /// [`KeyRecord::takeovers`].
    pub takeovers: u32,
    /// [`KeyRecord::next`].
    pub next: u64,
    /// [`KeyRecord::incarnation`].
    pub incarnation: u64,
    /// [`KeyRecord::spilled`].
    pub spilled: SpillExtent,
    /// [`KeyRecord::ids_from`].
    pub ids_from: u64,
    /// [`KeyRecord::rollout_number`].
    pub rollout_number: u64,
    id_times: RecordReader<'a>,
    since: u64,
    attempts: u32,
    rounds: u32,
    park_count: u32,
    /// The name of the handler version, and the digest of its file.
    version: Option<(&'a str, [u8; 32])>,
    failure: Option<FailureView<'a>>,
    digests: &'a [u8],
    gaps: RecordReader<'a>,
    ahead: Option<AheadRange>,
    /// The time that replaces a time of 0 in `gaps` and in `id_times`.
    new_times: u64,
    holes: RecordReader<'a>,
}

impl<'a> KeyRecordView<'a> {
    /// Parses a whole record. Returns an error if the format is unknown, or if any part is damaged.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordDecodeError> {
        let has_ahead = bytes.first() == Some(&KEY_RECORD_AHEAD_FORMAT);
        let format = if has_ahead { KEY_RECORD_AHEAD_FORMAT } else { KEY_RECORD_FORMAT };
        let mut reader = RecordReader::new("key record", bytes, format)?;
        let status = reader.u8("status")?;
        let status = *STATUSES.get(usize::from(status)).ok_or_else(|| reader.damaged("status"))?;
        let partition = reader.u32("partition")?;
        let takeovers = reader.u32("takeovers")?;
        let next = reader.u64("next")?;
        let incarnation = reader.u64("incarnation")?;
        let since = reader.u64("since")?;
        let version_generation = reader.u64("number of the rollout")?;
        if version_generation >= Rollout::NUMBER_END {
            return Err(reader.damaged("number of the rollout"));
        }
        let new_times = reader.u64("time of gaps")?;
        let view = Self {
            status,
            partition,
            takeovers,
            next,
            incarnation,
            rollout_number: version_generation,
            since,
            attempts: reader.varint32("attempts")?,
            rounds: reader.varint32("rounds")?,
            park_count: reader.varint32("park count")?,
            spilled: SpillExtent {
                count: reader.varint("spilled count")?,
                first: reader.varint("first spilled")?,
                last: reader.varint("last spilled")?,
            },
            ids_from: reader.varint("ids")?,
            id_times: {
                let times = reader.clone();
                check_id_times(&mut reader)?;
                times
            },
            version: if version_generation == 0 {
                None
            } else {
                Some((reader.text("version")?, reader.array("digest of the version")?))
            },
            failure: read_failure(&mut reader)?,
            digests: read_digests(&mut reader)?,
            gaps: {
                let gaps = reader.clone();
                check_gaps(&mut reader)?;
                gaps
            },
            ahead: if has_ahead { Some(read_ahead(&mut reader)?) } else { None },
            new_times,
            holes: reader,
        };
        if !is_possible(view.spilled) {
            return Err(view.holes.damaged("bounds of spilled"));
        }
        let mut holes = view.holes.clone();
        while next_hole(&mut holes)?.is_some() {}
        Ok(view)
    }

    /// Returns the higher of two sequences: [`KeyRecord::next`], and the sequence after the last spilled event.
    pub fn unused_sequence(&self) -> u64 {
        let spilled = if self.spilled.count > 0 { self.spilled.last.saturating_add(1) } else { 0 };
        self.next.max(spilled)
    }

    /// Returns the higher of two sequences: [`Self::unused_sequence`], and the sequence after the last dead letter in
    /// [`KeyRecord::ahead`].
    pub fn sequence_after_letters(&self) -> u64 {
        let ahead = self.ahead.map_or(0, |ahead| ahead.last.saturating_add(1));
        self.unused_sequence().max(ahead)
    }

    /// Returns the sequences of the last settled events, with their content digests ([`EventDigests`]), in ascending
    /// order.
    ///
    /// [`EventDigests`]: ordain_core::EventDigests
    pub fn settled_digests(&self) -> impl Iterator<Item = (u64, u32)> {
        let digests = self.digests.as_chunks().0;
        let before = (1..=digests.len() as u64).rev();
        let sequences = before.map(|before| self.next.saturating_sub(before));
        sequences.zip(digests.iter().map(|bytes| u32::from_le_bytes(*bytes)))
    }

    /// Copies the record into a [`KeyRecord`] for the sequencer.
    pub fn to_key_record(&self) -> KeyRecord {
        let mut rest = self.holes.clone();
        let holes = std::iter::from_fn(|| next_hole(&mut rest).ok().flatten());
        let digests = self.digests.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        KeyRecord {
            next: self.next,
            incarnation: self.incarnation,
            partition: self.partition,
            takeovers: self.takeovers,
            status: self.status,
            attempts: self.attempts,
            rounds: self.rounds,
            park_count: self.park_count,
            spilled: self.spilled,
            ahead: self.ahead.map(Box::new),
            rollout: self.version.map(|(version, digest)| {
                let number = self.rollout_number;
                let build = Build { version: version.into(), digest: FileDigest(digest) };
                Arc::new(Rollout { number, build })
            }),
            failure: self.failure.map(|(cause, error, version)| {
                let error = error.to_owned();
                let version = version.map(Into::into);
                Box::new(FailureInfo { cause, error, since: self.since, version })
            }),
            digests: digests.collect(),
            skipped: holes.collect(),
            ids_from: self.ids_from,
            // `parse` has checked the gaps and the times of ids.
            gaps: decode_gaps(&mut self.gaps.clone(), self.new_times).unwrap_or_default(),
            id_times: decode_id_times(&mut self.id_times.clone(), self.new_times)
                .unwrap_or_default(),
        }
    }
}

/// Appends the key record. If the incarnation or the failure's time is 0, writes `now` instead. If a time in the gaps
/// or of the ids is 0, writes `now` at [`NEW_TIME_AT`].
pub fn encode_key_record(record: &KeyRecord, now: u64, out: &mut Vec<u8>) {
    let or_now = |time: u64| if time == 0 { now } else { time };
    let mut fixed = [0; VARINTS_AT];
    fixed[0] = if record.ahead.is_some() { KEY_RECORD_AHEAD_FORMAT } else { KEY_RECORD_FORMAT };
    fixed[1] = record.status as u8;
    fixed[PARTITION_AT..TAKEOVERS_AT].copy_from_slice(&record.partition.to_le_bytes());
    fixed[TAKEOVERS_AT..NEXT_AT].copy_from_slice(&record.takeovers.to_le_bytes());
    fixed[NEXT_AT..INCARNATION_AT].copy_from_slice(&record.next.to_le_bytes());
    fixed[INCARNATION_AT..FAILURE_TIME_AT]
        .copy_from_slice(&or_now(record.incarnation).to_le_bytes());
    let since = record.failure.as_ref().map_or(0, |failure| or_now(failure.since));
    fixed[FAILURE_TIME_AT..ROLLOUT_AT].copy_from_slice(&since.to_le_bytes());
    fixed[ROLLOUT_AT..NEW_TIME_AT].copy_from_slice(&record.rollout_number().to_le_bytes());
    let new_times = if record.lacks_times() { now } else { 0 };
    fixed[NEW_TIME_AT..].copy_from_slice(&new_times.to_le_bytes());
    out.extend_from_slice(&fixed);
    for number in [record.attempts, record.rounds, record.park_count] {
        put_varint(u64::from(number), out);
    }
    for number in [record.spilled.count, record.spilled.first, record.spilled.last, record.ids_from]
    {
        put_varint(number, out);
    }
    encode_id_times(&record.id_times, out);
    if let Some(rollout) = record.rollout.as_ref().filter(|decided| decided.number > 0) {
        put_bytes(rollout.build.version.as_bytes(), out);
        out.extend_from_slice(&rollout.build.digest.0);
    }
    match &record.failure {
        None => out.push(0),
        Some(failure) => {
            out.push(cause_number(failure.cause));
            put_bytes(failure.error.as_bytes(), out);
            put_option(failure.version.as_deref(), out);
        }
    }
    put_varint(record.digests.iter().len() as u64, out);
    for digest in record.digests.iter() {
        out.extend_from_slice(&digest.to_le_bytes());
    }
    encode_gaps(&record.gaps, out);
    if let Some(ahead) = &record.ahead {
        put_varint(ahead.first, out);
        put_varint(ahead.last.saturating_sub(ahead.first), out);
    }
    for &(first, last) in record.skipped.ranges() {
        put_varint(first, out);
        put_varint(last.saturating_sub(first), out);
    }
}

/// Writes another partition into a record, and increases the number of take-overs. `view` is the parsed record.
pub fn take_over(record: &mut [u8], view: &KeyRecordView<'_>, partition: u32) {
    let takeovers = view.takeovers.wrapping_add(1);
    record[PARTITION_AT..TAKEOVERS_AT].copy_from_slice(&partition.to_le_bytes());
    record[TAKEOVERS_AT..NEXT_AT].copy_from_slice(&takeovers.to_le_bytes());
}

/// Returns whether the first and last spilled sequence are possible. Does not compare the count with these sequences,
/// because the count may be too high for a moment. The reason: a repeat of a spilled event counts as a separate event
/// until the store has compared the two.
fn is_possible(spilled: SpillExtent) -> bool {
    let SpillExtent { count, first, last } = spilled;
    count == 0 || (first <= last && last < SEQUENCE_END)
}

type FailureView<'a> = (Cause, &'a str, Option<&'a str>);

fn read_failure<'a>(
    reader: &mut RecordReader<'a>,
) -> Result<Option<FailureView<'a>>, RecordDecodeError> {
    match reader.u8("cause")? {
        0 => Ok(None),
        number => {
            let cause = cause_of(number).ok_or_else(|| reader.damaged("cause"))?;
            Ok(Some((cause, reader.text("error")?, reader.option("failed version")?)))
        }
    }
}

fn read_digests<'a>(reader: &mut RecordReader<'a>) -> Result<&'a [u8], RecordDecodeError> {
    let count = reader.varint("digests")?;
    let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(4));
    let size = size.ok_or_else(|| reader.damaged("digests"))?;
    reader.take(size, "digests")
}

fn read_ahead(reader: &mut RecordReader<'_>) -> Result<AheadRange, RecordDecodeError> {
    let first = reader.varint("events ahead")?;
    let last = first.checked_add(reader.varint("events ahead")?);
    let last = last.filter(|last| *last < SEQUENCE_END);
    let last = last.ok_or_else(|| reader.damaged("events ahead"))?;
    Ok(AheadRange { first, last })
}

/// The holes are the last part of the record, so the record does not contain their number.
fn next_hole(reader: &mut RecordReader<'_>) -> Result<Option<(u64, u64)>, RecordDecodeError> {
    if reader.is_empty() {
        return Ok(None);
    }
    let first = reader.varint("holes")?;
    let width = reader.varint("holes")?;
    let last = first.checked_add(width).ok_or_else(|| reader.damaged("holes"))?;
    Ok(Some((first, last)))
}

/// Returns the stored number of a cause; 0 means no cause.
pub fn cause_number(cause: Cause) -> u8 {
    cause as u8 + 1
}

pub(super) fn cause_of(number: u8) -> Option<Cause> {
    Cause::ALL.get(usize::from(number.checked_sub(1)?)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored records contain these numbers, so the numbers must stay the same even if the variants of an enum change
    /// their order.
    #[test]
    fn stored_numbers_do_not_change() {
        for (number, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, number);
        }
        let causes: Vec<&str> = (1..=18).filter_map(cause_of).map(Cause::name).collect();
        let stored = "unreadable no-key no-sequence no-id conflict far-ahead after-end late gap \
                      rejected overflow discarded retry timeout trap limit error corrupt";
        assert_eq!(causes, stored.split_whitespace().collect::<Vec<_>>());
        for cause in Cause::ALL {
            assert_eq!(cause_of(cause_number(cause)), Some(cause));
        }
    }
}
