//! Tests of stores whose server has a wrong clock for a while. The store removes expired data for good, so a wrong
//! clock must not make data expire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::{Event, EventParts, KeyStatus, WriteRefusal};
use ordain_servers::{Clock, Options};
use ordain_store::clock::{JUMP_CONFIRMATION_MS, JUMP_LIMIT_MS};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest,
    Destination, DestinationRules, KeyFilter, NumberingSettings, OutboxChunk, OutboxPosition,
    RedisOptions, Store,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, first_write};

use super::dedicated::{DedicatedStore, Server, WAIT_TIMEOUT, letter};

const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 24 * HOUR_S;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

struct Rig {
    dedicated: DedicatedStore,
    /// The clock must be the last field, because it must outlive the server.
    clock: Clock,
}

impl Rig {
    async fn start() -> Self {
        let clock = Clock::new().expect("a clock");
        let server = Server::with(&Options::new().clock(&clock)).expect("a server");
        Self { dedicated: DedicatedStore::on(server).await, clock }
    }

    /// Sets the clock of the server to the time of the system plus this number of seconds.
    fn set(&self, seconds: i64) {
        self.clock.set(seconds).expect("another time");
    }

    async fn open(&self, reads_only: bool) -> RedisStore {
        let options = RedisOptions { reads_only, ..self.dedicated.options.clone() };
        RedisStore::open(options).await.expect("the store")
    }
}

/// Ends the key `a`, whose record the store keeps for `expire_in` ms, with a dead letter, and numbers a message.
async fn fill(store: &dyn Store, expire_in: u64) {
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = first_write("a");
    write.record.status = KeyStatus::Completed;
    write.expire_in = Some(expire_in);
    write.letters = vec![letter("a", 1, 0)];
    owner.write(store, write).await;
    assert_eq!(publish(store).await, AssignItemReply::New(1));
}

/// Publishes the same message in each call.
async fn publish(store: &dyn Store) -> AssignItemReply {
    publish_message(store, "1", NumberingSettings::default()).await
}

async fn publish_message(
    store: &dyn Store,
    id: &str,
    settings: NumberingSettings,
) -> AssignItemReply {
    let event = Arc::new(Event::new(&EventParts { key: "a", id, ..EventParts::default() }));
    let items = vec![AssignItem { event, partition: 0, number: 0 }];
    let numbering = Some(settings);
    let request = AssignRequest {
        destination: Destination::Exchange("x".into()),
        shard: ordain_core::shard_of("a", store.shards()),
        rules: DestinationRules { numbering, queue_limit: None },
        witness: None,
        call: None,
        readers: Vec::new(),
        reuses_lost_numbers: false,
        groups: vec![AssignGroup {
            origin: None,
            chunks: vec![OutboxChunk { position: OutboxPosition::default(), items }],
        }],
    };
    let reply = store.assign(Arc::new(request)).await.expect("a reply");
    let AssignReply::Groups(groups, _) = reply else { panic!("{reply:?}") };
    let [AssignGroupReply::Done(results)] = &groups[..] else { panic!("{groups:?}") };
    results[0]
}

/// Checks that the store has everything that [`fill`] wrote. Also commits to the shard of the key, because a commit
/// removes expired data.
async fn assert_full(store: &dyn Store, when: &str) {
    let mut owner = Owner::claim(store, "s", 0).await;
    for _ in 0..2 {
        assert!(owner.load(store, "a").await.is_some(), "no record of the key {when}");
        let refused = owner.commit(store, vec![first_write("a")]).await.refused;
        assert_eq!(refused, [(0, WriteRefusal::Next(Some(2)))], "the key started again {when}");
    }
    let letters = store.letters("s", None, None, 10).await.expect("a page").rows;
    assert_eq!(letters.len(), 1, "no dead letter {when}");
    let filter = KeyFilter { limit: 10, ..KeyFilter::default() };
    let keys = store.keys("s", &filter).await.expect("a page").rows;
    assert_eq!(keys.len(), 1, "the key is not listed {when}");
    assert_eq!(publish(store).await, AssignItemReply::Known(1), "the message is new {when}");
}

#[tokio::test]
async fn wrong_clock_expires_nothing() {
    let rig = Rig::start().await;
    fill(&rig.dedicated.store, 7 * DAY_MS).await;
    for days in [8, 40] {
        rig.set(days * DAY_S);
        assert_full(&rig.dedicated.store, "in a running process").await;
        for reads_only in [true, true, false, true, false] {
            let store = rig.open(reads_only).await;
            assert_full(&store, &format!("after a start with reads_only {reads_only}")).await;
        }
        rig.set(0);
        assert_full(&rig.dedicated.store, "in a running process with the right clock").await;
        for reads_only in [true, false] {
            assert_full(&rig.open(reads_only).await, "with the right clock").await;
        }
    }
}

/// A clock that stays ahead is right: the store was not used for a while. A process that opens the store a certain time
/// after the jump must accept the time of the clock. A command that only reads must not accept this time.
#[tokio::test]
async fn data_expires_when_a_jump_has_lasted() {
    let rig = Rig::start().await;
    fill(&rig.dedicated.store, HOUR_MS).await;
    rig.set(8 * DAY_S);
    assert_full(&rig.open(false).await, "at the first start after the jump").await;
    rig.set(8 * DAY_S + (JUMP_CONFIRMATION_MS / 1_000).cast_signed() + 1);
    assert_full(&rig.open(true).await, "in a command").await;
    // The process that noticed the jump has ended. A process that was started earlier does not know the later time.
    assert_full(&rig.dedicated.store, "in an earlier process").await;
    let store: &dyn Store = &rig.open(false).await;
    let mut owner = Owner::claim(store, "s", 0).await;
    assert!(owner.load(store, "a").await.is_none());
    assert!(store.letters("s", None, None, 10).await.expect("a page").rows.is_empty());
    assert_eq!(publish(store).await, AssignItemReply::New(2));
    owner.write(store, first_write("a")).await;
    assert!(owner.load(&rig.open(true).await, "a").await.is_some());
}

/// If one process has confirmed a jump, all processes must follow it, even if the server's clock is then set back.
/// Otherwise, one process would remove the data that another process has just written.
#[tokio::test]
async fn running_process_follows_the_jump_of_another_process() {
    let rig = Rig::start().await;
    let earlier = &rig.dedicated.store;
    fill(earlier, HOUR_MS).await;
    rig.set(8 * DAY_S);
    drop(rig.open(false).await);
    rig.set(8 * DAY_S + (JUMP_CONFIRMATION_MS / 1_000).cast_signed() + 1);
    let later = rig.open(false).await;
    rig.set(0);
    let owner = Owner::claim(&later, "s", 0).await;
    assert!(owner.load(&later, "a").await.is_none());
    let started = Instant::now();
    while owner.load(earlier, "a").await.is_some() {
        assert!(started.elapsed() < WAIT_TIMEOUT, "the earlier process does not follow the jump");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(publish(earlier).await, AssignItemReply::New(2));
    assert_eq!(publish(&later).await, AssignItemReply::Known(2));
    assert_eq!(publish(earlier).await, AssignItemReply::Known(2));
}

#[tokio::test]
async fn data_expires_after_a_small_step() {
    let rig = Rig::start().await;
    let step = (JUMP_LIMIT_MS / 1_000).cast_signed() - HOUR_S / 10;
    fill(&rig.dedicated.store, 60_000).await;
    rig.set(step);
    for store in [&rig.dedicated.store, &rig.open(true).await, &rig.open(false).await] {
        let owner = Owner::claim(store, "s", 0).await;
        assert!(owner.load(store, "a").await.is_none());
    }
}

/// A message that was published while the clock was wrong expires late. The message must not delay the removal of other
/// messages.
#[tokio::test]
async fn late_message_delays_no_removal() {
    let rig = Rig::start().await;
    let store = &rig.dedicated.store;
    let settings = NumberingSettings { retain: 60_000, ..NumberingSettings::default() };
    rig.set(400 * DAY_S);
    publish_message(store, "late", settings).await;
    // Each message has expired when the next message is published.
    for step in 0..6 {
        rig.set(step * HOUR_S / 10);
        publish_message(store, &step.to_string(), settings).await;
    }
    let shard = ordain_core::shard_of("a", store.shards());
    let fields = rig.dedicated.command(&["HKEYS", &rig.dedicated.name(shard, "log:exchange/x")]);
    let fields: Vec<&str> = fields.parts().iter().filter_map(|field| field.text()).collect();
    for kind in ["m", "i", "a"] {
        let count = fields.iter().filter(|field| field.starts_with(kind)).count();
        assert_eq!(count, 2, "{kind}: {fields:?}");
    }
}

/// While the clock is behind, the store must not let new data expire too early.
#[tokio::test]
async fn data_of_a_time_with_a_clock_that_is_behind_is_kept() {
    let rig = Rig::start().await;
    rig.set(-2 * DAY_S);
    fill(&rig.dedicated.store, HOUR_MS).await;
    for offset in [-2 * DAY_S, 0] {
        rig.set(offset);
        assert_full(&rig.dedicated.store, "in a running process").await;
        assert_full(&rig.open(true).await, "in a command").await;
        assert_full(&rig.open(false).await, "after a start").await;
    }
}

/// While the clock is behind, each run must record the time that has passed, even if the run is short.
#[tokio::test]
async fn end_of_a_run_with_a_clock_that_is_behind_records_the_time() {
    let mut rig = Rig::start().await;
    // No process writes to the store with this prefix between the steps of the test.
    rig.dedicated.options.prefix = "quiet".to_owned();
    let name = rig.dedicated.name(0, "store");
    drop(rig.open(false).await);
    let recorded = || {
        let record = rig.dedicated.command(&["HGET", &name, "clock"]);
        let times = record.text().and_then(|times| times.split_once(' ')).expect("times");
        times.0.parse::<u64>().expect("a time")
    };
    let before = recorded();
    rig.set(-DAY_S);
    let store = rig.open(false).await;
    let started = Instant::now();
    while recorded() <= before {
        assert!(started.elapsed() < WAIT_TIMEOUT, "the time is not recorded");
        store.flush().await.expect("a flushed store");
    }
    drop(store);
    let before = recorded();
    rig.open(true).await.flush().await.expect("a flushed store");
    assert_eq!(recorded(), before, "a command that only reads has written the time");
}

/// An earlier version wrote no record of the clock, and another program may damage the record. The first start takes
/// the time of the server, and writes the record. A command that only reads writes no record.
#[tokio::test]
async fn missing_record_of_the_clock_is_written_by_a_start() {
    let mut rig = Rig::start().await;
    // No process writes to the store with this prefix between the steps of the test.
    rig.dedicated.options.prefix = "quiet".to_owned();
    let name = rig.dedicated.name(0, "store");
    let record = || rig.dedicated.command(&["HGET", &name, "clock"]);
    for damaged in [false, true] {
        rig.set(0);
        rig.dedicated.command(&["FLUSHALL"]);
        drop(rig.open(true).await);
        if damaged {
            rig.dedicated.command(&["HSET", &name, "clock", "damaged"]);
        }
        fill(&rig.open(true).await, 7 * DAY_MS).await;
        assert_eq!(record().text(), damaged.then_some("damaged"));
        assert_full(&rig.open(false).await, "after the first start").await;
        let written = record();
        let (time, jump) = written.text().and_then(|times| times.split_once(' ')).expect("times");
        assert!(time.parse::<u64>().is_ok() && jump == "0", "{written:?}");
        rig.set(8 * DAY_S);
        assert_full(&rig.open(true).await, "in a command after a jump").await;
        assert_eq!(record(), written);
        assert_full(&rig.open(false).await, "after a jump").await;
    }
}
