//! The outcomes of executed events, and their form as JSON.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use ordain_core::{Event, FailedAttempt, FailureKind, Message, StateUpdate, is_json};
use ordain_wasm::{Execution, ExecutionObserver, ExecutionResult, LogLine, LogTarget};
use serde_json::{Map, Value, json};

/// One execution of an event.
#[derive(Debug, Clone)]
pub(crate) struct EventRecord {
    pub(crate) stream: String,
    pub(crate) sequence: u64,
    pub(crate) event: Arc<Event>,
    /// The number of the execution of this event: 1 for the first.
    pub(crate) attempt: u32,
    /// The state before the execution.
    pub(crate) before: Option<Bytes>,
    pub(crate) outcome: RecordedOutcome,
    pub(crate) log: Vec<LoggedLine>,
}

/// The result of an execution.
#[derive(Debug, Clone)]
pub(crate) enum RecordedOutcome {
    Applied { after: Option<Bytes>, messages: Vec<Message>, complete: bool },
    Rejected(String),
    Failed(FailedAttempt),
}

/// A line that a handler wrote to the log, to standard output or to standard error.
#[derive(Debug, Clone)]
pub(crate) struct LoggedLine {
    pub(crate) level: tracing::Level,
    pub(crate) text: String,
}

impl EventRecord {
    /// Returns whether the execution ended because of a fault: a failure that the handler did not request.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(&self.outcome, RecordedOutcome::Failed(failure) if failure.kind != FailureKind::Retry)
    }

    /// Returns the outcome as the members of an expectation in a scripted test.
    pub(crate) fn outcome(&self) -> Map<String, Value> {
        let mut members = Map::new();
        match &self.outcome {
            RecordedOutcome::Applied { after, messages, complete } => {
                match after {
                    Some(after) => insert_data(&mut members, "state", after, None),
                    None => drop(members.insert("state".to_owned(), Value::Null)),
                }
                let messages: Vec<Value> = messages.iter().map(message_json).collect();
                members.insert("messages".to_owned(), messages.into());
                if *complete {
                    members.insert("complete".to_owned(), true.into());
                }
            }
            RecordedOutcome::Rejected(reason) => {
                members.insert("reject".to_owned(), reason.as_str().into());
            }
            RecordedOutcome::Failed(failure) => {
                let name = if self.is_fault() { "fault" } else { "retry" };
                members.insert(name.to_owned(), failure.message.as_str().into());
            }
        }
        members
    }

    /// Returns the execution as one JSON object.
    pub(crate) fn json(&self) -> Value {
        let mut before = Map::new();
        match &self.before {
            Some(state) => insert_data(&mut before, "state", state, None),
            None => drop(before.insert("state".to_owned(), Value::Null)),
        }
        let log = self.log.iter();
        let log = log.map(|line| json!({ "level": line.level.as_str(), "text": line.text }));
        json!({
            "stream": self.stream,
            "key": self.event.key(),
            "sequence": self.sequence,
            "id": self.event.id(),
            "type": self.event.kind(),
            "attempt": self.attempt,
            "before": before,
            "outcome": self.outcome(),
            "log": log.collect::<Vec<_>>(),
        })
    }
}

/// Inserts data into an object: as JSON under `name`, as text under `NAME_text`, or in Base64 under `NAME_base64`.
/// Without a content type, data is JSON if it can be parsed as JSON.
fn insert_data(into: &mut Map<String, Value>, name: &str, data: &[u8], content_type: Option<&str>) {
    let parsed =
        if content_type.is_none_or(is_json) { serde_json::from_slice(data).ok() } else { None };
    let (name, value) = match (parsed, std::str::from_utf8(data)) {
        (Some(value), _) => (name.to_owned(), value),
        (None, Ok(text)) => (format!("{name}_text"), text.into()),
        (None, Err(_)) => (format!("{name}_base64"), BASE64_STANDARD.encode(data).into()),
    };
    into.insert(name, value);
}

/// Returns a message as JSON. Members that have their usual value are left out.
pub(crate) fn message_json(message: &Message) -> Value {
    let mut members = Map::new();
    members.insert("sink".to_owned(), message.sink().into());
    members.insert("type".to_owned(), message.kind().into());
    if let Some(key) = message.key() {
        members.insert("key".to_owned(), key.into());
    }
    if message.content_type() != "application/json" {
        members.insert("content_type".to_owned(), message.content_type().into());
    }
    let headers: Vec<Value> = message.headers().map(|(name, value)| json!([name, value])).collect();
    if !headers.is_empty() {
        members.insert("headers".to_owned(), headers.into());
    }
    if !message.data().is_empty() {
        insert_data(&mut members, "data", message.data(), Some(message.content_type()));
    }
    if message.end() {
        members.insert("end_of_sequence".to_owned(), true.into());
    }
    Value::Object(members)
}

/// The identity of an event: stream, key and sequence.
type EventPlace = (String, String, u64);

/// An observer that passes each execution to a receiver, together with the log lines of the execution. The receiver
/// runs on the thread of the worker, which executes no event until the receiver returns.
pub(crate) struct Recorder {
    state: Mutex<RecorderState>,
    receive: Box<dyn Fn(EventRecord) + Send + Sync>,
}

#[derive(Default)]
struct RecorderState {
    /// The lines of executions that have not ended.
    lines: HashMap<EventPlace, Vec<LoggedLine>>,
    /// The number of failed executions of each event whose last execution failed.
    failures: HashMap<EventPlace, u32>,
}

impl Recorder {
    pub(crate) fn new(receive: impl Fn(EventRecord) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), receive: Box::new(receive) })
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogTarget for Recorder {
    fn write(&self, line: &LogLine<'_>) {
        let place = (line.stream.to_owned(), line.key.to_owned(), line.sequence);
        let logged = LoggedLine { level: line.level, text: line.text.to_owned() };
        self.state().lines.entry(place).or_default().push(logged);
    }
}

impl ExecutionObserver for Recorder {
    fn executed(&self, execution: &Execution<'_>) {
        let Execution { stream, event, sequence, state: before, result } = *execution;
        let place = (stream.to_owned(), event.key().to_owned(), sequence);
        let mut state = self.state();
        let log = state.lines.remove(&place).unwrap_or_default();
        let failed = state.failures.remove(&place).unwrap_or_default();
        let outcome = match result {
            ExecutionResult::Effect { state: change, messages, complete } => {
                let after = match change {
                    StateUpdate::Keep => before.cloned(),
                    StateUpdate::Put(after) => Some(after.clone()),
                    StateUpdate::Delete => None,
                };
                RecordedOutcome::Applied { after, messages: messages.to_vec(), complete }
            }
            ExecutionResult::Rejected(reason) => RecordedOutcome::Rejected(reason.to_owned()),
            ExecutionResult::Failed(failure) => {
                state.failures.insert(place, failed + 1);
                RecordedOutcome::Failed(failure.clone())
            }
        };
        drop(state);
        (self.receive)(EventRecord {
            stream: stream.to_owned(),
            sequence,
            event: Arc::clone(event),
            attempt: failed + 1,
            before: before.cloned(),
            outcome,
            log,
        });
    }
}
