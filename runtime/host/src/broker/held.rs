//! Messages that the broker does not take, by stream and key: the first one of a key is tried again
//! from time to time, and those behind it wait, so that the key's order stays. Other keys go on.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::flight::Item;

/// Between two tries, from and to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Between two tries where a try closes the channel.
const REFUSED: Duration = Duration::from_secs(30);

/// A stream and a key.
type Of = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
pub(super) struct Held(HashMap<Of, Line>);

/// What is held of a key.
#[derive(Debug)]
struct Line {
    /// By their order.
    items: BTreeMap<u64, Item>,
    /// The one that is being tried.
    tried: Option<u64>,
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

    /// Keeps a message that was not taken. One that was `refused` is tried again seldom: to try costs
    /// the channel.
    pub(super) fn hold(&mut self, item: Item, refused: bool) {
        let now = Instant::now();
        let line = self.0.entry(item.outgoing.of()).or_insert_with(|| Line {
            items: BTreeMap::new(),
            tried: Some(item.order),
            retry_at: now,
            wait: Duration::ZERO,
        });
        if line.tried == Some(item.order) || refused {
            line.tried = None;
            line.wait = if refused { REFUSED } else { (2 * line.wait).clamp(BACKOFF.0, BACKOFF.1) };
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

    /// Those that are to be tried again now, and whether one of them was refused: of such there is one
    /// at a time.
    pub(super) fn due(&mut self) -> (Vec<Item>, bool) {
        let now = Instant::now();
        let mut has_refused = false;
        let mut due = Vec::new();
        for line in self.0.values_mut() {
            let is_refused = line.wait == REFUSED;
            if line.tried.is_some() || line.retry_at > now || (is_refused && has_refused) {
                continue;
            }
            has_refused |= is_refused;
            if let Some((order, item)) = line.items.pop_first() {
                line.tried = Some(order);
                due.push(item);
            }
        }
        (due, has_refused)
    }
}
