//! Random calls. The same seed always generates the same calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ordain_core::{Event, Key};
use ordain_store::{
    AssignItemReply, Destination, DestinationRules, NumberingSettings, OutboxChunk,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::giver::{Giver, NUMBERS, data, event, keys, message, part};
use super::{Fixture, giver};

/// Each message has exactly one number, and no number is missing, even after lost replies, repeated calls, and new
/// owners that group the messages differently.
pub async fn numbers_hold_through_crashes(fixture: &mut impl Fixture) {
    let [a, b] = keys(fixture.store());
    let message_of = |at: u64| message(if at.is_multiple_of(3) { &b } else { &a }, &at.to_string());
    let parts: Vec<OutboxChunk> =
        (1..=60).map(|at| part(at, 0, &[message_of(2 * at), message_of(2 * at + 1)])).collect();
    for seed in 0..4_u64 {
        let mut random = random(seed);
        let to = Destination::Exchange(format!("next-{seed}").into());
        let mut epoch = 1;
        let mut sent = 0_usize;
        let mut done = 0_usize;
        let mut before = None;
        while sent < parts.len() {
            let end = (sent + 1 + random(7) as usize).min(parts.len());
            let giver = Giver { to: to.clone(), ..Giver::exchange(fixture.store(), epoch) };
            let giver = giver.with(|origin| {
                (origin.last_confirmed, origin.published_commit) = (before, done as u64);
            });
            let group = parts[sent..end].to_vec();
            for _ in 0..=random(2) {
                giver::done(giver.send(fixture.store(), group.clone()).await);
            }
            (sent, before) = (end, Some(parts[end - 1].position));
            done += random((sent - done) as u64 + 1) as usize;
            if random(4) == 0 {
                // A new owner begins with all messages that are not recorded as published.
                (epoch, sent, before) = (epoch + 1, done, None);
            }
        }
        let giver = Giver { to, ..Giver::exchange(fixture.store(), epoch) };
        for key in [&a, &b] {
            let kept = giver.kept(fixture.store(), key, 0, 999).await;
            let right = (2..=121)
                .filter(|at| message_of(*at).key() == &**key)
                .map(|at: u64| at.to_string());
            let right: Vec<(u64, String)> = (1..).zip(right).collect();
            assert_eq!(kept, right, "seed {seed}");
        }
    }
}

/// After random calls of owners and producers at random times, the store has given the same numbers as a simple model.
pub async fn a_model_says_the_same(fixture: &mut impl Fixture) {
    for seed in 0..6 {
        let mut random = random(seed);
        let keys = keys(fixture.store());
        let to = Destination::Exchange(format!("model-{seed}").into());
        let numbers = NumberingSettings { first: seed % 2, retain_events: 6, ..NUMBERS };
        let mut model = Model { numbers, ..Model::default() };
        let mut epoch = 1;
        let mut commit = 0;
        let mut done = 0;
        let mut made = 0;
        let mut history: Vec<(OutboxChunk, Vec<u64>)> = Vec::new();
        for step in 0..60 {
            let giver = Giver {
                to: to.clone(),
                rules: DestinationRules { numbering: Some(numbers), queue_limit: None },
                ..Giver::exchange(fixture.store(), epoch)
            };
            let mut fresh = |below: u64| {
                made += 1;
                let key = &keys[usize::from(below.is_multiple_of(3))];
                event(key, &made.to_string(), None, &made.to_string(), below.is_multiple_of(5))
            };
            let (found, expected) = match random(8) {
                // The present owner assigns more messages.
                0..3 => {
                    let giver = giver.with(|origin| origin.published_commit = done);
                    let mut parts = Vec::new();
                    let mut expected = Vec::new();
                    for _ in 0..=random(3) {
                        let items: Vec<_> = (0..=random(3)).map(|_| fresh(random(30))).collect();
                        commit += 1;
                        parts.push(part(commit, 0, &items));
                        let sent: Vec<u64> =
                            items.iter().map(|item| model.put(item, None)).collect();
                        expected.extend(sent.iter().map(|number| AssignItemReply::New(*number)));
                        history.push((part(commit, 0, &items), sent));
                    }
                    (giver::done(giver.send(fixture.store(), parts).await), expected)
                }
                // A new owner begins with all messages that are not recorded as published.
                3 => {
                    epoch += 1;
                    done += random(commit - done + 1);
                    let giver = giver
                        .with(|origin| (origin.epoch, origin.published_commit) = (epoch, done));
                    let left = history.iter().filter(|(part, _)| part.position.commit > done);
                    let (parts, sent): (Vec<_>, Vec<_>) = left.cloned().unzip();
                    let expected = sent.into_iter().flatten().map(AssignItemReply::Known).collect();
                    (giver::done(giver.send(fixture.store(), parts).await), expected)
                }
                4..7 => {
                    let mut items = Vec::new();
                    for _ in 0..=random(4) {
                        let new = fresh(random(30));
                        let key = new.key();
                        let at = random(80).to_string();
                        items.push(match random(6) {
                            0 => event(key, &at, None, &at, false),
                            2 => event(key, "other", None, &at, false),
                            1 => event(key, &at, Some(random(12)), &at, false),
                            _ => new,
                        });
                    }
                    let producer = Giver { origin: None, ..giver };
                    let expected = model.publish(&items);
                    (producer.done(fixture.store(), 0, &items).await, expected)
                }
                _ => {
                    let ms = [40_000, 120_000, 480_000][random(3) as usize];
                    fixture.pass(ms).await;
                    model.now += ms;
                    continue;
                }
            };
            assert_eq!(found, expected, "seed {seed}, step {step}");
            let giver = Giver { to: to.clone(), ..Giver::exchange(fixture.store(), epoch) };
            for key in &keys {
                let kept = giver.kept(fixture.store(), key, 0, 999).await;
                assert_eq!(kept, model.kept(key), "seed {seed}, step {step}, key {key}");
            }
        }
    }
}

/// A simple model of the numbers that the store must give.
#[derive(Default)]
struct Model {
    numbers: NumberingSettings,
    now: u64,
    /// The next number of each key, and, if the key has ended, the time at which the store forgets this number.
    counts: HashMap<Key, (u64, Option<u64>)>,
    /// The retained messages, by key and number: the data of each message, and its expiry time.
    kept: BTreeMap<(Key, u64), (String, u64)>,
    /// The remembered messages, by key and id: the number and the data of each message, and its expiry time.
    ids: HashMap<(Key, String), (u64, String, u64)>,
}

impl Model {
    fn put(&mut self, event: &Event, own: Option<u64>) -> u64 {
        let key = Key::from(event.key());
        let now = self.now;
        let count = self.counts.entry(key.clone()).or_insert((self.numbers.first, None));
        if count.1.is_some_and(|end| end <= now) {
            *count = (self.numbers.first, None);
        }
        let number = own.unwrap_or(count.0);
        count.0 = count.0.max(number + 1);
        if event.end() {
            count.1 = Some(now + self.numbers.complete_ttl);
        }
        let until = now + self.numbers.retain;
        self.kept.insert((key.clone(), number), (data(event), until));
        if let Some(old) = number.checked_sub(self.numbers.retain_events) {
            self.kept.remove(&(key, old));
        }
        number
    }

    fn publish(&mut self, events: &[Arc<Event>]) -> Vec<AssignItemReply> {
        let mut all = Vec::new();
        let mut stops = false;
        for event in events {
            let assigned =
                if stops { AssignItemReply::AfterConflict } else { self.publish_one(event) };
            stops |= matches!(assigned, AssignItemReply::Conflict(_));
            all.push(assigned);
        }
        all
    }

    fn publish_one(&mut self, event: &Event) -> AssignItemReply {
        let key = Key::from(event.key());
        let id = event.id().to_owned();
        let now = self.now;
        let known = match event.sequence() {
            Some(own) => {
                let kept = self.kept.get(&(key.clone(), own));
                kept.map(|(data, until)| (own, data.clone(), *until))
            }
            None => self.ids.get(&(key.clone(), id.clone())).cloned(),
        };
        if let Some((number, known, _)) = known.filter(|(.., until)| *until > now) {
            let is_same = known == data(event);
            return if is_same {
                AssignItemReply::Known(number)
            } else {
                AssignItemReply::Conflict(number)
            };
        }
        let number = self.put(event, event.sequence());
        if event.sequence().is_none() {
            self.ids.insert((key, id), (number, data(event), now + self.numbers.retain));
        }
        AssignItemReply::New(number)
    }

    fn kept(&self, key: &Key) -> Vec<(u64, String)> {
        let of = self.kept.range((key.clone(), 0)..=(key.clone(), u64::MAX));
        let there = of.filter(|(_, (_, until))| *until > self.now);
        there.map(|((_, number), (data, _))| (*number, data.clone())).collect()
    }
}

/// Returns a source of random numbers below a given bound. Equal seeds give equal numbers.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    move |below| random.random_range(0..below)
}
