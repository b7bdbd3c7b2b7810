//! Values of another type under the store's names, which somebody else has written: what is wrong
//! with one key refuses that key, and what is wrong with what all share holds the shard up, whole.

use std::sync::Arc;

use ordain::store::{Store, StoreError};
use ordain_core::{
    Applied, Batch, Cause, Change, CommitReply, DeadLetter, JobWrite, Key, LetterContent, LetterId,
    Refusal, TakenId,
};
use ordain_tests::conformance::{Owner, event};

use super::own::{Own, next_of, numbers, step, until_applied};

/// A write of a key's part that lies beside its job.
fn beside(kind: &str, key: &str, sequence: u64) -> JobWrite {
    let mut write = step(key, sequence);
    if kind == "spill" {
        write.spill = vec![(sequence + 5, event(key, sequence + 5, "held"))];
        write.job.spilled.add(sequence + 5);
    } else {
        write.job.ids_from = 1;
        write.ids.push(TakenId { sequence, id: sequence, content: 0 });
    }
    write
}

/// The refusal of the second of three writes, while the others apply.
async fn second_is_refused(own: &Own, owner: &mut Owner, writes: [JobWrite; 3]) -> String {
    let names = writes.each_ref().map(|write| write.key.clone());
    let nexts = writes.each_ref().map(|write| write.job.next);
    let jobs = own.name(owner.shard(&names[1]), "jobs:s");
    let record = || own.command(&["HGET", &jobs, &names[1]]);
    let before = record();
    let Applied { refused, .. } = owner.commit(&own.store, writes.into()).await;
    let [(1, Refusal::Corrupt(words))] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(next_of(&own.store, &names[0]).await, nexts[0]);
    assert_eq!(next_of(&own.store, &names[2]).await, nexts[2]);
    assert_eq!(record(), before, "nothing of it is written");
    words.clone()
}

fn per_key(own: &Own, owner: &Owner, kind: &str, key: &Key) -> String {
    own.name(owner.shard(key), &format!("{kind}:1:s:{key}"))
}

#[tokio::test]
async fn a_foreign_value_of_one_key_refuses_that_key_alone() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(3);
    for (at, kind) in (0..).zip(["spill", "ids"]) {
        // Before there is a job: a write that puts something there.
        let name = per_key(&own, &owner, kind, &keys[1]);
        let [first, second] = [2 * at + 1, 2 * at + 2];
        own.command(&["SET", &name, "foreign"]);
        let writes = [step(&keys[0], first), beside(kind, &keys[1], 1), step(&keys[2], first)];
        let words = second_is_refused(&own, &mut owner, writes).await;
        assert!(words.contains(&name) && words.contains("string"), "{words}");
        own.command(&["DEL", &name]);

        // In place of what the job has there: any write.
        owner.write(store, beside(kind, &keys[1], 1)).await;
        own.command(&["RENAME", &name, "aside"]);
        own.command(&["HSET", &name, "foreign", "1"]);
        let writes = [step(&keys[0], second), step(&keys[1], 2), step(&keys[2], second)];
        let words = second_is_refused(&own, &mut owner, writes).await;
        assert!(words.contains(&name) && words.contains("hash"), "{words}");
        assert_eq!(own.command(&["TYPE", &name]).text(), Some("hash"), "it is left as it is");

        let loaded = store.load(&owner.partition, &keys, usize::MAX).await.expect("a load");
        assert_eq!(loaded.len(), 3);
        assert!(loaded[0].is_ok() && loaded[2].is_ok());
        let read = store.read_spill(&owner.partition, &keys[1], 0, 10, 1 << 20).await;
        if kind == "spill" {
            let words = read.expect_err("no events").to_string();
            assert!(words.contains(&name), "{words}");
        } else {
            let words = loaded[1].as_ref().expect_err("a load without the ids");
            assert!(words.contains(&name), "{words}");
            let row = store.key("s", &keys[1]).await.expect("a read").expect("a row").0;
            assert!(row.job.is_err_and(|words| words.contains(&name)));
        }

        // Mended by hand, it goes on.
        own.command(&["RENAME", "aside", &name]);
        owner.write(store, beside(kind, &keys[1], 2)).await;
        assert_eq!(next_of(store, &keys[1]).await, 3);
        own.command(&["DEL", &name]);
        own.command(&["HDEL", &own.name(owner.shard(&keys[1]), "jobs:s"), &keys[1]]);
    }
}

/// A write that touches everything that a shard has.
fn everything(key: &str, sequence: u64) -> JobWrite {
    let mut write = beside("spill", key, sequence);
    write.state = Change::Put("state".into());
    write.letters = vec![letter(key, sequence)];
    write.due_in = Some(60_000);
    write.expire_in = Some(60_000);
    write
}

fn letter(key: &str, sequence: u64) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag: 0 },
        cause: Cause::Rejected,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    }
}

#[tokio::test]
async fn a_foreign_value_of_what_all_share_holds_the_shard_up() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let shard = owner.shard(&keys[0]);
    let of_stream = ["jobs", "states", "expiry", "letters", "letters-order", "letters-age"];
    let of_stream = of_stream.map(|kind| own.name(shard, &format!("{kind}:s")));
    let of_partition = ["due", "outbox", "fence"];
    let of_partition = of_partition.map(|kind| own.name(shard, &format!("{kind}:0:s")));
    let mut sequence = 0;
    // In place of nothing, and then of the store's own.
    for name in of_stream.iter().take(1).chain(&of_stream).chain(&of_partition) {
        sequence += 1;
        let is_there = own.command(&["EXISTS", name]).int() == Some(1);
        assert_eq!(is_there, sequence > 1, "{name}");
        if is_there {
            own.command(&["RENAME", name, "aside"]);
        }
        own.command(&["SADD", name, "foreign"]);
        let before = own.digest();
        let writes = keys.iter().map(|key| everything(key, sequence)).collect();
        let batch = Batch {
            letters: vec![letter("", sequence)],
            forward: true,
            ..(*owner.batch(writes)).clone()
        };
        let batch = Arc::new(batch);
        for _ in 0..2 {
            assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown, "{name}");
        }
        assert_eq!(own.digest(), before, "{name}: something was written");

        own.command(&["DEL", name]);
        if is_there {
            own.command(&["RENAME", "aside", name]);
        }
        let applied = until_applied(store, &owner, &batch).await;
        assert_eq!(applied.refused, [], "{name}");
        assert_eq!(next_of(store, &keys[1]).await, sequence + 1, "{name}");
    }
    assert_eq!(numbers(store, &owner, &keys[0]).await, (1..=sequence).collect::<Vec<_>>());
    let page = store.letters("s", None, None, 100).await.expect("letters");
    assert_eq!(page.rows.len() as u64, 3 * sequence);
}

/// Entries that somebody else has added, with higher numbers.
#[tokio::test]
async fn a_foreign_entry_of_the_outbox_holds_the_shard_up() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, step("a", 1)).await;
    let name = own.name(owner.shard("a"), "outbox:0:s");
    own.command(&["XADD", &name, "7-7", "foreign", "1"]);
    let before = own.digest();
    let batch = owner.batch(vec![everything("a", 2)]);
    assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown);
    assert_eq!(own.digest(), before);
    let read = store.outbox(&owner.partition, owner.shard("a"), 0, 10).await;
    assert!(matches!(&read, Err(StoreError::Corrupt(words)) if words.contains("7-7")), "{read:?}");
    own.command(&["XDEL", &name, "7-7"]);
    own.command(&["XSETID", &name, "1-0"]);
    until_applied(store, &owner, &batch).await;
    assert_eq!(numbers(store, &owner, "a").await, [1, 2]);
}

/// The index of the partition that had a key before is of no account.
#[tokio::test]
async fn a_foreign_value_of_another_partition_stops_nobody() {
    let own = Own::start().await;
    let store = &own.store;
    let mut old = Owner::claim(store, "s", 0).await;
    old.write(store, everything("a", 1)).await;
    let name = own.name(old.shard("a"), "due:0:s");
    own.command(&["DEL", &name]);
    own.command(&["SET", &name, "foreign"]);
    let mut new = Owner::claim(store, "s", 1).await;
    let job = new.load(store, "a").await.expect("a job").job;
    assert_eq!((job.partition, job.takeovers), (1, 1));
    let mut write = step("a", 2);
    (write.job.partition, write.job.takeovers) = (1, 1);
    new.write(store, write).await;
    assert_eq!(own.command(&["TYPE", &name]).text(), Some("string"));
}
