//! The published events, their order and their form.

use std::ops::Range;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::latency::{STAMP_BYTES, now_us};

/// Size of an event's data, in bytes.
const DATA_BYTES: usize = 256;
/// Number of keys of a load with many keys.
const MANY_KEY_COUNT: u32 = 10_000;
/// Number of ordinary keys in a load with one special key.
const ORDINARY_KEY_COUNT: u32 = 1_000;
/// Largest number of positions that `disturb` adds to an event's position before it sorts the events by position.
const DISTANCE_LIMIT: usize = 100;
/// Share of the events of a disturbed load that the load contains twice.
const REPEATED_SHARE: f64 = 0.05;

/// The distribution of events over keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// There are 10,000 keys, which are equally frequent.
    Many,
    /// There are 10,000 keys. The first key is twice as frequent as the second key, three times as frequent as the
    /// third key, and so on.
    Zipf,
    /// One key for all events.
    One,
    /// Like `Many`, but each event is delayed by 0 to 100 positions, so that events overtake each other. The load
    /// contains about one event in twenty twice.
    Disturbed,
}

/// A delivery to publish: the event with this sequence of the key with this number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedDelivery {
    pub(crate) key: u32,
    /// The sequence of the event in its key, counted from 1.
    pub(crate) sequence: u32,
}

/// The published events, in order.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) deliveries: Vec<PlannedDelivery>,
    /// Number of events by key. A repeated event counts once. An event that `lose_first` has removed counts, too.
    pub(crate) events: Vec<u32>,
    /// The CloudEvents type of the events.
    kind: &'static str,
    /// The keys whose events have the type `emit` instead of `kind`.
    emitting: Range<u32>,
    /// True if the data shows when an event was published. In a load with repeats, the data does not show this time,
    /// because a repeat must have the same data as the first copy of the event.
    stamped: bool,
}

impl Load {
    /// Returns a load of this number of events; the same arguments always give the same load.
    pub(crate) fn new(keys: Keys, events: usize, kind: &'static str) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let count = if keys == Keys::One { 1 } else { MANY_KEY_COUNT };
        let shares: Vec<f64> = (1..=count)
            .scan(0.0, |sum, rank| {
                *sum += if keys == Keys::Zipf { 1.0 / f64::from(rank) } else { 1.0 };
                Some(*sum)
            })
            .collect();
        let all = shares[shares.len() - 1];
        let mut of_keys = vec![0; shares.len()];
        let mut deliveries: Vec<PlannedDelivery> = (0..events)
            .map(|_| {
                let at = rng.random_range(0.0..all);
                let key = shares.partition_point(|share| *share <= at).min(shares.len() - 1);
                of_keys[key] += 1;
                PlannedDelivery { key: key as u32, sequence: of_keys[key] }
            })
            .collect();
        if keys == Keys::Disturbed {
            deliveries = disturb(&deliveries, &mut rng);
        }
        Self { deliveries, events: of_keys, kind, emitting: 0..0, stamped: keys != Keys::Disturbed }
    }

    /// Returns a load of `events` events of 1,000 keys, with `of_one` events of key 0 spread evenly among them. Each
    /// event of the keys `emitting` makes a message. If an event of any other key, including key 0, does not follow the
    /// previous event of its key, the handler rejects the event.
    pub(crate) fn beside_one(events: usize, of_one: usize, emitting: Range<u32>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut of_keys = vec![0; 1 + ORDINARY_KEY_COUNT as usize];
        let all = events + of_one;
        let deliveries = (0..all).map(|at| {
            let is_of_one = (at + 1) * of_one / all > at * of_one / all;
            let key = if is_of_one { 0 } else { rng.random_range(1..=ORDINARY_KEY_COUNT) };
            let count: &mut u32 = &mut of_keys[key as usize];
            *count += 1;
            PlannedDelivery { key, sequence: *count }
        });
        let deliveries = deliveries.collect();
        Self { deliveries, events: of_keys, kind: "follow", emitting, stamped: true }
    }

    /// Removes the first event of a key from the load, and returns the event. The caller publishes this event later or
    /// never.
    pub(crate) fn lose_first(&mut self, key: u32) -> Option<PlannedDelivery> {
        let at = self.deliveries.iter().position(|planned| planned.key == key)?;
        Some(self.deliveries.remove(at))
    }

    /// Returns the number of messages that the events of the keys `emitting` make.
    pub(crate) fn messages(&self) -> usize {
        self.deliveries.iter().filter(|planned| self.emitting.contains(&planned.key)).count()
    }

    /// Returns the number of events, each counted once even if the load repeats it.
    pub(crate) fn distinct(&self) -> u64 {
        self.events.iter().copied().map(u64::from).sum()
    }

    /// Returns the number of keys that have events.
    pub(crate) fn keys(&self) -> usize {
        self.events.iter().filter(|events| **events > 0).count()
    }

    /// Returns the first `at` deliveries, and the other deliveries.
    pub(crate) fn split(&self, at: usize) -> (&[PlannedDelivery], &[PlannedDelivery]) {
        self.deliveries.split_at(at.min(self.deliveries.len()))
    }

    /// Returns the properties and the data of an event that is published now.
    pub(crate) fn event(&self, planned: PlannedDelivery) -> (BasicProperties, [u8; DATA_BYTES]) {
        let PlannedDelivery { key, sequence } = planned;
        let kind = if self.emitting.contains(&key) { "emit" } else { self.kind };
        let now = now_us();
        let mut data = [b'.'; DATA_BYTES];
        data[STAMP_BYTES].copy_from_slice(&if self.stamped { now } else { 0 }.to_le_bytes());
        data[STAMP_BYTES.end..][..4].copy_from_slice(&sequence.to_le_bytes());
        let mut headers = FieldTable::default();
        headers.insert("X-Sequence-ID".into(), AMQPValue::LongLongInt(sequence.into()));
        headers
            .insert("timestamp_in_ms".into(), AMQPValue::LongLongInt((now / 1_000).cast_signed()));
        let properties = BasicProperties::default()
            .with_message_id(format!("{key}/{sequence}").into())
            .with_type(kind.into())
            .with_content_type("application/octet-stream".into())
            .with_delivery_mode(2)
            .with_headers(headers);
        (properties, data)
    }
}

/// Returns the name of a key, as events contain it.
pub(crate) fn key_name(key: u32) -> String {
    format!("order-{key}")
}

fn disturb(events: &[PlannedDelivery], rng: &mut ChaCha8Rng) -> Vec<PlannedDelivery> {
    let mut placed = Vec::with_capacity(events.len() * 11 / 10);
    for (at, event) in events.iter().enumerate() {
        placed.push((at + rng.random_range(0..=DISTANCE_LIMIT), *event));
        if rng.random_bool(REPEATED_SHARE) {
            placed.push((at + rng.random_range(0..=DISTANCE_LIMIT), *event));
        }
    }
    placed.sort_by_key(|(at, _)| *at);
    placed.into_iter().map(|(_, event)| event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_has_each_event_and_repeats_some() {
        for keys in [Keys::Many, Keys::Zipf, Keys::One, Keys::Disturbed] {
            let load = Load::new(keys, 20_000, "put");
            let mut seen: Vec<_> =
                load.deliveries.iter().map(|planned| (planned.key, planned.sequence)).collect();
            let in_order = seen.is_sorted_by_key(|(_, sequence)| *sequence);
            assert_eq!(in_order, keys == Keys::One);
            seen.sort_unstable();
            seen.dedup();
            let expected = (0..)
                .zip(&load.events)
                .flat_map(|(key, events)| (1..=*events).map(move |sequence| (key, sequence)));
            assert!(seen.iter().copied().eq(expected), "{keys:?}");
            assert_eq!(load.distinct(), 20_000);
            let again = load.deliveries.len() - 20_000;
            let expected = if keys == Keys::Disturbed { 800..1_200 } else { 0..1 };
            assert!(expected.contains(&again), "{again} of {keys:?}");
        }
    }

    #[test]
    fn events_of_one_key_are_spread_evenly() {
        let mut load = Load::beside_one(2_000, 1_000, 1..101);
        assert_eq!((load.deliveries.len(), load.events[0], load.distinct()), (3_000, 1_000, 3_000));
        let of_one: Vec<_> = load.deliveries.iter().map(|planned| planned.key == 0).collect();
        assert!(
            of_one.chunks(3).all(|three| three.iter().filter(|is_of_one| **is_of_one).count() == 1)
        );
        let lost = load.lose_first(0).expect("key 0 has events");
        assert_eq!((lost.sequence, load.deliveries.len(), load.distinct()), (1, 2_999, 3_000));
        assert!((100..300).contains(&load.messages()), "{}", load.messages());
    }
}
