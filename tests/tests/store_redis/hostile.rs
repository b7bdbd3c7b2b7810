//! Tests of clocks that jump, and of wrong values with the right Redis type that another program has written. The store
//! must name or skip such values, and the values must not keep the server busy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ordain_core::{CommitReply, KeyWrite, StateUpdate};
use ordain_store::{
    DueIndex, HeartbeatRequest, InstanceId, LeaseReply, LeaseStore, LetterListing, MarkStore,
    Outbox, Partition, RecordStore, SpillArea, StoreError,
};
use ordain_tests::conformance::{Owner, claim, event};
use tokio::time::timeout;

use super::dedicated::{DedicatedStore, letter, numbers, step};

/// The time limit of a request. The limit is much shorter than the time for which a wrong value could keep the server
/// busy.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns a write that settles the event `sequence` of a key, and spills the event `held`.
fn spilling(key: &str, sequence: u64, held: u64) -> KeyWrite {
    let mut write = step(key, sequence);
    write.spill = vec![(held, event(key, held, "held"))];
    write.record.spilled.add(held);
    write
}

#[tokio::test]
async fn wrong_outbox_number_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    for sequence in 1..=3 {
        owner.write(store, step("a", sequence)).await;
    }
    let shard = owner.shard("a");
    let data = dedicated.name(shard, "data:s");
    let batch = owner.batch(vec![step("a", 4)]);
    for wrong in ["-1000000000000", "0", "5", "99999999999", "1e3", "nan", "x", ""] {
        dedicated.command(&["HSET", &data, "q0", wrong]);
        let read = timeout(REPLY_TIMEOUT, store.outbox(&owner.partition, shard, 0, 10)).await;
        let done = store.outbox_done(&owner.partition, owner.claim, shard, 2, &[]);
        let done = timeout(REPLY_TIMEOUT, done).await;
        for words in [read.expect("an answer").err(), done.expect("an answer").err()] {
            let Some(StoreError::Corrupt(words)) = words else { panic!("{wrong}: {words:?}") };
            assert!(words.contains("field q0") && words.contains(&data), "{words}");
        }
        assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown, "{wrong}");
    }
    dedicated.command(&["HDEL", &data, "q0"]);
    assert_eq!(numbers(store, &owner, "a").await, [1, 2, 3]);
    assert!(matches!(owner.send(store, &batch).await, CommitReply::Applied(_)));
    // Removes the fence, as an operator can do to repair an unreadable fence.
    dedicated.command(&["HDEL", &data, "f0"]);
    let mut next = Owner::claim(store, "s", 0).await;
    next.write(store, step("a", 5)).await;
    assert_eq!(numbers(store, &next, "a").await, [1, 2, 3, 4, 5]);
}

/// The fence (the record of the owner's claim and of the last commit) contains numbers and times that no shard can
/// reach. A search up to such a number would take years, and no commit could have a later time. So the store must
/// report the fence as damaged.
#[tokio::test]
async fn impossible_fence_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, step("a", 1)).await;
    let shard = owner.shard("a");
    let data = dedicated.name(shard, "data:s");
    let right = dedicated.bytes_of_field(&data, b"f0");
    let batch = owner.batch(vec![step("a", 2)]);
    for (at, wrong) in
        [(17, (1 << 52) - 5), (17, 1 << 40), (17, u64::MAX), (25, 1 << 53), (25, u64::MAX)]
    {
        let mut bytes = right.clone();
        bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
        dedicated.put_field(&data, b"f0", &bytes);
        let read = timeout(REPLY_TIMEOUT, store.outbox(&owner.partition, shard, 0, 10)).await;
        let claimed =
            timeout(REPLY_TIMEOUT, claim(store, &owner.partition)).await.expect("an answer");
        for words in [read.expect("an answer").err(), claimed.err()] {
            let Some(StoreError::Corrupt(words)) = words else { panic!("{wrong}: {words:?}") };
            assert!(words.contains("field f0") && words.contains(&data), "{words}");
        }
        assert_eq!(owner.send(store, &batch).await, CommitReply::Unknown, "{wrong}");
    }
    dedicated.put_field(&data, b"f0", &right);
    assert!(matches!(owner.send(store, &batch).await, CommitReply::Applied(_)));
}

/// A removal from the outbox can cover a million commit numbers without entries. The store must use several short calls
/// for this removal.
#[tokio::test]
async fn outbox_with_large_holes_is_removed_in_short_calls() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, step("a", 1)).await;
    let shard = owner.shard("a");
    let data = dedicated.name(shard, "data:s");
    // Changes the fence to the state after a million commits without messages.
    let fence = dedicated.bytes_of_field(&data, b"f0");
    let skipped = 1_000_001_u64;
    let fence = [&fence[..17], &skipped.to_le_bytes(), &fence[25..]].concat();
    dedicated.put_field(&data, b"f0", &fence);
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, step("a", 2)).await;
    for (after, found) in [(0, 1), (1, skipped + 1)] {
        let read = store.outbox(&owner.partition, shard, after, 10).await.expect("the outbox");
        assert_eq!(read.iter().map(|entry| entry.number).collect::<Vec<_>>(), [found]);
    }
    dedicated.command(&["SLOWLOG", "RESET"]);
    dedicated.command(&["CONFIG", "SET", "slowlog-log-slower-than", "500000"]);
    store.outbox_done(&owner.partition, owner.claim, shard, skipped, &[]).await.expect("done");
    assert_eq!(dedicated.command(&["SLOWLOG", "LEN"]).int(), Some(0));
    assert_eq!(dedicated.bytes_of_field(&data, b"q0"), (skipped + 1).to_string().as_bytes());
    assert_eq!(numbers(store, &owner, "a").await, [skipped + 1]);
}

#[tokio::test]
async fn unordered_index_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = spilling("a", 1, 3);
    write.letters = vec![letter("a", 1, 0)];
    owner.write(store, write).await;
    let shard = owner.shard("a");
    for index in ["letters:s", "spilled:s"] {
        let name = dedicated.name(shard, index);
        let prefix = if index == "letters:s" { "a" } else { "\\0\\1a" };
        let put = format!(
            "for i = 1, 40 do redis.call('ZADD', name, i % 3, '{prefix}' .. string.char(255 - i)) end"
        );
        dedicated.lua(&put, &name, b"");
        let read = async {
            if index == "letters:s" {
                store.letters("s", None, None, 100).await.map(drop)
            } else {
                let key = "a".into();
                store.read_spill(&owner.partition, &key, 0, 100, 1 << 20).await.map(drop)
            }
        };
        let read = timeout(REPLY_TIMEOUT, read).await.expect("an answer");
        let Err(StoreError::Corrupt(words)) = read else { panic!("{index}: {read:?}") };
        assert!(words.contains(&name) && words.contains("order"), "{words}");
    }
}

/// A wrong entry of one key may stop or change this key, but no other key.
#[tokio::test]
async fn wrong_entries_of_one_key_affect_no_other() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let candidates: Vec<String> = (0..).map(|number| format!("a{number}")).take(64).collect();
    let other = candidates.iter().find(|key| owner.shard(key) == owner.shard("a")).expect("a key");
    owner.write(store, spilling(other, 1, 3)).await;
    let shard = owner.shard("a");
    let [data, spilled, due, age] =
        ["data:s", "spilled:s", "due:0:s", "letters-age:s"].map(|rest| dedicated.name(shard, rest));

    // Adds an index entry of key `a` that leads to an event of the other key. Key `a` has no spilled event yet.
    let rest = [&other.as_bytes()[1..], &3_u64.to_be_bytes()].concat();
    dedicated.lua(
        "redis.call('ZADD', name, 0, bytes)",
        &spilled,
        &[b"\0\x01a", &rest[..]].concat(),
    );
    owner.write(store, spilling("a", 1, 3)).await;
    assert_eq!(owner.spilled(store, other, 0).await, [3]);
    assert_eq!(owner.spilled(store, "a", 0).await, [3]);

    // Replaces the spilled event of key `a` by the event of the other key.
    let field = |key: &str| [b"e", key.as_bytes(), &3_u64.to_be_bytes()].concat();
    let theirs = dedicated.bytes_of_field(&data, &field(other));
    dedicated.put_field(&data, &field("a"), &theirs);
    let read = store.read_spill(&owner.partition, &"a".into(), 0, 10, 1 << 20).await;
    assert!(matches!(&read, Ok(Err(words)) if words.contains(other)), "{read:?}");

    // Writes an invalid due time into the record of key `a`. Adds index entries with invalid times, for keys that do
    // not exist.
    let mut write = step("a", 2);
    write.due_in = Some(0);
    owner.write(store, write).await;
    let mut record = dedicated.bytes_of_field(&data, b"ja");
    record[2..10].fill(0xff);
    dedicated.put_field(&data, b"ja", &record);
    let mut write = step(other, 2);
    write.due_in = Some(0);
    owner.write(store, write).await;
    for (score, member) in [("-inf", "none"), ("-5", "nobody"), ("inf", "never"), ("1e300", "late")]
    {
        dedicated.command(&["ZADD", &due, score, member]);
    }
    assert_eq!(owner.due(store, 10).await.0, [other.as_str()]);

    // Gives the dead letter a wrong age in the index.
    let mut write = step(other, 3);
    write.letters = vec![letter(other, 2, 0)];
    owner.write(store, write).await;
    dedicated.lua("redis.call('ZADD', name, 0, redis.call('ZRANGE', name, 0, 0)[1])", &age, b"");
    owner.write(store, step(other, 4)).await;
    assert_eq!(store.letters("s", None, None, 10).await.expect("letters").rows.len(), 1);
}

/// The first 64 bytes of a record are valid. Each of the 60 million bytes after them continues a number of variable
/// width, so this number never ends. The store must reject the record, and must not keep the server busy.
#[tokio::test]
async fn record_with_an_endless_number_is_rejected_quickly() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut write = step("a", 1);
    write.record.ids_from = 1;
    owner.write(store, write).await;
    let data = dedicated.name(owner.shard("a"), "data:s");
    let record = dedicated.bytes_of_field(&data, b"ja");
    let put =
        "redis.call('HSET', name, 'ja', string.sub(bytes, 1, 64) .. string.rep('\\128', 6e7))";
    dedicated.lua(put, &data, &record);
    let before = processor_seconds(&dedicated);
    let loaded = store.load(&owner.partition, &["a".into()], usize::MAX).await.expect("a load");
    assert!(loaded[0].is_err());
    let seconds = processor_seconds(&dedicated) - before;
    assert!(seconds < 1.0, "the read took {seconds} seconds in the server");
}

/// Returns the processor time that the server has used in user mode, in seconds. Other load of the machine does not
/// change this time.
fn processor_seconds(dedicated: &DedicatedStore) -> f64 {
    let info = dedicated.command(&["INFO", "cpu"]);
    let info = info.text().expect("a text");
    let seconds = info.lines().find_map(|line| line.strip_prefix("used_cpu_user:"));
    seconds.and_then(|digits| digits.trim().parse().ok()).expect("used_cpu_user")
}

#[tokio::test]
async fn wrong_epoch_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let owner = Owner::claim(store, "s", 0).await;
    let name = dedicated.name(0, "leases");
    let id = InstanceId::random();
    let numbers = ["9007199254740993", "inf", "nan", "1e300", "-1", "99999999999999999999", "x"];
    let mut wrong: Vec<String> = numbers.iter().map(|number| format!("{number} {id} 1")).collect();
    wrong.extend(["", "1", "1 - ", "1 - x", "1 G 1", "1 - 1 1"].map(String::from));
    for wrong in &wrong {
        dedicated.command(&["HSET", &name, "0:s", wrong]);
        let claimed = claim(store, &owner.partition).await;
        let Err(StoreError::Corrupt(words)) = claimed else { panic!("{wrong}: {claimed:?}") };
        assert!(words.contains(&name) && words.contains("field 0:s"), "{words}");
        let found = dedicated.command(&["HGET", &name, "0:s"]);
        assert_eq!(found.text(), Some(&**wrong), "the store must not change the value");
        // The table must omit only the damaged lease.
        assert!(!store.table().await.expect("a table").leases.contains_key(&owner.partition));
    }
    dedicated.command(&["DEL", &name]);
    let claimed = claim(store, &owner.partition).await.expect("a claim").claim;
    assert!(claimed.epoch > owner.claim.epoch);
    for common in ["marks", "partitions", "instances", "about", "leases"] {
        let name = dedicated.name(0, common);
        dedicated.command(&["DEL", &name]);
        dedicated.command(&["SET", &name, "foreign"]);
        let reply = match common {
            "marks" => store.mark("m").await.map(drop),
            "instances" | "about" => {
                let lease = Duration::from_secs(1);
                let seen = 0;
                let heartbeat =
                    HeartbeatRequest { id, info: "x", report: None, lease, known_version: seen };
                store.heartbeat(heartbeat).await.map(drop)
            }
            _ => claim(store, &owner.partition).await.map(drop),
        };
        let Err(StoreError::Corrupt(words)) = reply else { panic!("{common}: {reply:?}") };
        assert!(words.contains(&name) && words.contains("is a string"), "{words}");
        dedicated.command(&["DEL", &name]);
    }
}

/// Wrong values that another program wrote into the data of instances must not stop a heartbeat. If the epoch of a
/// lease is too high, an error must name the lease.
#[tokio::test]
async fn wrong_instance_values_stop_no_heartbeat() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let id = InstanceId::random();
    let lease = Duration::from_secs(10);
    let instances = dedicated.name(0, "instances");
    let about = dedicated.name(0, "about");
    let mut seen = 0;
    for wrong in ["x", "-1", "", "1.5", "99999999999999999999"] {
        dedicated.command(&["HSET", &about, "generation", wrong]);
        assert_eq!(store.table().await.expect("a table").membership_version, 0, "{wrong}");
        let heartbeat =
            HeartbeatRequest { id, info: "x", report: None, lease, known_version: seen };
        let table = store.heartbeat(heartbeat).await.expect("a heartbeat").table.expect("a change");
        assert!(table.membership_version > 0 && table.members.contains_key(&id), "{wrong}");
        seen = table.membership_version;
    }
    let other = InstanceId::random().to_string();
    for (score, theirs) in [("9e15", "x"), ("inf", "1e300"), ("inf", "")] {
        dedicated.command(&["ZADD", &instances, score, &other]);
        dedicated.command(&["HSET", &about, &format!("l{other}"), theirs]);
        let heartbeat =
            HeartbeatRequest { id, info: "x", report: None, lease, known_version: seen };
        store.heartbeat(heartbeat).await.expect("a heartbeat");
        let found = dedicated.command(&["ZSCORE", &instances, &other]);
        let till: f64 = found.text().expect("a score").parse().expect("a number");
        assert!(till < 9e14, "{score} {theirs}: {till}");
    }
    let partition = Partition { stream: "s".into(), number: 0 };
    let leases = dedicated.name(0, "leases");
    dedicated.command(&["HSET", &leases, "0:s", "4503599627370495 - 0"]);
    let reply = store.lease(&partition, id).await;
    let Err(StoreError::Corrupt(words)) = reply else { panic!("{reply:?}") };
    assert!(words.contains(&leases) && words.contains("remove it"), "{words}");
    dedicated.command(&["DEL", &leases]);
    assert!(matches!(store.lease(&partition, id).await, Ok(LeaseReply::Granted(_))));
}

/// A key can expire and be created again. Each time, the key must get a higher incarnation, even if the clock was ahead
/// earlier and has been set back. Otherwise messages of different incarnations could have the same ids.
#[tokio::test]
async fn incarnations_increase_after_clock_was_ahead() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    dedicated.options.clock_offset_ms.store(1_000_000_000, Ordering::Relaxed);
    owner.write(store, step("a", 1)).await;
    dedicated.options.clock_offset_ms.store(0, Ordering::Relaxed);
    let candidates: Vec<String> = (0..).map(|number| format!("b{number}")).take(64).collect();
    let key = candidates.iter().find(|key| owner.shard(key) == owner.shard("a")).expect("a key");
    let mut incarnations = Vec::new();
    for _ in 0..3 {
        let mut write = step(key, 1);
        write.state = StateUpdate::Put("x".into());
        write.expire_in = Some(1_000);
        write.due_in = None;
        owner.write(store, write).await;
        incarnations.push(owner.load(store, key).await.expect("a key record").record.incarnation);
        // The key expires by the current clock, although its incarnation is ahead of that clock.
        dedicated.options.clock_offset_ms.fetch_add(2_000, Ordering::Relaxed);
        assert_eq!(owner.load(store, key).await, None);
    }
    assert!(incarnations.is_sorted_by(|a, b| a < b), "{incarnations:?}");
}

/// Creates a store whose due index has 50,000 other entries before the due key `a`. The due index lists keys with the
/// times at which the owner must handle them. One call of the store reads fewer than 50,000 entries. `entries` is a Lua
/// expression for the name of the entry with the number `i`. `statement` is a Lua statement that runs once for each
/// `i`, with the Redis key of the key records in `name`.
async fn due_behind(entries: &str, statement: &str) -> (DedicatedStore, Owner, String) {
    let dedicated = DedicatedStore::start().await;
    let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
    let mut write = step("a", 1);
    write.due_in = Some(0);
    owner.write(&dedicated.store, write).await;
    let [due, data] = ["due:0:s", "data:s"].map(|rest| dedicated.name(owner.shard("a"), rest));
    dedicated.lua(
        &format!("for i = 1, 50000 do redis.call('ZADD', name, i, {entries}) end"),
        &due,
        b"",
    );
    dedicated.lua(&format!("for i = 1, 50000 do {statement} end"), &data, b"");
    (dedicated, owner, due)
}

#[tokio::test]
async fn outdated_due_entries_are_removed() {
    let (dedicated, owner, due) = due_behind("'gone-' .. i", "").await;
    assert_eq!(owner.due(&dedicated.store, 10).await, (vec!["a".to_owned()], None));
    assert_eq!(dedicated.command(&["ZCARD", &due]).int(), Some(1));
}

/// If a due key has a damaged record, its entry must stay in the due index, and must not hide other keys.
#[tokio::test]
async fn damaged_records_hide_no_other_due_key() {
    let damage = "redis.call('HSET', name, 'jbad-' .. i, 'x')";
    let (dedicated, owner, due) = due_behind("'bad-' .. i", damage).await;
    assert_eq!(owner.due(&dedicated.store, 10).await, (vec!["a".to_owned()], None));
    assert_eq!(dedicated.command(&["ZCARD", &due]).int(), Some(50_001));
}

/// An entry of the due index that is not valid text cannot be a key. The store must report such an entry, instead of
/// reading it repeatedly.
#[tokio::test]
async fn due_entry_that_is_not_text_is_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, step("a", 1)).await;
    let [due, data] = ["due:0:s", "data:s"].map(|rest| dedicated.name(owner.shard("a"), rest));
    let key = b"\xff\xfe";
    dedicated.lua("redis.call('ZADD', name, 5, bytes)", &due, key);
    let copy = "local record = redis.call('HGET', name, 'ja')
        record = string.sub(record, 1, 1) .. string.char(17) .. struct.pack('<I8', 5) .. string.sub(record, 11)
        redis.call('HSET', name, 'j' .. bytes, record)";
    dedicated.lua(copy, &data, key);
    let read = store.due(&owner.partition, None, 10, false).await;
    let Err(StoreError::Corrupt(words)) = read else { panic!("{read:?}") };
    assert!(words.contains(&due) && words.contains("not a key"), "{words}");
}
