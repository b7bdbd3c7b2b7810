//! The replay sources, from which Ordain requests missing events: first the store, and then replay servers over HTTP.

mod client;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_core::{Event, Key, OrderingMode};
use tokio::sync::Semaphore;

use client::{ReplayClient, ReplayHost};
use ordain_cloudevents::EventDecoder;
use ordain_config::NumberingPolicy;
use ordain_config::{Config, ReplayServer, ResourceName, StreamConfig};
use ordain_store::{
    Destination, FoundEvents, KeyResult, Partition, Store, StoreError, retry_until_ok,
};

/// Approximate maximum size, in bytes, of the events in one answer. The limit applies separately to the events from one
/// replay server, and to the events from the messages that the store retains for replay. An answer contains at least
/// one of the found events, even if this event exceeds the limit. A later request finds the remaining events.
const ANSWER_BYTES: usize = 1 << 20;

/// The answer of a replay source.
#[derive(Debug)]
pub struct ReplayAnswer {
    /// The requested events that the source returned, each with its sequence, in ascending order.
    pub events: Vec<(u64, Arc<Event>)>,
    /// The end of the answer. The source counts as queried for all requested sequences below this value. It is possible
    /// that the source has not searched for the requested sequences from this value on. The value is `u64::MAX` if the
    /// source counts as queried for all requested sequences, even if all searches failed.
    pub until: u64,
    /// The reason why the search for at least one event failed. In this case, a later request may find more events.
    /// `None` if no search failed.
    pub failed: Option<Box<str>>,
}

impl ReplayAnswer {
    /// Creates the answer of a source that searched for all requested sequences.
    fn complete(events: Vec<(u64, Arc<Event>)>) -> Self {
        Self { events, until: u64::MAX, failed: None }
    }

    /// Creates an empty answer after a failure that may be temporary.
    fn failed(words: impl Into<Box<str>>) -> Self {
        Self { failed: Some(words.into()), ..Self::complete(Vec::new()) }
    }
}

/// Maximum number of requests of this process to replay servers at one time. Each request occupies a thread of the pool
/// for blocking calls, which the embedded store uses too.
const REQUEST_LIMIT: usize = 128;
/// The answers of the requests in progress may use one eighth of `memory_budget`. The events that a query has already
/// collected do not count.
const ANSWER_MEMORY_DIVISOR: usize = 8;

/// Limits for the number of requests to replay servers at one time: one limit for each host (the origin of a server's
/// URL), and one limit for the whole process.
#[derive(Debug)]
pub struct ReplayLimits {
    by_host: BTreeMap<String, Arc<ReplayHost>>,
    process_permits: Arc<Semaphore>,
}

impl ReplayLimits {
    /// Creates the limits for the replay servers of a configuration.
    pub fn of(config: &Config) -> Self {
        let mut concurrency_by_host = BTreeMap::new();
        for server in config.streams.values().flat_map(StreamConfig::replay_servers) {
            let host = server.url.origin();
            let permits = concurrency_by_host.entry(host).or_insert(server.concurrency);
            *permits = server.concurrency.min(*permits);
        }
        let runtime = &config.runtime;
        let fit = runtime.memory_budget.bytes()
            / ANSWER_MEMORY_DIVISOR
            / runtime.event_size.bytes().max(1);
        let requests = REQUEST_LIMIT.min(fit).max(1);
        // A host that does not answer must not use up the process permits that requests to the other hosts need.
        let share = (requests / concurrency_by_host.len().max(1)).max(1);
        let permits = |(host, permits)| (host, Arc::new(ReplayHost::new(share.min(permits))));
        let by_host = concurrency_by_host.into_iter().map(permits).collect();
        Self { by_host, process_permits: Arc::new(Semaphore::new(requests)) }
    }
}

/// The replay sources of a partition: the store, and the configured replay servers.
pub struct ReplaySources {
    store: Arc<dyn Store>,
    partition: Partition,
    /// The destination under which the store keeps the stream's events for replay; `None` if the store keeps no events
    /// of the stream, or is not one of the stream's replay sources.
    log: Option<Destination>,
    /// True if a setting names the place of the id of an event. The ids of the events in the destination `log` may then
    /// differ from the ids that the stream reads.
    has_own_ids: bool,
    clients: Vec<Arc<ReplayClient>>,
}

impl ReplaySources {
    /// Creates the replay sources of a partition.
    pub fn new(
        config: &Config,
        (name, stream): (&ResourceName, &StreamConfig),
        store: &Arc<dyn Store>,
        partition: &Partition,
        limits: &ReplayLimits,
    ) -> Self {
        // A server returns events in the form in which producers send them, so the decoder finds the values at the
        // places that the settings of the source name.
        let event_size = config.runtime.event_size.bytes();
        let decoder = EventDecoder::new(OrderingMode::Sequenced, event_size)
            .with_locations(stream.source.cloudevent_locations());
        let client = |config: &ReplayServer| {
            let host = limits
                .by_host
                .get(&config.url.origin())
                .expect("the host of every server is known");
            let host = Arc::clone(host);
            let process_permits = Arc::clone(&limits.process_permits);
            Arc::new(ReplayClient::new(name, config, host, process_permits, decoder.clone()))
        };
        Self {
            store: Arc::clone(store),
            partition: partition.clone(),
            log: NumberingPolicy::replay_log(name, stream),
            has_own_ids: stream.source.locations().id.is_some(),
            clients: stream.replay_servers().map(client).collect(),
        }
    }

    /// Requests the missing events of a key from a source. The source with the index 0 is the store; the replay servers
    /// follow, in the order of the configuration. The store may take a missing event from a dead letter that is at most
    /// `max_age_ms` old.
    pub async fn request(
        &self,
        source: usize,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        max_age_ms: u64,
    ) -> ReplayAnswer {
        match source.checked_sub(1) {
            None => self.request_from_store(key, missing, max_age_ms).await,
            Some(at) => self.clients[at].query(key, missing).await,
        }
    }

    async fn request_from_store(
        &self,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        max_age_ms: u64,
    ) -> ReplayAnswer {
        let Self { store, partition, log, has_own_ids, .. } = self;
        let search = async || -> Result<KeyResult<ReplayAnswer>, StoreError> {
            let found = match store.find_missing(partition, key, missing, max_age_ms).await? {
                Ok(found) => found,
                Err(reason) => return Ok(Err(reason)),
            };
            let FoundEvents { mut events, mut until } = found;
            let absent = not_found(missing, &events);
            if let (Some(log), false) = (log, absent.is_empty()) {
                let retained = store.retained_messages(log, key, &absent, ANSWER_BYTES).await?;
                until = until.min(retained.until);
                let without_mark = |event: Arc<Event>| {
                    Arc::new(Arc::unwrap_or_clone(event).with_store_numbered(false))
                };
                if *has_own_ids {
                    let retained_events = retained.events.into_iter();
                    events.extend(
                        retained_events.map(|(sequence, event)| (sequence, without_mark(event))),
                    );
                } else {
                    events.extend(retained.events);
                }
                events.sort_by_key(|(sequence, _)| *sequence);
            }
            Ok(Ok(ReplayAnswer { until, ..ReplayAnswer::complete(events) }))
        };
        retry_until_ok("search for missing events", search).await.unwrap_or_else(|words| {
            tracing::error!(
                stream = &*partition.stream,
                key = &**key,
                "cannot search the store for missing events of the key, because stored data is unreadable: {words}; \
                 trying the other replay sources, if any"
            );
            ReplayAnswer::failed(words)
        })
    }
}

fn not_found(
    missing: &[RangeInclusive<u64>],
    found: &[(u64, Arc<Event>)],
) -> Vec<RangeInclusive<u64>> {
    let mut not_found = Vec::new();
    for range in missing {
        let mut from = *range.start();
        for (sequence, _) in found.iter().filter(|(sequence, _)| range.contains(sequence)) {
            if *sequence > from {
                not_found.push(from..=sequence - 1);
            }
            from = sequence + 1;
        }
        if from <= *range.end() {
            not_found.push(from..=*range.end());
        }
    }
    not_found
}

#[cfg(test)]
mod tests {
    use ordain_core::EventParts;
    use ordain_servers::Redis;
    use ordain_store::{
        AssignGroup, AssignItem, AssignRequest, DestinationRules, NumberingSettings, OutboxChunk,
        OutboxPosition, RedisAddress, RedisOptions,
    };
    use ordain_store_redis::RedisStore;

    use super::*;

    /// The store retains events of key `a`, from sequence 1 on. `sizes` contains the size of each event's data.
    async fn sources(redis: &Redis, sizes: &[usize]) -> ReplaySources {
        let options = RedisOptions {
            address: RedisAddress::parse(&redis.url()).expect("a URL"),
            prefix: "test".to_owned(),
            shards: 1,
            replicas: 0,
            dead_ttl: 100_000,
            retry_timeout: None,
            reads_only: false,
            clock_offset_ms: Arc::default(),
        };
        let store: Arc<dyn Store> = Arc::new(RedisStore::open(options).await.expect("a store"));
        let log = Destination::Exchange("orders".into());
        for (number, size) in sizes.iter().enumerate() {
            let id = number.to_string();
            let data = vec![b'x'; *size];
            let parts = EventParts { key: "a", id: &id, data: &data, ..EventParts::default() };
            let event = Arc::new(Event::new(&parts));
            let items = vec![AssignItem { event, partition: 0, number: 0 }];
            let position = OutboxPosition { commit: 0, chunk: 0 };
            let chunks = vec![OutboxChunk { position, items }];
            let assign = AssignRequest {
                destination: log.clone(),
                shard: 0,
                rules: DestinationRules {
                    numbering: Some(NumberingSettings::default()),
                    queue_limit: None,
                },
                witness: None,
                call: None,
                readers: Vec::new(),
                reuses_lost_numbers: false,
                groups: vec![AssignGroup { origin: None, chunks }],
            };
            store.assign(Arc::new(assign)).await.expect("an answer");
        }
        let partition = Partition { stream: "cases".into(), number: 0 };
        let log = Some(log);
        ReplaySources { store, partition, log, has_own_ids: false, clients: Vec::new() }
    }

    /// The answer of the store must count for all sequences for which the store has searched, and for no others.
    #[tokio::test]
    async fn answer_of_the_store_ends_where_the_search_ended() {
        let redis = Redis::start(&[]).expect("a server");
        let large = ANSWER_BYTES / 2;
        let sources = sources(&redis, &[1, large, large, 1]).await;
        for (missing, found, until) in [
            (1..=9, vec![1, 2], 3),
            (3..=9, vec![3, 4], u64::MAX),
            (4..=9, vec![4], u64::MAX),
            (5..=9, vec![], u64::MAX),
        ] {
            let answer = sources.request(0, &"a".into(), &[missing], 100_000).await;
            let sequences: Vec<u64> = answer.events.iter().map(|(sequence, _)| *sequence).collect();
            assert_eq!((sequences, answer.until), (found, until));
        }
    }

    #[test]
    fn only_sequences_that_were_not_found_remain() {
        let event = |sequence| (sequence, Arc::new(Event::new(&EventParts::default())));
        let found = [event(2), event(3), event(7), event(9)];
        assert_eq!(not_found(&[1..=4, 7..=9], &found), [1..=1, 4..=4, 8..=8]);
        assert_eq!(not_found(&[2..=3], &found), []);
        assert_eq!(not_found(&[5..=6], &found), [5..=6]);
    }
}
