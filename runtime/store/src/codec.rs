//! The binary form of stored records. All stores use the same bytes, so that one set of property tests covers all
//! stores.
//!
//! The records of keys, fences, letters, counters, origins and outboxes start with a byte that names their format. A
//! decoder refuses an unknown format instead of guessing. Numbers of a fixed width are little-endian, except for the
//! numbers in the place (sort key) of a dead letter and the content digest of a retained message. Numbers that are
//! mostly small have a variable width (LEB128). Even if the input is damaged, a decoder must never panic, and must
//! never allocate memory for a length that exceeds the rest of the input. This module must never depend on database
//! keys, tables or scripts: each store decides where it keeps a record.

mod fence;
mod gaps;
mod ids;
mod key_record;
mod letter;
mod letter_place;
mod message_log;
mod origin;
mod outbox;
mod spilled;
mod wire;

pub use fence::{
    FENCE_FORMAT, FENCE_NUMBER_AT, FENCE_REPLY_AT, FenceRecord, FenceVerdict, decode_applied,
    decode_fence, encode_fence, refused,
};
pub use ids::{ACCEPTED_ID_BYTES, decode_accepted_id, encode_accepted_id};
pub use key_record::{
    FAILURE_TIME_AT, INCARNATION_AT, KEY_RECORD_AHEAD_FORMAT, KEY_RECORD_FORMAT, KeyRecordView,
    NEW_TIME_AT, NEXT_AT, PARTITION_AT, ROLLOUT_AT, TAKEOVERS_AT, VARINTS_AT, cause_number,
    encode_key_record, take_over,
};
pub use letter::{LETTER_KEY_AT, LETTER_TIME_AT, decode_letter, encode_letter, letter_time};
pub use letter_place::{put_letter_key, put_letter_place, split_letter_place};
pub use message_log::{
    COUNTER_FORMAT, KeyCounter, RETAINED_CONTENT_AT, decode_queued, decode_retained,
    encode_retained,
};
pub use origin::{AssignedChunk, ORIGIN_FORMAT, OriginRecord, decode_assigned, encode_assigned};
pub use outbox::{
    OUTBOX_LETTERS_FORMAT, OUTBOX_TIME_FORMAT, decode_outbox, encode_outbox_letters,
    encode_outbox_write,
};
pub use spilled::decode_spilled;
pub use wire::{RecordDecodeError, RecordReader, put_varint};
