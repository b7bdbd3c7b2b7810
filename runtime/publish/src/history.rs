//! The events that a publisher wrote to the store in the last two minutes. A store that goes back in time may have lost
//! some of them. The publisher then writes them again, in their order and before any new event, so that the store
//! does not assign their numbers to other events.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use crate::assign::{Assigner, Assignment, NotAssigned};
use ordain_store::{Item, Witness};

/// Maximum size of the events in memory: a fast publisher writes as much in some seconds.
const HISTORY_BYTES: usize = 16 << 20;
/// How long events stay in memory: longer than a failover takes. The store must remember their ids for a longer time.
const HISTORY_AGE: Duration = Duration::from_mins(2);
/// Time between two checks while the store counts no new breaks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A call that wrote events to the store.
struct Call {
    items: Vec<Item>,
    result: Assignment,
    at: Instant,
    bytes: usize,
}

/// The calls of the last two minutes, oldest first.
pub(crate) struct PublishHistory {
    calls: VecDeque<Call>,
    bytes: usize,
    max_age: Duration,
    checked_at: Instant,
    /// The value of `Store::breaks` before the last check.
    breaks: u64,
    /// The newest event of each shard, and the time at which the publisher wrote it.
    newest: BTreeMap<u32, (Witness, Instant)>,
}

impl PublishHistory {
    /// Creates an empty history for the events of this assigner.
    pub(crate) fn new(assigner: &Assigner) -> Self {
        let numbers = assigner.passage.rules.numbers;
        let retained = numbers.map(|numbers| Duration::from_millis(numbers.retain / 2));
        Self {
            calls: VecDeque::new(),
            bytes: 0,
            max_age: retained.map_or(HISTORY_AGE, |retained| retained.min(HISTORY_AGE)),
            checked_at: Instant::now(),
            breaks: assigner.store.breaks(),
            newest: BTreeMap::new(),
        }
    }

    /// Adds events that are in the store, and the result of the call that wrote them.
    pub(crate) fn add(&mut self, assigner: &Assigner, items: Vec<Item>, result: Assignment) {
        if !assigner.store.may_go_back() {
            return;
        }
        let witnesses = assigner.witnesses(items.iter().zip(&result.assigned), &result.put);
        let now = Instant::now();
        self.newest.extend(witnesses.into_iter().map(|(shard, witness)| (shard, (witness, now))));
        let bytes = items.iter().map(|item| item.event.memory()).sum();
        self.bytes += bytes;
        self.calls.push_back(Call { items, result, at: Instant::now(), bytes });
        while self.bytes > HISTORY_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(call) = self.calls.pop_front() {
            self.bytes -= call.bytes;
        }
    }

    /// Returns the newest event that each shard must have.
    pub(crate) fn witnesses(&self) -> BTreeMap<u32, Witness> {
        let witnesses = self.newest.iter().filter(|(_, (_, at))| at.elapsed() < self.max_age);
        witnesses.map(|(shard, (witness, _))| (*shard, witness.clone())).collect()
    }

    /// Writes lost events again, if the store may have gone back in time since the last check.
    pub(crate) async fn restore(&mut self, assigner: &Assigner) -> Result<(), NotAssigned> {
        while self.calls.front().is_some_and(|call| call.at.elapsed() >= self.max_age) {
            self.forget_oldest();
        }
        let breaks = assigner.store.breaks();
        if breaks == self.breaks && self.checked_at.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        if !self.check(assigner).await? {
            self.put_again(assigner).await?;
        }
        self.breaks = breaks;
        self.checked_at = Instant::now();
        Ok(())
    }

    /// Returns whether each shard has its newest event, and therefore all earlier events.
    pub(crate) async fn check(&self, assigner: &Assigner) -> Result<bool, NotAssigned> {
        let witnesses = self.witnesses().into_iter();
        let checks = witnesses.map(|(shard, witness)| assigner.has(shard, witness));
        let has = try_join_all(checks).await.map_err(NotAssigned::Store)?;
        Ok(has.into_iter().all(|has| has))
    }

    /// Writes all events again that the store lacks, in their order.
    pub(crate) async fn put_again(&mut self, assigner: &Assigner) -> Result<(), NotAssigned> {
        let mut repeated = 0;
        let mut changed = 0;
        // The old witnesses stay until the store has all events again. After a failure, the store refuses new events.
        let mut newest = BTreeMap::new();
        for call in &mut self.calls {
            let first = Assignment {
                assigned: call.result.assigned.clone(),
                put: call.result.put.clone(),
                ..Assignment::default()
            };
            let result = assigner.assign_again(&call.items, first).await;
            if let Some(failed) = result.failed {
                return Err(failed);
            }
            repeated += result.repeated;
            let witnesses =
                assigner.witnesses(call.items.iter().zip(&result.assigned), &result.put);
            let at = |(shard, witness)| (shard, (witness, call.at));
            newest.extend(witnesses.into_iter().map(at));
            let pairs = call.result.assigned.iter().zip(&result.assigned);
            changed += pairs.filter(|(before, now)| before.sequence() != now.sequence()).count();
            call.result = result;
        }
        self.newest = newest;
        let to = &assigner.passage.to;
        tracing::warn!(
            %to,
            events = repeated,
            "the store went back in time and lost events of this publisher: the publisher has written them again from \
             memory"
        );
        if changed > 0 {
            tracing::error!(
                %to,
                events = changed,
                "events that the store had lost have new numbers, because other events have the old ones, or because \
                 older events are lost and no longer in memory: check the receivers for numbers that two events share"
            );
        }
        Ok(())
    }
}
