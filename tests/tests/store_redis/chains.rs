//! Numbers in Redis: what is kept of an owner does not grow, and what is damaged is named.

use std::sync::Arc;

use ordain_core::{Event, EventParts};
use ordain_store::{
    Assign, AssignReply, Chains as _, Destination, Item, Lot, LotReply, Numbers, Origin, Part,
    Partition, Place, Rules, StoreError,
};

use super::damaged::garbage;
use super::own::Own;

/// One message for a stream, of a commit.
fn assign(commit: u64, done: u64) -> Arc<Assign> {
    let partition = Partition { stream: "first".into(), number: 0 };
    let origin = Origin { partition, shard: 0, epoch: 1, found: 0, before: None, done };
    let id = commit.to_string();
    let event = EventParts { key: "a", id: &id, kind: "test", ..EventParts::default() };
    let items = vec![Item { event: Arc::new(Event::new(&event)), partition: 0, number: 0 }];
    Arc::new(Assign {
        to: Destination::Stream("next".into()),
        shard: 0,
        rules: Rules { numbers: Some(Numbers::default()), queue: Some(1_000) },
        witness: None,
        lots: vec![Lot {
            origin: Some(origin),
            parts: vec![Part { place: Place { commit, part: 0 }, items }],
        }],
    })
}

#[tokio::test]
async fn what_is_known_of_an_owner_goes_with_its_outbox() {
    let own = Own::start().await;
    let log = own.name(0, "log:stream/next");
    let blocks = || {
        let fields = own.command(&["HKEYS", &log]);
        let fields = fields.parts().iter().filter_map(|it| it.text().map(str::to_owned));
        fields.filter(|it| it.starts_with('p')).count()
    };
    // The broker stands: nothing is done.
    for commit in 1..=40 {
        own.store.assign(assign(commit, 0)).await.expect("an answer");
    }
    assert_eq!(blocks(), 40);
    for commit in 41..=90 {
        own.store.assign(assign(commit, commit - 1)).await.expect("an answer");
    }
    assert!(blocks() <= 8, "{}", blocks());
}

#[tokio::test]
async fn records_that_are_none() {
    let own = Own::start().await;
    let (store, log) = (&own.store, own.name(0, "log:stream/next"));
    store.assign(assign(1, 0)).await.expect("an answer");
    store.assign(assign(2, 0)).await.expect("an answer");
    let right = ["ca", "o0:0:first", "p1:0:0:first", "p2:0:0:first", "q0"]
        .map(|field| (field, own.bytes_of_field(&log, field.as_bytes())));
    for (field, bytes) in &right {
        for bytes in garbage(bytes) {
            for (field, right) in &right {
                own.put_field(&log, field.as_bytes(), right);
            }
            own.put_field(&log, field.as_bytes(), &bytes);
            let before = own.digest();
            // By its number of before, so that blocks are read as well.
            let found = store.assign(assign(1, 0)).await;
            match found {
                Ok(AssignReply::Lots(..) | AssignReply::Full) => {}
                Err(StoreError::Corrupt(words)) => {
                    // A record that names other blocks is seen by their absence.
                    let place = format!(" of {log} is no ");
                    assert!(words.contains("field ") && words.contains(&place), "{field}: {words}");
                    assert_eq!(own.digest(), before, "{field}: {bytes:?}");
                }
                other => panic!("{field}: {bytes:?}: {other:?}"),
            }
        }
    }
    for (field, right) in &right {
        own.put_field(&log, field.as_bytes(), right);
    }
    let found = store.assign(assign(2, 0)).await.expect("an answer");
    let AssignReply::Lots(replies, _) = found else { panic!("{found:?}") };
    assert!(matches!(&replies[..], [LotReply::Done(_)]), "{replies:?}");
}
