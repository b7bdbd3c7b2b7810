//! A job in the form of the Redis store: first the store's own fields at fixed offsets, because
//! scripts read and write them; then the job's record; then the state, if it is small. A large
//! state has a separate field.

use bytes::Bytes;
use ordain_core::{KeyRecord, KeyWrite, StateUpdate};

use ordain_store::KEY_SIZE_LIMIT;
use ordain_store::codec::{
    COUNTER_FORMAT, FENCE_ANSWER_AT, FENCE_FORMAT, FENCE_NUMBER_AT, GAPS_AT, GENERATION_AT,
    INCARNATION_AT, JOB_FORMAT, KeyRecordView, LETTER_KEY_AT, LETTER_TIME_AT, NEXT_AT, NUMBERS_AT,
    ORIGIN_FORMAT, OUTBOX_LETTERS, OUTBOX_TIME, PARTITION_AT, RecordDecodeError, RecordReader,
    SINCE_AT, TAKEN_ID_SIZE, TAKEOVERS_AT, encode_job, refused,
};

const FORMAT: u8 = 2;

/// The flags of a record.
const DUE: u8 = 1;
const EXPIRES: u8 = 2;
const SPILLED: u8 = 4;
const IDS: u8 = 8;
/// The state follows the record.
const STATE: u8 = 16;
/// The state has a separate field.
const LARGE: u8 = 32;

/// The size of the envelope: format, flags, due time, expiry time, time of the expiry entry, length
/// of the job's record.
const ENVELOPE: usize = 1 + 1 + 8 + 8 + 8 + 4;

/// The maximum size of a state that is stored with its record, in bytes. A second field costs more
/// time than reading and writing this size again, and additional memory.
const WITH_RECORD: usize = 4 << 10;

/// The number of accepted ids in one field: few enough that a new id writes little, and enough that
/// a field costs little per id.
pub(super) const BLOCK: u64 = 16;

/// The maximum number of ids of one key that are read or removed: more than an id window and the
/// spilled events have.
const IDS_LIMIT: usize = 1 << 21;

/// The maximum duration, in ms: more than 10,000 years, and exact in a script's numbers.
const FAR: u64 = 1 << 50;

/// Returns the constants that scripts use, by name. Offsets start at 1, as in Lua.
pub(super) fn layout() -> [(&'static str, usize); 40] {
    let job = ENVELOPE + 1;
    [
        ("KEY_LIMIT", KEY_SIZE_LIMIT),
        ("RECORD_FORMAT", usize::from(FORMAT)),
        ("JOB_FORMAT", usize::from(JOB_FORMAT)),
        ("COUNTER_FORMAT", usize::from(COUNTER_FORMAT)),
        ("ORIGIN_FORMAT", usize::from(ORIGIN_FORMAT)),
        ("FENCE_FORMAT", usize::from(FENCE_FORMAT)),
        ("FENCE_NUMBER", FENCE_NUMBER_AT + 1),
        ("FENCE_ANSWER", FENCE_ANSWER_AT + 1),
        ("REFUSED_NEXT", usize::from(refused::NEXT)),
        ("REFUSED_ABSENT", usize::from(refused::ABSENT)),
        ("REFUSED_PARTITION", usize::from(refused::PARTITION)),
        ("REFUSED_CORRUPT", usize::from(refused::CORRUPT)),
        ("REFUSED_VERSION", usize::from(refused::VERSION)),
        ("OUTBOX_TIME", usize::from(OUTBOX_TIME)),
        ("OUTBOX_LETTERS", usize::from(OUTBOX_LETTERS)),
        ("LETTER_TIME", LETTER_TIME_AT + 1),
        ("LETTER_KEY", LETTER_KEY_AT + 1),
        ("DUE", usize::from(DUE)),
        ("EXPIRES", usize::from(EXPIRES)),
        ("SPILLED", usize::from(SPILLED)),
        ("IDS", usize::from(IDS)),
        ("STATE", usize::from(STATE)),
        ("LARGE", usize::from(LARGE)),
        ("DUE_AT", 3),
        ("END", 11),
        ("ENTRY", 19),
        ("LENGTH", 27),
        ("JOB", job),
        ("PARTITION", job + PARTITION_AT),
        ("TAKEOVERS", job + TAKEOVERS_AT),
        ("NEXT", job + NEXT_AT),
        ("INCARNATION", job + INCARNATION_AT),
        ("SINCE", job + SINCE_AT),
        ("GENERATION", job + GENERATION_AT),
        ("GAPS_TIME", job + GAPS_AT),
        ("NUMBERS", job + NUMBERS_AT),
        // The minimum rest of a record: seven numbers and four empty parts.
        ("SHORTEST", ENVELOPE + NUMBERS_AT + 7 + 4),
        ("BLOCK", BLOCK as usize),
        ("ID", TAKEN_ID_SIZE),
        ("IDS_LIMIT", IDS_LIMIT),
    ]
}

/// A checked and borrowed stored job.
pub struct RedisRecord<'a> {
    /// The time of the job's due entry.
    pub due_at: Option<u64>,
    /// The time from which the job no longer exists.
    pub expire_at: Option<u64>,
    /// The job.
    pub job: KeyRecordView<'a>,
    /// The location of the state, if the job has one.
    pub(super) state: Option<StatePlacement<'a>>,
}

/// The location of a state.
pub(super) enum StatePlacement<'a> {
    /// The state follows the record.
    Here(&'a [u8]),
    /// The state has a separate field.
    Beside,
}

/// The description of a record whose state should be at [`StatePlacement::Beside`] but is missing.
pub(super) const STATE_IS_MISSING: &str = "its state, which has a separate field, is missing";

impl<'a> RedisRecord<'a> {
    /// Parses a stored job.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordDecodeError> {
        let mut reader = RecordReader::new("job's envelope", bytes, FORMAT)?;
        let flags = reader.u8("flags")?;
        let due_at = reader.u64("due time")?;
        let expire_at = reader.u64("expiry")?;
        reader.u64("expiry entry")?;
        let length = reader.u32("length")? as usize;
        let job = KeyRecordView::parse(reader.take(length, "length")?)?;
        let state = if flags & LARGE != 0 {
            Some(StatePlacement::Beside)
        } else {
            (flags & STATE != 0).then(|| StatePlacement::Here(reader.rest()))
        };
        let given = |flag: u8, time: u64| (flags & flag != 0).then_some(time);
        Ok(Self { due_at: given(DUE, due_at), expire_at: given(EXPIRES, expire_at), job, state })
    }

    pub(super) fn expired(&self, now: u64) -> bool {
        self.expire_at.is_some_and(|at| at <= now)
    }
}

/// Returns a state that is too large to be stored with its record.
pub(super) fn beside(change: &StateUpdate) -> Option<&Bytes> {
    match change {
        StateUpdate::Put(state) if state.len() > WITH_RECORD => Some(state),
        _ => None,
    }
}

/// Appends the record of a write for the commit script. Times are relative to now; the script adds
/// the time of the commit. A state that does not change is left out.
pub(super) fn encode(write: &KeyWrite, out: &mut Vec<u8>) {
    let KeyRecord { spilled, ids_from, .. } = &write.job;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let large = beside(&write.state).is_some();
    let state = match &write.state {
        StateUpdate::Put(state) if !large => Some(state),
        _ => None,
    };
    let start = out.len();
    out.push(FORMAT);
    out.push(
        flag(write.due_in.is_some(), DUE)
            | flag(write.expire_in.is_some(), EXPIRES)
            | flag(spilled.count > 0, SPILLED)
            | flag(*ids_from > 0, IDS)
            | flag(state.is_some(), STATE)
            | flag(large, LARGE),
    );
    out.extend_from_slice(&write.due_in.unwrap_or(0).min(FAR).to_le_bytes());
    out.extend_from_slice(&write.expire_in.unwrap_or(0).min(FAR).to_le_bytes());
    out.extend_from_slice(&[0; 8 + 4]);
    encode_job(&write.job, 0, out);
    let length = (out.len() - start - ENVELOPE) as u32;
    out[start + ENVELOPE - 4..start + ENVELOPE].copy_from_slice(&length.to_le_bytes());
    out.extend_from_slice(state.map_or(&[], |state| &state[..]));
}
