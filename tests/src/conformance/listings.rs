//! Tests of the listings of keys, letters and streams, which operators read.

use ordain_core::{
    Cause, DeadLetter, KeyRecord, KeyStatus, LetterContent, LetterId, StateUpdate, WriteCondition,
};
use ordain_store::{KeyFilter, Store, StoreError, StoredKey};

use super::{Fixture, Owner, first_write, key_record, record_write};

/// Reads page by page, and returns each row once.
async fn all<F: Fixture>(store: &dyn Store, stream: &str, filter: &KeyFilter) -> Vec<StoredKey> {
    let mut rows = Vec::new();
    let mut filter = filter.clone();
    loop {
        let page = store.keys(stream, &filter).await.expect("a page");
        assert!(page.rows.len() <= filter.limit || !F::PAGES_ARE_EXACT);
        rows.extend(page.rows);
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    if !F::PAGES_ARE_EXACT {
        rows.sort_by(|a: &StoredKey, b| a.key.cmp(&b.key));
        rows.dedup();
    }
    rows
}

fn sorted_keys(mut rows: Vec<StoredKey>) -> Vec<String> {
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.into_iter().map(|row| row.key.to_string()).collect()
}

/// A listing that is read page by page returns every key of the stream, and no key of another stream.
pub async fn pages_return_every_key_of_the_stream<F: Fixture>(fixture: &mut F) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let mut other = Owner::claim(store, "s2", 0).await;
    let mut expected: Vec<String> = (0..57).map(|number| format!("key-{number}")).collect();
    expected.extend(["", "\0", "ключ"].map(str::to_owned));
    for key in &expected {
        let mut write = first_write(key);
        write.state = StateUpdate::Put(key.clone().into());
        owner.write(store, write).await;
    }
    other.write(store, first_write("key of another stream")).await;
    expected.sort();
    for limit in [1, 7, 60, 1_000] {
        let rows = all::<F>(store, "s", &KeyFilter { limit, ..KeyFilter::default() }).await;
        for row in &rows {
            assert_eq!(row.state_size, row.key.len() as u64);
            assert_eq!(row.record.as_ref().expect("readable").next, 2);
        }
        assert_eq!(sorted_keys(rows), expected);
    }
    assert_eq!(all::<F>(store, "none", &KeyFilter { limit: 5, ..KeyFilter::default() }).await, []);
}

/// A listing with a status, a prefix, or both returns only the matching keys.
pub async fn keys_are_filtered_by_status_and_prefix<F: Fixture>(fixture: &mut F) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    for (key, status) in [
        ("a", KeyStatus::Parked),
        ("ab", KeyStatus::Active),
        ("ab1", KeyStatus::Parked),
        ("ab2", KeyStatus::Waiting),
        ("ab3", KeyStatus::Parked),
        ("b", KeyStatus::Parked),
    ] {
        owner
            .write(
                store,
                record_write(key, WriteCondition::Absent, KeyRecord { status, ..key_record(1) }),
            )
            .await;
    }
    for limit in [1, 2, 10] {
        let filter = |status, prefix: &str| KeyFilter {
            status,
            prefix: prefix.to_owned(),
            cursor: None,
            scan_limit: Some(limit),
            limit,
        };
        let list = async |filter| sorted_keys(all::<F>(store, "s", &filter).await);
        assert_eq!(list(filter(Some(KeyStatus::Parked), "")).await, ["a", "ab1", "ab3", "b"]);
        assert_eq!(list(filter(None, "ab")).await, ["ab", "ab1", "ab2", "ab3"]);
        assert_eq!(list(filter(Some(KeyStatus::Parked), "ab")).await, ["ab1", "ab3"]);
        assert_eq!(list(filter(Some(KeyStatus::Completed), "")).await, [""; 0]);
        assert_eq!(list(filter(None, "abc")).await, [""; 0]);
    }
}

/// A listing shows an unreadable key record with the reason, instead of omitting it.
pub async fn damaged_record_is_listed_with_the_reason<F: Fixture>(fixture: &mut F) {
    let mut owner = Owner::claim(fixture.store(), "s", 0).await;
    for key in ["a", "b"] {
        owner.write(fixture.store(), first_write(key)).await;
    }
    fixture.overwrite_record("s", "a", vec![0xff; 40]).await;
    let store = fixture.store();
    let rows = all::<F>(store, "s", &KeyFilter { limit: 10, ..KeyFilter::default() }).await;
    assert_eq!(rows.len(), 2);
    let damaged = rows.iter().find(|row| &*row.key == "a").expect("the damaged key record");
    assert!(damaged.record.as_ref().is_err_and(|reason| !reason.is_empty()));
    let (row, _) = store.key("s", "a").await.expect("a read").expect("a row");
    assert!(row.record.is_err());
}

/// The listing of streams shows every stream that has data, even if the data is a single dead letter.
pub async fn every_stream_with_data_is_listed(fixture: &mut impl Fixture) {
    let store = fixture.store();
    assert!(store.streams().await.expect("none").is_empty());
    for stream in ["b", "a", "ab", "ü"] {
        let mut owner = Owner::claim(store, stream, 0).await;
        for key in ["x", "y", "\u{10ffff}"] {
            owner.write(store, first_write(key)).await;
        }
    }
    let mut owner = Owner::claim(store, "letters", 0).await;
    let id = LetterId { key: "".into(), sequence: 0, tag: 1 };
    let cause = Cause::Unreadable;
    let error = String::new();
    let content = LetterContent::Raw("?".into());
    let letter = DeadLetter { id, cause, error, origin: None, version: None, content };
    let mut batch = std::sync::Arc::unwrap_or_clone(owner.batch(vec![first_write("x")]));
    batch.writes = Vec::new();
    batch.letters = vec![letter];
    owner.send(store, &batch.into()).await;
    let streams: Vec<String> =
        store.streams().await.expect("streams").iter().map(ToString::to_string).collect();
    assert_eq!(streams, ["a", "ab", "b", "letters", "ü"]);
}

/// A listing refuses a text that does not have the form of a cursor.
pub async fn foreign_cursors_are_refused(fixture: &mut impl Fixture) {
    let store = fixture.store();
    for cursor in ["", "nonsense", "k", "d1:x:1:a", "d1:1", "d1:18446744073709551616:0:"] {
        let filter =
            KeyFilter { cursor: Some(cursor.to_owned()), limit: 5, ..KeyFilter::default() };
        assert!(matches!(store.keys("s", &filter).await, Err(StoreError::Cursor(_))), "{cursor}");
        let letters = store.letters("s", None, Some(cursor), 5).await;
        assert!(matches!(letters, Err(StoreError::Cursor(_))), "{cursor}");
    }
}
