//! The events that a round sends, and the expected results.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use ordain_tests::log::{disturb, line};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

const KEY_COUNT: Range<usize> = 20..300;
/// The number of events of a key, including events that are never sent.
const EVENTS_PER_KEY: Range<u64> = 1..60;
/// The probability that an event is sent after all other events.
const LATE_PROBABILITY: f64 = 0.02;
/// The probability that a key has an event that is never sent.
const LOST_PROBABILITY: f64 = 0.03;
/// The probability that the producer does not send an event, but puts it into an archive for replay.
const DROPPED_PROBABILITY: f64 = 0.01;
/// The probability that the attribute `endofsequence` of a key's last event is true. Such an event completes the key.
const ENDED_PROBABILITY: f64 = 0.7;
/// The distance between two events that the producer repeats: the producer repeats every twentieth event.
const REPEAT_INTERVAL: usize = 20;
/// The number of successive events that are shuffled among each other.
const SHUFFLE_WINDOW: usize = 100;
const BURST_SIZE: Range<usize> = 1..400;
/// The pause before a burst, in milliseconds.
const BURST_DELAY_MS: Range<u64> = 0..400;
/// The number of messages that are not valid events. The lower bound of 2 gives at least one message of each of the two
/// kinds.
const BROKEN_COUNT: Range<usize> = 2..20;

pub(crate) struct Key {
    pub(crate) events: u64,
    /// The sequence of the event that is never sent; `None` if no event is lost.
    pub(crate) lost: Option<u64>,
    /// True if the last event is marked as the last event of its key.
    pub(crate) is_ended: bool,
}

impl Key {
    /// Returns the next sequence of the key at the end of the round.
    pub(crate) fn next(&self) -> u64 {
        self.lost.unwrap_or(self.events + 1)
    }
}

pub(crate) struct Plan {
    pub(crate) keys: BTreeMap<String, Key>,
    /// All events except the lost events, each once, in order.
    pub(crate) lines: Vec<String>,
    /// The events of `lines` that the producer does not send. A host fetches them by replay from the archive.
    pub(crate) dropped: BTreeSet<String>,
    /// The messages to send, in bursts. The duration is the pause before the burst.
    pub(crate) bursts: Vec<(Duration, Vec<String>)>,
    /// The bodies of the messages that are not valid events. The value is false if the message has an invalid header,
    /// and true if it only lacks a sequence.
    pub(crate) broken: BTreeMap<String, bool>,
}

impl Plan {
    pub(crate) fn new(round: u32, random: &mut ChaCha8Rng) -> Self {
        let mut keys = BTreeMap::new();
        let mut lines = Vec::new();
        let mut late = Vec::new();
        let mut events: Vec<(u64, String)> = Vec::new();
        let mut dropped = BTreeSet::new();
        for number in 0..random.random_range(KEY_COUNT) {
            let name = format!("{round}-{number}");
            let count = random.random_range(EVENTS_PER_KEY);
            let lost = random.random_bool(LOST_PROBABILITY).then(|| random.random_range(1..=count));
            let key = Key { events: count, lost, is_ended: random.random_bool(ENDED_PROBABILITY) };
            let begins = random.random_range(0..EVENTS_PER_KEY.end);
            for sequence in (1..=count).filter(|sequence| Some(*sequence) != lost) {
                let text = line(&name, sequence, &json!({ "n": random.random::<u32>() }));
                let end = key.is_ended && sequence == count;
                let text = text.replacen('{', &format!("{{\"endofsequence\":{end},"), 1);
                // An event is dropped only if another event of its key takes effect after it, because only a later
                // event shows the gap.
                if sequence + 1 < key.next() && random.random_bool(DROPPED_PROBABILITY) {
                    dropped.insert(text.clone());
                }
                events.push((begins + sequence, text));
            }
            keys.insert(name, key);
        }
        // Mixes the events of different keys. The events of each key stay in order.
        events.sort_by_key(|(at, _)| *at);
        lines.extend(events.into_iter().map(|(_, line)| line));
        let mut sent = Vec::new();
        for line in lines.iter().filter(|line| !dropped.contains(*line)) {
            if random.random_bool(LATE_PROBABILITY) { &mut late } else { &mut sent }
                .push(line.clone());
        }
        sent.extend(late);
        let mut sent = disturb(&sent, SHUFFLE_WINDOW, REPEAT_INTERVAL, random.random());
        let broken = (0..random.random_range(BROKEN_COUNT)).map(|number| {
            let body = json!({ "broken": format!("{round}-{number}") }).to_string();
            (body, number % 2 == 0)
        });
        let broken: BTreeMap<String, bool> = broken.collect();
        for body in broken.keys() {
            sent.insert(random.random_range(0..=sent.len()), body.clone());
        }
        let mut bursts = Vec::new();
        while !sent.is_empty() {
            let burst =
                sent.split_off(sent.len() - random.random_range(BURST_SIZE).min(sent.len()));
            bursts.push((Duration::from_millis(random.random_range(BURST_DELAY_MS)), burst));
        }
        bursts.reverse();
        Self { keys, lines, dropped, bursts, broken }
    }
}
