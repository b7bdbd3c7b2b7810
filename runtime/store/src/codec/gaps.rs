//! The encoding of a key's gap history, a part of the key record.

use ordain_core::{GapEnd, GapEntry, GapHistory, SOURCES_LIMIT, SourceAnswers};

use super::wire::{RecordDecodeError, RecordReader, put_bytes, put_option, put_varint};

/// The decoded answers of one replay source: the name of the source; the counts of requests, found events and failures;
/// and the last error. The texts borrow from the record.
type AnswerView<'a> = (&'a str, [u32; 3], Option<&'a str>);

/// If a time of a gap is 0, the field at [`NEW_TIME_AT`](super::NEW_TIME_AT) in the key record contains this time.
/// Exception: the end time of an open gap has no meaning.
pub(super) fn encode_gaps(gaps: &GapHistory, out: &mut Vec<u8>) {
    put_varint(gaps.iter().len() as u64, out);
    for gap in gaps.iter() {
        out.push(gap.end as u8);
        put_varint(gap.first, out);
        put_varint(gap.last.saturating_sub(gap.first), out);
        for number in [gap.since, gap.waited, gap.until, u64::from(gap.rounds)] {
            put_varint(number, out);
        }
        put_varint(gap.answers.len() as u64, out);
        for SourceAnswers { source, requests, found, failed, error } in &gap.answers {
            put_bytes(source.as_bytes(), out);
            for number in [requests, found, failed] {
                put_varint(u64::from(*number), out);
            }
            put_option(error.as_deref(), out);
        }
    }
}

/// Reads the gaps, and returns an error if they are damaged. Copies nothing.
pub(super) fn check_gaps(reader: &mut RecordReader<'_>) -> Result<(), RecordDecodeError> {
    for _ in 0..bounded(reader, GapHistory::GAPS_LIMIT, "gaps")? {
        read_gap(reader, 0, |_| {})?;
    }
    Ok(())
}

/// Decodes the output of [`encode_gaps`]. A time of 0 becomes `now`, except for the end time of an open gap.
pub(super) fn decode_gaps(
    reader: &mut RecordReader<'_>,
    now: u64,
) -> Result<GapHistory, RecordDecodeError> {
    let mut gaps = Vec::new();
    for _ in 0..bounded(reader, GapHistory::GAPS_LIMIT, "gaps")? {
        let mut answers = Vec::new();
        let gap = read_gap(reader, now, |(source, [requests, found, failed], error)| {
            let source = source.into();
            let error = error.map(Into::into);
            answers.push(SourceAnswers { source, requests, found, failed, error });
        })?;
        gaps.push(GapEntry { answers, ..gap });
    }
    Ok(gaps.into_iter().collect())
}

/// Reads a gap, and passes the answers of each replay source to `answer`. The returned gap contains no answers.
fn read_gap<'a>(
    reader: &mut RecordReader<'a>,
    now: u64,
    mut answer: impl FnMut(AnswerView<'a>),
) -> Result<GapEntry, RecordDecodeError> {
    let or_now = |time: u64| if time == 0 { now } else { time };
    let end = reader.u8("end of a gap")?;
    let end = *GapEnd::ALL.get(usize::from(end)).ok_or_else(|| reader.damaged("end of a gap"))?;
    let first = reader.varint("gap")?;
    let last = first.checked_add(reader.varint("gap")?).ok_or_else(|| reader.damaged("gap"))?;
    let since = or_now(reader.varint("time of a gap")?);
    let waited = reader.varint("time of a gap")?;
    let until = reader.varint("time of a gap")?;
    let until = if end == GapEnd::Open { until } else { or_now(until) };
    let rounds = reader.varint32("rounds of a gap")?;
    for _ in 0..bounded(reader, SOURCES_LIMIT, "answers")? {
        let source = reader.text("source of an answer")?;
        let mut counts = [0; 3];
        for count in &mut counts {
            *count = reader.varint32("answers")?;
        }
        answer((source, counts, reader.option("error of an answer")?));
    }
    Ok(GapEntry { since, end, until, rounds, ..GapEntry::new(first, last, waited) })
}

/// Reads a count, and refuses a count above `limit`.
fn bounded(
    reader: &mut RecordReader<'_>,
    limit: usize,
    part: &'static str,
) -> Result<usize, RecordDecodeError> {
    let count = usize::try_from(reader.varint(part)?).ok().filter(|count| *count <= limit);
    count.ok_or_else(|| reader.damaged(part))
}
