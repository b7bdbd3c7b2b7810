//! Logs of events for tests. In this module, a log is a list of CloudEvents, one per line. The tests use a real log if
//! a real log is configured, and generated events otherwise. A function of this module shuffles and repeats the events
//! of a log.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ordain_generate::{EventShape, LoadOptions, Probability, generate_to};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The environment variable that names a file of CloudEvents, one per line. The sequences of each key must be 1, 2, 3
/// and so on, and the last event of each key, but no other event, must have `endofsequence`: true.
pub const REAL_LOG: &str = "ORDAIN_REAL_LOG";

/// Formats an event as a line of a file.
pub fn line(key: &str, sequence: u64, data: &Value) -> String {
    json!({
        "specversion": "1.0", "id": format!("{key}-{sequence}"), "source": "/tests",
        "type": "test", "subject": key, "sequence": sequence, "data": data,
    })
    .to_string()
}

/// Returns lines with events 1 to `events` of each of `keys` keys (`k0`, `k1` and so on): first event 1 of every key,
/// then event 2 of every key, and so on.
pub fn in_turn(keys: usize, events: u64) -> Vec<String> {
    let event = |sequence| (0..keys).map(move |key| (format!("k{key}"), sequence));
    let all = (1..=events).flat_map(event);
    all.map(|(key, sequence)| line(&key, sequence, &json!({ "n": sequence }))).collect()
}

/// Returns the given events without sequences, as a producer that does not number its events sends them.
pub fn unnumbered(lines: &[String]) -> Result<Vec<String>> {
    let line = |line: &String| -> Result<String> {
        let mut event: Value = serde_json::from_str(line)?;
        event.as_object_mut().context("an object")?.remove("sequence");
        Ok(event.to_string())
    };
    lines.iter().map(line).collect()
}

/// Few producers send these times (RFC 3339): before 1970, at the end of the year 9999, and with many digits of a
/// second. The first time is the zero value of Go and of .NET.
const UNUSUAL_TIMES: [&str; 5] = [
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2026-11-25T12:00:00.123456789123Z",
    "9999-12-31T23:59:59.9999999Z",
    "9999-12-31T23:59:59.999-23:59",
];

/// Returns lines of events of one key. Each event has a different time from `UNUSUAL_TIMES`.
pub fn with_unusual_times() -> Result<Vec<String>> {
    let lines = in_turn(1, UNUSUAL_TIMES.len() as u64);
    let timed = |(line, time): (&String, &str)| -> Result<String> {
        let mut event: Value = serde_json::from_str(line)?;
        event["time"] = time.into();
        Ok(event.to_string())
    };
    lines.iter().zip(UNUSUAL_TIMES).map(timed).collect()
}

/// Joins lines into the content of a file.
pub fn text(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// Returns the lines of the real log if [`REAL_LOG`] is set, and generated lines otherwise. Prints the origin of the
/// lines.
pub fn real_or_generated() -> Result<Vec<String>> {
    let text = if let Some(path) = std::env::var_os(REAL_LOG).filter(|path| !path.is_empty()) {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{REAL_LOG} names {}", path.display()))?;
        fits(&lines_of(&text)).with_context(|| {
            format!("{REAL_LOG} names {}, which {LOG_REQUIREMENTS}", path.display())
        })?;
        println!("the test uses the real log {}", path.display());
        text
    } else {
        println!("{REAL_LOG} names no file: the test uses generated events");
        let load = LoadOptions {
            seed: 4,
            events: 8_000,
            keys: 1_400,
            end_of_sequence: true,
            shape: EventShape::Opaque,
            loss: Probability(0.0),
            ..LoadOptions::default()
        };
        let mut out = Vec::new();
        generate_to(&load, &mut out, None, &mut ())?;
        String::from_utf8(out)?
    };
    Ok(lines_of(&text))
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The requirements on a real log, for an error message. The tests can compute their expected results only from a log
/// that meets these requirements.
const LOG_REQUIREMENTS: &str = "must contain CloudEvents in JSON, one per line, each with a `subject`; each \
                     subject must have the `sequence`s 1, 2, 3 and so on, each once and without \
                     holes; the last event of each subject, and no other event, must have \
                     `endofsequence`: true";

fn fits(lines: &[String]) -> Result<()> {
    let keys = by_key(lines)?;
    let events: usize = keys.values().map(BTreeMap::len).sum();
    ensure!(events == lines.len(), "lines that are repeats: {}", lines.len() - events);
    for (key, events) in &keys {
        for (right, (sequence, event)) in (1..).zip(events) {
            ensure!(*sequence == right, "subject {key:?} lacks sequence {right}");
            let last = *sequence == events.len() as u64;
            ensure!(
                event.end == last,
                "subject {key:?}, sequence {sequence}: wrong `endofsequence`"
            );
        }
    }
    Ok(())
}

/// Divides the lines into chunks of `window` lines, shuffles each chunk, and repeats every `nth` line at a random place
/// in the following chunk. Repeats of lines of the last chunk are placed among the last lines.
pub fn disturb(lines: &[String], window: usize, nth: usize, seed: u64) -> Vec<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut out = Vec::new();
    let mut repeats: Vec<String> = Vec::new();
    for (number, chunk) in lines.chunks(window).enumerate() {
        let mut chunk: Vec<String> = chunk.to_vec();
        let again =
            chunk.iter().enumerate().filter(|(at, _)| (number * window + at).is_multiple_of(nth));
        let again: Vec<String> = again.map(|(_, line)| line.clone()).collect();
        chunk.append(&mut repeats);
        repeats = again;
        chunk.shuffle(&mut rng);
        out.append(&mut chunk);
    }
    let mut rest = repeats;
    rest.shuffle(&mut rng);
    for line in rest {
        let at = rng.random_range(out.len().saturating_sub(window)..=out.len());
        out.insert(at, line);
    }
    out
}

/// An event of a log, parsed independently of Ordain's own parser.
#[derive(Debug, Clone)]
pub struct Line {
    /// The key: the attribute `subject`.
    pub key: String,
    /// The sequence: the attribute `sequence`, as a number.
    pub sequence: u64,
    /// The type: the attribute `type`.
    pub kind: String,
    /// The data as a handler receives it: without insignificant white space.
    pub data: String,
    /// True if the event is marked as the last event of its key.
    pub end: bool,
}

/// Returns the events of a log by key and sequence, each once.
pub fn by_key(lines: &[String]) -> Result<BTreeMap<String, BTreeMap<u64, Line>>> {
    #[derive(serde::Deserialize)]
    struct CloudEvent<'a> {
        subject: String,
        sequence: serde_json::Value,
        r#type: String,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
        #[serde(default)]
        endofsequence: bool,
    }
    let mut keys: BTreeMap<String, BTreeMap<u64, Line>> = BTreeMap::new();
    for line in lines {
        let event: CloudEvent<'_> = serde_json::from_str(line).with_context(|| line.clone())?;
        let sequence = match &event.sequence {
            serde_json::Value::String(text) => text.parse()?,
            other => other.as_u64().context("a sequence")?,
        };
        let data = event.data.map_or(String::new(), |data| without_space(data.get()));
        let line = Line {
            key: event.subject.clone(),
            sequence,
            kind: event.r#type,
            data,
            end: event.endofsequence,
        };
        keys.entry(event.subject).or_default().insert(sequence, line);
    }
    Ok(keys)
}

fn without_space(json: &str) -> String {
    let mut out = String::new();
    let mut text = false;
    let mut escaped = false;
    for c in json.chars() {
        if text {
            text = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if c.is_ascii_whitespace() {
            continue;
        } else {
            text = c == '"';
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_log_is_refused() {
        let event = |key: &str, sequence: u64, end: bool| {
            let line = line(key, sequence, &json!({}));
            line.replacen('{', &format!("{{\"endofsequence\":{end},"), 1)
        };
        let log = |lines: &[String]| fits(lines).map_err(|error| error.to_string());
        assert_eq!(log(&[event("a", 2, true), event("a", 1, false), event("b", 1, true)]), Ok(()));
        for (lines, problem) in [
            (vec![event("a", 1, false)], "subject \"a\", sequence 1: wrong `endofsequence`"),
            (vec![event("a", 2, true)], "subject \"a\" lacks sequence 1"),
            (vec![event("a", 1, true), event("a", 1, true)], "lines that are repeats: 1"),
            (vec!["{}".to_owned()], "{}"),
        ] {
            assert_eq!(log(&lines), Err(problem.to_owned()));
        }
    }
}
