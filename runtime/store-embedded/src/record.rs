//! The stored form of a key record in the embedded store: the store's own fields and a small state, then the key
//! record. This module must not change the key record itself, except for the partition and the number of take-overs.

use ordain_core::KeyRecord;

use ordain_store::codec::{
    KeyRecordView, RecordDecodeError, RecordReader, encode_key_record, put_varint, take_over,
};

const FORMAT: u8 = 1;

/// The maximum size of a state that is stored together with the key record, in bytes. For a key with a small state, a
/// commit writes one entry instead of two, which saves a third of the engine's work. A larger state has a separate
/// entry. Otherwise each write of the key record would also write the large state, even if the state does not change.
pub(super) const INLINE_STATE_BYTES: usize = 1024;

const STATE_NONE: u8 = 0;
const STATE_INLINE: u8 = 1;
const STATE_SEPARATE: u8 = 2;

/// The store's own fields, which are stored together with a key record. All times are by the store's clock. A time of 0
/// means that there is no such time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecordEnvelope {
    /// The time of the key's entry in the due index.
    pub(super) due_at: u64,
    /// The time from which on readers treat the key record as removed.
    pub(super) expire_at: u64,
    /// The time of the key record's expiry entry. This time is never later than `expire_at`. If a write moves
    /// `expire_at` to a later time, the entry stays.
    pub(super) expiry_entry: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum StateLocation<'a> {
    #[default]
    None,
    /// The state is stored together with the key record.
    Inline(&'a [u8]),
    /// The state has a separate entry in the table `states`. The value is the size of the state, in bytes.
    Separate(u64),
}

impl StateLocation<'_> {
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Inline(state) => Some(state.len() as u64),
            Self::Separate(size) => Some(*size),
        }
    }
}

impl RecordEnvelope {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expire_at != 0 && self.expire_at <= now
    }

    pub(super) fn due_in(&self, now: u64) -> Option<u64> {
        (self.due_at != 0).then(|| self.due_at.saturating_sub(now))
    }

    pub(super) fn expire_in(&self, now: u64) -> Option<u64> {
        (self.expire_at != 0).then(|| self.expire_at.saturating_sub(now))
    }

    fn encode(&self, state: StateLocation<'_>, out: &mut Vec<u8>) {
        out.push(FORMAT);
        put_varint(self.due_at, out);
        put_varint(self.expire_at, out);
        put_varint(self.expiry_entry, out);
        match state {
            StateLocation::None => out.push(STATE_NONE),
            StateLocation::Inline(state) => {
                out.push(STATE_INLINE);
                put_varint(state.len() as u64, out);
                out.extend_from_slice(state);
            }
            StateLocation::Separate(size) => {
                out.push(STATE_SEPARATE);
                put_varint(size, out);
            }
        }
    }
}

/// A parsed key record, which borrows the bytes of its stored form.
#[derive(Debug)]
pub struct EmbeddedRecord<'a> {
    pub(super) envelope: RecordEnvelope,
    pub(super) state: StateLocation<'a>,
    /// The key record.
    pub key_record: KeyRecordView<'a>,
    key_record_bytes: &'a [u8],
}

impl<'a> EmbeddedRecord<'a> {
    /// Parses a stored key record, with the store's own fields and the location of the state.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordDecodeError> {
        let mut reader = RecordReader::new("key record's envelope", bytes, FORMAT)?;
        let envelope = RecordEnvelope {
            due_at: reader.varint("due time")?,
            expire_at: reader.varint("expiry")?,
            expiry_entry: reader.varint("expiry entry")?,
        };
        let state = match reader.u8("state")? {
            STATE_NONE => StateLocation::None,
            STATE_INLINE => StateLocation::Inline(reader.bytes("state")?),
            STATE_SEPARATE => StateLocation::Separate(reader.varint("state size")?),
            _ => return Err(reader.damaged("state")),
        };
        let key_record_bytes = reader.rest();
        Ok(Self {
            envelope,
            state,
            key_record: KeyRecordView::parse(key_record_bytes)?,
            key_record_bytes,
        })
    }

    pub(super) fn with_envelope(&self, envelope: &RecordEnvelope) -> Vec<u8> {
        let mut out = Vec::new();
        envelope.encode(self.state, &mut out);
        out.extend_from_slice(self.key_record_bytes);
        out
    }

    /// Returns the same key record after its take-over by another partition.
    pub fn with_partition(&self, partition: u32) -> Vec<u8> {
        let mut out = self.with_envelope(&self.envelope);
        let key_record_at = out.len() - self.key_record_bytes.len();
        take_over(&mut out[key_record_at..], &self.key_record, partition);
        out
    }
}

/// Encodes an envelope, a state and a key record. `now` replaces each time of the key record that the caller left to
/// the store (0), as in `encode_key_record`.
pub(super) fn encode(
    envelope: &RecordEnvelope,
    state: StateLocation<'_>,
    record: &KeyRecord,
    now: u64,
    out: &mut Vec<u8>,
) {
    envelope.encode(state, out);
    encode_key_record(record, now, out);
}
