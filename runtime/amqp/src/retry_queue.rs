//! Messages that the broker did not accept, by stream and key. The sink retries the first message of a key. Later
//! messages of the key wait for this message, so that the key keeps its order. Other keys continue.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::confirm_tracker::PendingPublish;
use super::encode::OrderingKey;
use ordain_util::backoff::Backoff;
use ordain_util::wait::shortened;

/// Delays between attempts to publish a message on the same channel as other messages.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Delay between two attempts to publish a message on a connection of its own.
const ISOLATED_RETRY_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryMode {
    /// On the same channel as other messages, without waiting for earlier confirms.
    Pipelined,
    /// On a connection of its own, where a failure affects no other message.
    Isolated,
}

/// The held messages of a sink, by stream and key.
#[derive(Debug, Default)]
pub(super) struct KeyRetryQueue(HashMap<OrderingKey, KeyBacklog>);

#[derive(Debug)]
struct KeyBacklog {
    /// The held messages, by their position in the order of the sink. A message that is being retried is not held.
    items: BTreeMap<u64, PendingPublish>,
    /// The position of the message that is being retried; `None` while the next retry waits for `retry_at`.
    retrying: Option<u64>,
    mode: RetryMode,
    retry_at: Instant,
    backoff: Backoff,
}

impl KeyRetryQueue {
    /// Returns the number of held messages. A message that is being retried does not count.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|backlog| backlog.items.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the message if it may be published now. Otherwise keeps it, because it must wait for an earlier message
    /// of its key.
    pub(super) fn admit(&mut self, item: PendingPublish) -> Option<PendingPublish> {
        if self.0.is_empty() {
            return Some(item);
        }
        match self.0.get_mut(&item.outgoing.ordering_key()) {
            Some(backlog) if backlog.retrying != Some(item.order) => {
                backlog.items.insert(item.order, item);
                None
            }
            _ => Some(item),
        }
    }

    /// Holds a message that the broker has not accepted. If this message is the next one of its key to retry, schedules
    /// the retry.
    pub(super) fn hold(&mut self, item: PendingPublish, mode: RetryMode, now: Instant) {
        let backlog = self.0.entry(item.outgoing.ordering_key()).or_insert_with(|| KeyBacklog {
            items: BTreeMap::new(),
            retrying: Some(item.order),
            mode,
            retry_at: now,
            backoff: RETRY_BACKOFF,
        });
        // If another message of the key is being retried, that retry continues. Otherwise the first message of the key
        // is retried next.
        let is_first = backlog.items.first_key_value().is_none_or(|(first, _)| item.order < *first);
        if backlog.retrying.map_or(is_first, |retrying| retrying == item.order) {
            backlog.retrying = None;
            backlog.mode = mode;
            let delay = match mode {
                RetryMode::Pipelined => backlog.backoff.next_delay(),
                RetryMode::Isolated => {
                    backlog.backoff.advance_to_max();
                    shortened(ISOLATED_RETRY_DELAY)
                }
            };
            backlog.retry_at = now + delay;
        }
        backlog.items.insert(item.order, item);
    }

    /// Removes the messages that waited for `accepted`, a message that the broker has accepted. Returns the removed
    /// messages in order.
    pub(super) fn release(
        &mut self,
        accepted: &PendingPublish,
    ) -> impl DoubleEndedIterator<Item = PendingPublish> {
        let mut items = BTreeMap::new();
        if !self.0.is_empty() {
            let key = accepted.outgoing.ordering_key();
            if self.0.get(&key).is_some_and(|backlog| backlog.retrying == Some(accepted.order)) {
                items = self.0.remove(&key).map(|backlog| backlog.items).unwrap_or_default();
            }
        }
        items.into_values()
    }

    /// Removes and returns the messages of partitions that this process no longer owns. A message that is being retried
    /// is not in this queue, so this method does not remove it.
    pub(super) fn remove_disowned(&mut self) -> Vec<PendingPublish> {
        let mut disowned = Vec::new();
        self.0.retain(|_, backlog| {
            disowned.extend(
                backlog
                    .items
                    .extract_if(.., |_, item| item.ownership.is_lost())
                    .map(|(_, item)| item),
            );
            backlog.retrying.is_some() || !backlog.items.is_empty()
        });
        disowned
    }

    /// Makes all isolated retries due now, because a common cause of their failures may have ended.
    pub(super) fn retry_isolated_now(&mut self, now: Instant) {
        for backlog in self.0.values_mut().filter(|backlog| backlog.mode == RetryMode::Isolated) {
            backlog.retry_at = now;
        }
    }

    /// Returns the messages whose retry is due, in two lists. The first list contains all messages with pipelined mode.
    /// The second list contains at most `isolated_limit` messages with isolated mode, the longest overdue message
    /// first.
    pub(super) fn due(
        &mut self,
        isolated_limit: usize,
        now: Instant,
    ) -> (Vec<PendingPublish>, Vec<PendingPublish>) {
        let is_due =
            |backlog: &&mut KeyBacklog| backlog.retrying.is_none() && backlog.retry_at <= now;
        let mut backlogs: Vec<&mut KeyBacklog> = self.0.values_mut().filter(is_due).collect();
        backlogs.sort_unstable_by_key(|backlog| backlog.retry_at);
        let mut due = Vec::new();
        let mut due_isolated = Vec::new();
        for backlog in backlogs {
            let due_items = match backlog.mode {
                RetryMode::Pipelined => &mut due,
                RetryMode::Isolated if due_isolated.len() < isolated_limit => &mut due_isolated,
                RetryMode::Isolated => continue,
            };
            if let Some((order, item)) = backlog.items.pop_first() {
                backlog.retrying = Some(order);
                due_items.push(item);
            }
        }
        (due, due_isolated)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};
    use std::sync::Arc;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::super::encode::{AmqpMessage, LetterFallback, MessageBody};
    use super::*;
    use ordain_store::Ownership;

    fn item(key: usize, order: u64) -> PendingPublish {
        let mut headers = FieldTable::default();
        headers.insert("X-Key".into(), AMQPValue::LongString(key.to_string().into()));
        let properties = BasicProperties::default().with_headers(headers);
        let outgoing = AmqpMessage {
            routing_key: "key".into(),
            properties,
            body: MessageBody::Nothing,
            fallback: LetterFallback::None,
        };
        PendingPublish {
            run: key as u64,
            order,
            outgoing,
            ownership: Arc::new(Ownership::permanent()),
        }
    }

    /// The broker accepts all messages in the end, and each key keeps its order. The test checks this for random
    /// sequences of failed attempts in both retry modes.
    #[test]
    fn every_message_is_accepted_in_the_order_of_its_key() {
        for seed in 0..500 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut queue = KeyRetryQueue::default();
            let mut now = Instant::now();
            let mut waiting: VecDeque<PendingPublish> =
                (0..60).map(|order| item(rng.random_range(0..4), order)).collect();
            let mut in_flight: Vec<PendingPublish> = Vec::new();
            let mut accepted: Vec<(u64, u64)> = Vec::new();
            for step in 0.. {
                assert!(step < 100_000, "seed {seed}: {} of 60 are accepted", accepted.len());
                if accepted.len() == 60 {
                    break;
                }
                let (due, isolated) = queue.due(2, now);
                for item in due.into_iter().rev() {
                    waiting.push_front(item);
                }
                in_flight.extend(isolated);
                // If the broker refused one of several messages of a key that are in flight together, the key would
                // lose its order. The test therefore sends the messages of a key one at a time.
                let busy: BTreeSet<u64> = in_flight.iter().map(|item| item.run).collect();
                if waiting.front().is_some_and(|item| !busy.contains(&item.run)) {
                    in_flight.extend(waiting.pop_front().and_then(|item| queue.admit(item)));
                } else if !in_flight.is_empty() {
                    let item = in_flight.swap_remove(rng.random_range(0..in_flight.len()));
                    match rng.random_range(0..4) {
                        0 => queue.hold(item, RetryMode::Pipelined, now),
                        1 => queue.hold(item, RetryMode::Isolated, now),
                        _ => {
                            for next in queue.release(&item).rev() {
                                waiting.push_front(next);
                            }
                            accepted.push((item.run, item.order));
                        }
                    }
                }
                now += Duration::from_millis(rng.random_range(0..5_000));
            }
            for key in 0..4 {
                let of_key = accepted.iter().filter(|(run, _)| *run == key).map(|(_, order)| order);
                assert!(of_key.is_sorted(), "seed {seed}: {accepted:?}");
            }
            assert!(queue.is_empty(), "seed {seed}");
        }
    }
}
