//! Tests of the records of writers in Redis. A record must contain exactly the calls that the store has processed, must
//! have a limited size, and must expire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_core::{Event, EventParts, WriterCalls};
use ordain_store::{
    AssignGroup, AssignItem, AssignReply, AssignRequest, Destination, DestinationRules, MessageLog,
    OutboxChunk, OutboxPosition, Partition, StoreError, WriterCall,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::damaged::garbage;
use super::dedicated::DedicatedStore;

const SHARD: u32 = 0;
/// The Redis hash with the queues of the stream and the records of the writers.
const LOG: &str = "log:stream/s";
/// The id of a writer. [`FIELD`] is the field that contains the record of this writer.
const WRITER: u64 = 7;
const FIELD: &str = "r0000000000000007";
/// The id of another writer. The calls of this writer remove expired records.
const OTHER_WRITER: u64 = 8;
const MINUTE_MS: u64 = 60_000;
/// The time between two calls of the other writer. Between two calls, the clock by which the records of writers expire
/// advances by at most this time.
const STEP_MINUTES: u64 = 5;

/// Makes a call of a writer that adds one entry to a queue. Returns false if the queue is full.
async fn put(
    dedicated: &DedicatedStore,
    writer: u64,
    call: u64,
    queue_limit: u64,
) -> Result<bool, StoreError> {
    let event = Arc::new(Event::new(&EventParts { key: "a", id: "1", ..EventParts::default() }));
    let items = vec![AssignItem { event, partition: 0, number: 0 }];
    let request = AssignRequest {
        destination: Destination::Stream("s".into()),
        shard: SHARD,
        rules: DestinationRules { numbering: None, queue_limit: Some(queue_limit) },
        witness: None,
        call: Some(WriterCall { writer, call }),
        readers: Vec::new(),
        reuses_lost_numbers: false,
        groups: vec![AssignGroup {
            origin: None,
            chunks: vec![OutboxChunk { position: OutboxPosition::default(), items }],
        }],
    };
    Ok(dedicated.store.assign(Arc::new(request)).await? != AssignReply::Full)
}

async fn accepted(dedicated: &DedicatedStore, writer: u64, call: u64) {
    assert!(put(dedicated, writer, call, 1_000_000).await.expect("an answer"));
}

async fn calls(dedicated: &DedicatedStore, writer: u64) -> Result<WriterCalls, StoreError> {
    let partition = Partition { stream: "s".into(), number: 0 };
    dedicated.store.writer_calls(&partition, SHARD, writer).await.map(|(calls, _)| calls)
}

/// Calls arrive in any order, and some arrive twice or never. The record must contain exactly the calls that arrived.
#[tokio::test]
async fn record_has_exactly_the_calls_that_arrived() {
    let dedicated = DedicatedStore::start().await;
    let seed = rand::random();
    println!("calls of seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut arrived = BTreeSet::new();
    assert!(calls(&dedicated, WRITER).await.expect("no record").is_empty());
    for _ in 0..300 {
        let call = random.random_range(1..=60);
        accepted(&dedicated, WRITER, call).await;
        arrived.insert(call);
        let stored = calls(&dedicated, WRITER).await.expect("a record");
        let found: BTreeSet<u64> = (0..=62).filter(|call| stored.contains(*call)).collect();
        assert_eq!(found, arrived, "after call {call}");
    }
    let others = calls(&dedicated, WRITER + 1).await.expect("no record");
    assert!(others.is_empty(), "writers have records of their own");
}

/// A record has at most 64 ranges of calls. Above this limit, the oldest missing calls count as processed. So the store
/// never reports a loss that did not happen.
#[tokio::test]
async fn oldest_missing_calls_count_as_processed_above_the_limit() {
    let dedicated = DedicatedStore::start().await;
    for call in (1..200).step_by(2) {
        accepted(&dedicated, WRITER, call).await;
    }
    let record = dedicated.bytes_of_field(&dedicated.name(SHARD, LOG), FIELD.as_bytes());
    assert_eq!(record.len(), 8 + 64 * 16);
    let stored = calls(&dedicated, WRITER).await.expect("a record");
    assert!((1..200).step_by(2).all(|call| stored.contains(call)));
    assert!(stored.contains(2));
    assert!((100..200).step_by(2).all(|call| !stored.contains(call)));
}

/// A refused call, for which the queue is full, must not be in the record, because the writer uses the number of this
/// call again. If the number were in the record, the store could lose the later call with this number and not notice
/// the loss. If the answer to a call was lost, the number of the call is already in the record. The store must then
/// accept the repeated call, although the queue is full.
#[tokio::test]
async fn refused_calls_are_not_in_the_record() {
    let dedicated = DedicatedStore::start().await;
    for call in 1..=200 {
        let is_accepted = put(&dedicated, WRITER, call, 1).await.expect("an answer");
        assert_eq!(is_accepted, call == 1);
    }
    let stored = calls(&dedicated, WRITER).await.expect("a record");
    assert!(stored.contains(1) && (2..=200).all(|call| !stored.contains(call)));
    assert!(
        put(&dedicated, WRITER, 1, 1).await.expect("an answer"),
        "the repeated call is refused"
    );
}

/// Advances the clock by `minutes`. Meanwhile, the other writer makes calls, from the number `first_call` on. Returns
/// the number of the next call of the other writer.
async fn pass(dedicated: &DedicatedStore, minutes: u64, first_call: u64) -> u64 {
    let mut call = first_call;
    for _ in 0..minutes / STEP_MINUTES {
        dedicated.options.clock_offset_ms.fetch_add(STEP_MINUTES * MINUTE_MS, Ordering::Relaxed);
        accepted(dedicated, OTHER_WRITER, call).await;
        call += 1;
    }
    call
}

/// A record must stay for at least half an hour after the last call of its writer. Later, a call of another writer
/// removes the record.
#[tokio::test]
async fn record_of_silent_writer_expires() {
    let dedicated = DedicatedStore::start().await;
    accepted(&dedicated, WRITER, 1).await;
    let next = pass(&dedicated, 50, 1).await;
    accepted(&dedicated, WRITER, 2).await;
    let next = pass(&dedicated, 50, next).await;
    let stored = calls(&dedicated, WRITER).await.expect("a record");
    assert!(stored.contains(1) && stored.contains(2), "the second call renewed the record");
    let next = pass(&dedicated, 70, next).await;
    assert!(calls(&dedicated, WRITER).await.expect("no record").is_empty());
    let stored = calls(&dedicated, OTHER_WRITER).await.expect("a record");
    assert!((1..next).all(|call| stored.contains(call)));
    // The list of records that will expire must not grow. The list may have at most the newest two renewals of the
    // other writer's record.
    let fields = dedicated.command(&["HKEYS", &dedicated.name(SHARD, LOG)]);
    let blocks = fields.parts().iter().filter_map(|field| field.text());
    let blocks: Vec<&str> = blocks.filter(|field| field.starts_with('d')).collect();
    assert!((1..=2).contains(&blocks.len()), "{blocks:?}");
}

/// The clock of the server jumps forward and back by hours, and the other writer makes the first call after each jump.
/// The store must keep the record of the silent writer.
#[tokio::test]
async fn record_survives_jumps_of_the_clock() {
    let dedicated = DedicatedStore::start().await;
    let set_clock = |hours: u64| {
        dedicated.options.clock_offset_ms.store(hours * 60 * MINUTE_MS, Ordering::Relaxed);
    };
    set_clock(10);
    accepted(&dedicated, WRITER, 1).await;
    for (call, hours) in (1..).zip([12, 10, 2, 10, 20]) {
        set_clock(hours);
        accepted(&dedicated, OTHER_WRITER, call).await;
        let stored = calls(&dedicated, WRITER).await.expect("an answer");
        assert!(stored.contains(1), "the record is lost at hour {hours}");
    }
}

/// If another program damages a record, calls of its writer must fail with an error that names the record, and must
/// write nothing.
#[tokio::test]
async fn damaged_record_is_named() {
    let dedicated = DedicatedStore::start().await;
    let log = dedicated.name(SHARD, LOG);
    for call in [1, 2, 5] {
        accepted(&dedicated, WRITER, call).await;
    }
    let right = dedicated.bytes_of_field(&log, FIELD.as_bytes());
    let is_named = |error: &StoreError| {
        let StoreError::Corrupt(words) = error else { return false };
        words.contains(FIELD) && words.contains(&log)
    };
    let mut refused = 0;
    for bytes in garbage(&right) {
        dedicated.put_field(&log, FIELD.as_bytes(), &bytes);
        let before = dedicated.digest();
        if let Err(error) = put(&dedicated, WRITER, 6, 1_000_000).await {
            assert!(is_named(&error), "{bytes:?}: {error}");
            assert_eq!(dedicated.digest(), before, "{bytes:?}");
            refused += 1;
        }
    }
    assert!(refused > right.len(), "{refused}");
    dedicated.put_field(&log, FIELD.as_bytes(), &right[..right.len() - 1]);
    let error = calls(&dedicated, WRITER).await.expect_err("a damaged record");
    assert!(is_named(&error), "{error}");
    dedicated.put_field(&log, FIELD.as_bytes(), &right);
    accepted(&dedicated, WRITER, 6).await;
    let stored = calls(&dedicated, WRITER).await.expect("a record");
    assert!([1, 2, 5, 6].iter().all(|call| stored.contains(*call)) && !stored.contains(3));
}
