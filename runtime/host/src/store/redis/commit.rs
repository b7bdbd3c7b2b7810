//! A batch as the arguments of the commit's script, and what the script answers.

use ordain_core::{Batch, Change, CommitReply, DeadLetter, Event, Expect, JobWrite};
use redis::{Cmd, Value};

use super::record;
use super::value::bytes;
use crate::store::Claim;
use crate::store::codec::{
    TAKEN_ID_SIZE, Verdict, decode_fence, encode_letter, encode_outbox_write, encode_taken_id,
    put_letter_place, put_varint,
};

/// What a write does to the state, as the script knows it.
const KEEP: u8 = 0;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Flags of a write.
const ABSENT: u8 = 1;
const NEW: u8 = 2;
const TROUBLED: u8 = 4;
const LETTERS: u8 = 8;
const SPILL: u8 = 16;
const TAKES_IDS: u8 = 32;

/// The first byte of a fence's record, which [`decode_fence`] reads.
const FENCE_FORMAT: u8 = 3;

/// Bytes of a claim.
pub(super) fn claim_bytes(claim: Claim) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&claim.epoch.to_le_bytes());
    bytes[8..].copy_from_slice(&claim.random.to_le_bytes());
    bytes
}

/// Appends what a batch has to the call of the script.
pub(super) fn put(call: &mut Cmd, partition: u32, claim: Claim, batch: &Batch, dead_ttl: u64) {
    let (mut ops, mut lengths, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    for write in &batch.writes {
        put_op(partition, write, &mut ops);
        let before = messages.len();
        encode_outbox_write(&write.key, write.job.incarnation, &write.messages, &mut messages);
        lengths.extend_from_slice(&((messages.len() - before) as u32).to_le_bytes());
    }
    call.arg(&claim_bytes(claim)[..])
        .arg(&batch.number.to_le_bytes()[..])
        .arg(&batch.number.wrapping_sub(1).to_le_bytes()[..])
        .arg(format!("{}-0", batch.number))
        .arg(dead_ttl)
        .arg(batch.writes.len())
        .arg(ops)
        .arg(lengths)
        .arg(messages)
        .arg(batch.letters.len())
        .arg(u8::from(batch.forward));
    for write in &batch.writes {
        call.arg(write.key.as_bytes());
    }
    let mut scratch = Vec::new();
    for write in &batch.writes {
        scratch.clear();
        record::encode(write, &mut scratch);
        call.arg(&scratch[..]);
    }
    for write in &batch.writes {
        put_rest(call, write, batch.forward);
    }
    for letter in &batch.letters {
        put_letter(call, letter, batch.forward);
    }
}

/// What is done to the state, flags, and the condition: partition, take-overs and next as they
/// stand in the record.
fn put_op(partition: u32, write: &JobWrite, out: &mut Vec<u8>) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let troubled = write.job.trouble.as_ref().is_some_and(|trouble| trouble.since == 0);
    out.push(match &write.state {
        Change::Keep => KEEP,
        Change::Put(_) => PUT,
        Change::Delete => DELETE,
    });
    out.push(
        flag(write.expect == Expect::Absent, ABSENT)
            | flag(write.job.incarnation == 0, NEW)
            | flag(troubled, TROUBLED)
            | flag(has_letters(write), LETTERS)
            | flag(!write.spill.is_empty(), SPILL)
            | flag(write.job.ids_from > 0, TAKES_IDS),
    );
    out.extend_from_slice(&partition.to_le_bytes());
    out.extend_from_slice(&write.job.takeovers.to_le_bytes());
    let next = match write.expect {
        Expect::Absent => 0,
        Expect::Next(next) => next,
    };
    out.extend_from_slice(&next.to_le_bytes());
}

fn has_letters(write: &JobWrite) -> bool {
    !write.letters.is_empty() || !write.consumed.is_empty()
}

fn put_rest(call: &mut Cmd, write: &JobWrite, forward: bool) {
    if let Change::Put(state) = &write.state {
        call.arg(&state[..]);
    }
    if has_letters(write) {
        call.arg(write.consumed.len());
        for id in &write.consumed {
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
            call.arg(spill_member(*sequence, event));
        }
    }
    if write.job.ids_from > 0 {
        let from = write.job.ids_from;
        let ids = write.ids.iter().filter(|id| id.sequence >= from);
        call.arg(&from.to_be_bytes()[..]).arg(ids.clone().count());
        for id in ids {
            let mut item = Vec::with_capacity(8 + TAKEN_ID_SIZE);
            item.extend_from_slice(&id.sequence.to_be_bytes());
            encode_taken_id(id, &mut item);
            call.arg(item);
        }
    }
}

/// Place, record, and, where it is forwarded, the piece of the outbox.
fn put_letter(call: &mut Cmd, letter: &DeadLetter, forward: bool) {
    let (mut place, mut record, mut piece) = (Vec::new(), Vec::new(), Vec::new());
    put_letter_place(&letter.id, &mut place);
    encode_letter(letter, 0, &mut record);
    if forward {
        put_varint(record.len() as u64, &mut piece);
        piece.extend_from_slice(&record);
    }
    call.arg(place).arg(record).arg(piece);
}

/// A spilled event: its sequence, so that all are in order, its content, so that two are compared
/// without being taken apart, and the event.
fn spill_member(sequence: u64, event: &Event) -> Vec<u8> {
    let mut member = Vec::with_capacity(16 + event.encoded_len());
    member.extend_from_slice(&sequence.to_be_bytes());
    member.extend_from_slice(&event.content().to_be_bytes());
    event.encode(&mut member);
    member
}

/// What the script answered; `None` if that makes no sense.
pub(super) fn reply(answer: Value, claim: Claim, number: u64) -> Option<CommitReply> {
    let answer = bytes(answer)?;
    let (kind, rest) = answer.split_first()?;
    match kind {
        b'A' => {
            let mut fence = vec![FENCE_FORMAT];
            fence.extend_from_slice(&claim_bytes(claim));
            fence.extend_from_slice(&number.to_le_bytes());
            fence.extend_from_slice(rest);
            Some(CommitReply::Applied(decode_fence(&fence).ok()?.applied))
        }
        b'C' => match decode_fence(rest).ok()?.judge(claim, number) {
            Verdict::Answer(reply) => Some(reply),
            Verdict::Apply => None,
        },
        b'N' => match Verdict::unclaimed() {
            Verdict::Answer(reply) => Some(reply),
            Verdict::Apply => None,
        },
        _ => None,
    }
}
