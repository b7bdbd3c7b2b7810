//! Tests with random calls that assign messages. The same seed always generates the same calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ordain_core::{Event, Key};
use ordain_store::{
    AssignItemReply, Destination, DestinationRules, NumberingSettings, OutboxChunk,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::super::Fixture;
use super::sender::{self, NUMBERING, Sender, chunk, data, event, keys, message};

/// Each message has exactly one number, and no number is missing, even after lost replies, repeated calls, and new
/// owners that group the messages differently.
pub async fn each_message_has_one_number_after_repeats_and_new_owners(fixture: &mut impl Fixture) {
    let [a, b] = keys(fixture.store());
    let message_of =
        |number: u64| message(if number.is_multiple_of(3) { &b } else { &a }, &number.to_string());
    let chunks: Vec<OutboxChunk> = (1..=60)
        .map(|commit| chunk(commit, 0, &[message_of(2 * commit), message_of(2 * commit + 1)]))
        .collect();
    for seed in 0..4_u64 {
        let mut random = random(seed);
        let destination = Destination::Exchange(format!("next-{seed}").into());
        let mut epoch = 1;
        let mut sent = 0_usize;
        let mut published = 0_usize;
        let mut last_confirmed = None;
        while sent < chunks.len() {
            let end = (sent + 1 + random(7) as usize).min(chunks.len());
            let sender = Sender {
                destination: destination.clone(),
                ..Sender::exchange(fixture.store(), epoch)
            };
            let sender = sender.with(|origin| {
                (origin.last_confirmed, origin.published_commit) =
                    (last_confirmed, published as u64);
            });
            let group = chunks[sent..end].to_vec();
            for _ in 0..=random(2) {
                sender::results(sender.send(fixture.store(), group.clone()).await);
            }
            sent = end;
            last_confirmed = Some(chunks[end - 1].position);
            published += random((sent - published) as u64 + 1) as usize;
            if random(4) == 0 {
                // A new owner begins with all messages that are not recorded as published.
                epoch += 1;
                sent = published;
                last_confirmed = None;
            }
        }
        let sender = Sender { destination, ..Sender::exchange(fixture.store(), epoch) };
        for key in [&a, &b] {
            let retained = sender.retained(fixture.store(), key, 0, 999).await;
            let expected = (2..=121)
                .filter(|number| message_of(*number).key() == &**key)
                .map(|number: u64| number.to_string());
            let expected: Vec<(u64, String)> = (1..).zip(expected).collect();
            assert_eq!(retained, expected, "seed {seed}");
        }
    }
}

/// Owners and producers send random calls at random times. The store gives the messages the same numbers as a simple
/// model, and retains the same messages.
pub async fn random_calls_agree_with_the_model(fixture: &mut impl Fixture) {
    for seed in 0..6 {
        let mut random = random(seed);
        let keys = keys(fixture.store());
        let destination = Destination::Exchange(format!("model-{seed}").into());
        let numbering = NumberingSettings { first: seed % 2, retain_events: 6, ..NUMBERING };
        let mut model = Model { numbering, ..Model::default() };
        let mut epoch = 1;
        let mut commit = 0;
        let mut published = 0;
        let mut message_count = 0;
        let mut history: Vec<(OutboxChunk, Vec<u64>)> = Vec::new();
        for step in 0..60 {
            let sender = Sender {
                destination: destination.clone(),
                rules: DestinationRules { numbering: Some(numbering), queue_limit: None },
                ..Sender::exchange(fixture.store(), epoch)
            };
            let mut new_message = |choice: u64| {
                message_count += 1;
                let key = &keys[usize::from(choice.is_multiple_of(3))];
                let text = message_count.to_string();
                event(key, &text, None, &text, choice.is_multiple_of(5))
            };
            let (found, expected) = match random(8) {
                // The present owner assigns more messages.
                0..3 => {
                    let sender = sender.with(|origin| origin.published_commit = published);
                    let mut chunks = Vec::new();
                    let mut expected = Vec::new();
                    for _ in 0..=random(3) {
                        let items: Vec<_> =
                            (0..=random(3)).map(|_| new_message(random(30))).collect();
                        commit += 1;
                        chunks.push(chunk(commit, 0, &items));
                        let numbers: Vec<u64> =
                            items.iter().map(|item| model.put(item, None)).collect();
                        expected.extend(numbers.iter().map(|number| AssignItemReply::New(*number)));
                        history.push((chunk(commit, 0, &items), numbers));
                    }
                    (sender::results(sender.send(fixture.store(), chunks).await), expected)
                }
                // A new owner begins with all messages that are not recorded as published.
                3 => {
                    epoch += 1;
                    published += random(commit - published + 1);
                    let sender = sender.with(|origin| {
                        origin.epoch = epoch;
                        origin.published_commit = published;
                    });
                    let unpublished =
                        history.iter().filter(|(chunk, _)| chunk.position.commit > published);
                    let (chunks, numbers): (Vec<_>, Vec<_>) = unpublished.cloned().unzip();
                    let expected =
                        numbers.into_iter().flatten().map(AssignItemReply::Known).collect();
                    (sender::results(sender.send(fixture.store(), chunks).await), expected)
                }
                4..7 => {
                    let mut items = Vec::new();
                    for _ in 0..=random(4) {
                        let new = new_message(random(30));
                        let key = new.key();
                        let earlier = random(80).to_string();
                        items.push(match random(6) {
                            0 => event(key, &earlier, None, &earlier, false),
                            2 => event(key, "other", None, &earlier, false),
                            1 => event(key, &earlier, Some(random(12)), &earlier, false),
                            _ => new,
                        });
                    }
                    let producer = Sender { origin: None, ..sender };
                    let expected = model.publish(&items);
                    (producer.assign(fixture.store(), 0, &items).await, expected)
                }
                _ => {
                    let ms = [40_000, 120_000, 480_000][random(3) as usize];
                    fixture.advance_clock(ms).await;
                    model.now += ms;
                    continue;
                }
            };
            assert_eq!(found, expected, "seed {seed}, step {step}");
            let sender = Sender {
                destination: destination.clone(),
                ..Sender::exchange(fixture.store(), epoch)
            };
            for key in &keys {
                let retained = sender.retained(fixture.store(), key, 0, 999).await;
                assert_eq!(retained, model.retained(key), "seed {seed}, step {step}, key {key}");
            }
        }
    }
}

/// A simple model of the numbers that the store must give to messages, and of the messages that it must retain.
#[derive(Default)]
struct Model {
    numbering: NumberingSettings,
    now: u64,
    /// An ended key has a time at which the store forgets its next number.
    counts: HashMap<Key, (u64, Option<u64>)>,
    /// The retained messages, by key and number: the data of each message, and its expiry time.
    retained: BTreeMap<(Key, u64), (String, u64)>,
    /// The remembered messages, by key and id: the number and the data of each message, and its expiry time.
    ids: HashMap<(Key, String), (u64, String, u64)>,
}

impl Model {
    /// `own` is the number that the producer gave to the message. Returns its number.
    fn put(&mut self, event: &Event, own: Option<u64>) -> u64 {
        let key = Key::from(event.key());
        let now = self.now;
        let count = self.counts.entry(key.clone()).or_insert((self.numbering.first, None));
        if count.1.is_some_and(|end| end <= now) {
            *count = (self.numbering.first, None);
        }
        let number = own.unwrap_or(count.0);
        count.0 = count.0.max(number + 1);
        if event.end() {
            count.1 = Some(now + self.numbering.complete_ttl);
        }
        let until = now + self.numbering.retain;
        self.retained.insert((key.clone(), number), (data(event), until));
        if let Some(old) = number.checked_sub(self.numbering.retain_events) {
            self.retained.remove(&(key, old));
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
                let retained = self.retained.get(&(key.clone(), own));
                retained.map(|(data, until)| (own, data.clone(), *until))
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
            self.ids.insert((key, id), (number, data(event), now + self.numbering.retain));
        }
        AssignItemReply::New(number)
    }

    fn retained(&self, key: &Key) -> Vec<(u64, String)> {
        let messages = self.retained.range((key.clone(), 0)..=(key.clone(), u64::MAX));
        let unexpired = messages.filter(|(_, (_, until))| *until > self.now);
        unexpired.map(|((_, number), (data, _))| (*number, data.clone())).collect()
    }
}

/// Returns a source of numbers below a given bound. Equal seeds give equal numbers.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    move |below| random.random_range(0..below)
}
