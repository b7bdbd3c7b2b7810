//! Tests that kill a process with `kill -9` while the process creates or uses an embedded store. Afterwards the store
//! must open, and must contain every answered commit completely. These tests form a separate program and run one after
//! the other. Between `fork` and `exec`, a child process holds the file locks of its parent, and an embedded store with
//! a held lock cannot be opened.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use ordain_core::{EmittedMessage, KeyWrite, Message, MessageParts, StateUpdate, WriteCondition};
use ordain_store::Outbox;
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{Owner, event, first_write, key_record, record_write};

/// The environment variable that marks the child process. The variable's value is the folder of the store.
const FOLDER: &str = "ORDAIN_TEST_CRASH_FOLDER";

/// The number of kills of a process that commits.
const ROUNDS: u64 = 20;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Commits until the process is killed, and prints the number of each answered commit. Does nothing in the parent
/// process, where the variable [`FOLDER`] is not set.
#[tokio::test]
async fn commits_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder)).expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    loop {
        let number = owner.numbers[0] + 1;
        owner.commit(&store, writes(number)).await;
        if number > 1 {
            store
                .outbox_done(&owner.partition, owner.claim, 0, number - 1, &[])
                .await
                .expect("done");
        }
        println!("answered {number}");
    }
}

/// Returns the writes of commit `number`: the keys `left` and `right`, which every commit changes together, and a key
/// that only this commit changes. The key of this commit also gets a spilled event, a message and a due time.
fn writes(number: u64) -> Vec<KeyWrite> {
    let mut writes = Vec::new();
    for key in ["left", "right"] {
        let expect =
            if number == 1 { WriteCondition::Absent } else { WriteCondition::Next(number) };
        let mut write = record_write(key, expect, key_record(number + 1));
        // The values are large, so the storage engine writes and merges tables and value files during the test.
        let size = 1 + number * 331_331 % 900_000;
        write.state = StateUpdate::Put(vec![number as u8; size as usize].into());
        writes.push(write);
    }
    let mut own = first_write(&format!("own-{number}"));
    own.spill = vec![(9, event(&own.key, 9, "held"))];
    own.record.spilled.add(9);
    let data = vec![7; (number * 77_777 % 300_000) as usize];
    let message =
        Message::new(&MessageParts { sink: "out", data: &data, ..MessageParts::default() });
    own.messages = vec![EmittedMessage { sequence: 1, index: 0, event_digest: 0, message }];
    own.due_in = Some(60_000);
    writes.push(own);
    writes
}

#[tokio::test]
#[allow(clippy::await_holding_lock, reason = "the other test is on another thread")]
async fn answered_commits_survive_kill() {
    let _alone = ONE_AT_A_TIME.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut checked = 0;
    for round in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
        let answered = run_and_kill(folder.path(), Duration::from_micros(random >> 45));
        assert!(answered > checked, "the child must answer a new commit in each round");
        checked = check(folder.path(), answered, checked).await;
    }
}

fn child_in(folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "commits_until_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child")
}

/// Runs a child process and kills it when the time `after` has passed since its first answered commit. Returns the
/// number of the last answered commit.
fn run_and_kill(folder: &Path, after: Duration) -> u64 {
    let mut child = child_in(folder);
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut number = || -> Option<u64> {
        // The test harness of the child also prints lines, and the kill may have cut off the end of the last line.
        lines.by_ref().find_map(|line| line.ok()?.rsplit_once("answered ")?.1.parse().ok())
    };
    let mut last = number().expect("a first answer");
    std::thread::sleep(after);
    child.kill().expect("kill -9");
    while let Some(number) = number() {
        // If the kill cut off the last digits of a number, the rest is a smaller number, and `max` ignores it.
        last = last.max(number);
    }
    child.wait().expect("its end");
    last
}

/// Checks that the store contains all answered commits, and each of its commits completely. `checked` is the number of
/// commits that earlier calls have already checked. Returns the number of commits in the store.
async fn check(folder: &Path, answered: u64, checked: u64) -> u64 {
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder)).expect("the store after a crash");
    let owner = Owner::claim(&store, "s", 0).await;
    let stored = owner.numbers[0];
    assert!(stored >= answered, "{answered} commits were answered, and the store has {stored}");
    for key in ["left", "right"] {
        let loaded = owner.load(&store, key).await.expect("a key record");
        assert_eq!(loaded.record.next, stored + 1, "{key}");
        assert_eq!(loaded.state.as_deref().and_then(|state| state.first()), Some(&(stored as u8)));
    }
    for number in checked + 1..=stored {
        let key = format!("own-{number}");
        assert_eq!(owner.load(&store, &key).await.expect("a key record").record.next, 2);
        assert_eq!(owner.spilled(&store, &key, 0).await, [9]);
    }
    assert_eq!(owner.load(&store, &format!("own-{}", stored + 1)).await, None);
    let outbox = store.outbox(&owner.partition, 0, 0, 100).await.expect("the outbox");
    assert_eq!(
        outbox.last().map(|entry| entry.number),
        Some(stored),
        "the outbox must still have the last entry"
    );
    stored
}

#[test]
fn store_killed_during_creation_opens_again() {
    let _alone = ONE_AT_A_TIME.lock();
    for round in 0..40 {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = child_in(folder.path());
        // Each round kills the child 0.1 ms later than the round before. The rounds together cover the first 4 ms after
        // the creation of the lock file.
        while !folder.path().join("lock").exists() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(100 * round));
        child.kill().expect("kill -9");
        child.wait().expect("its end");
        EmbeddedStore::open(EmbeddedOptions::new(folder.path())).expect("the store after a crash");
    }
}
