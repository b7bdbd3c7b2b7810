//! Keys, dead letters, streams and handlers as JSON: the same from the command line and over HTTP.

mod plugins;

use bytes::Bytes;
use ordain_core::{DeadLetter, Event, Job, LetterContent, Status};
use serde_json::{Value, json};

use crate::config::Stream;
use crate::plugin::Handler;
use crate::store::{KeyRow, StoredLetter};

pub use plugins::plugins;

/// All statuses, in the order in which a key may have them.
pub const STATUSES: [Status; 5] =
    [Status::Active, Status::Waiting, Status::Retrying, Status::Parked, Status::Completed];

/// A time of the store.
pub fn time(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms.cast_signed())
        .map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}

/// The name of a status.
pub fn status(status: Status) -> &'static str {
    match status {
        Status::Active => "active",
        Status::Waiting => "waiting",
        Status::Retrying => "retrying",
        Status::Parked => "parked",
        Status::Completed => "completed",
    }
}

/// The inverse of [`status`]; the error names those that there are.
pub fn parse_status(text: &str) -> Result<Status, String> {
    STATUSES
        .into_iter()
        .find(|it| status(*it) == text)
        .ok_or_else(|| format!("one of {}", STATUSES.map(status).join(", ")))
}

/// A stream and the handler that runs it; without one it is not configured, and the store has data
/// of it.
pub fn stream(name: &str, handler: Option<(&Stream, &Handler)>) -> Value {
    json!({
        "stream": name,
        "handler": handler.map(|(_, handler)| &**handler.version()),
        "digest": handler.map(|(_, handler)| handler.digest().to_string()),
        "source": handler.map(|(stream, _)| stream.source.kind()),
        "retry_on_new_version": handler.map(|(stream, _)| stream.retry.on_new_version),
    })
}

/// Bytes as JSON if they are, else as text, else as base64.
pub fn data(bytes: &[u8]) -> Value {
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
pub fn key(row: &KeyRow, state: Option<&Bytes>) -> Value {
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
pub fn letter(stored: &StoredLetter) -> Value {
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
pub fn letter_id(id: &ordain_core::LetterId) -> String {
    format!("{}-{:x}", id.sequence, id.tag)
}

/// The inverse of [`letter_id`].
pub fn parse_letter_id(key: &str, text: &str) -> Option<ordain_core::LetterId> {
    let (sequence, tag) = text.split_once('-')?;
    Some(ordain_core::LetterId {
        key: key.into(),
        sequence: sequence.parse().ok()?,
        tag: u64::from_str_radix(tag, 16).ok()?,
    })
}

/// That a key is not there.
pub fn no_key(stream: &str, key: &str) -> String {
    format!("key {key:?} of stream {stream} has never been committed or held, or is forgotten")
}

/// That something is no id of a dead letter.
pub fn no_letter_id(id: &str) -> String {
    format!(
        "{id:?} is no id of a dead letter: they look like 3-b05cb4f9ec0b9b83, see `ordain dead list`"
    )
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
