//! Tests in which the store's folder is moved away or removed while a host uses it, or is copied as a backup.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Port, wait_until};
use ordain_tests::host::copy_folder;
use ordain_tests::service::Service;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::support::{DISK, LISTENING_WORDS, Producer, Rig, SINK_FILE, STORE, home};

/// The time for which a host may continue to accept events after the test has taken the store's folder away. The host's
/// log promises at most one second; the other second allows for a busy machine.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);
const COPIES: u64 = 5;
/// The upper limit of the random delay before a copy.
const COPY_DELAY_LIMIT_MS: u64 = 1_000;
/// The number of random bytes in each event. Events of this size make the storage engine move data between its files.
const PADDING_BYTES: usize = 12_000;

/// Waits until the host accepts events, and takes the store's folder away. The host must stop accepting events within a
/// second, end, and make no other folder.
fn take_folder(
    rig: &mut Rig,
    producer: &Producer,
    take: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    rig.until_accepted(producer, 200)?;
    let store = rig.home.path(STORE);
    take(&store)?;
    let taken_at = Instant::now();
    let status = rig.service.wait()?;
    let log = rig.service.stderr();
    ensure!(status.code() == Some(1), "the host ended with {status}: {log}");
    let after = producer.accepted_at().map(|at| at.saturating_duration_since(taken_at));
    ensure!(
        after.is_none_or(|after| after < ACCEPT_LIMIT),
        "the host accepted an event {after:?} after the loss of its folder"
    );
    for words in ["is missing or was replaced", "Events acknowledged in the last second"] {
        ensure!(log.contains(words), "the log lacks {words:?}: {log}");
    }
    ensure!(!store.exists(), "the host made another folder");
    Ok(())
}

/// Moves the store's folder away while the host runs. The host must stop accepting events within a second, and end. The
/// events that the host accepted in this second are in the moved folder, and must take effect when the folder is back.
#[test]
fn host_without_its_folder_stops_within_a_second() -> Result<()> {
    let mut rig = Rig::on_good_disk()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        let [store, aside] = [STORE, "disk/aside"].map(|name| rig.home.path(name));
        take_folder(rig, producer, |folder| Ok(fs::rename(folder, &aside)?))?;
        fs::rename(&aside, &store)?;
        rig.start_on_good_disk()?;
        rig.until_accepted(producer, 100)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

/// Removes the store's folder while the host runs. The host must stop accepting events within a second, and end. The
/// next start must log that it creates a new store, and accept events.
#[test]
fn host_whose_folder_is_removed_stops_within_a_second() -> Result<()> {
    let mut rig = Rig::on_good_disk()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        take_folder(rig, producer, |store| {
            // An attempt fails if the host creates a file in a folder that the attempt has just emptied.
            wait_until("a removed folder", || {
                Ok(fs::remove_dir_all(store).is_ok() || !store.exists())
            })
        })?;
        rig.start_on_good_disk()?;
        rig.service.until_says(LISTENING_WORDS)?;
        ensure!(logs_new_store(&rig.service.stderr()), "the host does not log its new store");
        rig.until_accepted(producer, 100)
    });
    accepted.with_context(|| rig.service.stderr())?;
    rig.service.end()
}

/// A user removes the lock file of a running host, and runs a command that opens the store. The host may end, but no
/// accepted event may be lost, and the next start must succeed.
#[test]
fn removed_lock_file_loses_no_event() -> Result<()> {
    let mut rig = Rig::on_good_disk()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        rig.until_accepted(producer, 200)?;
        fs::remove_file(rig.home.path(STORE).join("lock"))?;
        let listed = rig.home.output(&["keys", "list", "cases"])?;
        let log = String::from_utf8_lossy(&listed.stderr).into_owned();
        // The command succeeds if the host has ended before the command opens the store.
        ensure!([Some(0), Some(75)].contains(&listed.status.code()), "{}: {log}", listed.status);
        let status = rig.service.wait()?;
        ensure!(status.code() == Some(1), "the host ended with {status}");
        rig.start_on_good_disk()?;
        rig.until_accepted(producer, 100)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

fn logs_new_store(log: &str) -> bool {
    let is_creation = |line: &str| line.contains("created a new store in ") && line.contains(STORE);
    log.lines().any(is_creation)
}

/// If the store's folder is missing or empty at a start, the host creates a new store, and logs this with the path of
/// the folder. For example, the folder is empty if it is the mount point of a disk that is not mounted. A host that
/// finds its store in the folder must not log this line.
#[test]
fn only_a_new_folder_is_logged() -> Result<()> {
    let mut rig = Rig::on_good_disk()?;
    let mut starts_anew = |change: fn(&Path) -> Result<()>| -> Result<bool> {
        rig.service.until_says(LISTENING_WORDS)?;
        rig.service.end()?;
        change(&rig.home.path(STORE))?;
        rig.start_on_good_disk()?;
        rig.service.until_says(LISTENING_WORDS)?;
        Ok(logs_new_store(&rig.service.stderr()))
    };
    let keep = |_: &Path| -> Result<()> { Ok(()) };
    let remove = |store: &Path| -> Result<()> { Ok(fs::remove_dir_all(store)?) };
    let empty = |store: &Path| -> Result<()> {
        fs::remove_dir_all(store)?;
        Ok(fs::create_dir(store)?)
    };
    ensure!(!starts_anew(keep)?, "the host logs a new store although its folder exists");
    ensure!(starts_anew(remove)?, "the host does not log its new store");
    ensure!(!starts_anew(keep)?, "the host logs the new store at the next start too");
    ensure!(starts_anew(empty)?, "the host does not log its new store in an empty folder");
    ensure!(!starts_anew(keep)?, "the host logs the new store at the next start too");
    rig.service.end()
}

/// Copies the folder several times while the host is paused under load, and once after the host has ended. A host that
/// starts with a copy must have the effects of all events that were accepted before the copy.
#[test]
fn copies_of_paused_host_are_complete() -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut rig = Rig::on_good_disk()?;
    let mut copies: Vec<(PathBuf, usize)> = Vec::new();
    let accepted = rig.while_producing(PADDING_BYTES, |rig, producer| {
        for number in 0..COPIES {
            rig.until_accepted(producer, 10)?;
            sleep(Duration::from_millis(random.random_range(0..COPY_DELAY_LIMIT_MS)));
            let copy = rig.home.path(&format!("copy-{number}"));
            rig.service.pause()?;
            copy_folder(&rig.home.path(DISK), &copy)?;
            // The host accepted these events before it was paused, so the copy must contain them.
            copies.push((copy, producer.accepted()));
            rig.service.resume()?;
        }
        Ok(())
    })?;
    rig.check(&accepted)?;
    let copy = rig.home.path("copy-stopped");
    copy_folder(&rig.home.path(DISK), &copy)?;
    copies.push((copy, accepted.len()));
    for (copy, count) in copies {
        check_copy(&copy, &accepted[..count])
            .with_context(|| format!("{} of {count} events", copy.display()))?;
    }
    Ok(())
}

/// Starts a host with a copy of the folder, and checks that all of `events` take effect.
fn check_copy(copy: &Path, events: &[String]) -> Result<()> {
    let port = Port::take()?;
    let home = home(&port)?;
    fs::rename(copy, home.path(DISK))?;
    let expected: BTreeSet<(String, u64)> =
        events.iter().map(|event| key_and_sequence(event)).collect::<Result<_>>()?;
    let mut service = Service::start(&home, &["run"])?;
    let mut missing = expected.len();
    let arrived = service.until("the effects of all events", || {
        let effects = effects(&home.read(SINK_FILE)).unwrap_or_default();
        missing = expected.difference(&effects).count();
        missing == 0
    });
    arrived.with_context(|| format!("{missing} effects are missing: {}", service.stderr()))?;
    service.end()?;
    effects(&home.read(SINK_FILE))?;
    // The sink's file may show effects that the copied store lacks. So the test also reads the next sequences from the
    // store.
    let rows = home.rows(&["keys", "list", "cases", "--json", "--limit", "1000"])?;
    let next: BTreeMap<&str, u64> =
        rows.iter().filter_map(|row| Some((row["key"].as_str()?, row["next"].as_u64()?))).collect();
    let is_lost = |key: &str, sequence: u64| next.get(key).is_none_or(|next| *next <= sequence);
    let lost = expected.iter().filter(|(key, sequence)| is_lost(key, *sequence)).count();
    ensure!(lost == 0, "the store lacks {lost} events: {rows:?}");
    Ok(())
}

fn key_and_sequence(line: &str) -> Result<(String, u64)> {
    let event: Value = serde_json::from_str(line)?;
    let key = event["subject"].as_str().context("a key")?.to_owned();
    Ok((key, event["sequence"].as_u64().context("a sequence")?))
}

/// Returns the key and the sequence of each published message. The host may have published messages again, because the
/// store recognises the sink's file by its path, and the copied file has another path. A repeated message must have the
/// same id and the same content.
fn effects(out: &str) -> Result<BTreeSet<(String, u64)>> {
    let mut ids = BTreeMap::new();
    let mut effects = BTreeSet::new();
    for line in out.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let message: Value = serde_json::from_str(line)?;
        let data = &message["data"];
        let key = data["key"].as_str().context("a key")?.to_owned();
        effects.insert((key, data["sequence"].as_u64().context("a sequence")?));
        let id = message["id"].as_str().context("an id")?.to_owned();
        if let Some(before) = ids.insert(id, data.clone()) {
            ensure!(before == *data, "another message has the id of {line}");
        }
    }
    Ok(effects)
}
