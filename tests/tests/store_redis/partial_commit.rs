//! Tests of incomplete commits: the server has executed only the first commands of a commit. This happens if a script
//! ends half-way, or if the log of the server was truncated. After the truncation, Redis executes these first commands
//! at its second restart. Two of the tests try each possible number of first commands. If the same owner sends the
//! commit again, the result must be the same as after one complete commit. If the commit was not made and another owner
//! commits, the result must be the same as if the incomplete commit had never been sent.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ordain_core::{AcceptedId, Batch, DeadLetter, Key, KeyWrite, StateUpdate};
use ordain_servers::Snapshot;
use ordain_store::{DueIndex, KeyFilter, KeyListing, LetterListing, RecordStore};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, event};

use super::dedicated::{DedicatedStore, letter, outbox, step, until_applied};

fn spill(write: &mut KeyWrite, sequences: &[u64], all: &[u64]) {
    let key = write.key.clone();
    write.spill =
        sequences.iter().map(|sequence| (*sequence, event(&key, *sequence, "held"))).collect();
    for sequence in all {
        write.record.spilled.add(*sequence);
    }
}

fn take_id(write: &mut KeyWrite, from: u64, sequence: u64) {
    write.record.ids_from = from;
    write.ids.push(AcceptedId { sequence, id: 100 + sequence, content: 7, source: 0 });
}

/// Returns the writes of the commit before the incomplete commit. These writes create a key with all kinds of data, an
/// expired key with all kinds of data except dead letters, and a key with little data.
fn before(keys: &[Key]) -> Vec<KeyWrite> {
    let [mut full, mut expired, mut plain] = [0, 1, 2].map(|at| step(&keys[at], 1));
    for write in [&mut full, &mut expired] {
        spill(write, &[3, 5, 6], &[3, 5, 6]);
        take_id(write, 1, 1);
        write.state = StateUpdate::Put(vec![1; 10_000].into());
        write.due_in = Some(1_000_000);
    }
    full.letters = vec![letter(&keys[0], 1, 0), letter(&keys[0], 1, 1)];
    expired.expire_in = Some(0);
    plain.state = StateUpdate::Put("plain".into());
    plain.due_in = Some(500_000);
    vec![full, expired, plain]
}

/// Returns the writes and the dead letters of the commit that becomes incomplete. The commit changes all keys of
/// [`before`], creates another key, and adds an orphan dead letter.
fn last(keys: &[Key]) -> (Vec<KeyWrite>, Vec<DeadLetter>) {
    let [mut full, mut again, mut plain] =
        [step(&keys[0], 2), step(&keys[1], 1), step(&keys[2], 2)];
    spill(&mut full, &[8], &[5, 6, 8]);
    full.record.next = 4;
    take_id(&mut full, 2, 2);
    full.state = StateUpdate::Delete;
    full.removed_letters = vec![letter(&keys[0], 1, 0).id];
    full.letters = vec![letter(&keys[0], 2, 0)];
    full.expire_in = Some(1_000_000);
    spill(&mut again, &[20], &[20]);
    again.state = StateUpdate::Put(vec![2; 10_000].into());
    take_id(&mut again, 1, 1);
    plain.due_in = Some(1_000_000);
    plain.state = StateUpdate::Keep;
    let new = step(&keys[3], 1);
    (vec![full, again, plain, new], vec![letter("", 0, 9)])
}

/// Returns the writes of another owner's commit. The other owner's commit has the same number as the incomplete commit.
fn other(keys: &[Key]) -> Vec<KeyWrite> {
    let [mut full, mut again, mut plain] =
        [step(&keys[0], 2), step(&keys[1], 1), step(&keys[2], 2)];
    spill(&mut full, &[7], &[3, 5, 6, 7]);
    take_id(&mut full, 1, 2);
    spill(&mut again, &[4], &[4]);
    plain.state = StateUpdate::Put("other".into());
    let mut new = step(&keys[3], 1);
    new.state = StateUpdate::Put("new".into());
    spill(&mut new, &[9], &[9]);
    vec![full, again, plain, new]
}

/// Returns the data of a shard as a text for comparisons. The text has the records, states, ids and spilled events of
/// `keys`, the due keys, the ids of the dead letters, the outbox and the listed keys. The text states whether a key has
/// a due time and an expiry time, but contains neither these times nor the incarnations.
async fn visible_data(store: &RedisStore, owner: &Owner, keys: &[Key]) -> String {
    let mut seen = Vec::new();
    let loaded = store.load(&owner.partition, keys, usize::MAX).await.expect("a load");
    for (key, loaded) in keys.iter().zip(loaded) {
        let Some(mut loaded) = loaded.expect("a key record that can be read") else {
            assert_eq!(owner.spilled(store, key, 0).await, [] as [u64; 0]);
            continue;
        };
        // Reads the spilled events from the next sequence on, as the owner does.
        let spilled = owner.spilled(store, key, loaded.record.next).await;
        seen.push(format!("{key}: spilled {spilled:?}"));
        loaded.record.incarnation = 0;
        let times = (loaded.due_in.is_some(), loaded.expire_in.is_some());
        let record = loaded.record;
        let ids = loaded.ids;
        let state = loaded.state;
        seen.push(format!("{key}: {record:?} {times:?} {ids:?} {state:?}"));
    }
    let due = store.due(&owner.partition, None, 100, true).await.expect("the index").0;
    let mut due: Vec<_> = due.into_iter().map(|(_, key)| key).collect();
    due.sort();
    seen.push(format!("due {due:?}"));
    let page = store.letters("s", None, None, 100).await.expect("letters");
    seen.extend(page.rows.iter().map(|row| format!("{:?}", row.letter.id)));
    for entry in outbox(store, owner, owner.shard(&keys[0])).await {
        let messages =
            entry.messages.iter().map(|message| (message.key.clone(), message.emitted.sequence));
        seen.push(format!("out {} {:?}", entry.number, messages.collect::<Vec<_>>()));
    }
    let filter = KeyFilter { limit: 100, ..KeyFilter::default() };
    let mut rows = store.keys("s", &filter).await.expect("keys").rows;
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    seen.extend(rows.iter().map(|row| format!("row {} {}", row.key, row.state_size)));
    seen.join("\n")
}

/// Returns the path of the file to which the server appends its log (the incremental part of the append-only file).
fn log(dedicated: &DedicatedStore) -> PathBuf {
    let files = fs::read_dir(dedicated.server.data().join("appendonlydir")).expect("a folder");
    let mut paths = files.map(|file| file.expect("a file").path());
    paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("a log")
}

fn commands(log: &[u8]) -> Vec<(usize, String)> {
    let number = |at: &mut usize| -> usize {
        let end = *at + log[*at..].iter().position(|byte| *byte == b'\r').expect("a line");
        let digits = std::str::from_utf8(&log[*at + 1..end]).expect("a number");
        *at = end + 2;
        digits.parse().expect("a number")
    };
    let mut at = 0;
    let mut all = Vec::new();
    while at < log.len() {
        let start = at;
        let texts: Vec<&[u8]> = (0..number(&mut at))
            .map(|_| {
                let length = number(&mut at);
                at += length + 2;
                &log[at - length - 2..at - 2]
            })
            .collect();
        all.push((start, String::from_utf8_lossy(texts[0]).to_uppercase()));
    }
    all
}

/// A server, and a commit in its log, whose end a test removes.
struct Rig {
    dedicated: DedicatedStore,
    owner: Owner,
    keys: Vec<Key>,
    batch: Arc<Batch>,
    first: Snapshot,
    log: PathBuf,
    whole: Vec<u8>,
    /// The commands of the commit: the position of each command in the log, and its name.
    parts: Vec<(usize, String)>,
    /// `main` is the index of the command that makes the commit, and `end` is the index of the commit's last command.
    main: usize,
    end: usize,
}

impl Rig {
    async fn start() -> Self {
        let dedicated = DedicatedStore::start().await;
        let mut owner = Owner::claim(&dedicated.store, "s", 0).await;
        let keys = owner.keys(4);
        owner.commit(&dedicated.store, before(&keys)).await;
        let (writes, letters) = last(&keys);
        let batch = Arc::new(Batch { letters, ..(*owner.batch(writes)).clone() });
        let first = dedicated.server.snapshot().expect("a snapshot");
        let log = log(&dedicated);
        let start = fs::read(&log).expect("a log").len();
        let applied = until_applied(&dedicated.store, &owner, &batch).await;
        assert_eq!(applied.refused, []);
        let whole = fs::read(&log).expect("a log");
        let mut parts = commands(&whole);
        parts.retain(|(at, _)| *at >= start);
        assert_eq!(parts[0].1, "MULTI", "{parts:?}");
        let end = parts.iter().position(|(_, name)| name == "EXEC").expect("an end");
        let is_main = |at: &usize| {
            let bytes = &whole[parts[*at].0..parts[at + 1].0];
            bytes.windows(6).any(|window| window == b"\r\nf0\r\n")
        };
        let main = (1..end).find(is_main).expect("the fence");
        assert!(main > 5 && end > main + 5, "{parts:?}");
        Self { dedicated, owner, keys, batch, first, log, whole, parts, main, end }
    }

    /// Kills the server, replaces its log, and starts it again.
    fn start_with(&self, log: &[u8]) {
        self.dedicated.server.kill().expect("an end");
        fs::write(&self.log, log).expect("a log");
        self.dedicated.server.restart().expect("a server that comes back");
    }

    async fn visible_data(&self, owner: &Owner) -> String {
        visible_data(&self.dedicated.store, owner, &self.keys).await
    }

    /// Returns the due time of a key in the due index, and the due time in its record.
    fn due_of(&self, key: usize) -> (u64, u64) {
        let [data, due] = ["data:s", "due:0:s"]
            .map(|kind| self.dedicated.name(self.owner.shard(&self.keys[key]), kind));
        let score = self.dedicated.command(&["ZSCORE", &due, &self.keys[key]]);
        let score = score.text().expect("an entry").parse().expect("a time");
        let field = [b"j", self.keys[key].as_bytes()].concat();
        let record = self.dedicated.bytes_of_field(&data, &field);
        (score, u64::from_le_bytes(record[2..10].try_into().expect("eight bytes")))
    }

    fn next_writes(&self) -> Vec<KeyWrite> {
        let mut full = step(&self.keys[0], 4);
        spill(&mut full, &[9], &[5, 6, 8, 9]);
        vec![full]
    }

    /// Claims the partition for another owner, which commits `writes`. Returns the text of [`visible_data`] for this
    /// owner.
    async fn commit_as_another_owner(&self, writes: Vec<KeyWrite>) -> String {
        let mut next = Owner::claim(&self.dedicated.store, "s", 0).await;
        let applied = next.commit(&self.dedicated.store, writes).await;
        assert_eq!(applied.refused, []);
        self.visible_data(&next).await
    }
}

#[tokio::test]
async fn partial_commit_is_completed_or_replaced() {
    let rig = Rig::start().await;
    let Rig { dedicated, owner, batch, whole, parts, .. } = &rig;
    // The expected results, from commits without a failure.
    let done = rig.visible_data(owner).await;
    let after_done = rig.commit_as_another_owner(rig.next_writes()).await;
    dedicated.server.go_back(&rig.first).expect("an earlier time");
    let untouched = rig.visible_data(owner).await;
    let otherwise = rig.commit_as_another_owner(other(&rig.keys)).await;

    for kept in 1..=rig.end {
        let what = format!("{} of {parts:?}", kept - 1);
        println!("{what}");
        let log = [&whole[..parts[kept].0], b"*1\r\n$4\r\nEXEC\r\n"].concat();
        let is_made = kept > rig.main;
        rig.start_with(&log);
        let (index, record) = rig.due_of(2);
        assert!(index <= record, "{what}: {index} is later than {record}");
        if !is_made {
            assert_eq!(rig.visible_data(owner).await, untouched, "{what}");
        }
        let again = until_applied(&dedicated.store, owner, batch).await;
        assert_eq!(again.refused, [], "{what}");
        // Data that the commit removes last may still be stored, but no reader sees it.
        assert_eq!(rig.visible_data(owner).await, done, "{what}");

        rig.start_with(&log);
        let (writes, right) =
            if is_made { (rig.next_writes(), &after_done) } else { (other(&rig.keys), &otherwise) };
        assert_eq!(&rig.commit_as_another_owner(writes).await, right, "{what}");
    }
}

/// The server is killed twice. The first kill comes while the server writes a commit to its log. Redis 7.0 leaves the
/// beginning of the commit in the log. At the start after the second kill, Redis executes this beginning together with
/// the commands that follow in the log.
#[tokio::test]
async fn log_cut_within_commit_is_recovered() {
    let rig = Rig::start().await;
    let mut after = rig.owner.clone();
    after.commit(&rig.dedicated.store, rig.next_writes()).await;
    let done = rig.visible_data(&after).await;
    rig.dedicated.server.go_back(&rig.first).expect("an earlier time");
    let otherwise = rig.commit_as_another_owner(other(&rig.keys)).await;
    for cut in 1..=rig.end {
        let next = rig.parts.get(cut + 1).map_or(rig.whole.len(), |(at, _)| *at);
        let middle = rig.parts[cut].0.midpoint(next);
        let what = format!("cut at {middle} in {cut} of {:?}", rig.parts);
        println!("{what}");
        rig.start_with(&rig.whole[..middle]);
        let again = until_applied(&rig.dedicated.store, &rig.owner, &rig.batch).await;
        assert_eq!(again.refused, [], "{what}");
        let mut owner = rig.owner.clone();
        owner.commit(&rig.dedicated.store, rig.next_writes()).await;
        rig.dedicated.server.restart().expect("a server that comes back");
        assert_eq!(rig.visible_data(&owner).await, done, "{what}");

        if cut <= rig.main {
            rig.start_with(&rig.whole[..middle]);
            rig.commit_as_another_owner(other(&rig.keys)).await;
            rig.dedicated.server.restart().expect("a server that comes back");
            assert_eq!(rig.visible_data(&rig.owner).await, otherwise, "{what}");
        }
    }
}

/// A commit may be too large for one command. No reader sees the new dead letters of a commit before the commit is
/// made. The store may therefore write them before the command that makes the commit, and must write no other data
/// before this command.
#[tokio::test]
async fn commit_too_large_for_one_call_is_atomic() {
    let dedicated = DedicatedStore::start().await;
    let store = &dedicated.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(2);
    let with_state = |sequence: u64| {
        let mut write = step(&keys[0], sequence);
        write.state = StateUpdate::Put(vec![sequence as u8; 5_000].into());
        write
    };
    let mut first = with_state(1);
    first.letters = vec![letter(&keys[0], 1, 0)];
    owner.write(store, first).await;
    let log = log(&dedicated);
    let mut second = with_state(2);
    let mut many = step(&keys[1], 1);
    let start = fs::read(&log).expect("a log").len();
    second.removed_letters = vec![letter(&keys[0], 1, 0).id];
    spill(&mut second, &[4], &[4]);
    many.letters = (0..4_000).map(|tag| letter(&keys[1], 1, tag)).collect();
    let batch = owner.batch(vec![second, many]);
    until_applied(store, &owner, &batch).await;
    let whole = fs::read(&log).expect("a log");
    let mut parts = commands(&whole);
    parts.retain(|(at, _)| *at >= start);
    let main = (1..parts.len() - 1)
        .find(|at| {
            let bytes = &whole[parts[*at].0..parts[at + 1].0];
            bytes.windows(6).any(|window| window == b"\r\nf0\r\n")
        })
        .expect("the fence");
    assert_eq!(parts[main - 1].1, "HSET", "no dead letters precede the write: {parts:?}");

    dedicated.server.kill().expect("an end");
    let cut = [&whole[..parts[main].0], b"*1\r\n$4\r\nEXEC\r\n"].concat();
    fs::write(&log, cut).expect("a log");
    dedicated.server.restart().expect("a server that comes back");
    let loaded = owner.load(store, &keys[0]).await.expect("a key record");
    assert_eq!((loaded.record.next, loaded.state), (2, Some(vec![1; 5_000].into())));
    assert!(store.letter("s", &letter(&keys[0], 1, 0).id).await.expect("a read").is_some());
    assert_eq!(owner.spilled(store, &keys[0], 2).await, [] as [u64; 0]);
    assert_eq!(owner.load(store, &keys[1]).await, None);

    until_applied(store, &owner, &batch).await;
    let loaded = owner.load(store, &keys[0]).await.expect("a key record");
    assert_eq!((loaded.record.next, loaded.state), (3, Some(vec![2; 5_000].into())));
    assert!(store.letter("s", &letter(&keys[0], 1, 0).id).await.expect("a read").is_none());
    assert_eq!(owner.spilled(store, &keys[0], 3).await, [4]);
}
