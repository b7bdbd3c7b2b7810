//! `ordain keys why`: where a key stands, why, and what helps. What helps depends on the cause.

use ordain_core::{Cause, Job, Status, Trouble};

use super::super::Failure;
use crate::config::{Loaded, reference};
use crate::store::{KeyRow, Store};
use crate::text::{clean, count, quoted};
use crate::view;

/// Dead letters of a key that are counted.
const LETTERS: usize = 500;

/// What the error of a message to an unknown sink says.
const UNKNOWN_SINK: &str = "which is not configured";

pub(super) async fn explain(
    row: &KeyRow,
    store: &dyn Store,
    stream: &str,
    loaded: &Loaded,
) -> Result<String, Failure> {
    let key = clean(&row.key);
    let job = match &row.job {
        Ok(job) => job,
        Err(error) => {
            return Ok(format!(
                "key {key}: its record cannot be read: {}\nIts events are dead-lettered with the \
                 cause `corrupt`.\n",
                clean(error)
            ));
        }
    };
    let mut text = format!("key {key}: {}\n", standing(job));
    if let Some(trouble) = &job.trouble {
        text += &format!("why: {} ({})", clean(&trouble.error), trouble.cause);
        text += &format!(", since {}", view::time(trouble.since));
        if let Some(version) = &trouble.version {
            text += &format!(", under {version}");
        }
        text.push('\n');
    }
    text += &held(job);
    if let Some(at) = row.due_at {
        text += &format!("looked at again: {}\n", view::time(at));
    }
    let letters = store.letters(stream, Some(&row.key), None, LETTERS).await?;
    if !letters.rows.is_empty() {
        let more = if letters.cursor.is_some() { " or more" } else { "" };
        text += &format!(
            "dead letters: {}{more}; see `ordain dead list {stream} --key {}{}`\n",
            letters.rows.len(),
            quoted(&row.key),
            loaded.option()
        );
    }
    let tries_again = loaded.config.streams.get(stream).is_none_or(|it| it.retry.on_new_version);
    if let Some(helps) = what_helps(job, tries_again) {
        text += &format!("what helps: {helps}\n");
    }
    Ok(text)
}

fn standing(job: &Job) -> String {
    let next = job.next;
    match job.status {
        Status::Active => format!("everything before event {next} is settled; nothing is wrong"),
        Status::Waiting => format!("waits for event {next}, which has not come"),
        Status::Retrying => {
            let times = count(job.attempts.into(), "time");
            format!("event {next} failed {times} and is tried again")
        }
        Status::Parked if job.trouble.as_ref().is_some_and(|it| was_tried_again(it.cause)) => {
            let last = job.attempts;
            format!(
                "parked at event {next} after try {last}, the last that `retry.attempts` allows"
            )
        }
        Status::Parked => format!("parked at event {next}"),
        Status::Completed => format!("ended with event {}", next.saturating_sub(1)),
    }
}

/// Whether an event that failed so is tried as often as the stream's setting says.
fn was_tried_again(cause: Cause) -> bool {
    matches!(cause, Cause::Retry | Cause::Timeout)
}

fn held(job: &Job) -> String {
    let spilled = &job.spilled;
    match spilled.count {
        0 => String::new(),
        1 => format!("held in the store: event {}\n", spilled.first),
        count => format!(
            "held in the store: {count} events between {} and {}\n",
            spilled.first, spilled.last
        ),
    }
}

fn what_helps(job: &Job, tries_again: bool) -> Option<String> {
    let next = job.next;
    let again = format!("its producer sends event {next} again, which ends this at any time");
    let trouble = match (job.status, &job.trouble) {
        (Status::Waiting, _) => return Some(again),
        (Status::Parked, Some(trouble)) if trouble.cause == Cause::Gap => return Some(again),
        (Status::Parked, Some(trouble)) => trouble,
        _ => return None,
    };
    let mend = match trouble.cause {
        Cause::Retry => "see to it that what the handler asks for is there, or mend it".to_owned(),
        _ if trouble.error.contains(UNKNOWN_SINK) => {
            "configure the sink, or mend its name in the handler".to_owned()
        }
        Cause::Limit | Cause::Timeout => {
            let settings = settings_in(&trouble.error);
            if settings.is_empty() {
                "mend the handler".to_owned()
            } else {
                format!("raise {}, or mend the handler", settings.join(" or "))
            }
        }
        _ => "mend the handler".to_owned(),
    };
    let switch = if tries_again { "" } else { ", switch `retry.on_new_version` on" };
    Some(format!(
        "{mend}{switch}; then start with another version of the handler: a changed file, or the \
         same one under a higher version, such as {}",
        higher(trouble)
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
fn higher(trouble: &Trouble) -> String {
    let version = trouble.version.as_deref().unwrap_or("handler");
    match version.split_once('@') {
        Some((name, version)) => {
            let next = semver::Version::parse(version).map(|it| {
                let patch = it.patch + u64::from(it.pre.is_empty());
                semver::Version::new(it.major, it.minor, patch)
            });
            format!("{name}@{}.wasm", next.unwrap_or(semver::Version::new(1, 0, 0)))
        }
        None => format!("{}@1.0.0.wasm", version.split('+').next().unwrap_or(version)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(cause: Cause, error: &str, version: &str) -> String {
        let mut job = Job::new(1, 0);
        let version = Some(version.into());
        job.status = Status::Parked;
        job.trouble = Some(Box::new(Trouble { cause, error: error.into(), since: 1, version }));
        what_helps(&job, true).unwrap_or_default()
    }

    #[test]
    fn the_remedy_fits_the_cause() {
        for (cause, error, remedy) in [
            (Cause::Gap, "event 1 never came", "its producer sends event 1 again"),
            (Cause::Limit, "`plugins.messages` allows 10", "raise `plugins.messages`, or mend"),
            (Cause::Timeout, "which `plugins.timeout` allows", "raise `plugins.timeout`, or mend"),
            (Cause::Limit, "to `x`, which is not configured; there are: none", "configure the"),
            (Cause::Retry, "no", "see to it that what the handler asks for is there"),
            (Cause::Trap, "trap: `plugins.memory`", "mend the handler; then start"),
        ] {
            let helps = parked(cause, error, "account@1.0.0");
            assert!(helps.starts_with(remedy), "{cause}: {helps}");
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
