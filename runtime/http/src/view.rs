//! Keys, dead letters, streams, handlers and instances as JSON: the same from the command line and over HTTP.

mod data;
mod instances;
mod plugins;

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Build, GapEnd, GapEntry, Job, LetterContent, Status};
use serde::Serialize;
use serde_json::{Value, json};

use ordain_config::Stream;
use ordain_store::{KeyRow, StoredLetter};
use ordain_wasm::Chosen;

pub use data::{Data, data};
pub use instances::{Instance, Instances, Scale};
pub use plugins::{look_into, plugins, running_plugins};

/// A time of the store, always as long, so that the text of an earlier one is before that of a later one.
pub fn time(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms.cast_signed())
        .map_or_else(|_| format!("{ms} ms"), |time| format!("{time:.3}"))
}

/// Reads the name of a status; the error lists the names.
pub fn parse_status(text: &str) -> Result<Status, String> {
    Status::parse(text)
        .ok_or_else(|| format!("one of {}", Status::ALL.map(Status::name).join(", ")))
}

/// What executes the events of a stream.
#[derive(Debug, Clone, Default)]
pub struct Executing {
    /// The version, or the one that is to.
    pub build: Option<Build>,
    /// Since which decision, where the store was asked.
    pub generation: Option<u64>,
    /// Why it is not here, if it is not: all keys of the stream wait.
    pub missing: Option<String>,
}

impl From<Chosen> for Executing {
    fn from(chosen: Chosen) -> Self {
        let (decided, missing) = match chosen {
            Ok(active) => (Some(Arc::clone(&active.decided)), None),
            Err(missing) => (missing.decided, Some(missing.reason)),
        };
        let generation = decided.as_ref().map(|it| it.generation);
        Self { build: decided.map(|it| it.build.clone()), generation, missing }
    }
}

/// A stream and what executes its events; without that it is not configured, and the store has data of
/// it.
pub fn stream(name: &str, configured: Option<(&Stream, Executing)>) -> Value {
    let (stream, executing) = configured.unzip();
    let Executing { build, generation, missing } = executing.unwrap_or_default();
    json!({
        "stream": name,
        "handler": build.as_ref().map(|it| &*it.version),
        "digest": build.as_ref().map(|it| it.digest.to_string()),
        "generation": generation,
        "missing": missing,
        "source": stream.map(|it| it.source.kind()),
        "retry_on_new_version": stream.map(|it| it.retry.on_new_version),
    })
}

/// A key's record.
#[derive(Debug, Serialize)]
pub struct Key<'a> {
    #[serde(flatten)]
    record: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    gaps: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Data<'a>>,
}

/// Shows a key with its gaps and its state.
pub fn whole_key<'a>(row: &KeyRow, state: Option<&'a Bytes>) -> Key<'a> {
    let gaps = row.job.as_ref().map(|job| job.gaps.iter().map(gap).collect());
    Key { gaps: gaps.ok(), state: state.map(|state| data(state)), ..key(row) }
}

/// Shows a key as a row of a listing.
pub fn key(row: &KeyRow) -> Key<'static> {
    let mut record = match &row.job {
        Ok(job) => self::job(job),
        Err(error) => json!({ "status": "corrupt", "error": error }),
    };
    record["key"] = (*row.key).into();
    record["state_size"] = row.state_size.into();
    record["due_at"] = row.due_at.map(time).into();
    Key { record, gaps: None, state: None }
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
        "status": job.status.name(),
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
        "version": job.version.as_ref().map(|it| &*it.build.version),
        "version_digest": job.version.as_ref().map(|it| it.build.digest.to_string()),
        "version_generation": job.version.as_ref().map(|it| it.generation),
        "trouble": trouble,
    })
}

fn gap(gap: &GapEntry) -> Value {
    let is_over = gap.end != GapEnd::Open;
    let answers = gap.answers.iter().map(|it| {
        json!({
            "source": &*it.source,
            "asked": it.asked,
            "found": it.found,
            "failed": it.failed,
            "error": it.error.as_deref(),
        })
    });
    json!({
        "first": gap.first,
        "last": gap.last,
        "since": time(gap.since.saturating_sub(gap.waited)),
        "rounds": gap.rounds,
        "answers": answers.collect::<Vec<_>>(),
        "end": gap.end.name(),
        "until": is_over.then(|| time(gap.until)),
        "lasted_ms": is_over.then(|| gap.lasted(gap.until)),
    })
}

/// A dead letter.
#[derive(Debug, Serialize)]
pub struct Letter<'a> {
    id: String,
    key: &'a str,
    sequence: Option<u64>,
    cause: &'static str,
    error: &'a str,
    origin: Option<&'a str>,
    version: Option<&'a str>,
    at: String,
    event: Option<Event<'a>>,
    raw: Option<Data<'a>>,
}

/// Shows a dead letter.
pub fn letter(stored: &StoredLetter) -> Letter<'_> {
    let letter = &stored.letter;
    let (event, raw) = match &letter.content {
        LetterContent::Nothing => (None, None),
        LetterContent::Event(event) => (Some(self::event(event)), None),
        LetterContent::Raw(bytes) => (None, Some(data(bytes))),
    };
    let is_numbered =
        letter.id.sequence > 0 || event.as_ref().is_some_and(|it| it.sequence == Some(0));
    Letter {
        id: letter.id.text(),
        key: &letter.id.key,
        sequence: is_numbered.then_some(letter.id.sequence),
        cause: letter.cause.name(),
        error: &letter.error,
        origin: letter.origin.as_deref(),
        version: letter.version.as_deref(),
        at: time(stored.at),
        event,
        raw,
    }
}

/// JSON of what is shown here.
pub fn to_json(shown: &impl Serialize) -> String {
    serde_json::to_string(shown).expect("texts, numbers and lists of them are always JSON")
}

/// That a key is not there.
pub fn no_key(stream: &str, key: &str) -> String {
    format!(
        "key {key:?} of stream {stream} has never been committed or held, or is forgotten: what has just come \
         stands here once it is executed, or after `spill_after`"
    )
}

/// That something is no id of a dead letter.
pub fn no_letter_id(id: &str) -> String {
    format!(
        "{id:?} is no id of a dead letter: they look like 3-b05cb4f9ec0b9b83, see `ordain dead list`"
    )
}

#[derive(Debug, Serialize)]
struct Event<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    source: &'a str,
    sequence: Option<u64>,
    time: Option<String>,
    content_type: &'a str,
    end_of_sequence: bool,
    headers: Vec<(&'a str, &'a str)>,
    data: Data<'a>,
}

fn event(event: &ordain_core::Event) -> Event<'_> {
    Event {
        id: event.id(),
        kind: event.kind(),
        source: event.source(),
        sequence: event.sequence(),
        time: event.time_ms().map(time),
        content_type: event.content_type(),
        end_of_sequence: event.end(),
        headers: event.headers().collect(),
        data: data(event.data()),
    }
}
