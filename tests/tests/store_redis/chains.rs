//! Tests of numbered messages between streams in Redis. The data that the store keeps for an outbox must not grow
//! without limit, and the errors of the store must name damaged fields.

use std::sync::Arc;

use ordain_core::{Event, EventParts};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignReply, AssignRequest, Destination,
    DestinationRules, MessageLog as _, NumberingSettings, OriginOutbox, OutboxChunk,
    OutboxPosition, Partition, StoreError,
};

use super::damaged::garbage;
use super::dedicated::DedicatedStore;

/// Creates a request that assigns one message of the commit `commit` to a stream. All messages up to the commit `done`
/// count as published.
fn assign(commit: u64, done: u64) -> Arc<AssignRequest> {
    let partition = Partition { stream: "first".into(), number: 0 };
    let origin = OriginOutbox {
        partition,
        shard: 0,
        epoch: 1,
        claimed_commit: 0,
        last_confirmed: None,
        published_commit: done,
    };
    let id = commit.to_string();
    let event = EventParts { key: "a", id: &id, kind: "test", ..EventParts::default() };
    let items = vec![AssignItem { event: Arc::new(Event::new(&event)), partition: 0, number: 0 }];
    Arc::new(AssignRequest {
        destination: Destination::Stream("next".into()),
        shard: 0,
        rules: DestinationRules {
            numbering: Some(NumberingSettings::default()),
            queue_limit: Some(1_000),
        },
        witness: None,
        call: None,
        readers: Vec::new(),
        reuses_lost_numbers: false,
        groups: vec![AssignGroup {
            origin: Some(origin),
            chunks: vec![OutboxChunk { position: OutboxPosition { commit, chunk: 0 }, items }],
        }],
    })
}

#[tokio::test]
async fn assigned_numbers_of_published_messages_are_removed() {
    let dedicated = DedicatedStore::start().await;
    let log = dedicated.name(0, "log:stream/next");
    let blocks = || {
        let fields = dedicated.command(&["HKEYS", &log]);
        let fields = fields.parts().iter().filter_map(|field| field.text().map(str::to_owned));
        fields.filter(|field| field.starts_with('p')).count()
    };
    // No message counts as published yet.
    for commit in 1..=40 {
        dedicated.store.assign(assign(commit, 0)).await.expect("an answer");
    }
    assert_eq!(blocks(), 40);
    for commit in 41..=90 {
        dedicated.store.assign(assign(commit, commit - 1)).await.expect("an answer");
    }
    assert!(blocks() <= 8, "{}", blocks());
}

#[tokio::test]
async fn damaged_fields_are_named() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let log = dedicated.name(0, "log:stream/next");
    store.assign(assign(1, 0)).await.expect("an answer");
    store.assign(assign(2, 0)).await.expect("an answer");
    let right = ["ca", "o0:0:first", "p1:0:0:first", "p2:0:0:first", "q0"]
        .map(|field| (field, dedicated.bytes_of_field(&log, field.as_bytes())));
    for (field, bytes) in &right {
        for bytes in garbage(bytes) {
            for (field, right) in &right {
                dedicated.put_field(&log, field.as_bytes(), right);
            }
            dedicated.put_field(&log, field.as_bytes(), &bytes);
            let before = dedicated.digest();
            // The request repeats the first commit, so the store must also read the blocks of the origin's messages.
            let found = store.assign(assign(1, 0)).await;
            match found {
                Ok(AssignReply::Groups(..) | AssignReply::Full) => {}
                Err(StoreError::Corrupt(words)) => {
                    // If the damaged record names other blocks, the store detects the damage because these blocks do
                    // not exist.
                    let place = format!(" of {log} is no ");
                    assert!(words.contains("field ") && words.contains(&place), "{field}: {words}");
                    assert_eq!(dedicated.digest(), before, "{field}: {bytes:?}");
                }
                other => panic!("{field}: {bytes:?}: {other:?}"),
            }
        }
    }
    for (field, right) in &right {
        dedicated.put_field(&log, field.as_bytes(), right);
    }
    let found = store.assign(assign(2, 0)).await.expect("an answer");
    let AssignReply::Groups(replies, _) = found else { panic!("{found:?}") };
    assert!(matches!(&replies[..], [AssignGroupReply::Done(_)]), "{replies:?}");
}
