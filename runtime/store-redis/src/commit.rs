//! Commits: encodes a batch (the content of one commit) as the arguments of a script, and decodes the script's reply.

use ordain_core::{Batch, CommitReply, DeadLetter, Event, KeyWrite, StateUpdate, WriteCondition};
use redis::{Cmd, Pipeline, Value, pipe};

use super::error::{has_code, request_error};
use super::script::LuaScript;
use super::value::{bytes, number, parts};
use super::{RedisStore, record};
use ordain_store::codec::{
    FenceVerdict, decode_applied, decode_fence, encode_accepted_id, encode_letter,
    encode_outbox_write, put_letter_place, put_varint,
};
use ordain_store::{Claim, StoreError};

/// The maximum time, in ms, that the server waits until enough replicas have a write. When enough replicas have the
/// write, or at the end of this time, the server replies with the number of replicas that have the write.
const REPLICAS_TIMEOUT_MS: u64 = 1_000;

/// The operations of a write: the possible changes of the key's state, as numbers in the arguments of the commit
/// script.
const STATE_KEEP: u8 = 0;
const STATE_PUT: u8 = 1;
const STATE_PUT_SEPARATE: u8 = 2;
const STATE_DELETE: u8 = 3;

/// The flags of a write. The commit script reads them.
const FLAG_ABSENT: u8 = 1;
const FLAG_NEW: u8 = 2;
const FLAG_NEW_FAILURE: u8 = 4;
const FLAG_NEW_TIMES: u8 = 8;
/// A write with this flag, or with a higher flag, has additional arguments after the records of all writes. A write
/// with [`STATE_PUT_SEPARATE`] also has such an argument.
const FLAG_LETTERS: u8 = 16;
const FLAG_SPILL: u8 = 32;
const FLAG_IDS: u8 = 64;

/// The size of the operation, the flags and the condition of one write in the arguments of the commit script, in bytes.
const OP_SIZE: u8 = 1 + 1 + 4 + 4 + 8;

/// The names that scripts use for these constants.
pub(super) const LAYOUT: [(&str, u8); 10] = [
    ("OP_SIZE", OP_SIZE),
    ("KEEP", STATE_KEEP),
    ("PUT_BESIDE", STATE_PUT_SEPARATE),
    ("ABSENT", FLAG_ABSENT),
    ("NEW", FLAG_NEW),
    ("NEW_FAILURE", FLAG_NEW_FAILURE),
    ("LETTERS", FLAG_LETTERS),
    ("SPILL", FLAG_SPILL),
    ("TAKES_IDS", FLAG_IDS),
    ("NEW_GAPS", FLAG_NEW_TIMES),
];

/// Returns a claim in the form in which a fence contains it.
pub(super) fn claim_bytes(claim: Claim) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&claim.epoch.to_le_bytes());
    bytes[8..].copy_from_slice(&claim.random.to_le_bytes());
    bytes
}

/// Returns the hash field that contains a key's record.
pub(super) fn record_field(key: &str) -> Vec<u8> {
    [b"j", key.as_bytes()].concat()
}

/// Runs a script that writes, without retries. If replicas are required, waits until enough of them have the write.
/// Returns `None` if too few replicas have the write in time; the master has the write nevertheless.
pub(super) async fn send_durably(
    store: &RedisStore,
    script: &LuaScript,
    shard: u32,
    call: Cmd,
) -> Result<Option<Value>, StoreError> {
    if store.wait_connections.is_empty() {
        return store
            .run_script_once(script, &call)
            .await
            .map(Some)
            .map_err(|error| request_error(&error));
    }
    let link = &store.wait_connections[shard as usize % store.wait_connections.len()];
    let both = with_wait(store, call);
    let mut answers = link.pipe(&both).await;
    if answers.as_ref().is_err_and(|error| has_code(error, "NOSCRIPT"))
        && let Some(call) = both.cmd_iter().next()
    {
        answers = link.pipe(&with_wait(store, script.with_text(call))).await;
    }
    let answers = answers.map_err(|error| request_error(&error))?;
    let [reply, replicas] = parts(answers, "a command with WAIT")?;
    let enough = number(&replicas).is_some_and(|count| count >= u64::from(store.replicas));
    Ok(enough.then_some(reply))
}

fn with_wait(store: &RedisStore, command: Cmd) -> Pipeline {
    let mut both = pipe();
    both.add_command(command).cmd("WAIT").arg(store.replicas).arg(REPLICAS_TIMEOUT_MS);
    both
}

/// Appends a batch to the arguments of the commit script.
pub(super) fn put_batch(
    call: &mut Cmd,
    partition: u32,
    claim: Claim,
    batch: &Batch,
    dead_ttl: u64,
) {
    let mut ops = Vec::new();
    let mut lengths = Vec::new();
    let mut messages = Vec::new();
    for write in &batch.writes {
        put_op(partition, write, &mut ops);
        let before = messages.len();
        encode_outbox_write(&write.key, write.record.incarnation, &write.messages, &mut messages);
        lengths.extend_from_slice(&((messages.len() - before) as u32).to_le_bytes());
    }
    call.arg(partition)
        .arg(&claim_bytes(claim)[..])
        .arg(&batch.number.to_le_bytes()[..])
        .arg(&batch.number.wrapping_sub(1).to_le_bytes()[..])
        .arg(batch.number)
        .arg(dead_ttl)
        .arg(batch.writes.len())
        .arg(ops)
        .arg(lengths)
        .arg(messages)
        .arg(batch.letters.len())
        .arg(u8::from(batch.forward))
        .arg(u8::from(batch.repeated));
    for write in &batch.writes {
        call.arg(record_field(&write.key));
    }
    let mut scratch = Vec::new();
    for write in &batch.writes {
        scratch.clear();
        record::encode(write, &mut scratch);
        call.arg(&scratch[..]);
    }
    for write in &batch.writes {
        put_extra_arguments(call, write, batch.forward);
    }
    for letter in &batch.letters {
        put_letter(call, letter, batch.forward);
    }
}

/// Appends the operation, the flags, and the condition of a write. The operation is the change of the state. The
/// condition consists of the partition, the number of take-overs and the next sequence. A key record contains these
/// three fields in the same order, so the script compares them as one text.
fn put_op(partition: u32, write: &KeyWrite, out: &mut Vec<u8>) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let troubled = write.record.failure.as_ref().is_some_and(|failure| failure.since == 0);
    out.push(match &write.state {
        StateUpdate::Keep => STATE_KEEP,
        StateUpdate::Put(_) if record::separate_state(&write.state).is_some() => STATE_PUT_SEPARATE,
        StateUpdate::Put(_) => STATE_PUT,
        StateUpdate::Delete => STATE_DELETE,
    });
    out.push(
        flag(write.condition == WriteCondition::Absent, FLAG_ABSENT)
            | flag(write.record.incarnation == 0, FLAG_NEW)
            | flag(troubled, FLAG_NEW_FAILURE)
            | flag(has_letters(write), FLAG_LETTERS)
            | flag(!write.spill.is_empty(), FLAG_SPILL)
            | flag(write.record.ids_from > 0, FLAG_IDS)
            | flag(write.record.lacks_times(), FLAG_NEW_TIMES),
    );
    out.extend_from_slice(&partition.to_le_bytes());
    out.extend_from_slice(&write.record.takeovers.to_le_bytes());
    let next = match write.condition {
        WriteCondition::Absent => 0,
        WriteCondition::Next(next) => next,
    };
    out.extend_from_slice(&next.to_le_bytes());
}

fn has_letters(write: &KeyWrite) -> bool {
    !write.letters.is_empty() || !write.removed_letters.is_empty()
}

fn put_extra_arguments(call: &mut Cmd, write: &KeyWrite, forward: bool) {
    if let Some(state) = record::separate_state(&write.state) {
        call.arg(&state[..]);
    }
    if has_letters(write) {
        call.arg(write.removed_letters.len());
        for id in &write.removed_letters {
            let mut place = Vec::new();
            put_letter_place(id, &mut place);
            call.arg(place);
        }
        call.arg(write.letters.len());
        for letter in &write.letters {
            put_letter(call, letter, forward);
        }
    }
    if !write.spill.is_empty() {
        call.arg(write.spill.len());
        for (sequence, event) in &write.spill {
            let digests: Vec<u8> = event.repeat_digests().flat_map(u64::to_be_bytes).collect();
            call.arg(&sequence.to_be_bytes()[..]).arg(spilled_event(event)).arg(digests);
        }
    }
    let from = write.record.ids_from;
    if from > 0 {
        let mut taken = Vec::new();
        for id in write.ids.iter().filter(|id| id.sequence >= from) {
            taken.extend_from_slice(&id.sequence.to_le_bytes());
            encode_accepted_id(id, &mut taken);
        }
        call.arg(taken);
    }
}

/// Appends three arguments for a dead letter: its place (its sort key), its record, and its chunk for the outbox. The
/// chunk is empty if letters are not forwarded.
fn put_letter(call: &mut Cmd, letter: &DeadLetter, forward: bool) {
    let mut place = Vec::new();
    let mut record = Vec::new();
    let mut piece = Vec::new();
    put_letter_place(&letter.id, &mut place);
    encode_letter(letter, 0, &mut record);
    if forward {
        put_varint(record.len() as u64, &mut piece);
        piece.extend_from_slice(&record);
    }
    call.arg(place).arg(record).arg(piece);
}

/// Encodes a spilled event: first its digest ([`Event::repeat_digest`]), then the event. With the digest, a script can
/// compare two events without decoding them.
fn spilled_event(event: &Event) -> Vec<u8> {
    let mut value = Vec::with_capacity(8 + event.encoded_len());
    value.extend_from_slice(&event.repeat_digest().to_be_bytes());
    event.encode(&mut value);
    value
}

/// Decodes the reply of the commit script; `None` if the reply is not valid. A refusal contains the fence of the shard;
/// the refusal is not valid if this fence permits the commit.
pub(super) fn parse_reply(answer: Value, claim: Claim, number: u64) -> Option<CommitReply> {
    let answer = bytes(answer)?;
    match answer.split_first()? {
        (b'A', applied) => Some(CommitReply::Applied(decode_applied(applied).ok()?)),
        (b'C', fence) => match decode_fence(fence).ok()?.evaluate(claim, number) {
            FenceVerdict::Answer(reply) => Some(reply),
            FenceVerdict::Apply => None,
        },
        (b'N', _) => Some(FenceVerdict::unclaimed()),
        _ => None,
    }
}
