//! Tests of stores in which a file or a folder is missing, or a file is empty, as after a repair of the file system or
//! with an incomplete backup.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_core::{EmittedMessage, KeyWrite, Message, MessageParts, StateUpdate};
use ordain_store::{
    AssignGroup, AssignItem, AssignRequest, Destination, DestinationRules, OutboxChunk,
    OutboxPosition, Partition, Store, StoreError,
};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{Fixture, Owner, event, first_write};

use super::support::Rig;

/// The number of commits. The states of all commits together are larger than a table that the storage engine keeps in
/// memory. The messages of all commits together are also larger than such a table. So the engine writes states and
/// messages to files.
const COMMITS: u64 = 18;
/// The size of each state and each message, in bytes. The storage engine writes values of this size into separate
/// files.
const VALUE_BYTES: usize = 1 << 20;
const QUEUE: &str = "queue";
/// The maximum number of times that the test checks whether the engine has written its files.
const CHECK_LIMIT: usize = 600;

/// Removes one file or folder of a store. The store must either refuse to open and name its folder, or have all its
/// data. The only exception is the oldest journal after a crash, because the engine may itself have removed this
/// journal before the crash.
#[tokio::test]
async fn missing_file_is_detected_or_loses_nothing() {
    for is_closed in [true, false] {
        let whole = filled(is_closed).await;
        for name in entries(whole.path()) {
            if !is_closed && name.ends_with("0.jnl") {
                continue;
            }
            let damaged = copy_of(whole.path());
            let path = damaged.path().join(&name);
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.expect("removed");
            println!("without {}, closed: {is_closed}", name.display());
            assert_refused_or_whole(damaged.path()).await;
        }
    }
}

/// Replaces one file of a store by an empty file. The store must either refuse to open and name its folder, or have all
/// its data.
#[tokio::test]
async fn empty_file_is_detected_or_loses_nothing() {
    for is_closed in [true, false] {
        let whole = filled(is_closed).await;
        for name in entries(whole.path()) {
            let damaged = copy_of(whole.path());
            let path = damaged.path().join(&name);
            if path.is_dir() {
                continue;
            }
            // Remove the file before writing the empty file, because the removed file may be a hard link to a file of
            // the original store.
            fs::remove_file(&path).expect("removed");
            fs::write(&path, "").expect("a file");
            println!("with an empty {}, closed: {is_closed}", name.display());
            assert_refused_or_whole(damaged.path()).await;
        }
    }
}

/// Returns the folder of a store with files of all kinds. If `is_closed` is true, the folder is in the state after a
/// clean end of the process, otherwise in the state after a kill.
async fn filled(is_closed: bool) -> tempfile::TempDir {
    let mut rig = Rig::open();
    let store = rig.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    for number in 1..=COMMITS {
        owner.write(store, write(number)).await;
    }
    store.assign(Arc::new(queued())).await.expect("an answer");
    store.flush().await.expect("an answer");
    until_written_out(&rig).await;
    rig.close();
    let whole = copy_of(rig.path());
    if !is_closed {
        // A killed process leaves the same files, but not the file `closed`.
        fs::remove_file(whole.path().join("closed")).expect("removed");
    }
    split_journal(&whole.path().join("data"));
    assert_refused_or_whole(copy_of(whole.path()).path()).await;
    let names = entries(whole.path());
    for (kind, least) in [("tables", 3), ("blobs", 2)] {
        let is_of_kind =
            |name: &&PathBuf| name.parent().is_some_and(|folder| folder.ends_with(kind));
        assert!(names.iter().filter(is_of_kind).count() >= least, "{kind}: {names:?}");
    }
    whole
}

fn write(number: u64) -> KeyWrite {
    let large = vec![number as u8; VALUE_BYTES];
    let mut write = first_write(&format!("key-{number}"));
    let message =
        Message::new(&MessageParts { sink: "out", data: &large, ..MessageParts::default() });
    write.messages = vec![EmittedMessage { sequence: 1, index: 0, event_digest: 0, message }];
    write.state = StateUpdate::Put(large.into());
    write.spill = vec![(9, event(&write.key, 9, "held"))];
    write.record.spilled.add(9);
    write
}

fn queued() -> AssignRequest {
    let item = AssignItem { event: event("key", 1, "data"), partition: 0, number: 0 };
    let position = OutboxPosition { commit: 0, chunk: 0 };
    let chunk = OutboxChunk { position, items: vec![item] };
    AssignRequest {
        destination: Destination::Stream(QUEUE.into()),
        shard: 0,
        rules: DestinationRules { numbering: None, queue_limit: Some(1_000) },
        witness: None,
        call: None,
        readers: Vec::new(),
        reuses_lost_numbers: false,
        groups: vec![AssignGroup { origin: None, chunks: vec![chunk] }],
    }
}

async fn until_written_out(rig: &Rig) {
    let has_files = |table: &&str| {
        let current = rig.path().join("data/keyspaces").join(table).join("current");
        // The file starts with the number of the table's version. Version 0 has no files yet.
        fs::read(current).is_ok_and(|current| current[..8] != [0; 8])
    };
    for _ in 0..CHECK_LIMIT {
        if ["2", "6"].iter().all(has_files) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the engine has written no files: {:?}", entries(rig.path()));
}

/// Splits the only journal at the ends of batches into three journals, as if the engine had begun new journals there.
fn split_journal(data: &Path) {
    const BATCH_END: &[u8] = b"FJL\x03";
    let bytes = fs::read(data.join("0.jnl")).expect("a journal");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("content") + 1;
    let after = |from: usize| {
        let found = bytes[from..].windows(BATCH_END.len()).position(|piece| piece == BATCH_END);
        from + found.expect("a batch") + BATCH_END.len()
    };
    let cuts = [0, after(end / 3), after(end / 3 * 2), end];
    for (number, cut) in cuts.windows(2).enumerate() {
        fs::write(data.join(format!("{number}.jnl")), &bytes[cut[0]..cut[1]]).expect("a file");
    }
}

/// Returns all files and folders within a folder, at any depth. Each path is relative to this folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = PathBuf::from(path.file_name().expect("a name"));
        if path.is_dir() {
            found.extend(entries(&path).into_iter().map(|below| name.join(below)));
        }
        found.push(name);
    }
    found.sort();
    found
}

fn copy_of(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for name in entries(folder) {
        let [from, to] = [folder, copy.path()].map(|folder| folder.join(&name));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        if from.is_dir() {
            fs::create_dir_all(to).expect("a folder");
        } else if name.iter().any(|part| part == "tables" || part == "blobs") {
            // A hard link is enough, because the engine never changes these files.
            fs::hard_link(from, to).expect("another name");
        } else {
            fs::copy(from, to).expect("a copy");
        }
    }
    copy
}

async fn assert_refused_or_whole(folder: &Path) {
    let store = match EmbeddedStore::open(EmbeddedOptions::new(folder)) {
        Ok(store) => store,
        Err(StoreError::Unusable(words)) => {
            assert!(words.contains(folder.to_str().expect("text")), "{words}");
            return;
        }
        Err(other) => panic!("{other:?}"),
    };
    let store: &dyn Store = &store;
    let owner = Owner::claim(store, "s", 0).await;
    assert_eq!(owner.numbers, [COMMITS]);
    for number in 1..=COMMITS {
        let key = format!("key-{number}");
        let loaded = owner.load(store, &key).await.expect("a key record");
        let state = loaded.state.expect("a state");
        assert!(state == vec![number as u8; VALUE_BYTES], "the state of {key}");
        assert_eq!(owner.spilled(store, &key, 0).await, [9]);
    }
    let mut last = 0;
    while last < COMMITS {
        let outbox = store.outbox(&owner.partition, 0, last, 1_000).await.expect("the outbox");
        assert_eq!(outbox.first().map(|entry| entry.number), Some(last + 1));
        last = outbox[outbox.len() - 1].number;
    }
    let queue = Partition { stream: QUEUE.into(), number: 0 };
    assert_eq!(store.queue_length(&queue).await.expect("the queue"), 1);
}
