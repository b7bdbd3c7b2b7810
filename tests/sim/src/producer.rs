//! Writes the script of a run. The script contains the queue of each partition, with the order and the times of its
//! entries. It also contains the events of the remote replay source, and the imported key records.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, EventParts, Key, OrderingMode, SEQUENCE_END, digest};

use crate::plan::{BlockKind, Plan};
use crate::rng::{Rng, mix};

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The source may deliver the entry from this time on.
    pub(crate) at: u64,
    pub(crate) item: SourceItem,
}

#[derive(Debug, Clone)]
pub(crate) enum SourceItem {
    Event(Arc<Event>),
    Unreadable(Bytes),
}

/// The queues of a run, the events of its remote replay source, and the key records in the store at its beginning.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// The queue of each partition, in the order of delivery.
    pub(crate) queues: Vec<Vec<Entry>>,
    /// By key and sequence, the events that the remote replay source has.
    pub(crate) remote: BTreeMap<(Key, u64), Arc<Event>>,
    /// The partition and the next sequence of key records that are in the store from the beginning.
    pub(crate) imported: BTreeMap<Key, (u32, u64)>,
    /// The source may deliver the last entry from this time on.
    pub(crate) end: u64,
}

/// The handler executes events of this type.
pub(crate) const HANDLED_TYPE: &str = "sim";

/// A plan with a [`BlockKind`] value blocks this key.
pub(crate) const BLOCKED_KEY: &str = "key-0";

pub(crate) fn script(plan: &Plan, rng: &mut Rng) -> Script {
    let mut writer = Writer { plan, rng, placed: Vec::new(), script: Script::default() };
    for key in 0..plan.producer.keys {
        writer.key(key);
    }
    let Writer { mut placed, mut script, .. } = writer;
    placed.sort_by_key(|(_, entry)| entry.at);
    script.end = placed.last().map_or(0, |(_, entry)| entry.at);
    script.queues = vec![Vec::new(); plan.partitions as usize];
    for (partition, entry) in placed {
        script.queues[partition].push(entry);
    }
    script
}

struct Writer<'a> {
    plan: &'a Plan,
    rng: &'a mut Rng,
    placed: Vec<(usize, Entry)>,
    script: Script,
}

/// The home partition of a key's events, and the time of its move.
struct Route {
    home: usize,
    moves_at: u64,
}

impl Writer<'_> {
    fn key(&mut self, number: u64) {
        let rates = &self.plan.producer;
        let name = if number == 3 { "ключ/3 %".to_owned() } else { format!("key-{number}") };
        let key: Key = Arc::from(name);
        let mut first = self.plan.settings.first;
        if self.plan.settings.begins_anywhere {
            first = self.rng.pick(&[0, 1, 7, 1_000]);
        }
        let count = self.rng.between(rates.events.0, rates.events.1);
        let ended = self.rng.permille(rates.ended);
        let route = Route {
            home: self.rng.below(u64::from(self.plan.partitions)) as usize,
            moves_at: if self.rng.permille(rates.moved) {
                self.rng.below(rates.spread)
            } else {
                u64::MAX
            },
        };
        let blocked = self.plan.handler.blocked.is_some() && *key == *BLOCKED_KEY;
        if self.rng.permille(rates.imported) && !blocked {
            first = self.rng.pick(&[2, 1_000, 5_000_000]);
            self.script.imported.insert(key.clone(), (route.home as u32, first));
            let before = self.make(&key, first - 1, "before", false);
            let at = self.rng.below(rates.spread);
            self.place(&route, at, before);
        }
        let mut times: Vec<u64> = (0..count).map(|_| self.rng.below(rates.spread)).collect();
        times.sort_unstable();
        let jumps = rates.jumps > 0 && self.rng.permille(rates.jumps);
        let jump_at = if jumps { self.rng.below(count) } else { count };
        let jump = if jumps { self.rng.pick(&[5, 40, 3_000]) } else { 0 };
        for (index, &at) in times.iter().enumerate() {
            let mut sequence = first + index as u64;
            if jumps && index as u64 == jump_at {
                self.late_between(&key, &route, sequence..sequence + jump, at);
            }
            if index as u64 >= jump_at {
                sequence += jump;
            }
            let end = ended && index + 1 == times.len();
            self.event(&key, &route, sequence, at, end);
            self.oddities(&key, &route, first + count + jump, sequence, at);
        }
        if ended {
            for beyond in 0..self.rng.below(rates.after_end + 1) {
                let at = self.rng.below(2 * rates.spread);
                let event = self.make(&key, first + count + jump + beyond, "after", false);
                self.place(&route, at, event);
            }
        }
    }

    /// The sequences are in the range of a jump. No event arrives before the time of the jump.
    fn late_between(&mut self, key: &Key, route: &Route, between: Range<u64>, base: u64) {
        for _ in 0..self.rng.below(4) {
            let sequence = self.rng.between(between.start, between.end - 1);
            let event = self.make(key, sequence, "between", false);
            let at = base + self.rng.below(2 * self.plan.producer.lateness + 1);
            self.place(route, at, event.clone());
            if self.rng.permille(300) {
                let again = at + self.rng.below(self.plan.producer.lateness + 1);
                self.place(route, again, event);
            }
        }
    }

    /// The delivery of the event may fail.
    fn event(&mut self, key: &Key, route: &Route, sequence: u64, base: u64, end: bool) {
        let rates = &self.plan.producer;
        let event = self.make(key, sequence, "original", end);
        let never_comes = self.plan.handler.blocked == Some(BlockKind::Gap)
            && &**key == BLOCKED_KEY
            && sequence == self.plan.settings.first + 1;
        if never_comes {
            return;
        }
        let mut at = base + self.rng.below(rates.jitter + 1);
        if self.rng.permille(rates.late) {
            at += self.rng.below(rates.lateness + 1);
        }
        if self.rng.permille(rates.lost) {
            if self.rng.permille(rates.found) {
                self.script.remote.insert((key.clone(), sequence), event);
            }
            return;
        }
        self.place(route, at, event.clone());
        while self.rng.permille(rates.repeated) {
            let again = at + self.rng.below(rates.spread / 2 + 1);
            self.place(route, again, event.clone());
        }
        if self.rng.permille(rates.corrupted) {
            let other = self.make(key, sequence, "corrupted", end);
            let when = base + self.rng.below(rates.jitter * 2 + 1);
            self.place(route, when, other);
        }
    }

    /// The rates of the plan determine the unusual deliveries: an event with a sequence far ahead, an unusable event,
    /// or bytes that are no event.
    fn oddities(&mut self, key: &Key, route: &Route, end: u64, sequence: u64, at: u64) {
        let rates = &self.plan.producer;
        if self.rng.permille(rates.far) {
            let distance = self.rng.pick(&[1, 2, 1 << 40]);
            // An event one beyond the limit may have the sequence of a later event of the key. Other events lie beyond
            // all events of the key.
            let base = if distance == 1 { sequence } else { end };
            let far = base + self.plan.settings.gap.max_width + distance;
            let event = self.make(key, far, "far", false);
            self.place(route, at, event);
        }
        if !self.rng.permille(rates.unusable) {
            return;
        }
        let id = format!("odd/{key}/{sequence}");
        let mut parts = EventParts {
            key,
            sequence: Some(sequence),
            id: &id,
            kind: "odd",
            ..Default::default()
        };
        match self.rng.below(6) {
            0 => parts.key = "",
            1 => {
                parts.sequence = None;
                parts.id = "";
            }
            2 => parts.sequence = Some(0),
            3 => parts.sequence = Some(SEQUENCE_END),
            4 => parts.sequence = Some(SEQUENCE_END - 1),
            _ => {
                let bytes = Bytes::from(format!("not an event: {id}"));
                self.push(route, at, SourceItem::Unreadable(bytes));
                return;
            }
        }
        // Sequence 0 is a usable sequence if the first sequence of a key is 0.
        let usual = parts.sequence == Some(0) && self.plan.settings.first == 0;
        let unusable = !self.is_fifo() || parts.key.is_empty() || parts.id.is_empty();
        if unusable && !usual {
            self.place(route, at, Arc::new(Event::new(&parts)));
        }
    }

    fn is_fifo(&self) -> bool {
        self.plan.settings.ordering == OrderingMode::Fifo
    }

    fn make(&mut self, key: &Key, sequence: u64, variant: &str, end: bool) -> Arc<Event> {
        let id = format!("{key}/{sequence}");
        let mut data = format!("{variant} {sequence}").into_bytes();
        if self.rng.permille(self.plan.producer.big) {
            data.resize(self.rng.between(1_000, 4_000) as usize, b'.');
        }
        Arc::new(Event::new(&EventParts {
            key,
            sequence: (!self.is_fifo()).then_some(sequence),
            id: &id,
            kind: self.kind(key, sequence),
            data: &data,
            end,
            ..EventParts::default()
        }))
    }

    /// All events with the same key and sequence have the same type.
    fn kind(&self, key: &Key, sequence: u64) -> &'static str {
        let chance = mix(&[self.plan.seed, digest(key.as_bytes()), sequence, 3]) % 1000;
        if chance < u64::from(self.plan.producer.other_types) { "other" } else { HANDLED_TYPE }
    }

    fn place(&mut self, route: &Route, at: u64, event: Arc<Event>) {
        self.push(route, at, SourceItem::Event(event));
    }

    fn push(&mut self, route: &Route, at: u64, item: SourceItem) {
        let moved = at >= route.moves_at;
        let astray = self.rng.permille(self.plan.producer.astray);
        let partition = (route.home + usize::from(moved != astray)) % self.plan.partitions as usize;
        self.placed.push((partition, Entry { at, item }));
    }
}
