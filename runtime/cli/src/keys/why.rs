//! `ordain keys why`: where a key stands, why, and what helps. What helps depends on the cause and on the
//! limit that was broken, never on the words of an error.

use ordain_core::{Cause, GapEnd, Limit, Status, split_version};

use super::super::look::Look;
use crate::cli::Failure;
use ordain_http::view::{GapRow, KeyRow, LetterRow, TroubleRow};
use ordain_store::Page;
use ordain_util::text::{clean, count, quoted};

/// Dead letters of a key that are counted.
const LETTERS: usize = 500;

/// Explains a key's record.
pub(super) async fn explain(
    row: &KeyRow,
    look: &Look,
    stream: &str,
    name: &str,
) -> Result<String, Failure> {
    let key = clean(name);
    if let Some(error) = &row.error {
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
    if let Some(trouble) = &row.trouble {
        words += &why(trouble);
    }
    words += &held(row);
    words += &looked_for(row);
    if let Some(at) = &row.due_at {
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

/// Counts the dead letters of a key and names the command that lists them; `None` if it has none.
pub(super) async fn letters(
    look: &Look,
    stream: &str,
    name: &str,
) -> Result<Option<String>, Failure> {
    let letters: Page<LetterRow> = look.letters(stream, Some(name), None, LETTERS).await?;
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

/// The cause of a key's trouble.
fn cause(row: &KeyRow) -> Option<Cause> {
    row.trouble.as_ref().and_then(TroubleRow::cause)
}

fn standing(row: &KeyRow) -> String {
    let KeyRow { next, attempts, .. } = row;
    match row.status() {
        Some(Status::Active) => {
            format!("everything before event {next} is settled; nothing is wrong with it")
        }
        Some(Status::Waiting) => format!("waits for {}", missing(row)),
        Some(Status::Retrying) => {
            let times = count(u64::from(*attempts), "time");
            format!("event {next} failed {times} and is tried again")
        }
        // An event that failed so is tried as often as the stream's setting says.
        Some(Status::Parked) if matches!(cause(row), Some(Cause::Retry | Cause::Timeout)) => {
            format!(
                "parked at event {next} after try {attempts}, the last that `retry.attempts` allows"
            )
        }
        Some(Status::Parked) => format!("parked at event {next}"),
        Some(Status::Completed) => format!("ended with event {}", next.saturating_sub(1)),
        None => row.status.to_string(),
    }
}

fn why(trouble: &TroubleRow) -> String {
    let TroubleRow { cause, error, since, .. } = trouble;
    let version = trouble.version.as_ref().map(|version| format!(", under {version}"));
    format!("why: {error} ({cause}), since {since}{}\n", version.unwrap_or_default())
}

/// The events that the key waits for: those before the first that is held.
fn missing(row: &KeyRow) -> String {
    events(row.next, row.held.first.saturating_sub(1))
}

fn events(first: u64, last: u64) -> String {
    if last > first { format!("events {first} to {last}") } else { format!("event {first}") }
}

fn held(row: &KeyRow) -> String {
    let held = row.held;
    match held.count {
        0 => String::new(),
        1 => format!("held in the store: event {}\n", held.first),
        count => {
            format!("held in the store: {count} events between {} and {}\n", held.first, held.last)
        }
    }
}

/// The sources that were asked for missing events, as long as they are missing.
fn looked_for(row: &KeyRow) -> String {
    let gap = row.gaps.as_ref().and_then(|gaps| gaps.last());
    let Some(gap) = gap.filter(|gap| gap.end().is_some_and(GapEnd::is_open)) else {
        return String::new();
    };
    let GapRow { first, last, since, .. } = gap;
    let is_asked = gap.end() == Some(GapEnd::Open);
    let given_up = if is_asked { "" } else { "; nobody is asked any more" };
    let rounds = count(u64::from(gap.rounds), "round");
    let events = events(*first, *last);
    let mut words = format!("looked for: {events}, in {rounds} since {since}{given_up}\n");
    for answers in &gap.answers {
        let asked = count(u64::from(answers.asked), "time");
        let (source, found, failed) = (&answers.source, answers.found, answers.failed);
        words += &format!("  {source}: asked {asked}, found {found}, failed {failed}");
        if let Some(error) = &answers.error {
            words += &format!(", the last time: {error}");
        }
        words.push('\n');
    }
    words
}

fn what_helps(row: &KeyRow, tries_again: bool) -> Option<String> {
    let again = format!("its producer sends {} again, which ends this at any time", missing(row));
    match row.status()? {
        Status::Waiting => return Some(again),
        Status::Parked if cause(row) == Some(Cause::Gap) => return Some(again),
        Status::Parked => {}
        Status::Active | Status::Retrying | Status::Completed => return None,
    }
    let trouble = row.trouble.as_ref()?;
    let mend = mend(trouble.cause(), trouble.limit());
    let switch = if tries_again { "" } else { ", switch `retry.on_new_version` on" };
    let version = trouble.version.as_ref().map_or("handler", |version| version.raw());
    let higher = higher(version);
    Some(format!(
        "{mend}{switch}; then put another version of the handler into its folder: a changed file, or \
         the same one under a higher version, such as {}",
        clean(&higher)
    ))
}

/// The remedy for a failure of a handler.
fn mend(cause: Option<Cause>, limit: Option<Limit>) -> String {
    if cause == Some(Cause::Retry) {
        return "see to it that what the handler asks for is there, or mend it".to_owned();
    }
    if limit == Some(Limit::Sinks) {
        return "configure the sink, or mend its name in the handler".to_owned();
    }
    let settings = limit.map_or(&[][..], Limit::settings);
    if settings.is_empty() {
        return "mend the handler".to_owned();
    }
    let settings: Vec<String> = settings.iter().map(|setting| format!("`{setting}`")).collect();
    format!("raise {} and start again, or mend the handler", settings.join(" or "))
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
    use ordain_config::reference;
    use ordain_http::view::HeldRow;

    use super::*;

    fn parked(cause: Cause, limit: Option<Limit>, version: &str) -> String {
        let trouble = TroubleRow {
            cause: cause.name().into(),
            // The name of a setting in these words is no reason to raise it.
            error: "`plugins.log`, which is not configured".into(),
            limit: limit.map(|limit| limit.name().into()),
            since: "".into(),
            version: Some(version.into()),
        };
        let row = KeyRow {
            status: "parked".into(),
            next: 1,
            trouble: Some(trouble),
            ..KeyRow::default()
        };
        what_helps(&row, true).unwrap_or_default()
    }

    #[test]
    fn the_remedy_fits_the_cause() {
        for (cause, limit, remedy) in [
            (Cause::Gap, None, "its producer sends event 1 again"),
            (Cause::Limit, Some(Limit::Messages), "raise `plugins.messages` and start"),
            (
                Cause::Limit,
                Some(Limit::OutcomeSize),
                "raise `plugins.state_size` or `plugins.messages_size` and start",
            ),
            (Cause::Limit, Some(Limit::Sinks), "configure the sink, or"),
            (Cause::Limit, None, "mend the handler; then put"),
            (Cause::Timeout, Some(Limit::Timeout), "raise `plugins.timeout` and start"),
            (Cause::Retry, None, "see to it that what the handler asks for is there"),
            (Cause::Trap, None, "mend the handler; then put"),
        ] {
            let helps = parked(cause, limit, "account@1.0.0");
            assert!(helps.starts_with(remedy), "{cause}: {helps}");
        }
    }

    #[test]
    fn every_setting_that_lifts_a_limit_exists() {
        let tables = reference().iter();
        let names = tables.flat_map(|table| {
            table.rows.iter().map(|setting| format!("{}.{}", table.name, setting.name))
        });
        let names: Vec<String> = names.collect();
        for setting in Limit::ALL.into_iter().flat_map(Limit::settings) {
            assert!(names.iter().any(|name| name == setting), "{setting}");
        }
    }

    #[test]
    fn all_that_is_missing_is_named() {
        for (next, first, missing) in
            [(1, 2, "event 1"), (1, 5_000, "events 1 to 4999"), (7, 0, "event 7")]
        {
            for status in ["waiting", "parked"] {
                let trouble =
                    TroubleRow { cause: Cause::Gap.name().into(), ..TroubleRow::default() };
                let row = KeyRow {
                    status: status.into(),
                    next,
                    held: HeldRow { first, ..HeldRow::default() },
                    trouble: Some(trouble),
                    ..KeyRow::default()
                };
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
            let helps = parked(Cause::Error, None, version);
            assert!(helps.ends_with(&format!("such as {next}")), "{helps}");
        }
    }
}
