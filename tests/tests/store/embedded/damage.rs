//! Tests of damaged files: the store reports lost data, and never panics or hangs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Key, StateUpdate};
use ordain_store::{
    AssignGroup, AssignItem, AssignRequest, Destination, DestinationRules, KeyFilter, KeyListing,
    OutboxChunk, OutboxPosition, RecordStore, StoreError,
};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{Fixture, Owner, event, first_write};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::support::Rig;

const COMMITS: u64 = 40;

/// Creates a store with [`COMMITS`] commits, each of a key with a state of `size` bytes. Returns the store, and a copy
/// of its folder in the state after a crash.
async fn crashed(size: usize) -> (Rig, tempfile::TempDir) {
    let rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    for number in 0..COMMITS {
        let mut write = first_write(&format!("key-{number}"));
        let mut state = vec![0; size];
        ChaCha8Rng::seed_from_u64(number).fill_bytes(&mut state);
        write.state = StateUpdate::Put(state.into());
        owner.write(rig.store(), write).await;
    }
    let copy = copy_of(&rig);
    // Removes the space that the storage engine preallocates, so that the tests need not copy it.
    let (path, bytes, end) = journal(copy.path());
    fs::write(path, &bytes[..end]).expect("a file");
    (rig, copy)
}

/// Returns a copy of the folder of an open store. The copy is in the state in which a crash would leave the folder.
pub(super) fn copy_of(rig: &Rig) -> tempfile::TempDir {
    loop {
        let copy = tempfile::tempdir().expect("a folder");
        match copy_all(rig.path(), copy.path()) {
            Ok(()) => break copy,
            // The storage engine replaced or removed a file during the copy. A crash never leaves such an inconsistent
            // folder, so the loop makes another copy.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Returns the path of the newest journal, its bytes, and the end of its content.
fn journal(folder: &Path) -> (PathBuf, Vec<u8>, usize) {
    let entries = fs::read_dir(folder.join("data")).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let journal = paths.filter(|path| path.extension().is_some_and(|end| end == "jnl")).max();
    let journal = journal.expect("a journal");
    let bytes = fs::read(&journal).expect("a file");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("content") + 1;
    (journal, bytes, end)
}

/// Returns the number of keys of the stream, or the reason why the store does not open.
async fn open_and_count(folder: &Path) -> Result<usize, String> {
    let store = match EmbeddedStore::open(EmbeddedOptions::new(folder)) {
        Ok(store) => store,
        Err(StoreError::Unusable(words) | StoreError::Corrupt(words)) => return Err(words),
        Err(other) => panic!("{other:?}"),
    };
    let filter = KeyFilter { limit: 1_000, ..KeyFilter::default() };
    Ok(store.keys("s", &filter).await.expect("a page").rows.len())
}

/// If only a part of an unanswered commit has reached the disk, the store drops this commit, however large the part is.
#[tokio::test]
async fn torn_tail_is_dropped() {
    let (_rig, copy) = crashed(300).await;
    let (path, bytes, end) = journal(copy.path());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    // Appends one of three tails to the complete journal: the beginning of a commit, random bytes, or a truncated
    // header.
    let tail = &bytes[end - 700..end];
    for cut in 1..60 {
        let mut torn = bytes[..end].to_vec();
        match cut % 3 {
            0 => torn.extend_from_slice(&tail[..cut * 7]),
            1 => torn.extend((0..cut * 9).map(|_| random.random::<u8>())),
            _ => torn.extend_from_slice(&[&[1, 3, 0, 0, 0][..], &vec![0; cut]].concat()),
        }
        fs::write(&path, &torn).expect("a file");
        assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize), "cut {cut}");
        // Restores the folder, because the store has created more files when it opened.
        restore(copy.path(), &path, &bytes);
    }
}

/// If a page in the middle of a large value is missing, the store must drop the commit with this value, and all data
/// after this commit.
#[tokio::test]
async fn torn_value_is_dropped() {
    let (rig, before) = crashed(20_000).await;
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    let claimed = journal(rig.path()).2;
    let mut write = first_write("torn");
    let mut state = vec![0; 20_000];
    ChaCha8Rng::seed_from_u64(0).fill_bytes(&mut state);
    write.state = StateUpdate::Put(state.into());
    owner.write(rig.store(), write).await;
    owner.write(rig.store(), first_write("after it")).await;
    let (path, mut bytes, end) = journal(rig.path());
    let middle = claimed + (end - claimed) / 2;
    bytes[middle..middle + 4096].fill(0);
    let path = before.path().join("data").join(path.file_name().expect("a name"));
    fs::write(&path, bytes).expect("a file");
    assert_eq!(open_and_count(before.path()).await, Ok(COMMITS as usize));
    assert!(path.with_extension("damaged").exists());
    assert_eq!(open_and_count(before.path()).await, Ok(COMMITS as usize));
}

/// Removes all journals, and restores the journal of the crashed store.
fn restore(folder: &Path, path: &Path, bytes: &[u8]) {
    for entry in fs::read_dir(folder.join("data")).expect("a folder") {
        let entry = entry.expect("an entry").path();
        if entry.extension().is_some_and(|end| end == "jnl") {
            fs::remove_file(entry).expect("removed");
        }
    }
    fs::write(path, bytes).expect("a file");
}

/// If an answered commit is damaged or missing, the store must not open as if its data were complete.
#[tokio::test]
async fn damaged_journal_is_detected() {
    let (_rig, copy) = crashed(300).await;
    let (path, bytes, end) = journal(copy.path());
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut refused = 0;
    for round in 0..30 {
        let image = tempfile::tempdir().expect("a folder");
        copy_all(copy.path(), image.path()).expect("a copy");
        let mut damaged = bytes.clone();
        let at = random.random_range(0..end);
        match round % 3 {
            0 => damaged.truncate(at),
            1 => damaged[at] ^= 1 << random.random_range(0..8),
            _ => damaged[at..(at + 4096).min(end)].fill(0),
        }
        fs::write(image.path().join("data").join(path.file_name().expect("a name")), damaged)
            .expect("a file");
        match open_and_count(image.path()).await {
            Ok(keys) => assert_eq!(keys, COMMITS as usize, "byte {at} of {end}"),
            Err(words) => {
                assert!(words.contains("backup"), "{words}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

/// The store writes events of a producer into a queue without a commit. The store must also detect the loss of such
/// events.
#[tokio::test]
async fn lost_events_of_a_queue_are_detected() {
    let rig = Rig::open();
    for number in 0..COMMITS {
        let accepted = event(&format!("key-{number}"), 1, "data");
        let item = AssignItem { event: accepted, partition: 0, number: 0 };
        let part =
            OutboxChunk { position: OutboxPosition { commit: 0, chunk: 0 }, items: vec![item] };
        let assign = AssignRequest {
            destination: Destination::Stream("s".into()),
            shard: 0,
            rules: DestinationRules { numbering: None, queue_limit: Some(1_000) },
            witness: None,
            call: None,
            readers: Vec::new(),
            reuses_lost_numbers: false,
            groups: vec![AssignGroup { origin: None, chunks: vec![part] }],
        };
        rig.store().assign(Arc::new(assign)).await.expect("an answer");
        rig.store().flush().await.expect("an answer");
    }
    let copy = copy_of(&rig);
    let (path, bytes, end) = journal(copy.path());
    fs::write(&path, &bytes[..end]).expect("a file");
    assert_eq!(open_and_count(copy.path()).await, Ok(0));
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for _ in 0..20 {
        let at = random.random_range(0..end);
        fs::write(&path, &bytes[..at]).expect("a file");
        let refused = open_and_count(copy.path()).await.expect_err("events are lost");
        assert!(refused.contains("has lost commits"), "byte {at} of {end}: {refused}");
    }
}

/// The storage engine drops the rest of a damaged journal and continues with the next journal. The engine also ignores
/// a missing journal. The store must detect the damaged journal and the missing journal.
#[tokio::test]
async fn damaged_sealed_journal_is_detected() {
    let (_rig, copy) = crashed(300).await;
    let (path, bytes, end) = journal(copy.path());
    // Splits the journal into three journals. Each of them ends with the last bytes of a batch, followed by
    // preallocated space.
    let ends: Vec<usize> = (4..=end).filter(|at| bytes[..*at].ends_with(b"FJL\x03")).collect();
    let cuts = [0, ends[ends.len() / 3], ends[2 * ends.len() / 3], end];
    fs::remove_file(path).expect("removed");
    for (number, cut) in cuts.windows(2).enumerate() {
        let content = [&bytes[cut[0]..cut[1]], &[0; 500][..]].concat();
        fs::write(copy.path().join(format!("data/{number}.jnl")), content).expect("a file");
    }
    for (damage, expected) in [
        ("none", ""),
        ("hole", "1.jnl is unreadable from byte"),
        ("short", "1.jnl is unreadable from byte"),
        ("missing", "1.jnl is missing"),
        ("missing newest", "has lost commits"),
        ("missing all", "has no journal"),
    ] {
        let image = tempfile::tempdir().expect("a folder");
        copy_all(copy.path(), image.path()).expect("a copy");
        let numbered = |number: usize| image.path().join(format!("data/{number}.jnl"));
        let mut sealed = fs::read(numbered(1)).expect("a file");
        let middle = sealed.len() / 2;
        match damage {
            "hole" => sealed[middle..middle + 1_000].fill(0),
            // Cuts off the preallocated space, and also the end of the last batch before it.
            "short" => sealed.truncate(sealed.len() - 505),
            _ => {}
        }
        fs::write(numbered(1), &sealed).expect("a file");
        let missing = match damage {
            "missing" => 1..2,
            "missing newest" => 2..3,
            "missing all" => 0..3,
            _ => 0..0,
        };
        for number in missing {
            fs::remove_file(numbered(number)).expect("removed");
        }
        for _ in 0..2 {
            match open_and_count(image.path()).await {
                Ok(keys) => assert_eq!((damage, keys), ("none", COMMITS as usize)),
                Err(words) => {
                    assert!(!expected.is_empty() && words.contains(expected), "{damage}: {words}");
                    assert!(words.contains("from a backup"), "{words}");
                }
            }
        }
        if ["hole", "short"].contains(&damage) {
            assert!(fs::read(numbered(1)).expect("a file") == sealed, "the original journal");
            assert!(!image.path().join("data.before").exists());
        }
    }
}

/// A damaged table file may cause errors, which must state a reason. Such a file must never cause wrong answers. If a
/// block of the file is damaged, the error must name the store's folder and the next step.
#[tokio::test]
async fn damaged_table_is_detected() {
    let (mut rig, _) = crashed(1 << 20).await;
    let tables = || files(&rig.path().join("data/keyspaces"), "tables");
    for _ in 0..200 {
        if tables().iter().any(|path| fs::metadata(path).is_ok_and(|file| file.len() > 1 << 20)) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    rig.close();
    let image = copy_of(&rig);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut detected = 0;
    for round in 0..8 {
        let damaged = tempfile::tempdir().expect("a folder");
        copy_all(image.path(), damaged.path()).expect("a copy");
        for path in files(&damaged.path().join("data/keyspaces"), "tables") {
            let mut bytes = fs::read(&path).expect("a file");
            if bytes.is_empty() {
                continue;
            }
            // The first rounds damage one of the last bytes of the file, which contain the positions of all other data
            // in the file.
            let tail = bytes.len().saturating_sub(if round < 4 { 200 } else { usize::MAX });
            let at = random.random_range(tail..bytes.len());
            bytes[at] ^= 0x10;
            fs::write(path, bytes).expect("a file");
        }
        detected += usize::from(!load_all(damaged.path()).await);
    }
    assert!(detected > 4, "{detected}");
}

/// Returns true if every key loads as it was written, and false if the store reports an error. A wrong answer fails the
/// test.
async fn load_all(folder: &Path) -> bool {
    let store = match EmbeddedStore::open(EmbeddedOptions::new(folder)) {
        Ok(store) => store,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let owner = Owner::claim(&store, "s", 0).await;
    let keys: Vec<Key> = (0..COMMITS).map(|number| format!("key-{number}").into()).collect();
    let loaded = match store.load(&owner.partition, &keys, usize::MAX).await {
        Ok(loaded) => loaded,
        Err(error) => {
            if let StoreError::Corrupt(words) = error {
                assert_names_folder(&words, folder);
            }
            return false;
        }
    };
    let mut whole = true;
    for (number, result) in (0..).zip(loaded) {
        let snapshot = match result {
            Ok(snapshot) => snapshot,
            Err(words) => {
                assert_names_folder(&words, folder);
                whole = false;
                continue;
            }
        };
        let mut state = vec![0; 1 << 20];
        ChaCha8Rng::seed_from_u64(number).fill_bytes(&mut state);
        assert_eq!(snapshot.expect("a key record").state, Some(Bytes::from(state)));
    }
    whole
}

fn assert_names_folder(words: &str, folder: &Path) {
    let folder = folder.display().to_string();
    assert!(words.contains(&folder) && words.contains("from a backup"), "{words}");
}

fn files(folder: &Path, within: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, within));
        } else if path.parent().is_some_and(|parent| parent.ends_with(within)) {
            found.push(path);
        }
    }
    found
}

/// After a failed sync, the operating system may return data from memory that the disk never received. So if a journal
/// was not closed cleanly, the store must rewrite this journal before it uses the journal's content.
#[tokio::test]
async fn unclosed_journal_is_rewritten() {
    let (_rig, copy) = crashed(300).await;
    let inode = || fs::metadata(journal(copy.path()).0).expect("a file").ino();
    let before = inode();
    assert!(!copy.path().join("closed").exists());
    assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));
    let rewritten = inode();
    assert_ne!(rewritten, before);
    assert!(copy.path().join("closed").exists() && !copy.path().join("data.before").exists());
    assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));
    assert_eq!(inode(), rewritten, "the store must not rewrite a closed journal");

    // Imitates a crash while the store copies a journal.
    for left in ["0.anew", "7.anew"] {
        fs::write(copy.path().join("data").join(left), "half of it").expect("a file");
    }
    fs::remove_file(copy.path().join("closed")).expect("removed");
    assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));

    // Imitates a crash between the two renames at the end of the copy.
    fs::remove_file(copy.path().join("closed")).expect("removed");
    let path = journal(copy.path()).0;
    let aside = copy.path().join("data.before");
    fs::create_dir(&aside).expect("a folder");
    fs::copy(&path, path.with_extension("anew")).expect("a copy");
    fs::rename(&path, aside.join(path.file_name().expect("a name"))).expect("renamed");
    assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));
}

/// A refused start has left copies of journals in the folder. An operator restores the database from a backup, but does
/// not remove these copies. The store must ignore and remove the copies.
#[tokio::test]
async fn journals_that_a_refused_start_left_are_ignored() {
    let (rig, copy) = crashed(300).await;
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    owner.write(rig.store(), first_write("later")).await;
    let (path, bytes, end) = journal(rig.path());
    assert!(path.ends_with("0.jnl"), "{}", path.display());
    for is_closed in [false, true] {
        assert_eq!(copy.path().join("closed").exists(), is_closed);
        let aside = copy.path().join("data.before");
        fs::create_dir(&aside).expect("a folder");
        fs::write(aside.join("1.jnl"), &bytes[..end]).expect("a file");
        assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));
        assert!(!aside.exists());
    }
}

/// The storage engine truncates a journal at a damaged place. So a start that refuses a damaged journal must keep a
/// copy of the whole journal.
#[tokio::test]
async fn refused_start_keeps_journal() {
    let (_rig, copy) = crashed(300).await;
    let (path, mut bytes, end) = journal(copy.path());
    bytes.truncate(end);
    let whole = bytes.clone();
    bytes[end / 2..end / 2 + 1_000].fill(0);
    fs::write(&path, &bytes).expect("a file");
    let kept = copy.path().join("data.before").join(path.file_name().expect("a name"));
    for _ in 0..2 {
        let refused = open_and_count(copy.path()).await.expect_err("commits are lost");
        assert!(refused.contains("data.before") || refused.contains("damaged"), "{refused}");
        assert!(
            fs::read(&kept).expect("a file") == bytes,
            "the copy must equal the journal before the first start"
        );
    }
    // When an operator restores the original journal, the store opens and removes the copy.
    fs::write(&path, &whole).expect("a file");
    assert_eq!(open_and_count(copy.path()).await, Ok(COMMITS as usize));
    assert!(!kept.exists());
}
