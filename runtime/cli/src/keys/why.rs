//! `ordain keys why`: where a key stands, why, and what helps. What helps depends on the cause.

use ordain_core::Cause;
use serde_json::Value;

use super::super::look::Look;
use crate::cli::Failure;
use ordain_config::reference;
use ordain_core::split_version;
use ordain_util::text::{clean, count, quoted};

/// Dead letters of a key that are counted.
const LETTERS: usize = 500;

/// What the error of a message to an unknown sink says.
const UNKNOWN_SINK: &str = "which is not configured";

/// Explains a key's record, whose texts are clean.
pub(super) async fn explain(
    row: &Value,
    look: &Look,
    stream: &str,
    name: &str,
) -> Result<String, Failure> {
    let key = clean(name);
    if let Some(error) = row["error"].as_str() {
        return Ok(format!(
            "key {key}: its record cannot be read: {error}\nIts events are dead-lettered with the \
             cause `corrupt`.\n"
        ));
    }
    let mut words = format!("key {key}: {}\n", standing(row));
    if let Some(missing) = look.missing(stream)? {
        words +=
            &format!("all keys of the stream wait here for their handler's version: {missing}\n");
    }
    let trouble = &row["trouble"];
    if !trouble.is_null() {
        words += &format!("why: {} ({})", text(trouble, "error"), text(trouble, "cause"));
        words += &format!(", since {}", text(trouble, "since"));
        if let Some(version) = trouble["version"].as_str() {
            words += &format!(", under {version}");
        }
        words.push('\n');
    }
    words += &held(row);
    words += &looked_for(row);
    if let Some(at) = row["due_at"].as_str() {
        words += &format!("looked at again: {at}\n");
    }
    if let Some(letters) = letters(look, stream, name).await? {
        words += &format!("{letters}\n");
    }
    if let Some(helps) = what_helps(row, look.tries_again(stream)?) {
        words += &format!("what helps: {helps}\n");
    }
    Ok(words)
}

/// How many dead letters a key has, and how to see them; `None` if it has none.
pub(super) async fn letters(
    look: &Look,
    stream: &str,
    name: &str,
) -> Result<Option<String>, Failure> {
    let letters = look.letters(stream, Some(name), None, LETTERS).await?;
    if letters.rows.is_empty() {
        return Ok(None);
    }
    let more = if letters.cursor.is_some() { " or more" } else { "" };
    Ok(Some(format!(
        "dead letters: {}{more}; see `ordain dead list {stream} --key {}{}`",
        letters.rows.len(),
        quoted(name),
        look.option()
    )))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

/// Why it stands still.
fn cause(row: &Value) -> Option<Cause> {
    let name = row["trouble"]["cause"].as_str()?;
    Cause::ALL.into_iter().find(|cause| cause.name() == name)
}

fn standing(row: &Value) -> String {
    let (next, attempts) = (number(row, "next"), number(row, "attempts"));
    match text(row, "status") {
        "active" => format!("everything before event {next} is settled; nothing is wrong with it"),
        "waiting" => format!("waits for {}", missing(row)),
        "retrying" => {
            let times = count(attempts, "time");
            format!("event {next} failed {times} and is tried again")
        }
        // An event that failed so is tried as often as the stream's setting says.
        "parked" if matches!(cause(row), Some(Cause::Retry | Cause::Timeout)) => {
            format!(
                "parked at event {next} after try {attempts}, the last that `retry.attempts` allows"
            )
        }
        "parked" => format!("parked at event {next}"),
        "completed" => format!("ended with event {}", next.saturating_sub(1)),
        other => other.to_owned(),
    }
}

/// What keeps it from going on: the events before the first that is held.
fn missing(row: &Value) -> String {
    let (next, held) = (number(row, "next"), number(&row["held"], "first"));
    let last = held.saturating_sub(1);
    if last > next { format!("events {next} to {last}") } else { format!("event {next}") }
}

fn held(row: &Value) -> String {
    let held = &row["held"];
    let (first, last) = (number(held, "first"), number(held, "last"));
    match number(held, "count") {
        0 => String::new(),
        1 => format!("held in the store: event {first}\n"),
        count => format!("held in the store: {count} events between {first} and {last}\n"),
    }
}

/// Who was asked for what is missing, as long as it is.
fn looked_for(row: &Value) -> String {
    let gap = row["gaps"].as_array().and_then(|gaps| gaps.last());
    let Some(gap) = gap.filter(|it| matches!(text(it, "end"), "open" | "waiting" | "parked"))
    else {
        return String::new();
    };
    let (first, last, rounds) = (number(gap, "first"), number(gap, "last"), number(gap, "rounds"));
    let events =
        if last > first { format!("events {first} to {last}") } else { format!("event {first}") };
    let given_up = if text(gap, "end") == "open" { "" } else { "; nobody is asked any more" };
    let (since, rounds) = (text(gap, "since"), count(rounds, "round"));
    let mut words = format!("looked for: {events}, in {rounds} since {since}{given_up}\n");
    for answers in gap["answers"].as_array().into_iter().flatten() {
        let [asked, found, failed] = ["asked", "found", "failed"].map(|it| number(answers, it));
        let source = text(answers, "source");
        words +=
            &format!("  {source}: asked {}, found {found}, failed {failed}", count(asked, "time"));
        if let Some(error) = answers["error"].as_str() {
            words += &format!(", the last time: {error}");
        }
        words.push('\n');
    }
    words
}

fn what_helps(row: &Value, tries_again: bool) -> Option<String> {
    let again = format!("its producer sends {} again, which ends this at any time", missing(row));
    let (trouble, cause) = (&row["trouble"], cause(row));
    match text(row, "status") {
        "waiting" => return Some(again),
        "parked" if cause == Some(Cause::Gap) => return Some(again),
        "parked" if !trouble.is_null() => {}
        _ => return None,
    }
    let error = text(trouble, "error");
    let mend = match cause {
        Some(Cause::Retry) => {
            "see to it that what the handler asks for is there, or mend it".to_owned()
        }
        _ if error.contains(UNKNOWN_SINK) => {
            "configure the sink, or mend its name in the handler".to_owned()
        }
        Some(Cause::Limit | Cause::Timeout) => {
            let settings = settings_in(error);
            if settings.is_empty() {
                "mend the handler".to_owned()
            } else {
                format!("raise {} and start again, or mend the handler", settings.join(" or "))
            }
        }
        _ => "mend the handler".to_owned(),
    };
    let switch = if tries_again { "" } else { ", switch `retry.on_new_version` on" };
    Some(format!(
        "{mend}{switch}; then put another version of the handler into its folder: a changed file, or \
         the same one under a higher version, such as {}",
        higher(trouble["version"].as_str().unwrap_or("handler"))
    ))
}

/// The settings that an error names: a limit tells which one it is.
fn settings_in(error: &str) -> Vec<String> {
    let tables = reference().iter().filter(|table| ["plugins", "runtime"].contains(&table.name));
    let settings = tables.flat_map(|table| {
        table.rows.iter().map(|setting| format!("`{}.{}`", table.name, setting.name))
    });
    settings.filter(|setting| error.contains(setting)).collect()
}

/// A file name with a higher version than the one that failed.
fn higher(version: &str) -> String {
    let (name, version) = split_version(version);
    let next = version.map_or(semver::Version::new(1, 0, 0), |it| {
        let patch = it.patch + u64::from(it.pre.is_empty());
        semver::Version::new(it.major, it.minor, patch)
    });
    format!("{name}@{next}.wasm")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parked(cause: Cause, error: &str, version: &str) -> String {
        let trouble = json!({ "cause": cause.name(), "error": error, "version": version });
        let row = json!({ "status": "parked", "next": 1, "trouble": trouble });
        what_helps(&row, true).unwrap_or_default()
    }

    #[test]
    fn the_remedy_fits_the_cause() {
        for (cause, error, remedy) in [
            (Cause::Gap, "event 1 never came", "its producer sends event 1 again"),
            (Cause::Limit, "`plugins.messages` allows 10", "raise `plugins.messages` and"),
            (Cause::Timeout, "which `plugins.timeout` allows", "raise `plugins.timeout` and"),
            (Cause::Limit, "to `x`, which is not configured; there are: none", "configure the"),
            (Cause::Retry, "no", "see to it that what the handler asks for is there"),
            (Cause::Trap, "trap: `plugins.memory`", "mend the handler; then put"),
        ] {
            let helps = parked(cause, error, "account@1.0.0");
            assert!(helps.starts_with(remedy), "{cause}: {helps}");
        }
    }

    #[test]
    fn all_that_is_missing_is_named() {
        for (next, first, missing) in
            [(1, 2, "event 1"), (1, 5_000, "events 1 to 4999"), (7, 0, "event 7")]
        {
            let trouble = json!({ "cause": Cause::Gap.name() });
            let held = json!({ "first": first });
            for status in ["waiting", "parked"] {
                let row =
                    json!({ "status": status, "next": next, "held": held, "trouble": trouble });
                let helps = what_helps(&row, true).unwrap_or_default();
                assert!(
                    helps.starts_with(&format!("its producer sends {missing} again")),
                    "{helps}"
                );
            }
        }
    }

    #[test]
    fn the_version_to_use_is_higher() {
        for (version, next) in [
            ("account@1.0.0", "account@1.0.1.wasm"),
            ("account@2.0.0-rc.1", "account@2.0.0.wasm"),
            ("account+0123456789ab", "account@1.0.0.wasm"),
        ] {
            let helps = parked(Cause::Error, "", version);
            assert!(helps.ends_with(&format!("such as {next}")), "{helps}");
        }
    }
}
