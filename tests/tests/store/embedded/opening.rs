//! Tests of folders that the store must refuse to open, with a reason, and of unusual folders that the store must open.
//! The module also tests the clock of the store, and a folder that disappears while the store is open.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use ordain_core::KeyWrite;
use ordain_store::clock::{CONFIRMING_READS_LIMIT_MS, JUMP_CONFIRMATION_MS};
use ordain_store::{Store, StoreError};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{Fixture, Owner, first_write, next_write};

use super::damage::copy_of;
use super::support::Rig;

const HOUR_MS: u64 = 60 * 60_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Returns the reason why the store refuses to open a folder. Checks that the store adds and removes no entries of the
/// folder, and changes no file in the folder.
fn refusal(options: EmbeddedOptions) -> String {
    let before = listing(&options.path);
    let path = options.path.clone();
    match EmbeddedStore::open(options) {
        Ok(_) => panic!("opened {}", path.display()),
        Err(StoreError::Unusable(words) | StoreError::InUse(words)) => {
            assert!(words.contains(path.to_str().expect("text")), "{words}");
            assert_eq!(listing(&path), before, "{words}");
            words
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Returns the names of a folder's entries, with the content of each file that this process can read. For a folder, the
/// returned content is empty.
fn listing(path: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(path).into_iter().flatten();
    let mut listed: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let content = fs::read(entry.path()).unwrap_or_default();
            (entry.file_name().into_string().expect("text"), content)
        })
        .collect();
    listed.sort();
    listed
}

#[tokio::test]
async fn open_folder_is_refused() {
    let mut rig = Rig::open();
    let words = refusal(rig.options());
    assert!(words.contains(&format!("process {}", std::process::id())), "{words}");
    rig.reopen().await;
}

/// Another program can have files with the same names as the files of Ordain. The store must not write to the files of
/// that program.
#[test]
fn foreign_files_with_names_of_the_store_are_kept() {
    let foreign = b"held by backup\n".to_vec();
    let number = b"4711\n".to_vec();
    for (files, reason) in [
        (vec![("lock", foreign.clone())], "it contains lock, but no ordain.store"),
        (vec![("lock", number)], "it contains lock, but no ordain.store"),
        (vec![("lock", foreign.clone()), ("ordain.store", foreign)], "was not written by Ordain"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in files {
            fs::write(folder.path().join(name), content).expect("a file");
        }
        let words = refusal(EmbeddedOptions::new(folder.path()));
        assert!(words.contains(reason), "{words}");
    }
}

/// A user removes the lock file while the store is open. The store must not open a second time, and the attempt must
/// leave the journals unchanged, because the open store writes into them.
#[tokio::test]
async fn store_without_its_lock_file_is_in_use() {
    let rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    owner.write(rig.store(), first_write("a")).await;
    let journals = || -> Vec<u64> {
        let entries = fs::read_dir(rig.path().join("data")).expect("a folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        let journals = files.filter(|path| path.extension().is_some_and(|end| end == "jnl"));
        journals.map(|path| fs::metadata(path).expect("a file").ino()).collect()
    };
    let before = journals();
    assert!(!before.is_empty());
    fs::remove_file(rig.path().join("lock")).expect("removed");
    match EmbeddedStore::open(rig.options()) {
        Err(StoreError::InUse(words)) => assert!(words.contains("another process"), "{words}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("opened twice"),
    }
    assert_eq!(journals(), before);
}

/// A crash at the first start can leave a lock file without the identity file. The store must then open.
#[tokio::test]
async fn lock_file_of_a_crashed_first_start_is_accepted() {
    let crashed = ["", "\0\0\0\0", "4711\n\nboot net:[1]\n", "4711\nhttp://127.0.0.1:80\n"];
    for content in crashed {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("lock"), content).expect("a file");
        let opened = EmbeddedStore::open(EmbeddedOptions::new(folder.path()));
        assert!(opened.is_ok(), "{content:?}: {:?}", opened.err());
    }
}

#[test]
fn foreign_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("keyspaces")).expect("a folder");
    fs::write(folder.path().join("version"), b"FJL\x03").expect("a file");
    let words = refusal(EmbeddedOptions::new(folder.path()));
    assert!(words.contains("not a store of Ordain"), "{words}");

    let file = folder.path().join("version");
    assert!(refusal(EmbeddedOptions::new(&file)).contains("is a file"));
    assert!(refusal(EmbeddedOptions::new(file.join("below"))).contains("cannot use"));
    assert!(refusal(EmbeddedOptions::new("/proc/ordain")).contains("cannot use"));
}

#[tokio::test]
async fn another_schema_or_shard_count_is_refused() {
    let mut rig = Rig::open();
    rig.close();
    let identity_file = rig.path().join("ordain.store");
    let text = fs::read_to_string(&identity_file).expect("the identity file");

    let words = refusal(EmbeddedOptions { shards: 4, ..rig.options() });
    assert!(words.contains("created with 1 shards"), "{words}");
    fs::write(&identity_file, text.replace("schema = ", "schema = 9")).expect("a file");
    let words = refusal(rig.options());
    assert!(words.contains("has schema 9"), "{words}");
    for damaged in ["", "something else", "ordain embedded store\nschema = x\n"] {
        fs::write(&identity_file, damaged).expect("a file");
        let words = refusal(rig.options());
        assert!(words.contains("ordain.store"), "{words}");
    }
    fs::write(&identity_file, text).expect("a file");
    rig.reopen().await;
}

/// If a crash interrupts the creation of a store, the next start must complete the folder of the store. The test
/// imitates crashes at three moments.
#[tokio::test]
async fn unfinished_folder_is_completed() {
    let mut rig = Rig::open();
    rig.close();
    // The storage engine creates its files one after the other, and writes their content later.
    let data = rig.path().join("data");
    let draft = rig.path().join("data.new");
    fs::rename(&data, &draft).expect("a folder");
    fs::write(draft.join("version"), b"").expect("a file");
    rig.reopen().await;
    rig.close();
    assert!(!draft.exists());
    fs::rename(&data, &draft).expect("a folder");
    fs::remove_file(draft.join("version")).expect("a file");
    rig.reopen().await;
    rig.close();
    for entry in ["data", "answered", "closed", "ordain.store"] {
        let path = rig.path().join(entry);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            .expect("removed");
    }
    fs::write(rig.path().join("ordain.store.new"), b"ordain").expect("a file");
    rig.reopen().await;
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    owner.write(rig.store(), first_write("a")).await;
}

/// Another program removes the database of a store, or empties it. The store must refuse to open.
#[tokio::test]
async fn lost_commits_are_detected() {
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    for key in ["a", "b", "c"] {
        owner.write(rig.store(), first_write(key)).await;
    }
    rig.close();
    let data = rig.path().join("data");
    fs::remove_dir_all(&data).expect("a folder");
    let words = refusal(rig.options());
    assert!(words.contains("/data is missing"), "{words}");
    let mut empty = Rig::open();
    empty.close();
    fs::rename(empty.path().join("data"), &data).expect("renamed");
    for _ in 0..2 {
        let Err(StoreError::Unusable(words)) = EmbeddedStore::open(rig.options()) else {
            panic!("the store opened an empty database")
        };
        // The four groups of requests are the claim and three commits.
        assert!(
            words.contains("had answered 4 groups of requests, but its database contains only 0"),
            "{words}"
        );
    }
    fs::remove_file(rig.path().join("answered")).expect("a file");
    rig.reopen().await;
}

/// If the system clock goes back, the time of commits must not go back. The time of commits must advance even before
/// the system clock has reached the earlier time again.
#[tokio::test]
async fn time_does_not_go_back() {
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    let first = owner.write(rig.store(), first_write("a")).await.time;
    rig.set_clock(1);
    assert_eq!(owner.write(rig.store(), next_write("a", 2)).await.time, first);
    rig.reopen().await;
    assert_eq!(owner.write(rig.store(), next_write("a", 3)).await.time, first);
    rig.advance_clock(500).await;
    assert_eq!(owner.write(rig.store(), next_write("a", 4)).await.time, first + 500);
    rig.set_clock(first + 9_000);
    assert_eq!(owner.write(rig.store(), next_write("a", 5)).await.time, first + 9_000);
}

/// A record expires while the store is idle for a day, and must not be visible again after the next start.
#[tokio::test]
async fn time_of_idle_store_survives_clean_end() {
    let mut rig = Rig::open();
    let time = write_expiring(&rig).await;
    rig.advance_clock(DAY_MS).await;
    assert!(!has_record(rig.store()).await, "the record has not expired");
    rig.reopen().await;
    assert!(!has_record(rig.store()).await, "the record is visible again");
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    assert_eq!(owner.write(rig.store(), first_write("b")).await.time, time + DAY_MS);
}

/// A record expires while the store is idle for a day. The store must write the time although it receives no requests,
/// so that the record is not visible again after a crash.
#[tokio::test]
async fn time_of_idle_store_survives_crash() {
    let mut rig = Rig::open();
    write_expiring(&rig).await;
    rig.advance_clock(DAY_MS).await;
    for _ in 0..200 {
        let copy = copy_of(&rig);
        let options = EmbeddedOptions { path: copy.path().to_owned(), ..rig.options() };
        // The store may refuse a copy that was made during a write of the time.
        if let Ok(store) = EmbeddedStore::open(options)
            && !has_record(&store).await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the idle store has not written the time");
}

/// Writes the record of the key `a`, which expires after an hour. Returns the time of the write.
async fn write_expiring(rig: &Rig) -> u64 {
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    let write = KeyWrite { expire_in: Some(HOUR_MS), ..first_write("a") };
    owner.write(rig.store(), write).await.time
}

async fn has_record(store: &dyn Store) -> bool {
    store.key("s", "a").await.expect("an answer").is_some()
}

/// A wrong clock of the machine must not make the store forget anything: neither during a run, nor at the next start,
/// nor when a command only reads the store.
#[tokio::test]
async fn wrong_clock_expires_nothing() {
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    let write = KeyWrite { expire_in: Some(7 * DAY_MS), ..first_write("a") };
    let time = owner.write(rig.store(), write).await.time;
    for days in [8, 40] {
        rig.set_clock(time + days * DAY_MS);
        assert!(
            owner.load(rig.store(), "a").await.is_some(),
            "the record of key a is missing during the run"
        );
        for reads_only in [true, true, false] {
            rig.close();
            let store = EmbeddedStore::open(EmbeddedOptions { reads_only, ..rig.options() })
                .expect("a store");
            let claimed = Owner::claim(&store, "s", 0).await;
            assert!(
                claimed.load(&store, "a").await.is_some(),
                "the record of key a is missing if reads_only is {reads_only}"
            );
        }
        rig.set_clock(time + 1_000);
        rig.reopen().await;
        owner = Owner::claim(rig.store(), "s", 0).await;
        assert!(
            owner.load(rig.store(), "a").await.is_some(),
            "the record of key a is missing with the right clock"
        );
    }
    assert_eq!(owner.write(rig.store(), first_write("b")).await.time, time + 1_000);
    // If the clock stays ahead, the store must accept the clock's time. Data that was written during the confirmation
    // must then expire by the clock's time too.
    rig.set_clock(time + 8 * DAY_MS);
    assert!(owner.load(rig.store(), "a").await.is_some());
    let write = KeyWrite { expire_in: Some(HOUR_MS), ..first_write("c") };
    owner.write(rig.store(), write).await;
    // After a pause, the confirmation begins again.
    rig.advance_clock(CONFIRMING_READS_LIMIT_MS + 1).await;
    for _ in 0..JUMP_CONFIRMATION_MS / CONFIRMING_READS_LIMIT_MS {
        assert!(owner.load(rig.store(), "a").await.is_some());
        rig.advance_clock(CONFIRMING_READS_LIMIT_MS).await;
    }
    assert!(owner.load(rig.store(), "a").await.is_none());
    assert!(owner.load(rig.store(), "c").await.is_some());
    rig.advance_clock(HOUR_MS).await;
    assert!(owner.load(rig.store(), "c").await.is_none());
}

#[tokio::test]
async fn dropped_store_finishes_and_releases_folder() {
    let mut rig = Rig::open();
    for round in 0..10 {
        let mut owner = Owner::claim(rig.store(), "s", 0).await;
        owner.write(rig.store(), first_write(&format!("key-{round}"))).await;
        rig.reopen().await;
    }
    let owner = Owner::claim(rig.store(), "s", 0).await;
    assert_eq!(owner.numbers, [10]);
}

/// If the file of a table is missing, the storage engine silently creates a new table. So the store must detect the
/// missing file itself.
#[tokio::test]
async fn missing_table_is_detected() {
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    owner.write(rig.store(), first_write("a")).await;
    rig.close();
    let tables: Vec<_> = fs::read_dir(rig.path().join("data/keyspaces"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(tables.len(), 11);
    for table in tables {
        let current = table.join("current");
        let aside = table.join("aside");
        fs::rename(&current, &aside).expect("renamed");
        let words = refusal(rig.options());
        assert!(words.contains("/current, so it is damaged"), "{words}");
        fs::rename(&aside, &current).expect("renamed");
    }
    rig.reopen().await;
}

/// An operator moves the folder of an open store, or unmounts its volume. The store must stop.
#[tokio::test]
async fn missing_folder_stops_store() {
    let parent = tempfile::tempdir().expect("a folder");
    let path = parent.path().join("store");
    for is_replaced in [false, true] {
        let store = open_released(&path).await.expect("a store");
        let mut owner = Owner::claim(&store, "s", 0).await;
        owner.write(&store, first_write(&format!("key-{is_replaced}"))).await;
        fs::rename(&path, parent.path().join("moved")).expect("renamed");
        if is_replaced {
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join("lock"), "").expect("a file");
        }
        assert_misses_folder(&store).await;
        drop(store);
        let _ = fs::remove_dir_all(&path);
        fs::rename(parent.path().join("moved"), &path).expect("renamed");
    }
    let store = open_released(&path).await.expect("a store");
    assert_eq!(Owner::claim(&store, "s", 0).await.numbers, [2]);
}

/// An operator removes only the database of an open store, or unmounts the volume of the database. The store must stop.
#[tokio::test]
async fn missing_database_stops_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let aside = folder.path().join("aside");
    for is_replaced in [false, true] {
        let store = open_released(folder.path()).await.expect("a store");
        let mut owner = Owner::claim(&store, "s", 0).await;
        owner.write(&store, first_write(&format!("key-{is_replaced}"))).await;
        fs::rename(&data, &aside).expect("renamed");
        if is_replaced {
            fs::create_dir(&data).expect("a folder");
        }
        assert_misses_folder(&store).await;
        drop(store);
        let Err(StoreError::Unusable(words)) = open_released(folder.path()).await else {
            panic!("the store opened although its database is missing")
        };
        assert!(words.contains("from a complete backup"), "{words}");
        assert_eq!(data.exists(), is_replaced, "the store made another database");
        if is_replaced {
            fs::remove_dir(&data).expect("removed");
        }
        fs::rename(&aside, &data).expect("renamed");
    }
    let store = open_released(folder.path()).await.expect("a store");
    assert_eq!(Owner::claim(&store, "s", 0).await.numbers, [2]);
}

/// Opens a store whose folder may still be in use. Repeats a failed attempt, because a failed store releases its folder
/// only a moment after it is dropped.
async fn open_released(path: &Path) -> Result<EmbeddedStore, StoreError> {
    for _ in 0..100 {
        match EmbeddedStore::open(EmbeddedOptions::new(path)) {
            Err(StoreError::InUse(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            opened => return opened,
        }
    }
    panic!("the folder stays in use")
}

async fn assert_misses_folder(store: &EmbeddedStore) {
    let failed = tokio::time::timeout(Duration::from_secs(5), store.failed()).await;
    let words = failed.expect("a failed store").to_string();
    assert!(words.contains("is missing or was replaced"), "{words}");
}
