//! What a round sends, and what must come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use ordain_tests::log::{disturb, line};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

const KEYS: Range<usize> = 20..300;
const EVENTS: Range<u64> = 1..60;
/// Of all events: sent behind all others.
const LATE: f64 = 0.02;
/// Of all keys: one event is never sent.
const LOST: f64 = 0.03;
/// Of all events: the producer drops them, and keeps them where they can be asked for.
const DROPPED: f64 = 0.01;
/// Of all keys: the last event is marked.
const ENDED: f64 = 0.7;
/// One of so many is sent twice.
const NTH: usize = 20;
/// They are shuffled within so many.
const WINDOW: usize = 100;
const BURST: Range<usize> = 1..400;
const PAUSE: Range<u64> = 0..400;
/// Messages that are no events: one of each kind at least.
const BROKEN: Range<usize> = 2..20;

/// A key, as it must be at the end.
pub(crate) struct Key {
    /// How many events it has.
    pub(crate) events: u64,
    /// Which of them is never sent.
    pub(crate) lost: Option<u64>,
    /// Whether the last is marked.
    pub(crate) is_ended: bool,
}

impl Key {
    /// The next sequence at the end.
    pub(crate) fn next(&self) -> u64 {
        self.lost.unwrap_or(self.events + 1)
    }
}

pub(crate) struct Plan {
    pub(crate) keys: BTreeMap<String, Key>,
    /// Each event that there is, once, in order.
    pub(crate) lines: Vec<String>,
    /// Those of them that are not sent: replay finds them.
    pub(crate) dropped: BTreeSet<String>,
    /// What is sent, in bursts with the time to wait before each.
    pub(crate) bursts: Vec<(Duration, Vec<String>)>,
    /// The bodies of messages that are no events and are sent as well, and whether their headers
    /// can be read: then they lack a sequence.
    pub(crate) broken: BTreeMap<String, bool>,
}

impl Plan {
    pub(crate) fn new(round: u32, random: &mut ChaCha8Rng) -> Self {
        let (mut keys, mut lines, mut late) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (mut events, mut dropped): (Vec<(u64, String)>, _) = (Vec::new(), BTreeSet::new());
        for number in 0..random.random_range(KEYS) {
            let name = format!("{round}-{number}");
            let count = random.random_range(EVENTS);
            let lost = random.random_bool(LOST).then(|| random.random_range(1..=count));
            let key = Key { events: count, lost, is_ended: random.random_bool(ENDED) };
            let begins = random.random_range(0..EVENTS.end);
            for sequence in (1..=count).filter(|it| Some(*it) != lost) {
                let text = line(&name, sequence, &json!({ "n": random.random::<u32>() }));
                let end = key.is_ended && sequence == count;
                let text = text.replacen('{', &format!("{{\"endofsequence\":{end},"), 1);
                // Behind the last one of a key nothing would show that it is missing.
                if sequence + 1 < key.next() && random.random_bool(DROPPED) {
                    dropped.insert(text.clone());
                }
                events.push((begins + sequence, text));
            }
            keys.insert(name, key);
        }
        // Keys side by side, each in order.
        events.sort_by_key(|(at, _)| *at);
        lines.extend(events.into_iter().map(|(_, line)| line));
        let mut sent = Vec::new();
        for line in lines.iter().filter(|it| !dropped.contains(*it)) {
            if random.random_bool(LATE) { &mut late } else { &mut sent }.push(line.clone());
        }
        sent.extend(late);
        let mut sent = disturb(&sent, WINDOW, NTH, random.random());
        let broken = (0..random.random_range(BROKEN)).map(|number| {
            let body = json!({ "broken": format!("{round}-{number}") }).to_string();
            (body, number % 2 == 0)
        });
        let broken: BTreeMap<String, bool> = broken.collect();
        for body in broken.keys() {
            sent.insert(random.random_range(0..=sent.len()), body.clone());
        }
        let mut bursts = Vec::new();
        while !sent.is_empty() {
            let burst = sent.split_off(sent.len() - random.random_range(BURST).min(sent.len()));
            bursts.push((Duration::from_millis(random.random_range(PAUSE)), burst));
        }
        bursts.reverse();
        Self { keys, lines, dropped, bursts, broken }
    }
}
