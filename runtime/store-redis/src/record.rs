//! The stored form of a key record in the Redis store. The stored form begins with the envelope: the store's own
//! fields. These fields have fixed offsets, because scripts read and write them. The key record follows, and then the
//! state if it is small. A large state has a separate hash field.

use bytes::Bytes;
use ordain_core::{KeyRecord, KeyStatus, KeyWrite, StateUpdate};

use ordain_store::KEY_SIZE_LIMIT;
use ordain_store::codec::{
    ACCEPTED_ID_BYTES, COUNTER_FORMAT, FAILURE_TIME_AT, FENCE_FORMAT, FENCE_NUMBER_AT,
    FENCE_REPLY_AT, INCARNATION_AT, KEY_RECORD_AHEAD_FORMAT, KEY_RECORD_FORMAT, KeyRecordView,
    LETTER_KEY_AT, LETTER_TIME_AT, NEW_TIME_AT, NEXT_AT, ORIGIN_FORMAT, OUTBOX_LETTERS_FORMAT,
    OUTBOX_TIME_FORMAT, PARTITION_AT, ROLLOUT_AT, RecordDecodeError, RecordReader, TAKEOVERS_AT,
    VARINTS_AT, encode_key_record, refused,
};

const FORMAT: u8 = 2;

const FLAG_DUE: u8 = 1;
const FLAG_EXPIRES: u8 = 2;
const FLAG_SPILLED: u8 = 4;
const FLAG_IDS: u8 = 8;
const FLAG_STATE: u8 = 16;
const FLAG_SEPARATE_STATE: u8 = 32;

/// The size of the envelope in bytes: format, flags, due time, expiry time, time of the expiry entry, length of the key
/// record.
const ENVELOPE_BYTES: usize = 1 + 1 + 8 + 8 + 8 + 4;

/// The maximum size of a state that is stored with its record, in bytes. Up to this size, a separate hash field for the
/// state would need more memory, and would make reads and writes slower.
const INLINE_STATE_BYTES: usize = 4 << 10;

/// The number of accepted ids that share one hash field (a block). With a larger number, the write of each new id would
/// rewrite more bytes. With a smaller number, each id would need more memory.
pub(super) const IDS_PER_BLOCK: u64 = 16;

/// The maximum number of ids of one key that a script reads or removes. The remembered ids and the spilled events of a
/// key together never reach this number, so the limit only protects the server against a damaged record.
const IDS_LIMIT: usize = 1 << 21;

/// The maximum duration, in ms: more than 10,000 years. Lua's numbers are exact up to this value.
const DURATION_LIMIT_MS: u64 = 1 << 50;

/// Returns the constants that scripts use, by name. Offsets start at 1, as in Lua.
pub(super) fn layout() -> [(&'static str, usize); 42] {
    let key_record_at = ENVELOPE_BYTES + 1;
    [
        ("KEY_LIMIT", KEY_SIZE_LIMIT),
        ("RECORD_FORMAT", usize::from(FORMAT)),
        ("KEY_RECORD_FORMAT", usize::from(KEY_RECORD_FORMAT)),
        ("KEY_RECORD_AHEAD_FORMAT", usize::from(KEY_RECORD_AHEAD_FORMAT)),
        ("COUNTER_FORMAT", usize::from(COUNTER_FORMAT)),
        ("ORIGIN_FORMAT", usize::from(ORIGIN_FORMAT)),
        ("FENCE_FORMAT", usize::from(FENCE_FORMAT)),
        ("FENCE_NUMBER", FENCE_NUMBER_AT + 1),
        ("FENCE_ANSWER", FENCE_REPLY_AT + 1),
        ("REFUSED_NEXT", usize::from(refused::NEXT_CODE)),
        ("REFUSED_ABSENT", usize::from(refused::ABSENT_CODE)),
        ("REFUSED_PARTITION", usize::from(refused::PARTITION_CODE)),
        ("REFUSED_CORRUPT", usize::from(refused::CORRUPT_CODE)),
        ("REFUSED_VERSION", usize::from(refused::VERSION_CODE)),
        ("OUTBOX_TIME", usize::from(OUTBOX_TIME_FORMAT)),
        ("OUTBOX_LETTERS", usize::from(OUTBOX_LETTERS_FORMAT)),
        ("LETTER_TIME", LETTER_TIME_AT + 1),
        ("LETTER_KEY", LETTER_KEY_AT + 1),
        ("DUE", usize::from(FLAG_DUE)),
        ("EXPIRES", usize::from(FLAG_EXPIRES)),
        ("SPILLED", usize::from(FLAG_SPILLED)),
        ("IDS", usize::from(FLAG_IDS)),
        ("STATE", usize::from(FLAG_STATE)),
        ("LARGE", usize::from(FLAG_SEPARATE_STATE)),
        ("DUE_AT", 3),
        ("END", 11),
        ("ENTRY", 19),
        ("LENGTH", 27),
        ("KEY_RECORD", key_record_at),
        ("COMPLETED", KeyStatus::Completed as usize),
        ("PARTITION", key_record_at + PARTITION_AT),
        ("TAKEOVERS", key_record_at + TAKEOVERS_AT),
        ("NEXT", key_record_at + NEXT_AT),
        ("INCARNATION", key_record_at + INCARNATION_AT),
        ("SINCE", key_record_at + FAILURE_TIME_AT),
        ("ROLLOUT", key_record_at + ROLLOUT_AT),
        ("GAPS_TIME", key_record_at + NEW_TIME_AT),
        ("NUMBERS", key_record_at + VARINTS_AT),
        // After its fixed fields, a record has at least seven numbers and four other parts, each of at least one byte.
        ("SHORTEST", ENVELOPE_BYTES + VARINTS_AT + 7 + 4),
        ("BLOCK", IDS_PER_BLOCK as usize),
        ("ID", ACCEPTED_ID_BYTES),
        ("IDS_LIMIT", IDS_LIMIT),
    ]
}

/// A key record, parsed from its stored form. This type borrows the bytes of the stored form.
pub struct RedisRecord<'a> {
    /// The time of the key's entry in the due index; `None` if the key has no entry.
    pub due_at: Option<u64>,
    /// The time from which on readers treat the key record as removed; `None` if the key record does not expire.
    pub expire_at: Option<u64>,
    /// The key record.
    pub key_record: KeyRecordView<'a>,
    pub(super) state: Option<StatePlacement<'a>>,
}

pub(super) enum StatePlacement<'a> {
    Inline(&'a [u8]),
    Separate,
}

/// The error of a record with [`StatePlacement::Separate`] whose state is missing.
pub(super) const MISSING_STATE_MESSAGE: &str =
    "the state of the key is missing: its record refers to a separate field, which does not exist";

impl<'a> RedisRecord<'a> {
    /// Parses a stored key record, with the store's own fields and the location of the state.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordDecodeError> {
        let mut reader = RecordReader::new("key record's envelope", bytes, FORMAT)?;
        let flags = reader.u8("flags")?;
        let due_at = reader.u64("due time")?;
        let expire_at = reader.u64("expiry")?;
        reader.u64("expiry entry")?;
        let length = reader.u32("length")? as usize;
        let key_record = KeyRecordView::parse(reader.take(length, "length")?)?;
        let state = if flags & FLAG_SEPARATE_STATE != 0 {
            Some(StatePlacement::Separate)
        } else {
            (flags & FLAG_STATE != 0).then(|| StatePlacement::Inline(reader.rest()))
        };
        let time_if = |flag: u8, time: u64| (flags & flag != 0).then_some(time);
        Ok(Self {
            due_at: time_if(FLAG_DUE, due_at),
            expire_at: time_if(FLAG_EXPIRES, expire_at),
            key_record,
            state,
        })
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expire_at.is_some_and(|at| at <= now)
    }
}

/// Returns the new state if it is too large to be stored together with its record. Returns `None` otherwise.
pub(super) fn separate_state(change: &StateUpdate) -> Option<&Bytes> {
    match change {
        StateUpdate::Put(state) if state.len() > INLINE_STATE_BYTES => Some(state),
        _ => None,
    }
}

/// Appends the record of a write for the commit script. In place of due and expiry times, the record contains
/// durations, to which the script adds the server's time. Omits the state if it does not change, or if it is stored in
/// a separate field.
pub(super) fn encode(write: &KeyWrite, out: &mut Vec<u8>) {
    let KeyRecord { spilled, ids_from, .. } = &write.record;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let large = separate_state(&write.state).is_some();
    let state = match &write.state {
        StateUpdate::Put(state) if !large => Some(state),
        _ => None,
    };
    let start = out.len();
    out.push(FORMAT);
    out.push(
        flag(write.due_in.is_some(), FLAG_DUE)
            | flag(write.expire_in.is_some(), FLAG_EXPIRES)
            | flag(spilled.count > 0, FLAG_SPILLED)
            | flag(*ids_from > 0, FLAG_IDS)
            | flag(state.is_some(), FLAG_STATE)
            | flag(large, FLAG_SEPARATE_STATE),
    );
    out.extend_from_slice(&write.due_in.unwrap_or(0).min(DURATION_LIMIT_MS).to_le_bytes());
    out.extend_from_slice(&write.expire_in.unwrap_or(0).min(DURATION_LIMIT_MS).to_le_bytes());
    out.extend_from_slice(&[0; 8 + 4]);
    encode_key_record(&write.record, 0, out);
    let length = (out.len() - start - ENVELOPE_BYTES) as u32;
    out[start + ENVELOPE_BYTES - 4..start + ENVELOPE_BYTES].copy_from_slice(&length.to_le_bytes());
    out.extend_from_slice(state.map_or(&[], |state| &state[..]));
}
