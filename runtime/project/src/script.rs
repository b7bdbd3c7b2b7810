//! Scripted tests: files of events, each followed by the expected outcome.
//!
//! Each line is an event in the form of a file source, an expectation, or blank. An expectation is a JSON object with
//! the single member `expect`, and belongs to the event before it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::ProjectError;

/// The member that makes a JSON object an expectation.
const EXPECT: &str = "expect";

/// The members of an expectation that contain a part of a text. An expectation has either one of these members, or
/// members of an effect ([`EFFECTS`]).
const REASONS: [&str; 4] = ["reject", "retry", "fault", "not_executed"];

/// The members of an expectation for an event that takes effect.
const EFFECTS: [&str; 5] = ["state", "state_text", "state_base64", "messages", "complete"];

/// A file of events and expectations.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) path: PathBuf,
    /// The lines before the first event. They are blank.
    head: String,
    pub(crate) steps: Vec<Step>,
}

/// An event, and the expectation for it.
#[derive(Debug)]
pub(crate) struct Step {
    /// The line of the event, without its line break.
    pub(crate) event: String,
    /// The number of the event's line, beginning with 1.
    pub(crate) line: usize,
    pub(crate) expected: Option<Expectation>,
    /// The blank lines after the step.
    tail: String,
}

/// The expected outcome of an event.
#[derive(Debug)]
pub(crate) struct Expectation {
    text: String,
    pub(crate) line: usize,
    pub(crate) members: Map<String, Value>,
}

impl Script {
    /// Parses a file.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ProjectError> {
        let mut script = Self { path: path.to_owned(), head: String::new(), steps: Vec::new() };
        for (line, text) in (1..).zip(text.lines()) {
            if let Err(message) = script.add_line(line, text) {
                return Err(ProjectError::Script { path: path.to_owned(), line, message });
            }
        }
        Ok(script)
    }

    fn add_line(&mut self, line: usize, text: &str) -> Result<(), String> {
        let last = self.steps.last_mut();
        if text.trim().is_empty() {
            let blank = last.map_or(&mut self.head, |step| &mut step.tail);
            *blank += &format!("{text}\n");
            return Ok(());
        }
        let Some(members) = expectation(text)? else {
            let (event, tail) = (text.to_owned(), String::new());
            self.steps.push(Step { event, line, expected: None, tail });
            return Ok(());
        };
        let step =
            last.ok_or("an expectation follows an event, but the file has no event before it")?;
        if let Some(earlier) = &step.expected {
            return Err(format!(
                "the event in line {} already has the expectation in line {}: write one expectation after an event",
                step.line, earlier.line
            ));
        }
        step.expected = Some(Expectation { text: text.to_owned(), line, members });
        Ok(())
    }

    /// Returns the events, one per line.
    pub(crate) fn events(&self) -> String {
        self.steps.iter().map(|step| format!("{}\n", step.event)).collect::<Vec<_>>().concat()
    }

    /// Returns the text of the file. Replaces or adds the expectation of each step for which `outcome` returns the
    /// actual outcome.
    pub(crate) fn updated(&self, outcome: impl Fn(usize) -> Option<Map<String, Value>>) -> String {
        let mut text = self.head.clone();
        for (index, step) in self.steps.iter().enumerate() {
            text += &format!("{}\n", step.event);
            match (outcome(index), &step.expected) {
                (Some(actual), _) => text += &format!("{}\n", json!({ EXPECT: shortened(actual) })),
                (None, Some(expected)) => text += &format!("{}\n", expected.text),
                (None, None) => {}
            }
            text += &step.tail;
        }
        text
    }
}

/// Keeps the first line of each reason, because the other lines describe places in the code.
fn shortened(mut outcome: Map<String, Value>) -> Map<String, Value> {
    for name in REASONS {
        if let Some(Value::String(reason)) = outcome.get_mut(name) {
            reason.truncate(reason.find('\n').unwrap_or(reason.len()));
        }
    }
    outcome
}

/// Returns the members of an expectation; `None` if the line is an event, or not JSON.
fn expectation(text: &str) -> Result<Option<Map<String, Value>>, String> {
    let Ok(Value::Object(mut line)) = serde_json::from_str(text) else { return Ok(None) };
    let Some(expected) = line.remove(EXPECT).filter(|_| line.is_empty()) else { return Ok(None) };
    let known = || format!("{}, {}", EFFECTS.join(", "), REASONS.join(", "));
    let Value::Object(members) = expected else {
        return Err(format!("`expect` must be an object with some of these members: {}", known()));
    };
    if let Some(name) = members
        .keys()
        .find(|name| !EFFECTS.contains(&name.as_str()) && !REASONS.contains(&name.as_str()))
    {
        return Err(format!("unknown member `{name}` of `expect`; known are {}", known()));
    }
    let reason = REASONS.into_iter().find(|name| members.contains_key(*name));
    match reason {
        Some(name) if members.len() > 1 => {
            Err(format!("an expectation with `{name}` has no other member"))
        }
        Some(name) if !members[name].is_string() => {
            Err(format!("`{name}` must be a text: a part of the reason, or \"\" for any reason"))
        }
        None if members.is_empty() => Err(format!("`expect` has no member; known are {}", known())),
        _ if members.get("messages").is_some_and(|messages| !messages.is_array()) => {
            Err("`messages` must be an array of objects".to_owned())
        }
        _ => Ok(Some(members)),
    }
}

/// Compares an outcome with an expectation. Returns `None` if the outcome meets the expectation. Otherwise returns the
/// part of the outcome that the expectation describes.
pub(crate) fn compare(expected: &Map<String, Value>, actual: &Map<String, Value>) -> Option<Value> {
    let is_met = expected.iter().all(|(name, value)| match name.as_str() {
        "complete" => {
            actual.contains_key("messages")
                && actual.get(name).unwrap_or(&Value::Bool(false)) == value
        }
        "messages" => is_part(value, actual.get(name)),
        name if REASONS.contains(&name) => {
            let reason = actual.get(name).and_then(Value::as_str);
            reason.is_some_and(|reason| reason.contains(value.as_str().unwrap_or_default()))
        }
        _ => actual.get(name) == Some(value),
    });
    if is_met {
        return None;
    }
    let has_effect =
        |outcome: &Map<String, Value>| EFFECTS.iter().any(|name| outcome.contains_key(*name));
    if !has_effect(expected) || !has_effect(actual) {
        return Some(actual.clone().into());
    }
    let mut shown = Map::new();
    for (name, value) in actual {
        let is_state =
            name.starts_with("state") && expected.keys().any(|name| name.starts_with("state"));
        if is_state {
            shown.insert(name.clone(), value.clone());
        } else if let Some(expected) = expected.get(name) {
            shown.insert(name.clone(), part(expected, value));
        }
    }
    Some(shown.into())
}

/// Returns whether each array has the expected length, and each object the expected members with equal values. The data
/// of a message must be equal.
fn is_part(expected: &Value, actual: Option<&Value>) -> bool {
    match (expected, actual) {
        (Value::Array(expected), Some(Value::Array(actual))) => {
            let is_message = |(expected, actual): (&Value, &Value)| match (expected, actual) {
                (Value::Object(expected), Value::Object(actual)) => {
                    expected.iter().all(|(name, value)| actual.get(name) == Some(value))
                }
                _ => false,
            };
            expected.len() == actual.len() && expected.iter().zip(actual).all(is_message)
        }
        _ => false,
    }
}

/// Returns the members of `actual` that `expected` has. All elements of an array remain.
fn part(expected: &Value, actual: &Value) -> Value {
    match (expected, actual) {
        (Value::Array(expected), Value::Array(actual)) => {
            let element = |(index, actual): (usize, &Value)| match (expected.get(index), actual) {
                (Some(Value::Object(expected)), Value::Object(actual)) => {
                    let members = actual.iter().filter(|(name, _)| expected.contains_key(*name));
                    members.map(|(name, value)| (name.clone(), value.clone())).collect()
                }
                _ => actual.clone(),
            };
            actual.iter().enumerate().map(element).collect()
        }
        _ => actual.clone(),
    }
}

#[cfg(test)]
mod tests;
