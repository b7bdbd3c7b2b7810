//! Events that a producer sends over HTTP, in order within each key, and the effects that the messages of the handler
//! show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ordain_tests::http::{self, Answer};
use ordain_tests::log::{Line, line, text};
use ordain_tests::service::wait_until;
use ordain_tests::tally::{FIRST_HASH, hash};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const KEYS: usize = 40;
/// The number of events per request.
const BATCH: usize = 60;
/// The number of events per request when a round sends all events again.
const LARGE_BATCH: usize = 500;
/// How long a producer retries.
const PATIENCE: Duration = Duration::from_mins(1);
/// The delay between two tries.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// An accepted event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepted {
    pub(crate) number: u64,
    /// True if the servers lost no writes while the producer sent the event.
    pub(crate) is_safe: bool,
}

/// The accepted events of each key, in order.
pub(crate) type Sent = BTreeMap<String, Vec<Accepted>>;

/// The hashes in the messages, by key and by the number of events that the key's state had counted.
pub(crate) type Effects = BTreeMap<String, BTreeMap<u64, Vec<u64>>>;

/// A producer that sends events of some keys until its round is over.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    pub(crate) addresses: Vec<SocketAddr>,
    /// An odd number while the servers may lose events.
    pub(crate) phase: AtomicU32,
    pub(crate) is_over: AtomicBool,
    /// True if the producer sends at a high rate while events may be lost.
    pub(crate) has_bursts: bool,
    /// True if some events arrive later than their successors.
    pub(crate) has_gaps: bool,
}

/// A producer that runs in a thread of its own.
pub(crate) struct Producing<'a> {
    producer: &'a Producer,
    thread: ScopedJoinHandle<'a, Result<()>>,
}

impl Producing<'_> {
    /// Requests the end of the producer, which first completes its current request.
    pub(crate) fn end(&self) {
        self.producer.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Sends events while `meanwhile` runs. The seed determines the events.
pub(crate) fn while_producing<T>(
    producer: &Producer,
    sent: &mut Sent,
    seed: u64,
    meanwhile: impl FnOnce(&Producing<'_>) -> Result<T>,
) -> Result<T> {
    std::thread::scope(|scope| {
        let produce = || producer.run(sent, &mut ChaCha8Rng::seed_from_u64(seed));
        let producing = Producing { producer, thread: scope.spawn(produce) };
        let done = meanwhile(&producing);
        producing.end();
        let joined = producing.thread.join();
        let all_sent = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.and_then(|value| all_sent.map(|()| value))
    })
}

impl Producer {
    /// Sends events until the end, in order within each key except for held-back events. Adds the accepted events to
    /// `sent`.
    fn run(&self, sent: &mut Sent, random: &mut ChaCha8Rng) -> Result<()> {
        let mut held = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let mut batch: Vec<(String, u64)> = Vec::new();
            for _ in 0..random.random_range(1..=BATCH) {
                let key = format!("k{}", random.random_range(0..KEYS));
                let events = sent.entry(key.clone()).or_default();
                let number = events.len() as u64 + 1;
                // `send` repeats the request until a host accepts it.
                events.push(Accepted { number, is_safe: false });
                batch.push((key, number));
            }
            let late = if self.has_gaps && random.random_bool(0.2) {
                vec![batch.swap_remove(random.random_range(0..batch.len()))]
            } else {
                Vec::new()
            };
            batch.extend(std::mem::replace(&mut held, late));
            self.send(sent, batch)?;
            // Events that are to accumulate and be lost are sent at a high rate.
            let is_fast = self.has_bursts && !self.phase.load(Ordering::SeqCst).is_multiple_of(2);
            sleep(Duration::from_millis(random.random_range(0..if is_fast { 2 } else { 60 })));
        }
        self.send(sent, held)
    }

    fn send(&self, sent: &mut Sent, batch: Vec<(String, u64)>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let is_safe = self.post_until_accepted(&batch)?;
        for (key, number) in batch {
            let event = sent.get_mut(&key).and_then(|events| events.get_mut(number as usize - 1));
            event.context("the event was not added")?.is_safe = is_safe;
        }
        Ok(())
    }

    /// Posts events until a host accepts them. Returns true if the servers lost no writes during the accepted request.
    fn post_until_accepted(&self, batch: &[(String, u64)]) -> Result<bool> {
        let lines: Vec<String> = batch.iter().map(|(key, number)| event(key, *number)).collect();
        let body = text(&lines);
        let started = Instant::now();
        for address in self.addresses.iter().cycle() {
            let before = self.phase.load(Ordering::SeqCst);
            match post(*address, &body) {
                Ok(Answer { status: 202, .. }) => {
                    let after = self.phase.load(Ordering::SeqCst);
                    return Ok(before.is_multiple_of(2) && before == after);
                }
                Ok(Answer { status: 429 | 500..=599, .. }) | Err(_) => sleep(RETRY_DELAY),
                Ok(other) => bail!("{other:?}"),
            }
            ensure!(started.elapsed() < PATIENCE, "the hosts accept no events");
        }
        bail!("the producer has no host")
    }
}

fn event(key: &str, number: u64) -> String {
    line(key, number, &json!({ "n": number }))
}

/// Posts events once.
pub(crate) fn post(address: SocketAddr, body: &str) -> Result<Answer> {
    let head = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    http::send(address, format!("{head}{body}").as_bytes())
}

/// Sends all events once more, as the producer of a `sequenced` stream would.
pub(crate) fn send_again(address: SocketAddr, sent: &Sent) -> Result<()> {
    let of_key = |(key, events): (&String, &Vec<Accepted>)| {
        events.iter().map(|accepted| event(key, accepted.number)).collect::<Vec<_>>()
    };
    let all: Vec<String> = sent.iter().flat_map(of_key).collect();
    for chunk in all.chunks(LARGE_BATCH) {
        wait_until("an answer to the events that are sent again", || {
            Ok(post(address, &text(chunk)).is_ok_and(|response| response.status == 202))
        })?;
    }
    Ok(())
}

/// Reads the messages of the hosts. Messages with the same id must have the same content.
pub(crate) fn effects<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Result<Effects> {
    let mut effects = Effects::new();
    let mut ids = BTreeMap::new();
    for out in outputs {
        for line in out.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let data = &message["data"];
            let id = message["id"].as_str().context("an id")?.to_owned();
            if let Some(before) = ids.insert(id, data.clone()) {
                ensure!(before == *data, "another message has the id of {line}");
                continue;
            }
            let hash = u64::from_str_radix(data["hash"].as_str().context("a hash")?, 16)?;
            let key = data["key"].as_str().context("a key")?.to_owned();
            let count = data["count"].as_u64().context("a count")?;
            effects.entry(key).or_default().entry(count).or_default().push(hash);
        }
    }
    Ok(effects)
}

/// The requirements on the effects of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demands {
    /// True if every event must have taken effect, even one that was accepted while the servers might lose it.
    pub(crate) wants_all: bool,
    /// How often a key may have lost its record and started again.
    pub(crate) resets: u32,
    /// True if the output must contain only the messages of the events, because no effect was lost.
    pub(crate) is_exact: bool,
}

/// Checks that each event took effect at most once and in the order of its key, and that every event that must take
/// effect did. Returns how many events took effect.
pub(crate) fn count_taken(sent: &Sent, effects: &Effects, demands: Demands) -> Result<usize> {
    let mut all = 0;
    for (key, events) in sent {
        let of_key = effects.get(key);
        let taken = chain(key, events, of_key, demands)?;
        let messages: usize = of_key.into_iter().flatten().map(|(_, hashes)| hashes.len()).sum();
        ensure!(
            !demands.is_exact || messages == taken,
            "key {key}: {taken} events took effect, but the output has {messages} messages"
        );
        all += taken;
    }
    Ok(all)
}

/// Returns how many of a key's events took effect, which a chain of hashes in the messages shows. Messages of lost
/// effects may exist outside of the chain.
fn chain(
    key: &str,
    events: &[Accepted],
    effects: Option<&BTreeMap<u64, Vec<u64>>>,
    demands: Demands,
) -> Result<usize> {
    let none = BTreeMap::new();
    let effects = effects.unwrap_or(&none);
    let must = |event: &Accepted| event.is_safe || demands.wants_all;
    let mut lines: Vec<Line> = events.iter().map(|event| line_of(key, event.number)).collect();
    let start = Link { taken: 0, count: 0, hash: FIRST_HASH, seen: 0, resets: 0 };
    // The longest chains are on top.
    let mut open = vec![start];
    let mut best = (0, 0);
    let mut whole = None;
    while let Some(link) = open.pop() {
        let rest = &events[link.seen..];
        if whole.is_some_and(|taken| link.taken + rest.len() <= taken) {
            continue;
        }
        best = best.max((link.seen, link.taken));
        if !rest.iter().any(must) {
            whole = whole.max(Some(link.taken));
        }
        if link.count > 0 && link.resets < demands.resets {
            open.push(Link { count: 0, hash: FIRST_HASH, resets: link.resets + 1, ..link });
        }
        let Some(hashes) = effects.get(&(link.count + 1)) else { continue };
        // Lost events are skipped.
        let until = rest.iter().position(must).map_or(events.len(), |at| link.seen + at + 1);
        let mut found = Vec::new();
        for (seen, line) in (link.seen + 1..).zip(&mut lines[link.seen..until]) {
            line.sequence = link.count + 1;
            let hash = hash(link.hash, line);
            let taken = link.taken + 1;
            if hashes.contains(&hash) {
                found.push(Link { taken, count: link.count + 1, hash, seen, ..link });
            }
            if found.len() == hashes.len() {
                break;
            }
        }
        open.extend(found.into_iter().rev());
    }
    let (seen, count) = best;
    whole.with_context(|| format!("key {key}: {count} took effect, but not {:?}", events.get(seen)))
}

fn line_of(key: &str, number: u64) -> Line {
    Line {
        key: key.to_owned(),
        sequence: 0,
        kind: "test".to_owned(),
        data: json!({ "n": number }).to_string(),
        end: false,
    }
}

/// The beginning of a chain.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// How many events took effect.
    taken: usize,
    /// How many of these events the key's state had counted. `hash` is their hash.
    count: u64,
    hash: u64,
    /// How many events were examined.
    seen: usize,
    resets: u32,
}
