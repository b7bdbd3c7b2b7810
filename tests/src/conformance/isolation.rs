//! Tests of several streams and partitions in one store. Streams share no data, and the partitions of a stream share
//! only its keys.

use ordain_core::{
    Cause, DeadLetter, EmittedMessage, LetterContent, LetterId, Message, MessageParts, StateUpdate,
};
use ordain_store::Store;

use super::{Fixture, Owner, claim, commit_number, event, first_write};

/// The key has a state, a spilled event, a due entry, a dead letter and a message. Returns the owner of the partition.
async fn write_all_kinds(store: &dyn Store, stream: &str, partition: u32, key: &str) -> Owner {
    let mut owner = Owner::claim(store, stream, partition).await;
    let mut write = first_write(key);
    write.record.partition = partition;
    write.state = StateUpdate::Put(format!("{stream} {partition} {key}").into());
    write.spill = vec![(5, event(key, 5, stream))];
    write.record.spilled.add(5);
    write.due_in = Some(0);
    let id = LetterId { key: key.into(), sequence: 1, tag: 0 };
    let cause = Cause::Gap;
    let error = stream.to_owned();
    let content = LetterContent::Nothing;
    write.letters = vec![DeadLetter { id, cause, error, origin: None, version: None, content }];
    let message = Message::new(&MessageParts { sink: stream, ..MessageParts::default() });
    write.messages = vec![EmittedMessage { sequence: 1, index: 0, event_digest: 0, message }];
    owner.write(store, write).await;
    owner
}

/// The store must have exactly the data that [`write_all_kinds`] wrote for this owner and key.
async fn assert_has_all_kinds(store: &dyn Store, owner: &Owner, key: &str) {
    let Owner { partition, .. } = owner;
    let stream = &*partition.stream;
    let state = format!("{stream} {} {key}", partition.number);
    assert_eq!(owner.load(store, key).await.expect("a key record").state, Some(state.into()));
    let read = store.read_spill(partition, &key.into(), 0, 10, 1 << 20).await;
    let (events, _) = read.expect("an answer").expect("events");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].1.data(), stream.as_bytes());
    assert_eq!(owner.due(store, 10).await.0, [key]);
    let letters = store.letters(stream, Some(key), None, 10).await.expect("letters").rows;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].letter.error, stream);
    let outbox = store.outbox(partition, owner.shard(key), 0, 10).await.expect("the outbox");
    assert_eq!(outbox.len(), 1);
    assert_eq!(outbox[0].messages[0].emitted.message.sink(), stream);
    assert_eq!(commit_number(owner, key), 1);
}

/// Different pairs of a stream and a key share no data, even if the concatenations of their names are equal.
pub async fn streams_share_no_data(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let long = "s".repeat(255);
    let pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("abc", ""),
        ("", "abc"),
        ("a\0", "bc"),
        ("ü", "bc"),
        (&long, "bc"),
    ];
    let mut owners = Vec::new();
    for (stream, key) in pairs {
        owners.push((write_all_kinds(store, stream, 0, key).await, key));
    }
    fixture.reopen().await;
    for (owner, key) in &owners {
        assert_has_all_kinds(fixture.store(), owner, key).await;
    }
    let too_long = ordain_store::Partition { stream: "s".repeat(256).into(), number: 0 };
    assert!(claim(fixture.store(), &too_long).await.is_err());
}

/// The partitions of a stream share the keys of the stream, and no other data.
pub async fn partitions_of_a_stream_share_only_its_keys(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owners = Vec::new();
    for partition in [0, 1, 255, 256, u32::MAX] {
        let key = format!("key-{partition}");
        owners.push((write_all_kinds(store, "s", partition, &key).await, key));
    }
    for (owner, key) in &owners {
        assert_has_all_kinds(store, owner, key).await;
    }
    // A claim of one partition does not affect the other partitions.
    Owner::claim(store, "s", 1).await;
    let (owner, key) = &mut owners[2];
    let mut write = super::next_write(key, 2);
    write.record.partition = 255;
    owner.write(store, write).await;
}
