//! Prints outcomes to standard output: as text for people, or as one JSON object per line.

use std::io::{self, IsTerminal, Write};

use ordain_core::Message;
use ordain_util::text::{escape_invisible, escape_invisible_lines};
use serde_json::Value;

use crate::diff::{DiffLine, diff};
use crate::record::{EventRecord, RecordedOutcome, message_json};

/// Number of equal lines before and after a different line that a diff shows.
const CONTEXT_LINES: usize = 3;

/// The form of the output.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    is_json: bool,
    has_colour: bool,
}

/// A colour of the output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Bold,
    Dim,
}

impl Printer {
    /// Creates a printer. Text has colours only on a terminal, and only without the environment variable `NO_COLOR`.
    pub fn new(is_json: bool) -> Self {
        let has_colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { is_json, has_colour: has_colour && !is_json }
    }

    /// Returns whether the output is JSON.
    pub(crate) fn is_json(self) -> bool {
        self.is_json
    }

    /// Returns text in a colour, with escapes in place of invisible characters.
    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        let text = escape_invisible_lines(text);
        if !self.has_colour {
            return text.into_owned();
        }
        let code = match colour {
            Colour::Red => 31,
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Bold => 1,
            Colour::Dim => 2,
        };
        let lines = text.split('\n').map(|line| match line {
            "" => String::new(),
            line => format!("\u{1b}[{code}m{line}\u{1b}[0m"),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Writes a painted text.
    #[allow(clippy::unused_self, reason = "only a printer may write to standard output")]
    pub(crate) fn text(self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Writes a JSON object on one line.
    pub(crate) fn json(self, value: &Value) -> io::Result<()> {
        self.text(&format!("{}\n", escape_invisible(&value.to_string())))
    }

    /// Prints an execution.
    pub(crate) fn record(self, record: &EventRecord) -> io::Result<()> {
        if self.is_json {
            return self.json(&record.json());
        }
        let event = &record.event;
        let key = escape_invisible(event.key());
        let place = format!("{}/{key} {}", record.stream, record.sequence);
        let mut text =
            format!("{}  {}", self.paint(Colour::Bold, &place), escape_invisible(event.kind()));
        if record.attempt > 1 {
            text += &format!("  (attempt {})", record.attempt);
        }
        text.push('\n');
        // Most languages write an uncaught error to standard error, and the description of the fault contains it.
        let fault = match &record.outcome {
            RecordedOutcome::Failed(failure) if record.is_fault() => &*failure.message,
            _ => "",
        };
        let is_new = |text: &str| fault.is_empty() || !fault.contains(text.trim());
        for line in record.log.iter().filter(|line| is_new(&line.text)) {
            let line = format!("{:<5} {}", line.level, line.text);
            text += &indented(&self.paint(Colour::Dim, &line));
        }
        text += &indented(&self.outcome(record));
        self.text(&text)
    }

    fn outcome(self, record: &EventRecord) -> String {
        match &record.outcome {
            RecordedOutcome::Applied { after, messages, complete } => {
                let before = record.before.as_deref().map(pretty).unwrap_or_default();
                let mut text = match after.as_deref().map(pretty) {
                    None if record.before.is_none() => "no state\n".to_owned(),
                    None => self.diff(&before, "") + "the state is deleted\n",
                    Some(after) if after == before => "the state stays the same\n".to_owned(),
                    Some(after) => self.diff(&before, &after),
                };
                for message in messages {
                    text += &self.paint(Colour::Yellow, &message_line(message));
                }
                if *complete {
                    text += "the key ends\n";
                }
                text
            }
            RecordedOutcome::Rejected(reason) => {
                self.paint(Colour::Yellow, &format!("rejected: {reason}\n"))
            }
            RecordedOutcome::Failed(failure) if record.is_fault() => {
                let kind = format!("{:?}", failure.kind).to_lowercase();
                self.paint(Colour::Red, &format!("fault ({kind}): {}\n", failure.message))
            }
            RecordedOutcome::Failed(failure) => {
                let after = failure.after_ms.map(|ms| format!(" after {ms} ms"));
                let after = after.unwrap_or_default();
                self.paint(Colour::Yellow, &format!("retry{after}: {}\n", failure.message))
            }
        }
    }

    /// Returns the different lines of two texts, with the lines around them.
    pub(crate) fn diff(self, before: &str, after: &str) -> String {
        let lines = diff(before, after);
        let is_near = |index: usize| {
            let first = index.saturating_sub(CONTEXT_LINES);
            let last = (index + CONTEXT_LINES + 1).min(lines.len());
            lines[first..last].iter().any(|line| !matches!(line, DiffLine::Same(_)))
        };
        let mut text = String::new();
        let mut is_cut = false;
        for (index, line) in lines.iter().enumerate() {
            if !is_near(index) {
                if !std::mem::replace(&mut is_cut, true) {
                    text += "  …\n";
                }
                continue;
            }
            is_cut = false;
            text += &match line {
                DiffLine::Same(line) => format!("  {}\n", escape_invisible(line)),
                DiffLine::Removed(line) => self.paint(Colour::Red, &format!("- {line}")) + "\n",
                DiffLine::Added(line) => self.paint(Colour::Green, &format!("+ {line}")) + "\n",
            };
        }
        text
    }
}

/// Returns a line with the sink, the type and the data of a message, and with its other members if it has some.
fn message_line(message: &Message) -> String {
    let mut members = message_json(message);
    if let Some(members) = members.as_object_mut() {
        members.retain(|name, _| name != "sink" && name != "type");
    }
    let shown = match members.as_object() {
        Some(members) if members.is_empty() => String::new(),
        Some(members) if members.len() == 1 && members.contains_key("data") => {
            format!("  {}", members["data"])
        }
        _ => format!("  {members}"),
    };
    format!("-> {}  {}{shown}\n", message.sink(), message.kind())
}

/// Returns a state as text: JSON in several lines, other text unchanged, and other bytes as their number.
fn pretty(state: &[u8]) -> String {
    if let Ok(value) = serde_json::from_slice::<Value>(state) {
        return format!("{value:#}");
    }
    match std::str::from_utf8(state) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            format!("{} bytes, the first: {:02x?}", state.len(), &state[..state.len().min(32)])
        }
    }
}

/// Indents each line by two spaces.
pub(crate) fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect::<Vec<_>>().concat()
}
