//! Commits of which a server has kept a beginning: a script that ended half-way, or a log that was
//! cut off and read back in part (Redis executes such a beginning after the restart after next).
//! For each beginning: the same commit made again is as if it had been made once, and another
//! owner's commit is as if the first had never been there.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ordain::store::redis::Redis;
use ordain::store::{KeyFilter, Store};
use ordain_core::{
    Batch, Cause, Change, DeadLetter, JobWrite, Key, LetterContent, LetterId, TakenId,
};
use ordain_tests::conformance::{Owner, event};

use super::own::{Own, outbox, step, until_applied};

fn letter(key: &str, sequence: u64, tag: u64) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag },
        cause: Cause::Rejected,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    }
}

fn spill(write: &mut JobWrite, sequences: &[u64], all: &[u64]) {
    let key = write.key.clone();
    write.spill = sequences.iter().map(|it| (*it, event(&key, *it, "held"))).collect();
    all.iter().for_each(|sequence| write.job.spilled.add(*sequence));
}

fn take_id(write: &mut JobWrite, from: u64, sequence: u64) {
    write.job.ids_from = from;
    write.ids.push(TakenId { sequence, id: 100 + sequence, content: 7 });
}

/// What there is before: a key with everything, one that has expired with everything, a plain one.
fn before(keys: &[Key]) -> Vec<JobWrite> {
    let [mut full, mut expired, mut plain] = [0, 1, 2].map(|at| step(&keys[at], 1));
    for write in [&mut full, &mut expired] {
        spill(write, &[3, 5, 6], &[3, 5, 6]);
        take_id(write, 1, 1);
        write.state = Change::Put(vec![1; 10_000].into());
        write.due_in = Some(1_000_000);
    }
    full.letters = vec![letter(&keys[0], 1, 0), letter(&keys[0], 1, 1)];
    expired.expire_in = Some(0);
    plain.state = Change::Put("plain".into());
    vec![full, expired, plain]
}

/// The commit of which only a beginning is kept: it changes all of that.
fn last(keys: &[Key]) -> (Vec<JobWrite>, Vec<DeadLetter>) {
    let [mut full, mut again, mut plain] =
        [step(&keys[0], 2), step(&keys[1], 1), step(&keys[2], 2)];
    spill(&mut full, &[8], &[5, 6, 8]);
    full.job.next = 4;
    take_id(&mut full, 2, 2);
    full.state = Change::Delete;
    (full.consumed, full.letters) = (vec![letter(&keys[0], 1, 0).id], vec![letter(&keys[0], 2, 0)]);
    full.expire_in = Some(1_000_000);
    spill(&mut again, &[20], &[20]);
    again.state = Change::Put(vec![2; 10_000].into());
    take_id(&mut again, 1, 1);
    plain.due_in = Some(1_000_000);
    plain.state = Change::Keep;
    let new = step(&keys[3], 1);
    (vec![full, again, plain, new], vec![letter("", 0, 9)])
}

/// What another owner commits under the same number.
fn other(keys: &[Key]) -> Vec<JobWrite> {
    let [mut full, mut again, mut plain] =
        [step(&keys[0], 2), step(&keys[1], 1), step(&keys[2], 2)];
    spill(&mut full, &[7], &[3, 5, 6, 7]);
    take_id(&mut full, 1, 2);
    spill(&mut again, &[4], &[4]);
    plain.state = Change::Put("other".into());
    let mut new = step(&keys[3], 1);
    new.state = Change::Put("new".into());
    spill(&mut new, &[9], &[9]);
    vec![full, again, plain, new]
}

/// All that can be seen of a shard, without times.
async fn seen(store: &Redis, owner: &Owner, keys: &[Key]) -> String {
    let mut seen = Vec::new();
    let loaded = store.load(&owner.partition, keys, usize::MAX).await.expect("a load");
    for (key, loaded) in keys.iter().zip(loaded) {
        let spilled = owner.spilled(store, key, 0).await;
        seen.push(format!("{key}: spilled {spilled:?}"));
        let Some(mut loaded) = loaded.expect("a job that can be read") else { continue };
        loaded.job.incarnation = 0;
        let times = (loaded.due_in.is_some(), loaded.expire_in.is_some());
        let (job, ids, state) = (loaded.job, loaded.ids, loaded.state.map(|state| state.len()));
        seen.push(format!("{key}: {job:?} {times:?} {ids:?} {state:?}"));
    }
    let due = store.due(&owner.partition, None, 100, true).await.expect("the index").0;
    let mut due: Vec<_> = due.into_iter().map(|(_, key)| key).collect();
    due.sort();
    seen.push(format!("due {due:?}"));
    let page = store.letters("s", None, None, 100).await.expect("letters");
    seen.extend(page.rows.iter().map(|row| format!("{:?}", row.letter.id)));
    for entry in outbox(store, owner, owner.shard(&keys[0])).await {
        let messages = entry.messages.iter().map(|it| (it.key.clone(), it.emitted.sequence));
        seen.push(format!("out {} {:?}", entry.number, messages.collect::<Vec<_>>()));
    }
    let filter = KeyFilter { limit: 100, ..KeyFilter::default() };
    let mut rows = store.keys("s", &filter).await.expect("keys").rows;
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    seen.extend(rows.iter().map(|row| format!("row {} {}", row.key, row.state_size)));
    seen.join("\n")
}

/// The server's log.
fn log(own: &Own) -> PathBuf {
    let files = fs::read_dir(own.server.data().join("appendonlydir")).expect("a folder");
    let mut paths = files.map(|file| file.expect("a file").path());
    paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("a log")
}

/// Where each command of a log begins, with its name.
fn commands(log: &[u8]) -> Vec<(usize, String)> {
    let number = |at: &mut usize| -> usize {
        let end = *at + log[*at..].iter().position(|byte| *byte == b'\r').expect("a line");
        let digits = std::str::from_utf8(&log[*at + 1..end]).expect("a number");
        *at = end + 2;
        digits.parse().expect("a number")
    };
    let (mut at, mut all) = (0, Vec::new());
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

#[tokio::test]
async fn a_commit_of_which_only_a_beginning_is_kept() {
    let own = Own::start().await;
    let store = &own.store;
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(4);
    owner.commit(store, before(&keys)).await;
    let (writes, letters) = last(&keys);
    let batch = Arc::new(Batch { letters, ..(*owner.batch(writes)).clone() });
    let at_first = own.server.snapshot().expect("a snapshot");
    let file = log(&own);
    let start = fs::read(&file).expect("a log").len();

    // As it is without any fault.
    let untouched = seen(store, &owner, &keys).await;
    let applied = until_applied(store, &owner, &batch).await;
    assert_eq!(applied.refused, []);
    let whole = fs::read(&file).expect("a log");
    let done = seen(store, &owner, &keys).await;
    let mut next = Owner::claim(store, "s", 0).await;
    let after_done = {
        let mut full = step(&keys[0], 4);
        spill(&mut full, &[9], &[5, 6, 8, 9]);
        next.commit(store, vec![full]).await;
        seen(store, &next, &keys).await
    };
    own.server.go_back(&at_first).expect("an earlier time");
    let mut next = Owner::claim(store, "s", 0).await;
    next.commit(store, other(&keys)).await;
    let otherwise = seen(store, &next, &keys).await;

    // What the transaction does, and up to where it has been only prepared.
    let parts: Vec<_> = commands(&whole).into_iter().filter(|(at, _)| *at >= start).collect();
    assert_eq!(parts[0].1, "MULTI", "{parts:?}");
    let end = parts.iter().position(|(_, name)| name == "EXEC").expect("an end");
    let main = (1..end)
        .find(|at| {
            let (from, to) = (parts[*at].0, parts[at + 1].0);
            let is_fence = |window: &[u8]| window == b"\r\nf0\r\n";
            whole[from..to].windows(6).any(is_fence)
        })
        .expect("the fence");
    assert!(main > 5 && end > main + 5, "{parts:?}");
    for kept in 1..=end {
        let log_of_it = [&whole[..parts[kept].0], b"*1\r\n$4\r\nEXEC\r\n"].concat();
        let begin = || {
            own.server.kill().expect("an end");
            fs::write(&file, &log_of_it).expect("a log");
            own.server.restart().expect("a server that comes back");
        };
        let is_made = kept > main;
        begin();
        let what = format!("{} of {parts:?}", kept - 1);
        let now = seen(store, &owner, &keys).await;
        if !is_made {
            assert_eq!(now, untouched, "{what}");
        }
        let again = until_applied(store, &owner, &batch).await;
        assert_eq!(again.refused, [], "{what}");
        // Only what is removed after the commit may still be there.
        if kept < main || kept == end {
            assert_eq!(seen(store, &owner, &keys).await, done, "{what}");
        }

        begin();
        let mut next = Owner::claim(store, "s", 0).await;
        let (writes, right) = if is_made {
            let mut full = step(&keys[0], 4);
            spill(&mut full, &[9], &[5, 6, 8, 9]);
            (vec![full], &after_done)
        } else {
            (other(&keys), &otherwise)
        };
        let applied = next.commit(store, writes).await;
        assert_eq!(applied.refused, [], "{what}");
        assert_eq!(&seen(store, &next, &keys).await, right, "{what}");
    }
}
