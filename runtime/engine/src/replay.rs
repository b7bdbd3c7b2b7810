//! Where missing events are looked for: in the store, then at servers over HTTP.

mod server;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_core::{Event, Key};
use tokio::sync::Semaphore;

use ordain_config::Passage;
use ordain_config::{Config, Name, ReplayServer, Stream};
use ordain_store::{Destination, OfKey, Partition, Store, StoreError, insist_on};
use server::{Host, Server};

/// Bytes of events found at once, after the first; a later round finds the others.
const FOUND_BYTES: usize = 1 << 20;

/// What a replay source answered.
#[derive(Debug)]
pub struct Found {
    /// The events that it has, of those that were asked for, ascending.
    pub events: Vec<(u64, Arc<Event>)>,
    /// How far the answer goes: what is missing from here on was not looked for.
    pub until: u64,
    /// Why it may know more later.
    pub failed: Option<Box<str>>,
}

impl Found {
    /// These, of all that were asked for.
    fn of_all(events: Vec<(u64, Arc<Event>)>) -> Self {
        Self { events, until: u64::MAX, failed: None }
    }

    /// Nothing, for a reason that may pass.
    fn failed(words: impl Into<Box<str>>) -> Self {
        Self { failed: Some(words.into()), ..Self::of_all(Vec::new()) }
    }
}

/// Requests under way in all: each has a thread, and the store needs some of the same ones.
const REQUESTS: usize = 128;
/// The part of the memory for events that their answers may have.
const ANSWERS: usize = 8;

/// What is asked at one time, by the host that it goes to, and in all.
#[derive(Debug)]
pub struct Hosts {
    by_host: BTreeMap<String, Arc<Host>>,
    all: Arc<Semaphore>,
}

impl Hosts {
    /// Those that streams of a configuration ask.
    pub fn of(config: &Config) -> Self {
        let mut fewest = BTreeMap::new();
        for server in config.streams.values().flat_map(Stream::replay_servers) {
            let host = server.url.origin();
            let permits = fewest.entry(host).or_insert(server.concurrency);
            *permits = server.concurrency.min(*permits);
        }
        let runtime = &config.runtime;
        let fit = runtime.memory_budget.bytes() / ANSWERS / runtime.event_size.bytes().max(1);
        let requests = REQUESTS.min(fit).max(1);
        // One that hangs must not take the share of others.
        let share = (requests / fewest.len().max(1)).max(1);
        let permits = |(host, permits)| (host, Arc::new(Host::new(share.min(permits))));
        let by_host = fewest.into_iter().map(permits).collect();
        Self { by_host, all: Arc::new(Semaphore::new(requests)) }
    }
}

/// The replay sources of a partition.
pub struct Sources {
    store: Arc<dyn Store>,
    partition: Partition,
    /// Of which log the stream's events are, where the store keeps them.
    log: Option<Destination>,
    servers: Vec<Arc<Server>>,
}

impl Sources {
    /// Those of a partition of a stream.
    pub fn new(
        config: &Config,
        (name, stream): (&Name, &Stream),
        store: &Arc<dyn Store>,
        partition: &Partition,
        hosts: &Hosts,
    ) -> Self {
        let event_size = config.runtime.event_size.bytes();
        let server = |config: &ReplayServer| {
            let host =
                hosts.by_host.get(&config.url.origin()).expect("each server's host has some");
            let (host, all) = (Arc::clone(host), Arc::clone(&hosts.all));
            Arc::new(Server::new(name, config, host, all, event_size))
        };
        Self {
            store: Arc::clone(store),
            partition: partition.clone(),
            log: Passage::log_of(name, stream),
            servers: stream.replay_servers().map(server).collect(),
        }
    }

    /// What a source has of the missing sequences. `within` is how long ago a dead letter may have been
    /// put, in ms, to be one of them.
    pub async fn ask(
        &self,
        source: usize,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Found {
        match source.checked_sub(1) {
            None => self.ask_store(key, missing, within).await,
            Some(at) => self.servers[at].ask(key, missing).await,
        }
    }

    async fn ask_store(&self, key: &Key, missing: &[RangeInclusive<u64>], within: u64) -> Found {
        let Self { store, partition, log, .. } = self;
        let held = async || -> Result<OfKey<Found>, StoreError> {
            let mut events = match store.find(partition, key, missing, within).await? {
                Ok(events) => events,
                Err(words) => return Ok(Err(words)),
            };
            let mut until = u64::MAX;
            let rest = others(missing, &events);
            if let (Some(log), false) = (log, rest.is_empty()) {
                let kept = store.retained(log, key, &rest, FOUND_BYTES).await?;
                // There may be more behind the last one: so many bytes are read and no more.
                until = kept
                    .last()
                    .and_then(|it| it.sequence())
                    .map_or(u64::MAX, |it| it.saturating_add(1));
                events.extend(kept.into_iter().filter_map(|it| Some((it.sequence()?, it))));
                events.sort_by_key(|(sequence, _)| *sequence);
            }
            Ok(Ok(Found { until, ..Found::of_all(events) }))
        };
        insist_on("search for missing events", held).await.unwrap_or_else(|words| {
            tracing::error!(
                stream = &*partition.stream,
                key = &**key,
                "what is kept of missing events cannot be read, and counts as not there: {words}"
            );
            Found::failed(words)
        })
    }
}

/// What is missing beside these.
fn others(
    missing: &[RangeInclusive<u64>],
    found: &[(u64, Arc<Event>)],
) -> Vec<RangeInclusive<u64>> {
    let mut rest = Vec::new();
    for range in missing {
        let mut from = *range.start();
        for (sequence, _) in found.iter().filter(|it| range.contains(&it.0)) {
            if *sequence > from {
                rest.push(from..=sequence - 1);
            }
            from = sequence + 1;
        }
        if from <= *range.end() {
            rest.push(from..=*range.end());
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use ordain_core::EventParts;

    use super::*;

    #[test]
    fn only_what_is_not_found_is_asked_for_further() {
        let event = |sequence| (sequence, Arc::new(Event::new(&EventParts::default())));
        let found = [event(2), event(3), event(7), event(9)];
        assert_eq!(others(&[1..=4, 7..=9], &found), [1..=1, 4..=4, 8..=8]);
        assert_eq!(others(&[2..=3], &found), []);
        assert_eq!(others(&[5..=6], &found), [5..=6]);
    }
}
