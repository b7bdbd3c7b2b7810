//! How things are shown: in a terminal as text, for scripts as JSON. Nothing that comes from an
//! event reaches a terminal unescaped.

use std::io::{self, Write};

use bytes::Bytes;
use ordain_core::{DeadLetter, Event, Job, LetterContent, Status};
use serde_json::{Value, json};

use crate::store::{KeyRow, StoredLetter};
use crate::text::{clean, clean_lines};

/// Prints to standard output.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints JSON, on one line or over several.
pub(super) fn json(value: &Value, one_line: bool) -> io::Result<()> {
    let json = if one_line { value.to_string() } else { format!("{value:#}") };
    text(&format!("{}\n", clean_lines(&json)))
}

/// A value of JSON as a line.
pub(super) fn json_line(value: &Value) -> String {
    format!("{}\n", clean(&value.to_string()))
}

/// A time of the store.
pub(super) fn time(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms.cast_signed())
        .map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}

/// The name of a status.
pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Active => "active",
        Status::Waiting => "waiting",
        Status::Retrying => "retrying",
        Status::Parked => "parked",
        Status::Completed => "completed",
    }
}

/// Bytes as JSON if they are, else as text, else as base64.
pub(super) fn data(bytes: &[u8]) -> Value {
    use base64::Engine;
    if let Ok(value) = serde_json::from_slice(bytes) {
        return value;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            json!({ "base64": base64::engine::general_purpose::STANDARD.encode(bytes) })
        }
    }
}

/// A key's record.
pub(super) fn key(row: &KeyRow, state: Option<&Bytes>) -> Value {
    let mut value = match &row.job {
        Ok(job) => self::job(job),
        Err(error) => json!({ "status": "corrupt", "error": error }),
    };
    value["key"] = (*row.key).into();
    value["state_size"] = row.state_size.into();
    value["due_at"] = row.due_at.map(time).into();
    if let Some(state) = state {
        value["state"] = data(state);
    }
    value
}

fn job(job: &Job) -> Value {
    let trouble = job.trouble.as_ref().map(|trouble| {
        json!({
            "cause": trouble.cause.name(),
            "error": trouble.error,
            "since": time(trouble.since),
            "version": trouble.version.as_deref(),
        })
    });
    json!({
        "status": status(job.status),
        "next": job.next,
        "incarnation": job.incarnation,
        "partition": job.partition,
        "attempts": job.attempts,
        "gap_rounds": job.rounds,
        "park_generation": job.generation,
        "held": {
            "count": job.spilled.count, "first": job.spilled.first, "last": job.spilled.last,
        },
        "skipped": job.holes.0,
        "version": job.version.as_deref(),
        "trouble": trouble,
    })
}

/// A dead letter.
pub(super) fn letter(stored: &StoredLetter) -> Value {
    let DeadLetter { id, cause, error, origin, version, content } = &stored.letter;
    let (event, raw) = match content {
        LetterContent::Nothing => (Value::Null, Value::Null),
        LetterContent::Event(event) => (self::event(event), Value::Null),
        LetterContent::Raw(bytes) => (Value::Null, data(bytes)),
    };
    json!({
        "id": letter_id(id),
        "key": &*id.key,
        "sequence": (id.sequence > 0 || event["sequence"] == 0).then_some(id.sequence),
        "cause": cause.name(),
        "error": error,
        "origin": origin,
        "version": version.as_deref(),
        "at": time(stored.at),
        "event": event,
        "raw": raw,
    })
}

/// A letter's identity within its stream, as people give it back: `sequence-tag`, beside the key.
pub(super) fn letter_id(id: &ordain_core::LetterId) -> String {
    format!("{}-{:x}", id.sequence, id.tag)
}

/// The inverse of [`letter_id`].
pub(super) fn parse_letter_id(key: &str, text: &str) -> Option<ordain_core::LetterId> {
    let (sequence, tag) = text.split_once('-')?;
    Some(ordain_core::LetterId {
        key: key.into(),
        sequence: sequence.parse().ok()?,
        tag: u64::from_str_radix(tag, 16).ok()?,
    })
}

fn event(event: &Event) -> Value {
    json!({
        "id": event.id(),
        "type": event.kind(),
        "source": event.source(),
        "sequence": event.sequence(),
        "time": event.time_ms().map(time),
        "content_type": event.content_type(),
        "end_of_sequence": event.end(),
        "headers": event.headers().collect::<Vec<_>>(),
        "data": data(event.data()),
    })
}
