//! `ordain keys why`: explains the status of a key, the reason for the status, and the remedy. The remedy must follow
//! from the cause and the exceeded limit, never from the text of an error.

use ordain_core::{Cause, GapEnd, HandlerLimit, KeyStatus, split_version};

use super::super::inspect::InspectTarget;
use crate::cli::CommandError;
use ordain_http::view::{AheadRow, FailureRow, GapRow, KeyRow, LetterRow};
use ordain_store::ListPage;
use ordain_util::command::PrintedCommand;
use ordain_util::text::{escape_invisible, pluralized};

/// Maximum number of dead letters in a page. The command counts the dead letters of a key in one page, so it counts at
/// most this number.
const LETTER_COUNT_LIMIT: usize = 500;

/// Maximum number of pages of dead letters in which the command searches for unreadable events, or for the first page
/// with rows.
const LETTER_PAGES_LIMIT: usize = 20;

/// Returns a text that explains the record of a key.
pub(super) async fn explain(
    row: &KeyRow,
    target: &InspectTarget,
    stream: &str,
    name: &str,
) -> Result<String, CommandError> {
    let key = escape_invisible(name);
    if let Some(error) = &row.error {
        return Ok(format!(
            "key {key}: the record of the key cannot be read: {error}\nThe events of the key become dead letters with \
             the cause `corrupt`.\nremedy: repair or restore the record, and start Ordain again. Then send the events \
             of the dead letters again\n"
        ));
    }
    let mut words = format!("key {key}: {}\n", status_text(row));
    let running = target.running_stream(stream)?.unwrap_or_default();
    if let Some(missing) = &running.missing {
        words += &format!(
            "in the running process, all keys of the stream wait for a handler version: {missing}\n"
        );
    }
    if let Some(reason) = &running.reason {
        words += &format!(
            "in the running process, a partition of the stream receives no events: {reason}\n"
        );
    }
    if let Some(failure) = &row.trouble {
        words += &reason_text(failure);
    }
    words += &held_text(row);
    words += &ahead_text(row);
    words += &unreadable_text(target, stream, name, row).await?;
    words += &requests_text(row);
    if let Some(at) = &row.due_at {
        words += &format!("next check: {at}\n");
    }
    if let Some(letters) = letters_text(target, stream, name).await? {
        words += &format!("{letters}\n");
    }
    let is_full = target.pausing_spill_limit(stream)?.is_some_and(|limit| row.held.count >= limit);
    if let Some(helps) = remedy(row, target.retries_on_new_version(stream)?, is_full) {
        words += &format!("remedy: {helps}\n");
    }
    Ok(words)
}

/// Returns a text with the number of dead letters of a key and the command that lists these letters; `None` if the key
/// has no dead letters. The text adds "or more" if the key may have more letters than one page contains.
pub(super) async fn letters_text(
    target: &InspectTarget,
    stream: &str,
    name: &str,
) -> Result<Option<String>, CommandError> {
    let mut cursor: Option<String> = None;
    for _ in 0..LETTER_PAGES_LIMIT {
        let page: ListPage<LetterRow> =
            target.letters(stream, Some(name), cursor.as_deref(), LETTER_COUNT_LIMIT).await?;
        if !page.rows.is_empty() {
            let more = if page.cursor.is_some() { " or more" } else { "" };
            return Ok(Some(format!(
                "dead letters: {}{more}; see {}",
                page.rows.len(),
                PrintedCommand::new("dead list")
                    .argument(stream)
                    .option("key", name)
                    .with_place(&target.option())
            )));
        }
        // A page of expired letters has no rows.
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(None)
}

/// Returns the cause of a key's failure; `None` if the key has no failure, or if this version of Ordain has no such
/// cause.
fn cause(row: &KeyRow) -> Option<Cause> {
    row.trouble.as_ref().and_then(FailureRow::cause)
}

fn status_text(row: &KeyRow) -> String {
    let KeyRow { next, attempts, .. } = row;
    match row.status() {
        Some(KeyStatus::Active) => {
            format!("active: all events before event {next} are settled")
        }
        Some(KeyStatus::Waiting) => format!("waiting for {}", missing_events(row)),
        Some(KeyStatus::Retrying) => {
            let times = pluralized(u64::from(*attempts), "time");
            format!("event {next} failed {times} and will be retried")
        }
        // The stream's setting `retry.attempts` limits the attempts only for the causes `Retry` and `Timeout`.
        Some(KeyStatus::Parked) if matches!(cause(row), Some(Cause::Retry | Cause::Timeout)) => {
            format!(
                "parked at event {next} after attempt {attempts}, the last that `retry.attempts` allows"
            )
        }
        Some(KeyStatus::Parked) => format!("parked at event {next}"),
        Some(KeyStatus::Completed) => format!("completed with event {}", next.saturating_sub(1)),
        None => row.status.to_string(),
    }
}

/// Returns the reason of a failure. The lines after the first line of the reason, such as a stack, are indented.
fn reason_text(failure: &FailureRow) -> String {
    let FailureRow { cause, error, since, .. } = failure;
    let version = failure.version.as_ref().map(|version| format!(", under {version}"));
    let mut lines = error.raw().split('\n').map(escape_invisible);
    let first = lines.next().unwrap_or_default();
    let mut text =
        format!("reason: {first} ({cause}), since {since}{}\n", version.unwrap_or_default());
    for line in lines {
        text += &format!("    {line}\n");
    }
    text
}

/// Returns a text that names the missing events for which the key waits: the events from `next` up to the event before
/// the first later event that has arrived. If no later event has arrived, names only event `next`.
fn missing_events(row: &KeyRow) -> String {
    events(row.next, next_arrived(row).unwrap_or(row.next).saturating_sub(1))
}

/// Returns the lowest sequence after `next` among three sequences in the record. The first is the lower bound of the
/// events that the store holds. The other two are the lower and the upper bound of the events that wait in dead letters
/// (`far-ahead`, `overflow`). All these events have arrived early. `None` if none of the three sequences is after
/// `next`.
fn next_arrived(row: &KeyRow) -> Option<u64> {
    let ahead = row.ahead.into_iter().flat_map(|range| [range.first, range.last]);
    ahead.chain([row.held.first]).filter(|sequence| *sequence > row.next).min()
}

fn events(first: u64, last: u64) -> String {
    if last > first { format!("events {first} to {last}") } else { format!("event {first}") }
}

fn held_text(row: &KeyRow) -> String {
    let held = row.held;
    match held.count {
        0 => String::new(),
        1 => format!("held in the store: event {}\n", held.first),
        count => {
            format!("held in the store: {count} events between {} and {}\n", held.first, held.last)
        }
    }
}

fn ahead_text(row: &KeyRow) -> String {
    let Some(AheadRow { first, last }) = row.ahead else { return String::new() };
    let range = if first == last {
        format!("event {first}, in a dead letter")
    } else {
        format!("events in the range from {first} to {last}, in dead letters")
    };
    format!("waiting until all earlier events are settled: {range}\n")
}

/// Returns a text about the events that arrived but could not be read, and whose sequence is `next` or higher. The text
/// names the dead letters of these events, because the key lacks the events and the letters contain them.
async fn unreadable_text(
    target: &InspectTarget,
    stream: &str,
    name: &str,
    row: &KeyRow,
) -> Result<String, CommandError> {
    let mut words = String::new();
    if matches!(row.status(), None | Some(KeyStatus::Completed)) {
        return Ok(words);
    }
    let mut cursor: Option<String> = None;
    for _ in 0..LETTER_PAGES_LIMIT {
        let page: ListPage<LetterRow> =
            target.letters(stream, Some(name), cursor.as_deref(), LETTER_COUNT_LIMIT).await?;
        for letter in &page.rows {
            let is_unreadable = Cause::parse(letter.cause.raw()) == Some(Cause::Unreadable);
            if let Some(sequence) =
                letter.sequence.filter(|sequence| is_unreadable && *sequence >= row.next)
            {
                let command = PrintedCommand::new("dead show")
                    .argument(stream)
                    .argument(letter.id.raw())
                    .option("key", name)
                    .with_place(&target.option());
                words += &format!(
                    "event {sequence} arrived, but cannot be read: {}; see {command}\n",
                    letter.error
                );
            }
        }
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(words)
}

/// Returns a text about the requests to each replay source for the missing events of an open gap. The text is empty if
/// no gap is open.
fn requests_text(row: &KeyRow) -> String {
    let gap = row.gaps.as_ref().and_then(|gaps| gaps.last());
    let Some(gap) = gap.filter(|gap| gap.end().is_some_and(GapEnd::is_open)) else {
        return String::new();
    };
    let GapRow { first, last, since, .. } = gap;
    let is_asked = gap.end() == Some(GapEnd::Open);
    let given_up = if is_asked { "" } else { "; Ordain sends no more requests" };
    let rounds = pluralized(u64::from(gap.rounds), "round");
    let events = events(*first, *last);
    let mut words =
        format!("requested: {events}, in {rounds}; the gap was found at {since}{given_up}\n");
    for answers in &gap.answers {
        let source = &answers.source;
        let requested = pluralized(u64::from(answers.asked), "time");
        let found = pluralized(u64::from(answers.found), "event");
        let failed = pluralized(u64::from(answers.failed), "time");
        words += &format!("  {source}: requested {requested}, found {found}, failed {failed}");
        if let Some(error) = &answers.error {
            words += &format!(", last error: {error}");
        }
        words.push('\n');
    }
    words
}

/// Returns the remedy for a key that has stopped. `is_full` states whether the store holds as many events of the key as
/// the stream allows. If so, a missing event cannot arrive before an operator raises the limit, because the partition
/// of the key accepts no more events.
fn remedy(row: &KeyRow, tries_again: bool, is_full: bool) -> Option<String> {
    let room = if is_full {
        "raise `spill_limit`, or set `overflow = \"dead-letter\"`, and start Ordain again, because the partition of \
         the key accepts no more events; then "
    } else {
        ""
    };
    let again = format!(
        "{room}send {} again from the producer, at any time; the gap closes when no event is missing",
        missing_events(row)
    );
    match row.status()? {
        KeyStatus::Waiting => return Some(again),
        KeyStatus::Parked if cause(row) == Some(Cause::Gap) => return Some(again),
        KeyStatus::Parked => {}
        KeyStatus::Active | KeyStatus::Retrying | KeyStatus::Completed => return None,
    }
    let failure = row.trouble.as_ref()?;
    let mend = handler_remedy(failure.cause(), failure.limit());
    let switch = if tries_again { "" } else { ", set `retry.on_new_version` to true" };
    // If a handler exceeded a limit, `mend` names two remedies: a restart with a changed setting, or "fix the handler".
    // Only the second remedy needs another version of the handler. The word " and" adds the other version to the second
    // remedy alone; the word "; then" would add it to both.
    let then = if failure.limit().is_some() { " and" } else { "; then" };
    let version = failure.version.as_ref().map_or("handler", |version| version.raw());
    let higher = higher_version_file(version);
    Some(format!(
        "{mend}{switch}{then} put another version of the handler into the folder of handlers: a changed file, or \
         the same file under a higher version, such as {}",
        escape_invisible(&higher)
    ))
}

/// Returns the remedy for a failure of a handler.
fn handler_remedy(cause: Option<Cause>, limit: Option<HandlerLimit>) -> String {
    let Some(limit) = limit else {
        let resource = "make the resource that the handler needs available, or fix the handler";
        return if cause == Some(Cause::Retry) { resource } else { "fix the handler" }.to_owned();
    };
    if limit == HandlerLimit::Sinks {
        return "configure the sink and restart, or fix its name in the handler".to_owned();
    }
    let settings = limit.settings().iter().map(|setting| format!("`{setting}`"));
    let settings: Vec<String> = settings.collect();
    format!("raise {} and restart, or fix the handler", settings.join(" or "))
}

/// Returns the name of a file with a higher version than `version`, the version that failed.
fn higher_version_file(version: &str) -> String {
    let (name, version) = split_version(version);
    let next = version.map_or(semver::Version::new(1, 0, 0), |version| {
        let patch = version.patch + u64::from(version.pre.is_empty());
        semver::Version::new(version.major, version.minor, patch)
    });
    format!("{name}@{next}.wasm")
}

#[cfg(test)]
mod tests {
    use ordain_config::reference;
    use ordain_http::view::HeldRow;

    use super::*;

    fn parked(cause: Cause, limit: Option<HandlerLimit>, version: &str) -> String {
        let failure = FailureRow {
            cause: cause.name().into(),
            // The remedy must not depend on the setting named in this text.
            error: "`plugins.memory`, which is not configured".into(),
            limit: limit.map(|limit| limit.name().into()),
            since: "".into(),
            version: Some(version.into()),
        };
        let row = KeyRow {
            status: "parked".into(),
            next: 1,
            trouble: Some(failure),
            ..KeyRow::default()
        };
        remedy(&row, true, false).unwrap_or_default()
    }

    #[test]
    fn stack_of_a_reason_is_printed_in_lines() {
        let failure = FailureRow {
            cause: "error".into(),
            error: "Error: no such order\n at inner (handler.ts:45)\u{1b}".into(),
            limit: None,
            since: "2026-01-01T00:00:00Z".into(),
            version: None,
        };
        assert_eq!(
            reason_text(&failure),
            "reason: Error: no such order (error), since 2026-01-01T00:00:00Z\n     at inner (handler.ts:45)\\u001b\n"
        );
    }

    #[test]
    fn remedy_follows_from_the_cause() {
        for (cause, limit, remedy) in [
            (Cause::Gap, None, "send event 1 again from the producer"),
            (Cause::Limit, Some(HandlerLimit::Messages), "raise `plugins.messages` and restart"),
            (
                Cause::Limit,
                Some(HandlerLimit::OutcomeSize),
                "raise `plugins.state_size` or `plugins.messages_size` and restart",
            ),
            (Cause::Limit, Some(HandlerLimit::Sinks), "configure the sink and restart, or"),
            (Cause::Limit, None, "fix the handler; then put"),
            (Cause::Timeout, Some(HandlerLimit::Timeout), "raise `plugins.timeout` and restart"),
            (
                Cause::Retry,
                None,
                "make the resource that the handler needs available, or fix the handler; then",
            ),
            (Cause::Trap, None, "fix the handler; then put"),
        ] {
            let helps = parked(cause, limit, "account@1.0.0");
            assert!(helps.starts_with(remedy), "{cause}: {helps}");
        }
    }

    #[test]
    fn every_setting_of_a_limit_exists() {
        let tables = reference().iter();
        let names = tables.flat_map(|table| {
            table.rows.iter().map(|setting| format!("{}.{}", table.name, setting.name))
        });
        let names: Vec<String> = names.collect();
        for setting in HandlerLimit::ALL.into_iter().flat_map(HandlerLimit::settings) {
            assert!(names.iter().any(|name| name == setting), "{setting}");
        }
    }

    #[test]
    fn all_missing_events_are_named() {
        let ahead = |first, last| Some(AheadRow { first, last });
        for (next, first, ahead, missing) in [
            (1, 2, None, "event 1"),
            (1, 5_000, None, "events 1 to 4999"),
            (7, 0, None, "event 7"),
            (7, 0, ahead(9, 12), "events 7 to 8"),
            (7, 11, ahead(3, 9), "events 7 to 8"),
            (7, 0, ahead(3, 7), "event 7"),
        ] {
            for status in ["waiting", "parked"] {
                let failure =
                    FailureRow { cause: Cause::Gap.name().into(), ..FailureRow::default() };
                let row = KeyRow {
                    status: status.into(),
                    next,
                    held: HeldRow { first, ..HeldRow::default() },
                    ahead,
                    trouble: Some(failure),
                    ..KeyRow::default()
                };
                let helps = remedy(&row, true, false).unwrap_or_default();
                let send = format!("send {missing} again from the producer");
                assert!(helps.starts_with(&send), "{helps}");
                let helps = remedy(&row, true, true).unwrap_or_default();
                assert!(helps.starts_with("raise `spill_limit`, or "), "{helps}");
                assert!(helps.contains(&format!("; then {send}")), "{helps}");
            }
        }
    }

    #[test]
    fn suggested_version_is_higher() {
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
