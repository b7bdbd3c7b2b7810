//! Messages that the broker does not take, by stream and key: the first one of a key is tried again
//! from time to time, and those behind it wait, so that the key's order stays. Other keys go on.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::flight::Item;

/// Between two tries, from and to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Between two tries of what is tried alone.
const ALONE: Duration = Duration::from_secs(30);

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
    wait: Duration,
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
    pub(super) fn hold(&mut self, item: Item, again: Again) {
        let now = Instant::now();
        let line = self.0.entry(item.outgoing.of()).or_insert_with(|| Line {
            items: BTreeMap::new(),
            tried: Some(item.order),
            again,
            retry_at: now,
            wait: Duration::ZERO,
        });
        // Another one may go on being tried; if none is, the first is the next.
        let is_first = line.items.first_key_value().is_none_or(|(first, _)| item.order < *first);
        if line.tried.map_or(is_first, |tried| tried == item.order) {
            line.tried = None;
            line.again = again;
            line.wait = match again {
                Again::Among => (2 * line.wait).clamp(BACKOFF.0, BACKOFF.1),
                Again::Alone => ALONE,
            };
            line.retry_at = now + line.wait;
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

    /// What kept the broker from taking one that was tried alone may be over for all such.
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        for line in self.0.values_mut().filter(|line| line.again == Again::Alone) {
            line.retry_at = now;
        }
    }

    /// Those that are to be tried again now among the others, and of those that are to be tried alone
    /// at most so many, the ones that have waited longest.
    pub(super) fn due(&mut self, alone: usize) -> (Vec<Item>, Vec<Item>) {
        let now = Instant::now();
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
