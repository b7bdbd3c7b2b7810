//! What a person should hear of without asking: keys that are parked or cannot be read, and events
//! that end as dead letters. It looks at what is there, and decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ordain_core::{Applied, Batch, DeadLetter, GapEnd, GapEntry, Job, JobWrite, Status, Trouble};

use ordain_util::log_throttle::LogThrottle;
use ordain_util::text::{clean, cut, quoted};

/// Lines per interval, beyond which they are only counted: a handler that fails for every key must not
/// fill a disk with its log.
const LINES: u32 = 20;
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes of an error that are told; all of it is in the store.
const ERROR: usize = 512;

/// One for the process, as the log is.
static THROTTLE: Mutex<LogThrottle> = Mutex::new(LogThrottle::with_lines(LINES, WARN_INTERVAL));

/// The batch, if there is something to tell once it is committed.
pub(super) fn of(batch: &Arc<Batch>) -> Option<Arc<Batch>> {
    let tells = |write: &JobWrite| {
        !write.letters.is_empty()
            || newly_parked(&write.job).is_some()
            || newly_waiting(&write.job).is_some()
    };
    let any = !batch.letters.is_empty() || batch.writes.iter().any(tells);
    any.then(|| Arc::clone(batch))
}

/// Tells of a batch that is committed.
pub(super) fn tell(stream: &str, batch: &Batch, applied: &Applied) {
    for (at, write) in batch.writes.iter().enumerate() {
        if applied.refused.binary_search_by_key(&at, |it| it.0).is_ok() {
            continue;
        }
        write.letters.iter().for_each(|letter| dead(stream, letter));
        if let Some(trouble) = newly_parked(&write.job) {
            parked(stream, write, trouble);
        }
        if let Some(gap) = newly_waiting(&write.job) {
            waits(stream, write, gap);
        }
    }
    // Those that are known come from repeated deliveries.
    let known = |at: usize| applied.known.binary_search(&at).is_ok();
    let free = batch.letters.iter().enumerate().filter(|(at, _)| !known(*at));
    free.for_each(|(_, letter)| dead(stream, letter));
}

/// Why a write parks its key: the time of what it only repeats is known already.
fn newly_parked(job: &Job) -> Option<&Trouble> {
    let parks = job.status == Status::Parked;
    job.trouble.as_deref().filter(|trouble| parks && trouble.since == 0)
}

fn parked(stream: &str, write: &JobWrite, trouble: &Trouble) {
    if !may_tell() {
        return;
    }
    tracing::warn!(
        stream,
        key = %clean(&write.key),
        event = write.job.next,
        cause = trouble.cause.name(),
        error = %short(trouble.words()),
        "parked: see `ordain keys why {stream} {}`",
        quoted(&write.key)
    );
}

/// What a write says is waited for and not asked for any more: the time of what it only repeats is known already.
fn newly_waiting(job: &Job) -> Option<&GapEntry> {
    job.gaps.iter().next_back().filter(|it| it.end == GapEnd::Waiting && it.until == 0)
}

fn waits(stream: &str, write: &JobWrite, gap: &GapEntry) {
    if !may_tell() {
        return;
    }
    tracing::warn!(
        stream,
        key = %clean(&write.key),
        first = gap.first,
        last = gap.last,
        rounds = gap.rounds,
        "missing, and nobody is asked any more: see `ordain keys why {stream} {}`",
        quoted(&write.key)
    );
}

/// Tells of spilled events that cannot be read.
pub(super) fn unread(stream: &str, key: &str, error: &str) {
    if !may_tell() {
        return;
    }
    tracing::error!(
        stream,
        key = %clean(key),
        error = %short(error),
        "the key's spilled events cannot be read; what comes of it is dead-lettered"
    );
}

fn dead(stream: &str, letter: &DeadLetter) {
    if !may_tell() {
        return;
    }
    tracing::warn!(
        stream,
        key = %clean(&letter.id.key),
        sequence = letter.id.sequence,
        cause = letter.cause.name(),
        error = %short(&letter.error),
        "dead letter"
    );
}

fn short(error: &str) -> String {
    cut(clean(error).into_owned(), ERROR)
}

/// Returns whether one more line may be written. The first suppressed line starts a task that logs the
/// number of suppressed lines when the interval is over.
fn may_tell() -> bool {
    let mut throttle = throttle();
    let is_allowed = throttle.allow();
    if !is_allowed && throttle.suppressed() == 1 {
        tokio::spawn(async {
            tokio::time::sleep(WARN_INTERVAL).await;
            flush();
        });
    }
    is_allowed
}

/// Logs how many lines were suppressed; at the end of the process nobody else would.
pub(super) fn flush() {
    let suppressed = throttle().take_suppressed();
    if suppressed > 0 {
        tracing::warn!(
            "… and {suppressed} more: see `ordain keys list STREAM --status parked` and `ordain dead \
             list STREAM`"
        );
    }
}

fn throttle() -> MutexGuard<'static, LogThrottle> {
    THROTTLE.lock().unwrap_or_else(PoisonError::into_inner)
}
