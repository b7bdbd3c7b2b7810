//! Tests of a full disk. The store must report the full disk, and must stay unusable until a process opens the store
//! again.

use std::path::Path;
use std::process::Command;

use ordain_core::{CommitReply, StateUpdate};
use ordain_store::{Mark, MarkStore, RecordStore, Store, StoreError};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{Owner, claim, first_write};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The environment variable that marks the child process. The variable's value is the folder of the store.
const FOLDER: &str = "ORDAIN_TEST_FULL_FOLDER";

/// The limit on the size of a file, in bytes. The limit is the initial size of a journal of the storage engine, so the
/// engine can create a journal, but the journal cannot grow.
const FILE_LIMIT: u64 = 64 << 20;

/// Fills the journal until a write fails. Does nothing in the parent process, where the variable [`FOLDER`] is not set.
#[tokio::test]
async fn commits_until_disk_is_full() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder)).expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let mut answered = 0;
    let unknown = loop {
        let mut write = first_write(&format!("key-{answered}"));
        let mut state = vec![0; 1 << 20];
        ChaCha8Rng::seed_from_u64(answered).fill_bytes(&mut state);
        write.state = StateUpdate::Put(state.into());
        let batch = owner.batch(vec![write]);
        match owner.send(&store, &batch).await {
            CommitReply::Applied(_) => answered += 1,
            CommitReply::Unknown => break batch,
            other => panic!("{other:?}"),
        }
        assert!(answered < (2 * FILE_LIMIT) >> 20, "the limit does not hold");
    };
    assert_eq!(owner.send(&store, &unknown).await, CommitReply::Unknown);
    let mark = Mark { name: "mark".to_owned(), value: "1".into() };
    for failed in [
        store.load(&owner.partition, &["key-0".into()], usize::MAX).await.map(|_| ()),
        store.put_marks(&[mark]).await,
        claim(&store, &owner.partition).await.map(|_| ()),
        store.flush().await,
    ] {
        let Err(StoreError::Failed(words)) = failed else { panic!("{failed:?}") };
        assert!(words.contains("start again"), "{words}");
    }
    assert!(matches!(store.failed().await, StoreError::Failed(_)));
    drop(store);
    println!("answered {answered}");
}

#[tokio::test]
async fn full_disk_stops_store_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let answered = run(folder.path());
    assert!(answered > 10, "{answered}");
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path()))
        .expect("the store without the limit");
    let mut owner = Owner::claim(&store, "s", 0).await;
    assert!(owner.numbers[0] >= answered, "{} of {answered}", owner.numbers[0]);
    for number in 0..answered {
        let loaded = owner.load(&store, &format!("key-{number}")).await.expect("a key record");
        assert_eq!(loaded.state.map(|state| state.len()), Some(1 << 20));
    }
    owner.write(&store, first_write("more")).await;
}

/// Runs the child process with a limit on the size of files. The child ignores the signal that the system sends at the
/// limit, so its writes fail. Returns the number of answered commits.
fn run(folder: &Path) -> u64 {
    let binary = std::env::current_exe().expect("this test");
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", FILE_LIMIT / 512);
    let output = Command::new("sh")
        .args(["-c", &limited])
        .arg(binary)
        .args(["--exact", "store::embedded::full::commits_until_disk_is_full", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{words}");
    let answered = text.lines().find_map(|line| line.rsplit_once("answered ")?.1.parse().ok());
    answered.unwrap_or_else(|| panic!("{text}\n{words}"))
}
