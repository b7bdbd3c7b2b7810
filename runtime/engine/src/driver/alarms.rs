//! What a person should hear of without asking: keys that are parked or cannot be read, and events
//! that end as dead letters. It looks at what is there, and decides nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_core::{Applied, Batch, DeadLetter, GapEnd, GapEntry, Job, JobWrite, Status, Trouble};

use ordain_util::text::{clean, cut, quoted};

/// Lines in a span of time, beyond which they are only counted: a handler that fails for every key
/// must not fill a disk with its log.
const LINES: u32 = 20;
const SPAN: Duration = Duration::from_secs(10);

/// Bytes of an error that are told; all of it is in the store.
const ERROR: usize = 512;

/// One for the process, as the log is.
static LIMITER: Mutex<Limiter> = Mutex::new(Limiter { began: None, told: 0, left_out: 0 });

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
        error = %short(&trouble.error),
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

/// Whether one more line may be written. The first that may not has the number of all of them told
/// when the span is over.
fn may_tell() -> bool {
    match limiter(|it| it.admit(Instant::now())) {
        Admission::Yes => true,
        Admission::No => false,
        Admission::NoAndFirst => {
            tokio::spawn(async {
                tokio::time::sleep(SPAN).await;
                flush();
            });
            false
        }
    }
}

/// Tells how many lines were left out; at the end of the process nobody else would.
pub(super) fn flush() {
    let left_out = limiter(|it| std::mem::take(&mut it.left_out));
    if left_out > 0 {
        tracing::warn!(
            "… and {left_out} more: see `ordain keys list STREAM --status parked` and `ordain dead \
             list STREAM`"
        );
    }
}

fn limiter<T>(with: impl FnOnce(&mut Limiter) -> T) -> T {
    with(&mut LIMITER.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Default)]
struct Limiter {
    began: Option<Instant>,
    told: u32,
    left_out: u64,
}

#[derive(Debug, PartialEq)]
enum Admission {
    Yes,
    No,
    /// The first since the others were told of.
    NoAndFirst,
}

impl Limiter {
    fn admit(&mut self, now: Instant) -> Admission {
        if self.began.is_none_or(|began| now.duration_since(began) >= SPAN) {
            (self.began, self.told) = (Some(now), 0);
        }
        if self.told < LINES {
            self.told += 1;
            return Admission::Yes;
        }
        self.left_out += 1;
        if self.left_out == 1 { Admission::NoAndFirst } else { Admission::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        for _ in 0..LINES {
            assert_eq!(limiter.admit(start), Admission::Yes);
        }
        assert_eq!(limiter.admit(start), Admission::NoAndFirst);
        assert_eq!(limiter.admit(start), Admission::No);
        assert_eq!(limiter.left_out, 2);
        assert_eq!(limiter.admit(start + SPAN), Admission::Yes);
    }
}
