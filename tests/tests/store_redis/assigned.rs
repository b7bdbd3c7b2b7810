//! Writes of a producer in several calls, while the server loses some of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ordain_config::NumberingPolicy;
use ordain_core::{Event, EventParts, QueuePosition, shard_of};
use ordain_publish::EventAssigner;
use ordain_servers::wait_until;
use ordain_store::{ASSIGN_LIMIT, Destination, DestinationRules, MessageLog, Partition, Store};
use ordain_store_redis::RedisStore;

use super::own::Own;

/// The number of events of the request. The request takes many calls.
const EVENTS: usize = 100 * ASSIGN_LIMIT;

/// Returns the ids of all waiting events of a shard, in order, each once: the store may have an event twice.
async fn ids(store: &RedisStore, partition: &Partition, shard: u32) -> Vec<u32> {
    let mut known = HashSet::new();
    let mut ids = Vec::new();
    let mut after = QueuePosition::default();
    loop {
        let page = store.read_queue(partition, shard, after, 5_000, 1 << 24).await.expect("a page");
        let Some((last, _)) = page.entries.last() else { return ids };
        after = *last;
        for (_, entry) in page.entries {
            let id = entry.expect("an event").id().parse().expect("a number");
            if known.insert(id) {
                ids.push(id);
            }
        }
    }
}

/// The server loses some of the calls of one request after it has answered them. The later calls must not write their
/// events before the lost ones are written again: a stream without sequences takes its events in the order of its
/// queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_many_calls_keeps_its_order_over_a_loss() {
    let own = Own::start().await;
    let stream: Arc<str> = "s".into();
    let shard = shard_of("a", own.store.shards());
    let partition = Partition { stream: Arc::clone(&stream), number: 0 };
    let store = Arc::new(RedisStore::open(own.options.clone()).await.expect("the store"));
    let assigner = EventAssigner {
        store: Arc::clone(&store) as Arc<dyn Store>,
        policy: NumberingPolicy {
            destination: Destination::Stream(stream),
            rules: DestinationRules { numbering: None, queue_limit: Some(1_000_000) },
            partitions: 1,
        },
        full_timeout: Duration::from_secs(30),
    };
    let event = |number: usize| {
        let id = number.to_string();
        let parts = EventParts { key: "a", id: &id, data: &[b'x'; 500], ..EventParts::default() };
        assigner.item(&Arc::new(Event::new(&parts)))
    };
    let items: Vec<_> = (0..EVENTS).map(event).collect();
    let log = own.name(shard, "log:stream/s");
    let until = |events: usize| {
        wait_until("waiting events", || {
            let waiting = own.command(&["HGET", &log, "w"]);
            Ok(waiting.text().is_some_and(|text| text.parse().unwrap_or(0) >= events))
        })
        .expect("waiting events");
    };
    let writing = tokio::spawn(async move { (assigner.assign(&items).await, items.len()) });
    tokio::task::block_in_place(|| {
        until(EVENTS / 10);
        let snapshot = own.server.snapshot().expect("a snapshot");
        until(EVENTS / 3);
        own.server.go_back(&snapshot).expect("an earlier time");
    });
    let (result, events) = writing.await.expect("a result");
    assert!(result.error.is_none(), "{:?}", result.error);
    assert!(result.rewritten > 0, "the server lost nothing");
    let ids = ids(&store, &partition, shard).await;
    assert_eq!(ids.len(), events);
    assert!(ids.is_sorted(), "{:?}", ids.windows(2).find(|pair| pair[0] > pair[1]));
}
