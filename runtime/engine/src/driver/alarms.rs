//! Logs the conditions that an operator must notice: parked keys (stopped at a failed or missing event), keys with
//! unreadable stored events, missing events, and events that become dead letters. In this module, each such condition
//! is called an alarm. This module only logs, and must never decide anything about an event.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ordain_core::{
    AppliedCommit, Batch, DeadLetter, Event, FailureInfo, GapEnd, GapEntry, KeyRecord, KeyStatus,
    KeyWrite,
};

use super::DriverError;
use ordain_util::command::PrintedCommand;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::text::{escape_invisible, truncated};

/// Maximum number of lines about alarms that this module logs in one [`WARN_INTERVAL`]. Separate limits of the same
/// size apply to the lines about keys that continue, and to the lines about unverified duplicates. The module
/// suppresses the lines above a limit. Later, it logs the number of suppressed lines about alarms. Without the limit, a
/// handler that fails for every key would fill the disk with log lines.
const LINE_LIMIT: u32 = 20;
const WARN_INTERVAL: Duration = Duration::from_secs(10);

const BLOCK_WARN_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum size of an error in a log line, in bytes. The store keeps the whole error of a parked key and of a dead
/// letter.
const ERROR_BYTES: usize = 512;

/// The whole process has one throttle, because all partitions write to the same log.
static ALARM_THROTTLE: Mutex<AlarmThrottle> = Mutex::new(AlarmThrottle {
    throttle: LogThrottle::with_lines(LINE_LIMIT, WARN_INTERVAL),
    suppressed: BTreeMap::new(),
});

/// The throttle of the lines about keys that continue. This throttle is separate, because these lines must not suppress
/// warnings.
static RESUMED_THROTTLE: Mutex<LogThrottle> =
    Mutex::new(LogThrottle::with_lines(LINE_LIMIT, WARN_INTERVAL));

/// The throttle of the lines about unverified duplicates. This throttle is separate, because a restart can cause many
/// of these lines.
static UNVERIFIED_THROTTLE: Mutex<LogThrottle> =
    Mutex::new(LogThrottle::with_lines(LINE_LIMIT, WARN_INTERVAL));

struct AlarmThrottle {
    throttle: LogThrottle,
    /// For each stream, the number of lines that were suppressed since the previous call of [`flush`].
    suppressed: BTreeMap<String, u64>,
}

impl AlarmThrottle {
    /// Returns whether one more line about `stream` may be written now, and counts a suppressed line.
    fn allow(&mut self, stream: &str) -> bool {
        let is_allowed = self.throttle.allow();
        if !is_allowed {
            match self.suppressed.get_mut(stream) {
                Some(count) => *count += 1,
                None => drop(self.suppressed.insert(stream.to_owned(), 1)),
            }
        }
        is_allowed
    }

    /// Returns the number of suppressed lines of each stream since the previous call, and resets the numbers.
    fn take_suppressed(&mut self) -> BTreeMap<String, u64> {
        self.throttle.take_suppressed();
        std::mem::take(&mut self.suppressed)
    }
}

/// The log lines about a key that blocks one partition.
pub(super) struct BlockLog {
    throttle: LogThrottle,
    /// True after a warning, until the end of the block is logged.
    is_blocked: bool,
}

impl BlockLog {
    pub(super) const fn new() -> Self {
        Self { throttle: LogThrottle::new(BLOCK_WARN_INTERVAL), is_blocked: false }
    }

    pub(super) fn warn(&mut self, stream: &str, full: &DriverError) {
        if self.throttle.allow() {
            self.is_blocked = true;
            tracing::warn!(stream, "stream blocked: {full}");
        }
    }

    /// Logs nothing if no warning has reported the block.
    pub(super) fn end(&mut self, stream: &str) {
        if std::mem::take(&mut self.is_blocked) {
            tracing::info!(stream, "stream unblocked: the partition accepts events again");
        }
    }
}

/// Returns the batch if it contains alarms. The driver logs these alarms after the commit.
pub(super) fn if_alarming(batch: &Arc<Batch>) -> Option<Arc<Batch>> {
    let has_alarm = |write: &KeyWrite| {
        !write.letters.is_empty()
            || newly_parked(&write.record).is_some()
            || newly_waiting(&write.record).is_some()
    };
    let any = !batch.letters.is_empty() || batch.writes.iter().any(has_alarm);
    any.then(|| Arc::clone(batch))
}

/// Logs the alarms of a committed batch, except the alarms of writes that the store refused (`applied.refused`).
pub(super) fn log_alarms(stream: &str, batch: &Batch, applied: &AppliedCommit) {
    for (at, write) in batch.writes.iter().enumerate() {
        if applied.refused.binary_search_by_key(&at, |(position, _)| *position).is_ok() {
            continue;
        }
        write.letters.iter().for_each(|letter| log_dead_letter(stream, letter));
        if let Some(failure) = newly_parked(&write.record) {
            log_parked_key(stream, write, failure);
        }
        if let Some(gap) = newly_waiting(&write.record) {
            log_missing_event(stream, write, gap);
        }
    }
    // The letters in `batch.letters` belong to no key record (orphan dead letters). If the store already had a letter,
    // the letter comes from a repeated delivery, and a driver has already logged it.
    let known = |at: usize| applied.existing_letters.binary_search(&at).is_ok();
    let orphan_letters = batch.letters.iter().enumerate().filter(|(at, _)| !known(*at));
    orphan_letters.for_each(|(_, letter)| log_dead_letter(stream, letter));
}

/// Returns the reason if a write parks its key. Returns `None` if the write does not park the key, or if an earlier
/// write has parked the key. The record contains a time (`since`) only if an earlier write has parked the key.
fn newly_parked(record: &KeyRecord) -> Option<&FailureInfo> {
    let parks = record.status == KeyStatus::Parked;
    record.failure.as_deref().filter(|failure| parks && failure.since == 0)
}

/// Returns the command that explains the state of a key.
pub(super) fn why_command(stream: &str, key: &str) -> PrintedCommand {
    PrintedCommand::new("keys why").argument(stream).argument(key)
}

fn log_parked_key(stream: &str, write: &KeyWrite, failure: &FailureInfo) {
    if !allow_line(stream) {
        return;
    }
    tracing::warn!(
        stream,
        key = %escape_invisible(&write.key),
        event = write.record.next,
        cause = failure.cause.name(),
        error = %shortened(failure.words()),
        "key parked: see {}",
        why_command(stream, &write.key)
    );
}

/// Returns the newest gap (missing events of the key) if all replay rounds of the gap have failed, and the key still
/// waits. Returns the gap only for the first write after the final round. In this write, the field `until` of the gap
/// is 0. In later writes, the field contains the time of the first write.
fn newly_waiting(record: &KeyRecord) -> Option<&GapEntry> {
    record.gaps.iter().next_back().filter(|gap| gap.end == GapEnd::Waiting && gap.until == 0)
}

fn log_missing_event(stream: &str, write: &KeyWrite, gap: &GapEntry) {
    if !allow_line(stream) {
        return;
    }
    tracing::warn!(
        stream,
        key = %escape_invisible(&write.key),
        first = gap.first,
        last = gap.last,
        rounds = gap.rounds,
        "missing events not received: Ordain has made all its replay requests, and the key still waits for the events; \
         see {}",
        why_command(stream, &write.key)
    );
}

/// Logs that a key continues, because a missing event has arrived after all replay rounds.
pub(super) fn log_resumed_key(stream: &str, key: &str, event: u64) {
    let is_allowed = RESUMED_THROTTLE.lock().unwrap_or_else(PoisonError::into_inner).allow();
    if is_allowed {
        tracing::info!(
            stream,
            key = %escape_invisible(key),
            event,
            "missing event received: the key continues"
        );
    }
}

/// Logs that an event counts as a repeat without a comparison: Ordain no longer knows the event that was settled with
/// the same sequence. The metric `unverified_duplicates_total` also counts the events whose lines are suppressed.
pub(super) fn log_unverified_duplicate(stream: &str, event: &Event) {
    let is_allowed = UNVERIFIED_THROTTLE.lock().unwrap_or_else(PoisonError::into_inner).allow();
    if is_allowed {
        tracing::warn!(
            stream,
            key = %escape_invisible(event.key()),
            event = event.sequence(),
            id = %shortened(event.id()),
            source = %shortened(event.source()),
            "event counted as a repeat without a comparison: Ordain no longer knows the event that it settled with \
             this sequence. After a restart or a broken connection, such repeats are normal. But if the store went \
             back in time, the event can be a new event with the sequence of a lost event: see \
             docs/guide/producers.md, \"New events before the lost events\""
        );
    }
}

/// Logs that the spilled events of a key (moved from memory into the store) cannot be read.
pub(super) fn log_unreadable_spill(stream: &str, key: &str, error: &str) {
    if !allow_line(stream) {
        return;
    }
    tracing::error!(
        stream,
        key = %escape_invisible(key),
        error = %shortened(error),
        "stored events of the key unreadable: the key stops, and new events of the key become dead letters. Repair or \
         restore the stored events, and start Ordain again. Then send the events of these dead letters again"
    );
}

fn log_dead_letter(stream: &str, letter: &DeadLetter) {
    if !allow_line(stream) {
        return;
    }
    tracing::warn!(
        stream,
        key = %escape_invisible(&letter.id.key),
        sequence = letter.id.sequence,
        cause = letter.cause.name(),
        error = %shortened(&letter.error),
        "new dead letter: see {}",
        PrintedCommand::new("dead list").argument(stream)
    );
}

fn shortened(error: &str) -> String {
    truncated(escape_invisible(error).into_owned(), ERROR_BYTES)
}

/// Returns whether the caller may write one more line about `stream`. The first suppressed line after the start, or
/// after a call of [`flush`], starts a task. After [`WARN_INTERVAL`], this task logs the number of suppressed lines.
fn allow_line(stream: &str) -> bool {
    let mut throttle = throttle();
    let is_allowed = throttle.allow(stream);
    if !is_allowed && throttle.throttle.suppressed() == 1 {
        tokio::spawn(async {
            tokio::time::sleep(WARN_INTERVAL).await;
            flush();
        });
    }
    is_allowed
}

/// Logs the number of suppressed lines of each stream. A driver also calls this function at its end, because the
/// process may end before the task of `allow_line` runs.
pub(super) fn flush() {
    let suppressed = throttle().take_suppressed();
    for (stream, suppressed) in suppressed {
        let keys = |status: KeyStatus| {
            PrintedCommand::new("keys list").argument(&stream).choice("status", status.name())
        };
        tracing::warn!(
            stream,
            "{suppressed} more lines about keys and dead letters were not logged: see {}, {} and {}",
            keys(KeyStatus::Parked),
            keys(KeyStatus::Waiting),
            PrintedCommand::new("dead list").argument(&stream)
        );
    }
}

fn throttle() -> MutexGuard<'static, AlarmThrottle> {
    ALARM_THROTTLE.lock().unwrap_or_else(PoisonError::into_inner)
}
