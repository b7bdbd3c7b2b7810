//! The events that a publisher wrote to the store in the last two minutes (or less, if the setting `retain` is short),
//! at most 16 MiB. A store that goes back in time (loses its newest writes) may lose some of these events. The
//! publisher then writes the lost events again, in their order and before any new event. Otherwise the store would give
//! the numbers of the lost events to other events. [`ProducerHistory`] decides which calls the publisher keeps and
//! repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use ordain_core::{ProducerHistory, shard_of};

use crate::assign::{AssignError, AssignResult, EventAssigner, ROLLBACK_RETRY_LIMIT};
use crate::incident::{EventsLost, IncidentSubject, now_ms, record, time_text};
use crate::{LOST_NUMBERS_GUIDE, refusal_message};
use ordain_store::{AssignItem, AssignItemReply, Destination, Witness};

/// Maximum size of the events in memory, in bytes. A fast publisher writes this many bytes in a few seconds, and then
/// keeps its events for less than [`HISTORY_AGE_LIMIT`].
const HISTORY_BYTES: usize = 16 << 20;
/// The maximum time for which events stay in memory: longer than a failover takes. When the publisher writes lost
/// events again, it also writes events that the store still has. The store recognises these events by their ids, which
/// it remembers for the time of the setting `retain`. Events therefore stay in memory for at most half of the time
/// `retain`.
const HISTORY_AGE_LIMIT: Duration = Duration::from_mins(2);

/// The time for which a publisher waits until other publishers have written their lost events again. This time is
/// longer than the interval at which a publisher checks whether the store has lost events.
const OTHER_PUBLISHERS_LIMIT: Duration = Duration::from_secs(30);
/// The time between two attempts to write lost events again while the publisher waits for other publishers.
const OTHER_PUBLISHERS_INTERVAL: Duration = Duration::from_millis(500);

/// A call that wrote events to the store.
struct PublishCall {
    items: Vec<AssignItem>,
    result: AssignResult,
}

/// Events of one shard (slice of the store) that the publisher dropped from memory. The store may still lose these
/// events.
struct ForgottenEvents {
    events: u64,
    /// The time when the store answered the call that wrote the first of these events, in ms since the Unix epoch.
    since: u64,
}

/// The calls with which a publisher wrote events within the last `max_age`.
pub(crate) struct PublishedCalls {
    stream: Arc<str>,
    history: ProducerHistory<PublishCall, Witness>,
    /// The time for which events stay in memory, in ms.
    max_age: u64,
    started: Instant,
    /// The time of the field `started`, at which this history was created, in ms since the Unix epoch.
    started_ms: u64,
    /// The dropped events, by the second in which they left memory, and by shard.
    forgotten: BTreeMap<(u64, u32), ForgottenEvents>,
    /// The shards that went back in time since the last log line about repeated events.
    lossy_shards: BTreeSet<u32>,
    /// The number of times that this publisher detected that the store had gone back in time.
    rewinds: u64,
    /// The number of events that this publisher has written again since the last log line about repeated events.
    repeated: usize,
    /// The number of the events in `repeated` whose new number differs from their first number. Always 0 if the events
    /// go to an exchange: such an event gets its first number or none.
    changed: usize,
}

impl PublishedCalls {
    /// Creates an empty history for the events that this assigner publishes into the stream.
    pub(crate) fn new(assigner: &EventAssigner, stream: &Arc<str>) -> Self {
        let numbers = assigner.policy.rules.numbering;
        let retained = numbers.map(|numbers| Duration::from_millis(numbers.retain / 2));
        let max_age =
            retained.map_or(HISTORY_AGE_LIMIT, |retained| retained.min(HISTORY_AGE_LIMIT));
        let max_age = max_age.as_millis() as u64;
        let disconnects = assigner.store.disconnects();
        Self {
            stream: Arc::clone(stream),
            history: ProducerHistory::new(HISTORY_BYTES, max_age, disconnects, 0),
            max_age,
            started: Instant::now(),
            started_ms: now_ms(),
            forgotten: BTreeMap::new(),
            lossy_shards: BTreeSet::new(),
            rewinds: 0,
            repeated: 0,
            changed: 0,
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Adds events that the store has, with the result of the call that wrote them. Does nothing if the store cannot go
    /// back in time.
    pub(crate) fn add(
        &mut self,
        assigner: &EventAssigner,
        items: Vec<AssignItem>,
        result: AssignResult,
    ) {
        if !assigner.store.may_roll_back() {
            return;
        }
        let witnesses = assigner.witnesses(items.iter().zip(&result.assigned), &result.entries);
        let bytes = items.iter().map(|item| item.event.memory()).sum();
        let now = self.now();
        let dropped = self.history.add(PublishCall { items, result }, bytes, witnesses, now);
        let shards = assigner.store.shards();
        for (call, at) in dropped {
            let since = self.started_ms + at;
            for item in &call.items {
                let of_shard = (now / 1_000, shard_of(item.event.key(), shards));
                let forgotten = self.forgotten.entry(of_shard);
                forgotten.or_insert(ForgottenEvents { events: 0, since }).events += 1;
            }
        }
        self.forgotten = self.forgotten.split_off(&(now.saturating_sub(self.max_age) / 1_000, 0));
    }

    /// Returns, for each shard (slice of the store), its witness: the newest event that the shard must have.
    pub(crate) fn witnesses(&self) -> BTreeMap<u32, Witness> {
        self.history.witnesses(self.now())
    }

    /// Returns the number of times that this publisher detected that the store had gone back in time.
    pub(crate) fn rewinds(&self) -> u64 {
        self.rewinds
    }

    /// Writes lost events again, if the store may have gone back in time since the last check.
    pub(crate) async fn restore(&mut self, assigner: &EventAssigner) -> Result<(), AssignError> {
        let disconnects = assigner.store.disconnects();
        self.history.forget_old(self.now());
        if self.history.is_in_doubt(disconnects, self.now()) {
            self.put_lost_again(assigner).await?;
            self.history.checked(disconnects, self.now());
        }
        Ok(())
    }

    /// Writes lost events to the store again, in their order, and verifies that the store then has all events of the
    /// history.
    pub(crate) async fn put_lost_again(
        &mut self,
        assigner: &EventAssigner,
    ) -> Result<(), AssignError> {
        for _ in 0..ROLLBACK_RETRY_LIMIT {
            let lacking = self.shards_lacking_events(assigner).await?;
            let has_all = lacking.is_empty();
            self.lossy_shards.extend(&lacking);
            self.history.went_back(lacking);
            if has_all {
                return Ok(());
            }
            self.rewinds += 1;
            let to = &assigner.policy.destination;
            match self.put_calls_again(assigner).await {
                Ok(()) => self.log_restored(to),
                // The store went back in time once more during this write, so the loop repeats the check of the shards.
                Err(AssignError::RolledBack) => {}
                Err(refused @ AssignError::Refused(_)) => {
                    self.log_forgotten(to);
                    return Err(refused);
                }
                failed => return failed,
            }
        }
        Err(AssignError::RolledBack)
    }

    /// Returns the shards that lack their witness, the newest event that this publisher wrote to the shard. A shard
    /// that has its witness also has all earlier events.
    async fn shards_lacking_events(
        &self,
        assigner: &EventAssigner,
    ) -> Result<BTreeSet<u32>, AssignError> {
        let checks = self.witnesses().into_iter().map(async |(shard, witness)| {
            let has = assigner.has_witness(shard, witness).await?;
            Ok((!has).then_some(shard))
        });
        let lacking = try_join_all(checks).await.map_err(AssignError::Store)?;
        Ok(lacking.into_iter().flatten().collect())
    }

    async fn put_calls_again(&mut self, assigner: &EventAssigner) -> Result<(), AssignError> {
        while let Some((PublishCall { items, result }, shards)) = self.history.next_lost() {
            let mut items = items.clone();
            if matches!(assigner.policy.destination, Destination::Exchange(_)) {
                name_lost_numbers(&mut items, &result.assigned);
            }
            let renewed = self.history.renewed();
            let mut reassigned = reassign(assigner, &items, result, shards, &renewed).await;
            // A settled event of an ended key keeps its first number.
            let is_changed = |(before, now): &(&AssignItemReply, &AssignItemReply)| {
                before.sequence() != now.sequence() && !matches!(now, AssignItemReply::Settled(_))
            };
            let pairs = result.assigned.iter().zip(&reassigned.assigned);
            let changed = pairs.filter(is_changed).count();
            self.changed += changed;
            self.repeated += reassigned.rewritten;
            let at = (reassigned.rewritten > 0).then(|| self.now());
            if let Some(refused) = refused_repeat(&self.stream, &items, &reassigned.assigned) {
                return Err(refused);
            }
            let failed = reassigned.error.take();
            let witnesses =
                assigner.witnesses(items.iter().zip(&reassigned.assigned), &reassigned.entries);
            self.history.written_again(PublishCall { items, result: reassigned }, witnesses, at);
            if let Some(failed) = failed {
                return Err(failed);
            }
        }
        self.history.restored();
        Ok(())
    }

    fn log_restored(&mut self, to: &Destination) {
        let repeated = std::mem::take(&mut self.repeated);
        let changed = std::mem::take(&mut self.changed);
        let shards: Vec<u32> = self.lossy_shards.iter().copied().collect();
        tracing::warn!(
            %to,
            ?shards,
            events = repeated,
            "the store went back in time and lost events of this publisher. The publisher has written again the lost \
             events that it still had in memory"
        );
        self.log_forgotten(to);
        if changed > 0 {
            tracing::error!(
                %to,
                events = changed,
                "the store went back in time, and this publisher wrote the lost events again. Some of them have other \
                 numbers than before. There are two possible reasons. Either another event of the key has taken the \
                 old number, or an earlier event of the key is lost, and the later events of the key therefore got \
                 lower numbers. Check whether a receiver has two events with the same key and number, or one event \
                 under two numbers"
            );
        }
    }

    /// Logs a record of the events that the publisher has dropped from memory and that the shards may have lost.
    fn log_forgotten(&mut self, to: &Destination) {
        let is_incomplete = self.history.is_incomplete(self.now());
        for shard in std::mem::take(&mut self.lossy_shards) {
            let Some(forgotten) = self.take_forgotten(shard).filter(|_| is_incomplete) else {
                continue;
            };
            let ForgottenEvents { events, since } = forgotten;
            let since = time_text(since);
            let incident = EventsLost { shard, events, since: since.clone(), safe: None };
            tracing::error!(
                %to,
                shard,
                events,
                %since,
                cloudevent = record(&self.stream, IncidentSubject::Publisher, &incident),
                "the store went back in time. This publisher keeps at most 16 MiB of its events in memory and has \
                 dropped older events: some of the dropped events may be lost. Publish the events of the last two \
                 minutes again, with their ids"
            );
        }
    }

    /// Removes the forgotten events of a shard, and returns them; `None` if the shard has no forgotten events.
    fn take_forgotten(&mut self, shard: u32) -> Option<ForgottenEvents> {
        let of_shard = self.forgotten.extract_if(.., |(_, of), _| *of == shard);
        of_shard
            .map(|(_, forgotten)| forgotten)
            .reduce(|first, next| ForgottenEvents { events: first.events + next.events, ..first })
    }
}

/// Writes the lost events of an earlier call again. `result` is the result of the call. If the next number of a key is
/// lower than the earlier number of the event, and the store refuses the event, waits for at most
/// [`OTHER_PUBLISHERS_LIMIT`]. The store may have lost earlier events of the key that another publisher writes again
/// soon.
async fn reassign(
    assigner: &EventAssigner,
    items: &[AssignItem],
    result: &AssignResult,
    shards: &BTreeSet<u32>,
    witnesses: &BTreeMap<u32, Witness>,
) -> AssignResult {
    let started = Instant::now();
    let mut rewritten = 0;
    loop {
        let first = AssignResult {
            assigned: result.assigned.clone(),
            entries: result.entries.clone(),
            rewritten,
            ..AssignResult::default()
        };
        let reassigned = assigner.reassign_lost(items, first, Some(shards), witnesses).await;
        let earlier_number = |at: usize| match items[at].number {
            0 => result.assigned[at].sequence(),
            number => number,
        };
        let lacks_earlier_events =
            (0..).zip(&reassigned.assigned).any(|(at, reply)| match *reply {
                AssignItemReply::OtherNumber(next) | AssignItemReply::UnprovenRepeat(next) => {
                    next < earlier_number(at)
                }
                _ => false,
            });
        if !lacks_earlier_events || started.elapsed() > OTHER_PUBLISHERS_LIMIT {
            return reassigned;
        }
        rewritten = reassigned.rewritten;
        tokio::time::sleep(OTHER_PUBLISHERS_INTERVAL).await;
    }
}

/// Sets the number of each item of a repeated call to the number that the store first gave to the event. The store then
/// gives an event its earlier number or none. The first copy of the event may still be in the broker, so under another
/// number, the event would take effect twice. A queue in the store has no such copy, because the store loses the entry
/// of the queue together with the number.
fn name_lost_numbers(items: &mut [AssignItem], assigned: &[AssignItemReply]) {
    for (item, reply) in items.iter_mut().zip(assigned) {
        // If the call was repeated before, the item already names the first number. The reply to the repetition may
        // name the number of another event.
        if item.event.sequence().is_none() && item.number == 0 {
            item.number = reply.sequence();
        }
    }
}

/// Returns an error if the store refused to give an event its lost number again, or now has the event under another
/// number. `items` are events that the store has numbered before, and `assigned` are the replies to their repetition. A
/// conflict does not count as such a refusal: since the loss, another event has taken the id or the sequence of the
/// event.
fn refused_repeat(
    stream: &str,
    items: &[AssignItem],
    assigned: &[AssignItemReply],
) -> Option<AssignError> {
    let refusal = |(item, reply): (&AssignItem, &AssignItemReply)| match *reply {
        AssignItemReply::OtherNumber(next) => Some(other_number_message(item, next)),
        AssignItemReply::Known(number) if item.number > 0 && number != item.number => {
            Some(format!(
                "after the loss, another publisher published the event again. Before the loss, the event had the \
                 sequence {} of key {:?}; now it has the sequence {number}. The event may take effect twice: check \
                 whether the stream has executed the event under both sequences",
                item.number,
                item.event.key()
            ))
        }
        AssignItemReply::Conflict(_) => None,
        reply => reply.is_refused().then(|| refusal_message(stream, &item.event, reply, true)),
    };
    let mut pairs = items.iter().zip(assigned);
    let (item, words) = pairs.find_map(|pair| Some((pair.0, refusal(pair)?)))?;
    Some(AssignError::Refused(format!(
        "the store went back in time and lost events of this publisher. The publisher cannot write the lost event with \
         the id {:?} again: {words}. This publisher publishes no further events until the store accepts the lost \
         event; meanwhile, another publisher can publish other events",
        item.event.id()
    )))
}

/// Returns the reason why the store cannot give a lost event its earlier number, and the next step. `next` is the
/// number that the store would give to the event.
fn other_number_message(item: &AssignItem, next: u64) -> String {
    let key = item.event.key();
    let number = item.number;
    if next > number {
        format!(
            "it had the sequence {number} of key {key:?}, and another event has taken this sequence since the loss. \
             Under the next sequence, {next}, the event could take effect twice, because its first copy may still wait \
             in the broker. Wait until the stream has executed the waiting events of the key. If the other event then \
             is a dead letter `conflict`, the lost event has taken effect; otherwise publish the lost event again with \
             another publisher ({LOST_NUMBERS_GUIDE})"
        )
    } else {
        format!(
            "it had the sequence {number} of key {key:?}, but would now get the sequence {next}. The store also lost \
             earlier events of the key, and this publisher does not have them in memory. With another publisher (for a \
             file: run the command again), publish all lost events of the key again, in their original order and with \
             the same ids ({LOST_NUMBERS_GUIDE})"
        )
    }
}
