//! The encoding of the ids that the store remembers for a key of a `fifo` stream, and of the times when the store
//! recorded these ids. With these ids, the owner recognises repeated events.

use ordain_core::{AcceptedId, IdStretch, IdTimes};

use super::wire::{RecordDecodeError, RecordReader, put_varint};

/// The number of bytes that [`encode_accepted_id`] appends.
pub const ACCEPTED_ID_BYTES: usize = 16;

/// Appends an id without its sequence. The place where the store keeps the id determines the sequence.
pub fn encode_accepted_id(id: &AcceptedId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.id.to_le_bytes());
    out.extend_from_slice(&id.content.to_le_bytes());
    out.extend_from_slice(&id.source.to_le_bytes());
}

/// Decodes the output of [`encode_accepted_id`].
pub fn decode_accepted_id(sequence: u64, bytes: &[u8]) -> Result<AcceptedId, RecordDecodeError> {
    let bad = RecordDecodeError::Part { record: "accepted id", part: "length" };
    let bytes: &[u8; ACCEPTED_ID_BYTES] = bytes.try_into().map_err(|_| bad)?;
    let (id, rest) = bytes.split_at(8);
    let (content, source) = rest.split_at(4);
    Ok(AcceptedId {
        sequence,
        id: u64::from_le_bytes(id.try_into().expect("8 of 16 bytes")),
        source: u32::from_le_bytes(source.try_into().expect("4 of 16 bytes")),
        content: u32::from_le_bytes(content.try_into().expect("4 of 16 bytes")),
    })
}

/// Appends the stretches of a key's ids. A stretch is a run of ids with the same timestamp. If the timestamp is 0, the
/// field at [`NEW_TIME_AT`](super::NEW_TIME_AT) in the key record contains the time.
pub(super) fn encode_id_times(times: &IdTimes, out: &mut Vec<u8>) {
    put_varint(times.iter().len() as u64, out);
    for stretch in times.iter() {
        put_varint(stretch.from, out);
        put_varint(stretch.since, out);
    }
}

/// Reads the stretches, and returns an error if they are damaged. Keeps nothing.
pub(super) fn check_id_times(reader: &mut RecordReader<'_>) -> Result<(), RecordDecodeError> {
    for _ in 0..read_count(reader)? {
        read_stretch(reader, 0)?;
    }
    Ok(())
}

/// Decodes the output of [`encode_id_times`]. A time of 0 becomes `now`.
pub(super) fn decode_id_times(
    reader: &mut RecordReader<'_>,
    now: u64,
) -> Result<IdTimes, RecordDecodeError> {
    (0..read_count(reader)?).map(|_| read_stretch(reader, now)).collect()
}

fn read_count(reader: &mut RecordReader<'_>) -> Result<u64, RecordDecodeError> {
    let count = reader.varint("times of ids")?;
    if count > IdTimes::STRETCHES_LIMIT as u64 {
        return Err(reader.damaged("times of ids"));
    }
    Ok(count)
}

fn read_stretch(reader: &mut RecordReader<'_>, now: u64) -> Result<IdStretch, RecordDecodeError> {
    let from = reader.varint("times of ids")?;
    let since = reader.varint("times of ids")?;
    Ok(IdStretch { from, since: if since == 0 { now } else { since } })
}
