//! Tests of commits in a Cluster while slots move to other nodes.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::{AcceptedId, CommitReply, StateUpdate};
use ordain_servers::{Cluster, Options, wait_until};
use ordain_store::{RecordStore, SpillArea};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, event};

use super::dedicated::{next_of, numbers, step, until_applied};
use super::rights::{IN_CLUSTER, RIGHTS, denied, rules};
use super::support::options;
use super::work::ShardWorkers;

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_continue_while_slot_moves() {
    let rules = rules(&[RIGHTS, IN_CLUSTER]);
    let cluster =
        Cluster::with(3, &Options::new().user("shop", "right", &rules)).expect("a Cluster");
    let url = format!("redis://shop:right@127.0.0.1:{}", cluster.nodes()[0].port());
    let options = ordain_store::RedisOptions { prefix: "ordain".to_owned(), ..options(&url) };
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    let work = ShardWorkers::start(&store).await;
    for shard in [0, 1, 0] {
        work.until_more(40);
        let slot = cluster.slot(&format!("{{{shard}}}")).expect("a slot");
        let from = cluster.owner(slot).expect("an owner");
        let migration = cluster.migrate(slot, (from + 1) % 3).expect("a migration");
        sleep(30);
        assert!(migration.move_keys(1).expect("a move") > 0);
        sleep(30);
        migration.move_keys(3).expect("a move");
        sleep(100);
        migration.finish().expect("an end");
        assert_ne!(cluster.owner(slot).expect("an owner"), from);
    }
    work.until_more(100);
    let workers = work.finish(&*store).await;
    assert_eq!(workers.len(), 4);
    for node in cluster.nodes() {
        assert_eq!(denied(node), [], "the server denied a request");
    }
}

/// The nodes prefer names as their addresses, but have no names, so they report `?` as the host of each node. Meanwhile
/// a slot moves. When the nodes report their addresses again, the store must find the new owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_is_found_after_nodes_reported_no_addresses() {
    let cluster = Cluster::start(3).expect("a Cluster");
    let store = RedisStore::open(options(&cluster.urls()[0])).await.expect("the store");
    let store = Arc::new(store);
    let work = ShardWorkers::start(&store).await;
    work.until_more(40);
    let prefer = |kind: &str| {
        for node in cluster.nodes() {
            node.configure("cluster-preferred-endpoint-type", kind).expect("a setting");
        }
    };
    prefer("hostname");
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    let migration = cluster.migrate(slot, (from + 1) % 3).expect("a migration");
    migration.finish().expect("an end");
    // The store tries to find the new owner, in vain.
    sleep(2_000);
    prefer("ip");
    work.until_more(100);
    let workers = work.finish(&*store).await;
    let longest = workers.iter().find(|worker| worker.shard == 0).map(|worker| worker.longest);
    assert!(longest >= Some(Duration::from_secs(1)), "shard 0 waited only {longest:?}");
}

/// While a slot moves, each of two nodes has a part of one key's data. The store must wait, and must not report this
/// state as damage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_wait_for_slot_migration() {
    let cluster = Cluster::start(3).expect("a Cluster");
    let options = options(&cluster.urls()[0]);
    let prefix = options.prefix.clone();
    let store = Arc::new(RedisStore::open(options).await.expect("the store"));
    let mut owner = Owner::claim(&*store, "s", 0).await;
    let mut write = step("a", 1);
    write.spill = vec![(3, event("a", 3, "held"))];
    write.record.spilled.add(3);
    write.record.ids_from = 1;
    write.ids.push(AcceptedId { sequence: 1, id: 1, content: 1, source: 0 });
    write.state = StateUpdate::Put("1".into());
    owner.write(&*store, write).await;
    let tag = format!("{{{}}}", owner.shard("a"));
    let slot = cluster.slot(&tag).expect("a slot");
    let to = (cluster.owner(slot).expect("an owner") + 1) % 3;
    let migration = cluster.migrate(slot, to).expect("a migration");
    let port = migration.to().port().to_string();
    for kind in ["spilled", "ids"] {
        let name = format!("{prefix}:{tag}:{kind}:s");
        let command = ["MIGRATE", "127.0.0.1", &port, &name, "0", "10000"];
        assert_eq!(migration.from().command(&command).expect("a move").text(), Some("OK"));
    }
    let other = Arc::clone(&store);
    let partition = owner.partition.clone();
    let reading = tokio::spawn(async move {
        let keys = ["a".into()];
        let events = other.read_spill(&partition, &keys[0], 0, 10, 1 << 20).await;
        (events, other.load(&partition, &keys, usize::MAX).await)
    });
    sleep(300);
    assert!(!reading.is_finished());
    migration.finish().expect("an end");
    let (events, loaded) = reading.await.expect("a task");
    assert_eq!(events.expect("an answer").expect("events").0.len(), 1);
    let loaded = loaded.expect("a load").remove(0).expect("a key record that can be read");
    assert_eq!(loaded.map(|loaded| loaded.ids.len()), Some(1));
}

/// A commit waits for replicas, and its slot moves. The store must send both the commit and the command `WAIT` to the
/// new node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_commit_follows_its_slot() {
    let serving = Options::new().line("cluster-require-full-coverage no");
    let cluster = Cluster::with(4, &serving).expect("a Cluster");
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    let [to, spare] = [(from + 1) % 4, (from + 2) % 4];
    let mut options = options(&cluster.urls()[from]);
    options.shards = 1;
    options.replicas = 1;
    let store = RedisStore::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let batch = owner.batch(vec![step("a", 1)]);
    assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown, "no replica exists");
    cluster.migrate(slot, to).expect("a migration").finish().expect("an end");
    make_replica(&cluster, spare, to);
    until_applied(&store, &owner, &batch).await;
    owner.write(&store, step("a", 2)).await;
    assert_eq!(next_of(&store, "a").await, 3);
    assert_eq!(numbers(&store, &owner, "a").await, [1, 2]);
}

/// Moves the slots of the node `spare`, which has no keys, to the node `master`. Then makes `spare` a replica of
/// `master`.
fn make_replica(cluster: &Cluster, spare: usize, master: usize) {
    let count = 16_384 / cluster.nodes().len();
    let [first, last] = [spare * count, (spare + 1) * count - 1].map(|slot| slot.to_string());
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTSRANGE", &first, &last]).expect("removed slots");
    }
    let [spare, master] = [spare, master].map(|number| &cluster.nodes()[number]);
    master.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).expect("added slots");
    let id = master.command(&["CLUSTER", "MYID"]).expect("an id");
    let id = id.text().expect("a text");
    wait_until("an accepted replica", || {
        let reply = spare.attempt(&["CLUSTER", "REPLICATE", id])?;
        Ok(reply.text() == Some("OK"))
    })
    .expect("a replica");
    spare.until_in_step().expect("a replica in step");
}
