//! Tests of the rights that a Redis user needs for the store. The rights below must be sufficient, and each of them
//! must be necessary.

use std::collections::BTreeSet;
use std::time::Duration;

use ordain_core::{
    AcceptedId, Cause, CommitReply, DeadLetter, LetterContent, LetterId, StateUpdate,
};
use ordain_servers::Reply;
use ordain_store::RedisOptions;
use ordain_store::{
    DueIndex, HeartbeatRequest, InstanceId, KeyFilter, KeyListing, LeaseReply, LeaseStore,
    LetterListing, Mark, MarkStore, Outbox, Partition, RecordStore, Store, StoreError,
};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, commit_number, event};

use super::dedicated::{Server, next_of, numbers, step, until_applied};
use super::support::options;

/// The rights that every user needs, in addition to access to the Redis keys with the prefix of the store.
pub(super) const RIGHTS: &str = "evalsha eval info config|get time type \
    hget hmget hset hdel hexists hlen hscan hstrlen sadd smembers \
    zadd zrem zrange zrangebylex zrangebyscore zcount zrank zscore";
/// The additional right for a store whose URL has a database number.
pub(super) const WITH_DATABASE: &str = "select";
pub(super) const IN_CLUSTER: &str = "cluster|slots asking";
pub(super) const UNDER_SENTINEL: &str = "role";
/// The additional right for commits that wait for replicas.
pub(super) const WITH_REPLICAS: &str = "wait";

/// Returns the ACL rules of a user who has only the given rights, and only for the store `ordain`.
pub(super) fn rules(rights: &[&str]) -> String {
    let rights = rights.join(" ");
    let rights: Vec<&str> = rights.split_whitespace().collect();
    format!("resetchannels ~ordain:* -@all +{}", rights.join(" +"))
}

/// Returns the requests that the server denied because of missing rights.
pub(super) fn denied(server: &Server) -> Vec<Reply> {
    server.command(&["ACL", "LOG"]).expect("a log").parts().to_vec()
}

fn options_of(server: &Server) -> RedisOptions {
    let url = format!("redis://shop:p%40ss@127.0.0.1:{}/3", server.port());
    RedisOptions { prefix: "ordain".to_owned(), ..options(&url) }
}

/// Returns the options of a store whose requests fail instead of waiting until the server accepts them.
fn impatient(server: &Server) -> RedisOptions {
    RedisOptions { retry_timeout: Some(Duration::ZERO), ..options_of(server) }
}

fn start(rules: &str) -> Server {
    let options = ordain_servers::Options::new().password("secret").user("shop", "p@ss", rules);
    Server::with(&options).expect("a server")
}

/// Makes commits that write and remove all kinds of data.
async fn write_everything(store: &RedisStore, owner: &mut Owner) {
    let mut write = step("a", 1);
    write.spill = (3..40).map(|sequence| (sequence, event("a", sequence, "held"))).collect();
    write.spill.iter().for_each(|(sequence, _)| write.record.spilled.add(*sequence));
    write.record.ids_from = 1;
    write.ids.push(AcceptedId { sequence: 1, id: 1, content: 1, source: 0 });
    write.state = StateUpdate::Put("1".into());
    write.due_in = Some(0);
    write.expire_in = Some(60_000);
    let letter = DeadLetter {
        id: LetterId { key: "a".into(), sequence: 1, tag: 0 },
        cause: Cause::Rejected,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    };
    write.letters = vec![letter.clone()];
    let held = write.record.spilled;
    owner.write(store, write.clone()).await;
    let mut again = step("a", 2);
    again.spill = vec![(50, event("a", 50, "held")), write.spill[0].clone()];
    again.record.spilled = held;
    again.record.ids_from = 2;
    again.ids.push(AcceptedId { sequence: 2, id: 2, content: 2, source: 0 });
    again.state = StateUpdate::Delete;
    again.removed_letters = vec![letter.id.clone()];
    assert_eq!(owner.write(store, again).await.existing_spills.len(), 1);
    owner.write(store, step("a", 3)).await;
}

/// Makes a key expire. Then makes another commit, which removes the data of this key.
async fn expire_key(store: &RedisStore, owner: &mut Owner) {
    let mut ended = step("b", 1);
    ended.expire_in = Some(0);
    ended.due_in = Some(0);
    ended.spill = vec![(9, event("b", 9, "held"))];
    ended.record.spilled.add(9);
    owner.write(store, ended).await;
    let shard_mate = (0..).map(|number| format!("mate-{number}"));
    let mate = shard_mate.into_iter().find(|key| owner.shard(key) == owner.shard("b"));
    owner.write(store, step(&mate.expect("a key"), 1)).await;
}

/// Reads all kinds of data of the store, removes outbox entries, writes marks and heartbeats, and acquires and releases
/// a lease. Also takes over a key.
async fn read_everything(store: &RedisStore, owner: &mut Owner) {
    assert_eq!(owner.spilled(store, "a", 0).await, [] as [u64; 0]);
    let due = store.due(&owner.partition, Some(&(5, "x".into())), 10, true).await;
    assert_eq!(due.expect("the index").0, []);
    let mut early = step("c", 1);
    early.due_in = Some(0);
    owner.write(store, early).await;
    let entries = store.due(&owner.partition, None, 10, true).await.expect("the index").0;
    let entry = entries.iter().find(|(_, key)| &**key == "c").expect("an entry");
    let due = store.due(&owner.partition, Some(entry), 10, true).await;
    assert_eq!(due.expect("the index").0, []);
    assert_eq!(numbers(store, owner, "c").await.last(), Some(&commit_number(owner, "c")));
    let filter = KeyFilter { limit: 10, prefix: "a".to_owned(), ..KeyFilter::default() };
    assert_eq!(store.keys("s", &filter).await.expect("keys").rows.len(), 1);
    assert_eq!(store.letters("s", None, None, 10).await.expect("letters").rows, []);
    assert_eq!(store.streams().await.expect("streams").len(), 1);
    store.outbox_done(&owner.partition, owner.claim, 0, 1, &[]).await.expect("done");
    let mark = Mark { name: "m".to_owned(), value: "1".into() };
    store.put_marks(&[mark]).await.expect("a mark");
    assert_eq!(store.mark("m").await.expect("a mark"), Some("1".into()));
    let shard = owner.shard("c");
    store.outbox_done(&owner.partition, owner.claim, shard, 1, &[]).await.expect("done");
    let mut large = step("large", 1);
    large.state = StateUpdate::Put(vec![0; 100_000].into());
    owner.write(store, large).await;
    let filter = KeyFilter { limit: 10, prefix: "large".to_owned(), ..KeyFilter::default() };
    assert_eq!(store.keys("s", &filter).await.expect("keys").rows[0].state_size, 100_000);
    let id = InstanceId::random();
    let lease = Duration::from_millis(10);
    let heartbeat = HeartbeatRequest { id, info: "x", report: Some("y"), lease, known_version: 0 };
    store
        .heartbeat(HeartbeatRequest { id: InstanceId::random(), ..heartbeat })
        .await
        .expect("a heartbeat");
    tokio::time::sleep(lease).await;
    store
        .heartbeat(HeartbeatRequest { lease: Duration::from_mins(1), ..heartbeat })
        .await
        .expect("a heartbeat");
    let LeaseReply::Granted(epoch) = store.lease(&owner.partition, id).await.expect("a lease")
    else {
        panic!("the partition has no owner")
    };
    store.release(&owner.partition, id, epoch).await.expect("a released lease");
    store.remove_instance(id).await.expect("a removed instance");
    let other = Owner::claim(store, "s", 1).await;
    assert_eq!(other.load(store, "a").await.expect("a key record").record.takeovers, 1);
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything() {
    let server = start(&rules(&[RIGHTS, WITH_DATABASE]));
    let store = RedisStore::open(options_of(&server)).await.expect("the store");
    assert!(
        store.durability().description.contains("appendfsync always"),
        "{:?}",
        store.durability()
    );

    let mut owner = Owner::claim(&store, "s", 0).await;
    write_everything(&store, &mut owner).await;
    expire_key(&store, &mut owner).await;
    read_everything(&store, &mut owner).await;
    let foreign = format!("ordain:{{{}}}:data:t", owner.shard("a"));
    let put = ["EVAL", "redis.call('SELECT', 3) redis.call('SET', KEYS[1], '')", "1", &foreign];
    server.command(&put).expect("a foreign value");
    let partition = Partition { stream: "t".into(), number: 0 };
    let words = store.load(&partition, &["a".into()], 1).await.expect_err("a foreign value");
    assert!(words.to_string().contains(&foreign), "{words}");
    assert_eq!(denied(&server), [], "the server denied a request");
    let used = server.info("commandstats").expect("INFO");
    let used: BTreeSet<&str> =
        used.keys().filter_map(|name| name.strip_prefix("cmdstat_")).collect();
    let idle = RIGHTS.split_whitespace().filter(|right| !used.contains(right));
    assert_eq!(idle.collect::<Vec<_>>(), [] as [&str; 0], "no request needs these rights");
}

#[tokio::test]
async fn missing_right_is_named_at_start() {
    let server = start(&rules(&[RIGHTS, WITH_DATABASE]));
    // The loop below leaves out three rights. Without `evalsha` or `eval`, no request is possible. Without
    // `config|get`, the store opens, and the description of its durability names the missing information.
    let outside = ["evalsha", "eval", "config|get"];
    for right in RIGHTS.split_whitespace().filter(|right| !outside.contains(right)) {
        server.command(&["ACL", "SETUSER", "shop", &format!("-{right}")]).expect("a rule");
        let opened = RedisStore::open(impatient(&server)).await.map(drop);
        let Err(StoreError::Unavailable(words)) = opened else { panic!("{right}: {opened:?}") };
        assert!(words.contains(right), "{right}: {words}");
        server.command(&["ACL", "SETUSER", "shop", &format!("+{right}")]).expect("a rule");
    }
    RedisStore::open(impatient(&server)).await.expect("the store");
    // The following rights are needed for some configurations only.
    let waiting = RedisOptions { replicas: 1, ..impatient(&server) };
    let Err(StoreError::Unavailable(words)) = RedisStore::open(waiting).await.map(drop) else {
        panic!("without {WITH_REPLICAS}")
    };
    assert!(words.contains(WITH_REPLICAS) && words.contains("\"shop\""), "{words}");
    server.command(&["ACL", "SETUSER", "shop", "-select"]).expect("a rule");
    let opened = RedisStore::open(impatient(&server)).await.map(drop);
    let Err(StoreError::Unavailable(words)) = opened else { panic!("{opened:?}") };
    assert!(words.contains("select"), "{words}");
}

/// The configuration of the server renames a command. The error must name the command and the setting.
#[tokio::test]
async fn renamed_command_is_named_at_start() {
    let server = Server::start(&["rename-command HMGET \"\""]).expect("a server");
    let options = RedisOptions { retry_timeout: Some(Duration::ZERO), ..options(&server.url()) };
    let Err(StoreError::Unavailable(words)) = RedisStore::open(options).await.map(drop) else {
        panic!("a store without HMGET")
    };
    assert!(words.contains("hmget") && words.contains("remove rename-command"), "{words}");
}

/// The configuration of the server removes the command `CONFIG`. The store reads the settings of the server with other
/// commands, and works.
#[tokio::test]
async fn removed_config_command_is_not_needed() {
    let server = Server::start(&["rename-command CONFIG \"\""]).expect("a server");
    let store = RedisStore::open(options(&server.url())).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let batch = owner.batch(vec![step("k", 1)]);
    assert_eq!(until_applied(&store, &owner, &batch).await.refused, []);
    assert_eq!(next_of(&store, "k").await, 2);
}

/// A right is revoked while a commit needs it. When the right is granted again, the commit must be made once.
#[tokio::test]
async fn commit_waits_for_a_revoked_right() {
    let server = start(&rules(&[RIGHTS, WITH_DATABASE]));
    let store = RedisStore::open(options_of(&server)).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let taken =
        ["hset", "zadd", "zrem", "hdel", "hmget", "hget", "time", "zrangebylex", "zrangebyscore"];
    for (number, right) in (1..).zip(taken) {
        let mut write = step("a", number);
        write.spill = vec![(number + 2, event("a", number + 2, "held"))];
        let held = (number + 2 - u64::from(number > 1)..=number + 2).collect::<Vec<_>>();
        for sequence in &held {
            write.record.spilled.add(*sequence);
        }
        write.due_in = (number % 2 == 0).then_some(1_000_000);
        let batch = owner.batch(vec![write]);
        server.command(&["ACL", "SETUSER", "shop", &format!("-{right}")]).expect("a rule");
        for _ in 0..2 {
            let reply = owner.send(&store, &batch).await;
            assert!(!matches!(reply, CommitReply::RolledBack { .. }), "{right}: {reply:?}");
        }
        server.command(&["ACL", "SETUSER", "shop", &format!("+{right}")]).expect("a rule");
        assert_eq!(until_applied(&store, &owner, &batch).await.refused, [], "{right}");
        assert_eq!(next_of(&store, "a").await, number + 1, "{right}");
        assert_eq!(owner.spilled(&store, "a", number + 1).await, held, "{right}");
    }
    assert_eq!(numbers(&store, &owner, "a").await.len(), taken.len());
}

/// Tests an ACL rule that is shorter than the list of the necessary rights: `INFO`, and all commands except the
/// dangerous commands. Under this rule, the store lacks some information.
#[tokio::test]
async fn user_without_dangerous_commands_can_do_everything() {
    let server = start("~ordain:* +@all -@dangerous +info");
    let store = RedisStore::open(options_of(&server)).await.expect("the store");
    assert!(
        store.durability().description.contains("does not report how it syncs"),
        "{:?}",
        store.durability()
    );
    let mut owner = Owner::claim(&store, "s", 0).await;
    write_everything(&store, &mut owner).await;
    expire_key(&store, &mut owner).await;
    read_everything(&store, &mut owner).await;
}
