//! A Cluster whose slots move, with commits under way.

use std::sync::Arc;
use std::time::Duration;

use ordain::store::redis::Redis;
use ordain_core::CommitReply;
use ordain_servers::{Cluster, Options, wait_until};
use ordain_tests::conformance::Owner;

use super::own::{next_of, numbers, step, until_applied};
use super::rights::{IN_CLUSTER, RIGHTS, denied, rules};
use super::support::options;
use super::work::Work;

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_go_on_while_their_slot_moves() {
    let rules = rules(&[RIGHTS, IN_CLUSTER]);
    let cluster =
        Cluster::with(3, &Options::new().user("shop", "right", &rules)).expect("a Cluster");
    let url = format!("redis://shop:right@127.0.0.1:{}", cluster.nodes()[0].port());
    let options = ordain::store::redis::Options { prefix: "ordain".to_owned(), ..options(&url) };
    let store = Arc::new(Redis::open(options).await.expect("the store"));
    let work = Work::start(&store).await;
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
        assert_eq!(denied(node), [], "something was refused on the way");
    }
}

/// Where commits wait for replicas, they are sent together with the waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_commit_follows_its_slot() {
    let serving = Options::new().line("cluster-require-full-coverage no");
    let cluster = Cluster::with(4, &serving).expect("a Cluster");
    let slot = cluster.slot("{0}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    let [to, spare] = [(from + 1) % 4, (from + 2) % 4];
    let mut options = options(&cluster.urls()[from]);
    (options.shards, options.replicas) = (1, 1);
    let store = Redis::open(options).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let batch = owner.batch(vec![step("a", 1)]);
    assert_eq!(owner.send(&store, &batch).await, CommitReply::Unknown, "there is no replica");
    cluster.migrate(slot, to).expect("a migration").finish().expect("an end");
    follow(&cluster, spare, to);
    until_applied(&store, &owner, &batch).await;
    owner.write(&store, step("a", 2)).await;
    assert_eq!(next_of(&store, "a").await, 3);
    assert_eq!(numbers(&store, &owner, "a").await, [1, 2]);
}

/// Makes a node without keys a replica of another one, which gets its slots.
fn follow(cluster: &Cluster, spare: usize, master: usize) {
    let share = 16_384 / cluster.nodes().len();
    let [first, last] = [spare * share, (spare + 1) * share - 1].map(|slot| slot.to_string());
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTSRANGE", &first, &last]).expect("slots that go");
    }
    let [spare, master] = [spare, master].map(|number| &cluster.nodes()[number]);
    master.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).expect("slots that come");
    let id = master.command(&["CLUSTER", "MYID"]).expect("an id");
    let id = id.text().expect("a text");
    wait_until("a node that may follow", || {
        let reply = spare.attempt(&["CLUSTER", "REPLICATE", id])?;
        Ok(reply.text() == Some("OK"))
    })
    .expect("it follows");
    spare.until_in_step().expect("a replica in step");
}
