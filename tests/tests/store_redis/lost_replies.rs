//! Tests of lost requests and lost replies. A repeated request must take effect only once.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::CommitReply;
use ordain_servers::Proxy;
use ordain_store::RedisAddress;
use ordain_store::{
    HeartbeatRequest, InstanceId, KeyListing, LeaseReply, LeaseStore, Mark, MarkConditions,
    MarkStore, Outbox, RecordStore,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, commit_number};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::dedicated::{DedicatedStore, next_of, numbers, step, until_applied};
use super::work::{ShardWorkers, pause};

/// The number of random faults in a test. A fault loses a request or one or two replies, or closes all connections.
const LOSSES: u64 = 300;

struct LossyStore {
    direct: DedicatedStore,
    proxy: Proxy,
    store: Arc<RedisStore>,
}

impl LossyStore {
    async fn start() -> Self {
        let direct = DedicatedStore::start().await;
        let proxy = Proxy::start(direct.server.port()).expect("a proxy");
        let mut options = direct.options.clone();
        options.address = RedisAddress::parse(&direct.server.url_at(proxy.port())).expect("a URL");
        let store = Arc::new(RedisStore::open(options).await.expect("the store"));
        Self { direct, proxy, store }
    }

    /// Returns the part of a script call that contains the number of its Redis keys and its first Redis key. The proxy
    /// recognises the call by these bytes.
    fn first_key(&self, count: u32, shard: u32, rest: &str) -> String {
        let name = self.direct.name(shard, rest);
        format!("\r\n${}\r\n{count}\r\n${}\r\n{name}\r\n", count.to_string().len(), name.len())
    }
}

#[tokio::test]
async fn commit_is_applied_once() {
    let rig = LossyStore::start().await;
    let through = &*rig.store;
    let direct = &rig.direct.store;
    let mut owner = Owner::claim(through, "s", 0).await;
    owner.write(through, step("a", 1)).await;
    for (sequence, is_written, call) in
        [(2, true, "EVALSHA"), (3, false, "EVALSHA"), (4, true, "\r\nEVAL\r\n")]
    {
        if call != "EVALSHA" {
            rig.direct.command(&["SCRIPT", "FLUSH"]);
        }
        if is_written {
            rig.proxy.lose_replies(1, call);
        } else {
            rig.proxy.lose_requests(1, call);
        }
        let batch = owner.batch(vec![step("a", sequence)]);
        assert_eq!(owner.send(through, &batch).await, CommitReply::Unknown);
        assert_eq!(next_of(direct, "a").await, sequence + u64::from(is_written), "{sequence}");

        let applied = until_applied(through, &owner, &batch).await;
        assert_eq!(applied.refused, []);
        assert_eq!(owner.send(direct, &batch).await, CommitReply::Applied(applied));
        assert_eq!(next_of(direct, "a").await, sequence + 1);
        assert_eq!(numbers(direct, &owner, "a").await, (1..=sequence).collect::<Vec<_>>());
    }
    let counts = rig.proxy.counts();
    assert_eq!((counts.replies_lost, counts.requests_lost), (2, 1));
}

/// A claim takes several requests. Each request or its reply may be lost. The next claim must nevertheless get a higher
/// epoch.
#[tokio::test]
async fn claim_is_higher_after_any_loss() {
    let rig = LossyStore::start().await;
    let through = &*rig.store;
    let direct = &rig.direct.store;
    let mut owner = Owner::claim(through, "s", 0).await;
    owner.write(through, step("a", 1)).await;
    let fence = rig.first_key(1, 2, "data:s");
    for request in ["SADD", "\r\nHGET\r\n", "}:leases", &fence] {
        for reply in [true, false] {
            let id = InstanceId::random();
            let lease = Duration::from_mins(1);
            let heartbeat =
                HeartbeatRequest { id, info: "", report: None, lease, known_version: 0 };
            direct.heartbeat(heartbeat).await.expect("a heartbeat");
            if reply {
                rig.proxy.lose_replies(1, request);
            } else {
                rig.proxy.lose_requests(1, request);
            }
            let leased = through.lease(&owner.partition, id).await.expect("a lease");
            let LeaseReply::Granted(epoch) = leased else { panic!("the partition has no owner") };
            let claimed = through.claim(&owner.partition, epoch).await.expect("a claim");
            direct.remove_instance(id).await.expect("a removed instance");
            let partition = owner.partition.clone();
            let claim = claimed.claim;
            let next = Owner { partition, claim, numbers: claimed.commits };
            assert!(next.claim.epoch > owner.claim.epoch);
            assert_eq!(next.numbers, owner.numbers);
            let late = owner.batch(vec![step("a", commit_number(&next, "a") + 1)]);
            assert_eq!(owner.send(direct, &late).await, CommitReply::Fenced);
            owner = next;
            owner.write(through, step("a", commit_number(&owner, "a") + 1)).await;
        }
    }
    let counts = rig.proxy.counts();
    assert_eq!((counts.replies_lost, counts.requests_lost), (4, 4));
}

#[tokio::test]
async fn key_is_taken_over_once() {
    let rig = LossyStore::start().await;
    let through = &*rig.store;
    let direct = &rig.direct.store;
    let mut old = Owner::claim(through, "s", 0).await;
    let mut write = step("a", 1);
    write.due_in = Some(0);
    old.write(through, write).await;
    old.write(through, step("b", 1)).await;
    let new = Owner::claim(through, "s", 1).await;
    new.load(through, "b").await.expect("a key record, and a server that knows the script");
    rig.proxy.lose_replies(1, "due:1:s");
    let record = new.load(through, "a").await.expect("a key record").record;
    assert_eq!((record.partition, record.takeovers), (1, 1));
    assert_eq!(rig.proxy.counts().replies_lost, 1);

    let (row, _) = direct.key("s", "a").await.expect("a read").expect("a key record");
    assert_eq!(row.record.map(|record| (record.partition, record.takeovers)), Ok((1, 1)));
    assert_eq!(new.due(direct, 10).await.0, ["a"]);
    assert_eq!(old.due(direct, 10).await, (vec![], None));
}

#[tokio::test]
async fn removed_outbox_entries_and_marks_persist() {
    let rig = LossyStore::start().await;
    let through = &*rig.store;
    let direct = &rig.direct.store;
    let mut owner = Owner::claim(through, "s", 0).await;
    for sequence in 1..=4 {
        owner.write(through, step("a", sequence)).await;
    }
    let shard = owner.shard("a");
    let done = async |through_number: u64| {
        let done = through.outbox_done(&owner.partition, owner.claim, shard, through_number, &[]);
        done.await.expect("done");
    };
    done(1).await;
    let first_key = rig.first_key(1, shard, "data:s");
    rig.proxy.lose_replies(1, &first_key);
    done(2).await;
    assert_eq!(numbers(direct, &owner, "a").await, [3, 4]);
    rig.proxy.lose_requests(1, &first_key);
    done(3).await;
    assert_eq!(numbers(direct, &owner, "a").await, [4]);

    let mark = |value: &'static str| [Mark { name: "m".to_owned(), value: value.into() }];
    rig.proxy.lose_replies(1, "marks");
    through.put_marks(&mark("1")).await.expect("a mark");
    assert_eq!(direct.mark("m").await.expect("a mark"), Some("1".into()));
    rig.proxy.lose_requests(1, "marks");
    through.put_marks(&mark("2")).await.expect("a mark");
    assert_eq!(through.mark("m").await.expect("a mark"), Some("2".into()));

    // After this call, the server knows the script, so the reply that the proxy loses is the reply of the script.
    assert!(direct.replace_mark(&mark("3")[0], Some(&"2".into())).await.expect("a mark"));
    rig.proxy.lose_replies(1, "marks");
    assert!(through.replace_mark(&mark("4")[0], Some(&"3".into())).await.expect("a mark"));
    assert_eq!(direct.mark("m").await.expect("a mark"), Some("4".into()));
    let counts = rig.proxy.counts();
    assert_eq!((counts.replies_lost, counts.requests_lost), (3, 2));
}

/// The reply to the write of a mark is lost, so the store repeats the write, and finds the mark of the first attempt.
/// The store must not conclude that it went back in time.
#[tokio::test]
async fn mark_in_shards_persists_after_a_lost_reply() {
    let rig = LossyStore::start().await;
    let through = &*rig.store;
    let direct = &rig.direct.store;
    let marks = async || direct.mark_in_shards("m").await.expect("the marks");
    let put = async |store: &RedisStore, value: &'static str| {
        let before = marks().await;
        let conditions = MarkConditions { before: &before, ..MarkConditions::default() };
        let mark = Mark { name: "m".to_owned(), value: value.into() };
        store.put_mark_in_shards(&mark, &conditions).await.expect("an answer")
    };
    // After this call, the server knows the script, so the reply that the proxy loses is the reply of the script.
    assert!(put(direct, "1").await);
    rig.proxy.lose_replies(1, "marks");
    assert!(put(through, "2").await);
    assert_eq!(rig.proxy.counts().replies_lost, 1);
    assert!(marks().await.iter().all(|mark| *mark == Some("2".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_continue_through_bad_network() {
    let rig = LossyStore::start().await;
    let seed = rand::random();
    println!("losses of seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let work = ShardWorkers::start(&rig.store).await;
    for number in 1..=LOSSES {
        let call = ["EVALSHA", "EVALSHA", ""][random.random_range(0..3)];
        match random.random_range(0..4) {
            0 => rig.proxy.lose_requests(1, call),
            1 => rig.proxy.cut(),
            _ => rig.proxy.lose_replies(random.random_range(1..3), call),
        }
        pause(&mut random, 1..10);
        if number % 10 == 0 {
            work.until_more(20);
        }
    }
    rig.proxy.lose_requests(0, "");
    rig.proxy.lose_replies(0, "");
    std::thread::sleep(Duration::from_millis(50));
    let answered = work.answered();
    work.finish(&rig.direct.store).await;
    let counts = rig.proxy.counts();
    assert!(answered > LOSSES, "{answered}");
    assert!(counts.replies_lost > LOSSES / 10 && counts.requests_lost > LOSSES / 20, "{counts:?}");
}
