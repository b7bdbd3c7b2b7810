//! Runs an example of a language in the host, and reads the messages, dead letters and log lines of the run.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ordain_tests::host::Home;
use serde_json::Value;

use super::language::Language;

/// The configuration of a run. The words in capital letters stand for the example and for the sink of its messages.
const CONFIG: &str = r#"
[plugins]
timeout = "5s"          # on a busy machine, a handler needs this time to take all the memory that it may

[streams.calls]
handler = "EXAMPLE"
source = { kind = "file", path = "events.ndjson" }
dead_letter = "dead"
retry = { attempts = 2, backoff = "1ms..50ms", on_exhausted = "skip" }

[sinks]
SINK = { kind = "file", path = "out.ndjson" }
dead = { kind = "file", path = "dead.ndjson" }
"#;

/// The attributes of a message that are not headers of the handler.
const OWN_ATTRIBUTES: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "data",
    "data_base64",
    "endofsequence",
    "sequence",
];

/// A message of a handler.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenMessage {
    pub(crate) kind: String,
    pub(crate) content_type: String,
    /// The headers in their order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) data: SeenData,
    pub(crate) end: bool,
}

/// The data of a message. JSON is compared as JSON, because languages write the same value in different ways.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SeenData {
    Json(Value),
    Bytes(Vec<u8>),
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenLetter {
    pub(crate) sequence: u64,
    pub(crate) cause: String,
    pub(crate) reason: String,
}

/// A log line of a handler: the level and the text.
pub(crate) type SeenLine = (String, String);

/// The result of a run, by key.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) messages: BTreeMap<String, Vec<SeenMessage>>,
    pub(crate) letters: BTreeMap<String, Vec<SeenLetter>>,
    pub(crate) lines: BTreeMap<String, Vec<SeenLine>>,
}

/// Runs an example of a language, which emits messages to one sink.
pub(crate) fn run(
    language: Language,
    example: &str,
    sink: &str,
    events: impl AsRef<[u8]>,
) -> Result<Output> {
    let home = Home::new(&[], &CONFIG.replace("EXAMPLE", example).replace("SINK", sink))?;
    home.write("events.ndjson", events)?;
    let file = language.component(example)?;
    std::fs::copy(&file, home.path(&format!("plugins/{example}.wasm")))
        .with_context(|| format!("{} cannot be copied", file.display()))?;
    let run = ["--log", "warn,handler=trace", "--log-format", "json", "run", "--once"];
    let output = home.output(&run)?;
    let log = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "the run failed ({}): {log}", output.status);
    let mut seen = Output::default();
    for line in home.read("out.ndjson").lines() {
        let message: Value = serde_json::from_str(line)?;
        seen.messages
            .entry(text(&message, "subject"))
            .or_default()
            .push(read_message(&message, line)?);
    }
    for line in home.read("dead.ndjson").lines() {
        let letter: Value = serde_json::from_str(line)?;
        let letters = seen.letters.entry(text(&letter, "subject")).or_default();
        letters.push(SeenLetter {
            sequence: text(&letter, "deadsequence").parse()?,
            cause: text(&letter, "deadcause"),
            reason: text(&letter, "deaderror"),
        });
    }
    for line in log.lines() {
        let line: Value = serde_json::from_str(line)?;
        if line["target"] == "handler" {
            let lines = seen.lines.entry(text(&line, "key")).or_default();
            lines.push((text(&line, "level"), text(&line, "message")));
        }
    }
    Ok(seen)
}

/// Returns the value of a member as text; an empty text if the member is missing.
fn text(object: &Value, name: &str) -> String {
    match &object[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

fn read_message(message: &Value, line: &str) -> Result<SeenMessage> {
    let attributes = message.as_object().context("a message is an object")?;
    let names = attributes.keys().filter(|name| !OWN_ATTRIBUTES.contains(&name.as_str()));
    let mut headers: Vec<_> = names.map(|name| (name.clone(), text(message, name))).collect();
    // The parser sorts the members of an object, but the order of the headers is the order in the line.
    headers.sort_by_key(|(name, _)| line.find(&format!("\"{name}\":")));
    let content_type = text(message, "datacontenttype");
    let data = match (attributes.get("data"), attributes.get("data_base64")) {
        (None, Some(bytes)) => {
            SeenData::Bytes(STANDARD.decode(bytes.as_str().unwrap_or_default())?)
        }
        (Some(Value::String(data)), None) if content_type != "application/json" => {
            SeenData::Bytes(data.clone().into_bytes())
        }
        (Some(data), None) => SeenData::Json(data.clone()),
        _ => SeenData::Bytes(Vec::new()),
    };
    let end = text(message, "endofsequence") == "true";
    Ok(SeenMessage { kind: text(message, "type"), content_type, headers, data, end })
}
