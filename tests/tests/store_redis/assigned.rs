//! Tests of a writer whose request needs several calls or several shards, while the servers lose some of the written
//! events, or a reply. At the end, the store must have each event of the request.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ordain_config::NumberingPolicy;
use ordain_core::{Event, EventParts, QueuePosition, shard_of};
use ordain_publish::{EventAssigner, QueueWriter};
use ordain_servers::{Cluster, Options, Sentinel, Takeover, wait_until};
use ordain_store::{
    ASSIGN_LIMIT, AssignItem, DequeueResult, Destination, DestinationRules, MessageLog,
    NumberingSettings, Partition, RedisOptions, Store,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::DedicatedStore;
use super::support::options;

/// The number of events in the request. Writing them takes many calls.
const EVENTS: usize = 100 * ASSIGN_LIMIT;

pub(super) fn partition() -> Partition {
    Partition { stream: "s".into(), number: 0 }
}

/// Returns an assigner that writes events into the queues of a stream. If `numbering` is present, the store numbers the
/// events by these rules.
pub(super) fn assigner(
    store: &Arc<RedisStore>,
    numbering: Option<NumberingSettings>,
) -> EventAssigner {
    EventAssigner {
        writer: Arc::new(QueueWriter::new(store.shards())),
        store: Arc::clone(store) as Arc<dyn Store>,
        policy: NumberingPolicy {
            destination: Destination::Stream(partition().stream),
            rules: DestinationRules { numbering, queue_limit: Some(1_000_000) },
            partitions: 1,
            readers: Vec::new(),
        },
        full_timeout: Duration::from_secs(30),
        reuses_lost_numbers: false,
    }
}

/// Returns the ids of all events that wait in the queue of a partition in a shard, in the order of the queue. If the
/// queue has several entries of an event, the id occurs once for each entry.
pub(super) async fn ids(store: &RedisStore, partition: &Partition, shard: u32) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut after = QueuePosition::default();
    loop {
        let page = store.read_queue(partition, shard, after, 5_000, 1 << 24).await.expect("a page");
        let Some((last, _)) = page.entries.last() else { return ids };
        after = *last;
        for (_, entry) in page.entries {
            ids.push(entry.expect("an event").id().parse().expect("a number"));
        }
    }
}

/// Returns each of the ids once, at its first position. If the store does not number the events, a writer may write
/// events again after a loss, although the queue still has them. Such a queue may therefore have several entries of an
/// event.
fn distinct(mut ids: Vec<u32>) -> Vec<u32> {
    let mut known = HashSet::new();
    ids.retain(|id| known.insert(*id));
    ids
}

/// The server loses the events of some calls of a request after it has answered these calls. A stream without sequences
/// executes its events in the order of the queue. The later calls of the request must therefore wait until the lost
/// events are written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_many_calls_keeps_its_order_over_a_loss() {
    let dedicated = DedicatedStore::start().await;
    let shard = shard_of("a", dedicated.store.shards());
    let store = Arc::new(RedisStore::open(dedicated.options.clone()).await.expect("the store"));
    let assigner = assigner(&store, None);
    let event = |number: usize| {
        let id = number.to_string();
        let parts = EventParts { key: "a", id: &id, data: &[b'x'; 500], ..EventParts::default() };
        assigner.item(&Arc::new(Event::new(&parts)))
    };
    let items: Vec<_> = (0..EVENTS).map(event).collect();
    let log = dedicated.name(shard, "log:stream/s");
    let until = |events: usize| {
        wait_until("waiting events", || {
            let waiting = dedicated.command(&["HGET", &log, "w"]);
            Ok(waiting.text().is_some_and(|text| text.parse().unwrap_or(0) >= events))
        })
        .expect("waiting events");
    };
    let writing = tokio::spawn(async move { (assigner.assign(&items).await, items.len()) });
    tokio::task::block_in_place(|| {
        until(EVENTS / 10);
        let snapshot = dedicated.server.snapshot().expect("a snapshot");
        until(EVENTS / 3);
        dedicated.server.go_back(&snapshot).expect("an earlier time");
    });
    let (result, events) = writing.await.expect("a result");
    assert!(result.error.is_none(), "{:?}", result.error);
    assert!(result.rewritten > 0, "the server lost nothing");
    let ids = distinct(ids(&store, &partition(), shard).await);
    assert_eq!(ids.len(), events);
    assert!(ids.is_sorted(), "{:?}", ids.windows(2).find(|pair| pair[0] > pair[1]));
}

/// A store whose master is watched by a Sentinel and is behind a proxy, for tests of a network split during a call.
struct SplitWriter {
    group: Sentinel,
    store: Arc<RedisStore>,
    prefix: String,
    /// One key of each shard, in the order of the shards.
    keys: Vec<String>,
}

impl SplitWriter {
    async fn start() -> Self {
        let group = Sentinel::behind_proxies(&Options::new()).expect("a group");
        let options = options(&group.url());
        let prefix = options.prefix.clone();
        let store = Arc::new(RedisStore::open(options).await.expect("the store"));
        let key = |shard| {
            // No key may be a part of another key, because the proxy holds back the request that contains a given key.
            let mut names = (0..).map(|number| format!("key-{number}."));
            names.find(|key| shard_of(key, store.shards()) == shard).expect("a key of the shard")
        };
        let keys = (0..store.shards()).map(key).collect();
        Self { group, store, prefix, keys }
    }

    async fn open_again(&self) -> Arc<RedisStore> {
        let options = RedisOptions { prefix: self.prefix.clone(), ..options(&self.group.url()) };
        Arc::new(RedisStore::open(options).await.expect("the store again"))
    }

    /// Returns one event of each key, all with the given id.
    fn items(&self, assigner: &EventAssigner, id: u32) -> Vec<AssignItem> {
        let id = id.to_string();
        let event = |key: &String| {
            let parts = EventParts { key, id: &id, ..EventParts::default() };
            assigner.item(&Arc::new(Event::new(&parts)))
        };
        self.keys.iter().map(event).collect()
    }

    /// Writes one event for each shard during a network split, in which the Sentinel replaces the master. The old
    /// master gets the events of all shards except the last. Then the Sentinel promotes the replica, `meanwhile` runs,
    /// and the split ends. Checks that the new master then has the event of each shard, although the new master had
    /// none of these events when it was promoted. With `numbering`, the new master must have each event once.
    async fn split_during_call(
        &self,
        numbering: Option<NumberingSettings>,
        meanwhile: impl AsyncFnOnce(),
    ) {
        let assigner = assigner(&self.store, numbering);
        let first = assigner.assign(&self.items(&assigner, 1)).await;
        assert!(first.error.is_none(), "{:?}", first.error);
        let mut cut_off = self.group.cut_off().expect("a split");
        let proxy = &self.group.proxies()[0];
        let last = self.keys.last().expect("a key");
        proxy.hold_request(last);
        let items = self.items(&assigner, 2);
        let writing = tokio::spawn(async move { assigner.assign(&items).await });
        tokio::task::block_in_place(|| {
            wait_until("a held request", || Ok(proxy.counts().requests_held == 1))
                .expect("a held request");
            let queue_key = |shard: u32| format!("{}:{{{shard}}}:log:stream/s", self.prefix);
            let last = self.store.shards() - 1;
            wait_until("a part of the request in the old master", || {
                let mut counts = Vec::new();
                for shard in 0..=last {
                    let reply = cut_off.connection().command(&["HGET", &queue_key(shard), "w"])?;
                    counts.push(reply.text().unwrap_or_default().to_owned());
                }
                let (last, others) = counts.split_last().context("a shard")?;
                Ok(last == "1" && others.iter().all(|count| count == "2"))
            })
            .expect("a part of the request in the old master");
            // The test starts the failover with a command. If the test waited until the Sentinel considers the master
            // down, the request that the proxy holds back would time out.
            let failover = ["SENTINEL", "FAILOVER", self.group.name()];
            self.group.sentinel().command(&failover).expect("a failover");
            self.group.until_replaced().expect("another master");
        });
        meanwhile().await;
        assert!(!writing.is_finished(), "the call ended before the end of the split");
        tokio::task::block_in_place(|| self.group.heal_split()).expect("the end of the split");
        let result = writing.await.expect("a result");
        assert!(result.error.is_none(), "{:?}", result.error);
        assert!(result.rewritten > 0, "the call has written no event again");
        for shard in 0..self.store.shards() {
            let ids = ids(&self.store, &partition(), shard).await;
            assert_eq!(ids.last(), Some(&2), "the event of shard {shard} is lost: {ids:?}");
            let is_distinct = distinct(ids.clone()) == ids;
            assert!(
                is_distinct || numbering.is_none(),
                "shard {shard} has an event twice: {ids:?}"
            );
        }
    }
}

/// The old master gets some of the events of a call for all shards, and is replaced before it gets the others. When the
/// call ends without an error, which a host would answer with 202, the new master must have all events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_during_a_split_loses_no_event() {
    SplitWriter::start().await.split_during_call(None, async || {}).await;
}

/// Repeats [`call_during_a_split_loses_no_event`] with events that the store numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_numbers_during_a_split_loses_no_event() {
    let numbering = Some(NumberingSettings::default());
    SplitWriter::start().await.split_during_call(numbering, async || {}).await;
}

/// In the new master, events of another process get the queue numbers of the lost events. These other events leave the
/// queue before the call checks for its own events, so the store no longer has their history digests. Only by these
/// digests can it distinguish entries with the same number. The call must not conclude that the removed events were its
/// own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_during_a_split_does_not_trust_removed_numbers() {
    let watched = SplitWriter::start().await;
    watched
        .split_during_call(None, async || {
            let store = watched.open_again().await;
            let assigner = assigner(&store, None);
            for id in [3, 4] {
                let other = assigner.assign(&watched.items(&assigner, id)).await;
                assert!(other.error.is_none(), "{:?}", other.error);
            }
            let owner = Owner::claim(&*store, "s", 0).await;
            for shard in 0..store.shards() {
                let start = QueuePosition::default();
                let page = store.read_queue(&owner.partition, shard, start, 10, 1 << 20).await;
                let entries = page.expect("a page").entries;
                let (last, _) = entries.last().expect("the events of the other process");
                assert_eq!((entries.len(), last.number), (3, 3), "shard {shard}");
                let removed = store.dequeue(&owner.partition, owner.claim, shard, 0, *last).await;
                assert_eq!(removed.expect("an answer"), DequeueResult::Done);
            }
        })
        .await;
}

/// A call has one event for each of two shards of a Cluster. The first shard accepts its event. The queue of the second
/// shard is full, so the call waits. A replica that lacks the event replaces the first shard's node. No connection
/// breaks. If both shards have the same node, the old master redirects the call for the second shard, and the new
/// master lacks the events that filled the queue. Otherwise the test removes the events from the queue of the second
/// shard, whose node stays the same. When the call ends without an error (a host would then answer 202), the Cluster
/// must have both events, although no call for the first shard was redirected.
async fn take_over_during_call(numbering: Option<NumberingSettings>, is_same_node: bool) {
    let mut cluster = Cluster::start(3).expect("a Cluster");
    cluster.add_replicas().expect("replicas");
    let options = options(&cluster.urls()[0]);
    let prefix = options.prefix.clone();
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    let node_of = |shard: u32| {
        let slot = cluster.slot(&format!("{{{shard}}}")).expect("a slot");
        cluster.owner(slot).expect("an owner")
    };
    // There are more shards than nodes, so two shards have the same node.
    let shards = 0..store.shards();
    let mut pairs =
        shards.clone().flat_map(|first| (first + 1..shards.end).map(move |second| (first, second)));
    let is_wanted =
        |(first, second): &(u32, u32)| (node_of(*first) == node_of(*second)) == is_same_node;
    let (first, second) = pairs.find(is_wanted).expect("a pair");
    let node = node_of(first);
    let key = |shard| {
        let mut names = (0..).map(|number| format!("key-{number}"));
        names.find(|key| shard_of(key, store.shards()) == shard).expect("a key of the shard")
    };
    let item = |assigner: &EventAssigner, key: &str, id: u32| {
        let id = id.to_string();
        assigner.item(&Arc::new(Event::new(&EventParts { key, id: &id, ..EventParts::default() })))
    };
    let owner = Owner::claim(&*store, "s", 0).await;
    cluster.let_replica_lag(node).expect("a replica that lags");
    let limited = |limit: u64| {
        let mut assigner = assigner(&store, numbering);
        assigner.policy.rules.queue_limit = Some(limit);
        assigner
    };
    let filler = limited(2);
    let fill = [item(&filler, &key(second), 1), item(&filler, &key(second), 2)];
    assert!(filler.assign(&fill).await.error.is_none());
    let assigner = limited(2);
    let items = [item(&assigner, &key(first), 3), item(&assigner, &key(second), 3)];
    let writing = tokio::spawn(async move { assigner.assign(&items).await });
    tokio::task::block_in_place(|| {
        wait_until("the event of the first shard in the old master", || {
            let queue = format!("{prefix}:{{{first}}}:log:stream/s");
            Ok(cluster.master(node).command(&["HGET", &queue, "w"])?.text() == Some("1"))
        })
        .expect("the event of the first shard in the old master");
        assert!(!writing.is_finished(), "the call ended before the takeover");
        cluster.take_over(node, Takeover::Takeover).expect("another master");
    });
    if !is_same_node {
        let start = QueuePosition::default();
        let page = store.read_queue(&owner.partition, second, start, 10, 1 << 20).await;
        let page = page.expect("a page");
        let (last, _) = page.entries.last().expect("the events of the second shard");
        let removed = store.dequeue(&owner.partition, owner.claim, second, 0, *last).await;
        assert_eq!(removed.expect("an answer"), DequeueResult::Done);
    }
    let result = writing.await.expect("a result");
    assert!(result.error.is_none(), "{:?}", result.error);
    for shard in [first, second] {
        let ids = ids(&store, &partition(), shard).await;
        assert_eq!(distinct(ids.clone()), [3], "shard {shard}");
        assert!(
            ids.len() == 1 || numbering.is_none(),
            "shard {shard} has the event twice: {ids:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_during_a_takeover_in_a_cluster_loses_no_event() {
    take_over_during_call(None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_during_a_takeover_of_one_of_its_nodes_loses_no_event() {
    take_over_during_call(None, false).await;
}

/// Repeats [`call_during_a_takeover_in_a_cluster_loses_no_event`] with events that the store numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_numbers_during_a_takeover_in_a_cluster_loses_no_event() {
    take_over_during_call(Some(NumberingSettings::default()), true).await;
}

/// A call has one event for each of two shards. The slot of the first shard is moving to another node, which already
/// has all data of the slot: the master redirects each call with the error `ASK`. The queue of the second shard is
/// full, so the call waits. Meanwhile the other node restarts and loses the event of the first shard. When the call
/// ends without an error, the other node must have the event again, although it was not the master of the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_during_a_migration_loses_no_event() {
    let cluster = Cluster::start(3).expect("a Cluster");
    let store = Arc::new(RedisStore::open(options(&cluster.urls()[0])).await.expect("the store"));
    let moving_shard = 0;
    let full_shard = 1;
    let key = |shard| {
        let mut names = (0..).map(|number| format!("key-{number}"));
        names.find(|key| shard_of(key, store.shards()) == shard).expect("a key of the shard")
    };
    let limited = || {
        let mut assigner = assigner(&store, None);
        assigner.policy.rules.queue_limit = Some(2);
        assigner
    };
    let item = |assigner: &EventAssigner, shard: u32, id: u32| {
        let parts = EventParts { key: &key(shard), id: &id.to_string(), ..EventParts::default() };
        assigner.item(&Arc::new(Event::new(&parts)))
    };
    let owner = Owner::claim(&*store, "s", 0).await;
    let filler = limited();
    let fill = [
        item(&filler, moving_shard, 1),
        item(&filler, full_shard, 1),
        item(&filler, full_shard, 2),
    ];
    assert!(filler.assign(&fill).await.error.is_none());
    let slot = cluster.slot(&format!("{{{moving_shard}}}")).expect("a slot");
    let other = cluster.owner(cluster.slot(&format!("{{{full_shard}}}")).expect("a slot"));
    let from = cluster.owner(slot).expect("an owner");
    // The node with the second shard must not restart.
    let to = (0..3).find(|node| *node != from && *node != *other.as_ref().expect("an owner"));
    let migration = cluster.migrate(slot, to.expect("a third node")).expect("a migration");
    while migration.move_keys(100).expect("moved keys") > 0 {}
    let snapshot = migration.to().snapshot().expect("a snapshot");
    let assigner = limited();
    let items = [item(&assigner, moving_shard, 3), item(&assigner, full_shard, 3)];
    let writing = tokio::spawn(async move { assigner.assign(&items).await });
    while distinct(ids(&store, &partition(), moving_shard).await) != [1, 3] {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!writing.is_finished(), "the call ended before the restart");
    let before = store.shard_disconnects(moving_shard);
    tokio::task::block_in_place(|| migration.to().go_back(&snapshot)).expect("an earlier time");
    assert_eq!(ids(&store, &partition(), moving_shard).await, [1]);
    assert!(store.shard_disconnects(moving_shard) > before);
    let start = QueuePosition::default();
    let page =
        store.read_queue(&owner.partition, full_shard, start, 10, 1 << 20).await.expect("a page");
    let (last, _) = page.entries.last().expect("the events of the second shard");
    let removed = store.dequeue(&owner.partition, owner.claim, full_shard, 0, *last).await;
    assert_eq!(removed.expect("an answer"), DequeueResult::Done);
    let result = writing.await.expect("a result");
    assert!(result.error.is_none(), "{:?}", result.error);
    migration.finish().expect("an end");
    assert_eq!(distinct(ids(&store, &partition(), moving_shard).await), [1, 3]);
    assert_eq!(distinct(ids(&store, &partition(), full_shard).await), [3]);
}

/// A node of a Cluster writes the event of a call, and the connection breaks before the reply arrives. Then the slot
/// moves to another node, and the call is repeated there. The store numbers the events, so the other node must
/// recognise the event by its id, and must not put the event into the queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_of_a_lost_reply_is_recognised_after_its_slot_has_moved() {
    let cluster = Cluster::behind_proxies(3, &Options::new()).expect("a Cluster");
    let options = options(&cluster.urls()[0]);
    let queue = format!("{}:{{0}}:log:stream/s", options.prefix);
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    let mut names = (0..).map(|number| format!("key-{number}"));
    let key = names.find(|key| shard_of(key, store.shards()) == 0).expect("a key of shard 0");
    let assigner = assigner(&store, Some(NumberingSettings::default()));
    let item = |id: &str| {
        assigner.item(&Arc::new(Event::new(&EventParts { key: &key, id, ..EventParts::default() })))
    };
    assert!(assigner.assign(&[item("1")]).await.error.is_none());
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    let to = (from + 1) % 3;
    cluster.proxies()[from].lose_replies(1, "77777");
    let items = [item("77777")];
    let lost = assigner.assign(&items);
    let moved = async {
        tokio::task::block_in_place(|| {
            wait_until("both events in the old node", || {
                let waiting = cluster.nodes()[from].attempt(&["HGET", &queue, "w"])?;
                Ok(waiting.text() == Some("2"))
            })
            .expect("both events in the old node");
            let migration = cluster.migrate(slot, to).expect("a migration");
            while migration.move_keys(100).expect("moved keys") > 0 {}
            migration.finish().expect("an end");
        });
    };
    let (result, ()) = futures_util::future::join(lost, moved).await;
    assert!(result.error.is_none(), "{:?}", result.error);
    let waiting = cluster.nodes()[to].command(&["HGET", &queue, "w"]).expect("a count");
    assert_eq!(waiting.text(), Some("2"), "the event is in the queue twice");
    assert_eq!(ids(&store, &partition(), 0).await, [1, 77_777]);
}
