//! Messages that the broker does not take, by stream and key: the first one of a key is tried again
//! from time to time, and those behind it wait, so that the key's order stays. Other keys go on.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::flight::Item;
use ordain_util::backoff::Backoff;
use ordain_util::wait::shortened;

/// Delays between tries among the others.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Delay between tries of a message that is tried alone.
const ALONE_DELAY: Duration = Duration::from_secs(30);

/// A stream and a key.
type Of = (Vec<u8>, Vec<u8>);

/// How a message is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Among the others.
    Among,
    /// On a connection of its own, where it disturbs nobody.
    Alone,
}

#[derive(Debug, Default)]
pub(super) struct Held(HashMap<Of, Line>);

/// What is held of a key.
#[derive(Debug)]
struct Line {
    /// By their order.
    items: BTreeMap<u64, Item>,
    /// The one that is being tried.
    tried: Option<u64>,
    again: Again,
    retry_at: Instant,
    backoff: Backoff,
}

impl Held {
    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|line| line.items.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives a message back that may go out, and keeps one that has to wait behind another.
    pub(super) fn pass(&mut self, item: Item) -> Option<Item> {
        if self.0.is_empty() {
            return Some(item);
        }
        match self.0.get_mut(&item.outgoing.of()) {
            Some(line) if line.tried != Some(item.order) => {
                line.items.insert(item.order, item);
                None
            }
            _ => Some(item),
        }
    }

    /// Keeps a message that was not taken.
    pub(super) fn hold(&mut self, item: Item, again: Again, now: Instant) {
        let line = self.0.entry(item.outgoing.of()).or_insert_with(|| Line {
            items: BTreeMap::new(),
            tried: Some(item.order),
            again,
            retry_at: now,
            backoff: RETRY_BACKOFF,
        });
        // Another one may go on being tried; if none is, the first is the next.
        let is_first = line.items.first_key_value().is_none_or(|(first, _)| item.order < *first);
        if line.tried.map_or(is_first, |tried| tried == item.order) {
            line.tried = None;
            line.again = again;
            let delay = match again {
                Again::Among => line.backoff.next_delay(),
                Again::Alone => {
                    line.backoff.advance_to_max();
                    shortened(ALONE_DELAY)
                }
            };
            line.retry_at = now + delay;
        }
        line.items.insert(item.order, item);
    }

    /// What a message that was taken has held up, in order.
    pub(super) fn release(&mut self, taken: &Item) -> impl DoubleEndedIterator<Item = Item> {
        let mut items = BTreeMap::new();
        if !self.0.is_empty() {
            let of = taken.outgoing.of();
            if self.0.get(&of).is_some_and(|line| line.tried == Some(taken.order)) {
                items = self.0.remove(&of).map(|line| line.items).unwrap_or_default();
            }
        }
        items.into_values()
    }

    /// Takes out what another process publishes now. What is being tried is not here.
    pub(super) fn take_over(&mut self) -> Vec<Item> {
        let mut over = Vec::new();
        self.0.retain(|_, line| {
            over.extend(line.items.extract_if(.., |_, item| item.tenure.is_over()).map(|it| it.1));
            line.tried.is_some() || !line.items.is_empty()
        });
        over
    }

    /// What kept the broker from taking one that was tried alone may be over for all such.
    pub(super) fn hurry(&mut self, now: Instant) {
        for line in self.0.values_mut().filter(|line| line.again == Again::Alone) {
            line.retry_at = now;
        }
    }

    /// Those that are to be tried again now among the others, and of those that are to be tried alone
    /// at most so many, the ones that have waited longest.
    pub(super) fn due(&mut self, alone: usize, now: Instant) -> (Vec<Item>, Vec<Item>) {
        let is_due = |line: &&mut Line| line.tried.is_none() && line.retry_at <= now;
        let mut lines: Vec<&mut Line> = self.0.values_mut().filter(is_due).collect();
        lines.sort_unstable_by_key(|line| line.retry_at);
        let (mut due, mut due_alone) = (Vec::new(), Vec::new());
        for line in lines {
            let to = match line.again {
                Again::Among => &mut due,
                Again::Alone if due_alone.len() < alone => &mut due_alone,
                Again::Alone => continue,
            };
            if let Some((order, item)) = line.items.pop_first() {
                line.tried = Some(order);
                to.push(item);
            }
        }
        (due, due_alone)
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

    use super::super::encode::{Body, Outgoing};
    use super::*;
    use ordain_store::Tenure;

    fn item(key: usize, order: u64) -> Item {
        let mut headers = FieldTable::default();
        headers.insert("X-Key".into(), AMQPValue::LongString(key.to_string().into()));
        let properties = BasicProperties::default().with_headers(headers);
        let outgoing = Outgoing { routing_key: "key".into(), properties, body: Body::Nothing };
        Item { run: key as u64, order, outgoing, tenure: Arc::new(Tenure::sole()) }
    }

    /// Whatever is refused, comes back or gets no answer, and is tried again in whatever way: all are
    /// taken in the end, those of a key in order.
    #[test]
    fn all_are_taken_and_keys_keep_their_order() {
        for seed in 0..500 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (mut held, mut now) = (Held::default(), Instant::now());
            let mut waiting: VecDeque<Item> =
                (0..60).map(|order| item(rng.random_range(0..4), order)).collect();
            let mut on_the_way: Vec<Item> = Vec::new();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for step in 0.. {
                assert!(step < 100_000, "seed {seed}: {} of 60 are taken", taken.len());
                if taken.len() == 60 {
                    break;
                }
                let (due, alone) = held.due(2, now);
                for item in due.into_iter().rev() {
                    waiting.push_front(item);
                }
                on_the_way.extend(alone);
                // Those of a key that are on their way together have no order if one is refused.
                let busy: BTreeSet<u64> = on_the_way.iter().map(|it| it.run).collect();
                if waiting.front().is_some_and(|it| !busy.contains(&it.run)) {
                    on_the_way.extend(waiting.pop_front().and_then(|it| held.pass(it)));
                } else if !on_the_way.is_empty() {
                    let item = on_the_way.swap_remove(rng.random_range(0..on_the_way.len()));
                    match rng.random_range(0..4) {
                        0 => held.hold(item, Again::Among, now),
                        1 => held.hold(item, Again::Alone, now),
                        _ => {
                            for next in held.release(&item).rev() {
                                waiting.push_front(next);
                            }
                            taken.push((item.run, item.order));
                        }
                    }
                }
                now += Duration::from_millis(rng.random_range(0..5_000));
            }
            for key in 0..4 {
                let of_key = taken.iter().filter(|it| it.0 == key).map(|it| it.1);
                assert!(of_key.is_sorted(), "seed {seed}: {taken:?}");
            }
            assert!(held.is_empty(), "seed {seed}");
        }
    }
}
