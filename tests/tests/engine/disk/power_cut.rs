//! Tests of power failures, with and without a failed sync before them. Every event that was answered with 202 must
//! take effect once.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::Port;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::support::{DISK, LISTENING_WORDS, Rig, SINK_FILE, STORE, home};
use super::synced::SyncedDisk;

/// The number of random generators, each with its own seed and its own host.
const SEEDS: u64 = 3;
const CUTS: usize = 4;
/// The upper limit of the random delay from the first accepted events after a start to the power cut.
const CUT_DELAY_LIMIT_MS: u64 = 400;
/// The distance between the calls that fail in two consecutive starts: in each start, the test makes another open or
/// another read fail.
const FAILED_CALL_STEP: usize = 5;
/// The minimum number of starts that end because of a failed open or a failed read. A start makes more than a hundred
/// opens, and more than a hundred reads.
const FAILURES_MIN: usize = 10;
/// The number of random bytes in a large event. The storage engine writes values of this size into separate files.
const LARGE_PADDING_BYTES: usize = 48_000;
const LARGE_CUTS: usize = 3;
const JOURNAL: &str = ".jnl";
/// The ends of the paths for which the test makes a sync fail: the journal and the sink's file.
const FAILING_SYNC_ENDINGS: [&str; 2] = [JOURNAL, "out.ndjson"];

/// The power fails at random moments, in about half of the cases after a failed sync. The host must sync an event
/// before it acknowledges the event, and a line of the sink before it marks the line as published.
#[test]
fn acknowledged_events_survive_power_cuts() -> Result<()> {
    for seed in 1..=SEEDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut rig = Rig::start()?;
        let accepted = rig.while_producing(0, |rig, producer| {
            for _ in 0..CUTS {
                rig.until_accepted(producer, 10)?;
                if random.random_bool(0.5) {
                    rig.disk.fail_next_sync(
                        FAILING_SYNC_ENDINGS.choose(&mut random).context("an ending")?,
                    )?;
                }
                sleep(Duration::from_millis(random.random_range(0..CUT_DELAY_LIMIT_MS)));
                rig.cut_power()?;
                rig.start_again()?;
            }
            rig.until_accepted(producer, 10)
        });
        let checked = accepted.and_then(|accepted| rig.check(&accepted));
        checked.with_context(|| format!("seed {seed}: {}", rig.service.stderr()))?;
    }
    Ok(())
}

/// A stream reads a file on another disk, which loses nothing. The power fails repeatedly while the host has unfinished
/// work. After each failure, the host must continue at a position that its store still has. Each line must take effect
/// once.
#[test]
fn lines_of_a_file_survive_power_cuts() -> Result<()> {
    let config = format!(
        "[store]\nkind = \"embedded\"\npath = \"{STORE}\"\n\
         [streams.cases]\nhandler = \"tally\"\n\
         source = {{ kind = \"file\", path = \"events.ndjson\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"{SINK_FILE}\"\n"
    );
    let home = Home::new(&["tally"], &config)?;
    home.write("events.ndjson", "")?;
    let disk = SyncedDisk::create(&home, DISK, &["store", "out"])?;
    let start = || Service::start_with(&home, &["run"], &disk.env());
    let lines = in_turn(20, 400);
    for part in lines.chunks(1_000) {
        let before = home.lines(SINK_FILE);
        home.append("events.ndjson", text(part))?;
        let mut service = start()?;
        service.until("further messages", || home.lines(SINK_FILE) > before)?;
        service.kill()?;
        disk.cut_power()?;
    }
    let mut service = start()?;
    service.until("all messages", || home.lines(SINK_FILE) >= lines.len())?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read(SINK_FILE))
}

/// The storage engine writes large values into separate files, and then a new version of the table, which lists these
/// files. Their names must reach the disk before the new version does. Otherwise, the store would not open after a
/// power cut.
#[test]
fn files_of_large_values_survive_power_cuts() -> Result<()> {
    let mut rig = Rig::start()?;
    let store = rig.home.path(STORE);
    let accepted = rig.while_producing(LARGE_PADDING_BYTES, |rig, producer| {
        for _ in 0..LARGE_CUTS {
            let before = versions_with_values(&store);
            rig.service
                .until("new files of large values", || versions_with_values(&store) > before)?;
            rig.until_accepted(producer, 10)?;
            rig.cut_power()?;
            rig.start_again()?;
        }
        rig.until_accepted(producer, 10)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

/// A first start creates the store's folder and the missing parents of the folder. The power fails after the first
/// accepted event. The folder must survive, even if its path is relative and consists of a single name.
#[test]
fn new_folder_of_store_survives_power_cut() -> Result<()> {
    for path in ["ordain-data", "new/inner/ordain-data"] {
        cut_power_after_creation(path).with_context(|| path.to_owned())?;
    }
    Ok(())
}

/// Runs the test [`new_folder_of_store_survives_power_cut`] once. `path` is the setting `store.path`. The host runs in
/// the folder that represents the disk.
fn cut_power_after_creation(path: &str) -> Result<()> {
    let port = Port::take()?;
    let home = home(&port)?;
    let disk = SyncedDisk::create(&home, DISK, &[])?;
    let config = home.read("ordain.toml").replace(STORE, path).replace(SINK_FILE, "../out.ndjson");
    let config = format!("{config}[plugins]\ndir = \"../plugins\"\n");
    let mut env = vec!["env".to_owned(), format!("--chdir={DISK}")];
    env.extend(disk.env().iter().map(|(name, value)| format!("{name}={}", value.display())));
    let start = || -> Result<Service> {
        // The power failure also removes the configuration, because no program has synced it.
        home.write(&format!("{DISK}/ordain.toml"), &config)?;
        let mut service = Service::start_by(&home, &env, &["run"])?;
        service.until_says(LISTENING_WORDS)?;
        Ok(service)
    };

    let mut service = start()?;
    let event = line("k0", 1, &json!({ "n": 1 }));
    let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let answer = http::post(address, http::LINES_TYPE, &text(std::slice::from_ref(&event)))?;
    ensure!(answer.status == 202, "{answer:?}");
    service.kill()?;
    disk.cut_power()?;

    let mut service = start()?;
    let log = service.stderr();
    ensure!(!log.contains("created a new store"), "the folder of the store is lost: {log}");
    service.until("the effect of the event", || home.lines("out.ndjson") >= 1)?;
    service.end()?;
    tally::check(&by_key(&[event])?, &home.read("out.ndjson"))
}

/// Returns the sum of the version numbers of all tables that have separate files for large values. The version number
/// of a table increases when the engine has written files for the table.
fn versions_with_values(store: &Path) -> u64 {
    let tables = fs::read_dir(store.join("data/keyspaces")).into_iter().flatten().flatten();
    let versions = tables.filter_map(|table| {
        fs::read_dir(table.path().join("blobs")).ok()?.next()?.ok()?;
        let current = fs::read(table.path().join("current")).ok()?;
        Some(u64::from_le_bytes(*current.first_chunk()?))
    });
    versions.sum()
}

/// A sync of the journal fails. The next process still reads the unsynced data from the memory of the operating system,
/// but the disk never gets this data. So the next process must rewrite the journal before it acknowledges events, even
/// if a first attempt to rewrite the journal fails.
#[test]
fn failed_sync_before_power_cut_loses_nothing() -> Result<()> {
    for (more, fails_again) in
        [(10, None), (200, None), (1_000, None), (200, Some(".anew")), (200, Some("/data.before"))]
    {
        let mut rig = Rig::start()?;
        let accepted = rig.while_producing(0, |rig, producer| {
            rig.until_accepted(producer, 200)?;
            rig.disk.fail_next_sync(JOURNAL)?;
            rig.until_failed(1, "disk/store has failed")?;
            if let Some(ending) = fails_again {
                rig.disk.fail_next_sync(ending)?;
                rig.start_again()?;
                rig.until_failed(75, "cannot read or copy the journal")?;
            }
            rig.start_again()?;
            rig.until_accepted(producer, more)?;
            rig.cut_power()?;
            rig.start_on_good_disk()?;
            rig.until_accepted(producer, 100)
        });
        let checked = accepted.and_then(|accepted| rig.check(&accepted));
        checked.with_context(|| format!("{more}, {fails_again:?}: {}", rig.service.stderr()))?;
    }
    Ok(())
}

/// A sync fails once while the host creates or opens its store. The exit code must be 75, so that a supervisor
/// starts the host again. The next start must succeed.
#[test]
fn failed_sync_at_a_start_is_temporary() -> Result<()> {
    for (ending, words) in [
        ("/ordain.store.new", "cannot use disk/store for the store now"),
        ("/disk/store", "cannot use disk/store for the store now"),
        ("/data.new", "disk/store/data.new"),
        (JOURNAL, "cannot open the database in disk/store/data.new"),
    ] {
        let mut rig = Rig::with_failing_sync(ending)?;
        rig.until_failed(75, words).with_context(|| ending.to_owned())?;
        rig.start_again()?;
        rig.service.until_says(LISTENING_WORDS)?;
        rig.service.end()?;
        // The store exists now, and was closed cleanly.
        rig.disk.fail_next_sync("/disk/store")?;
        rig.start_again()?;
        rig.until_failed(75, "cannot read or copy the journal")?;
        rig.start_again()?;
        rig.service.until_says(LISTENING_WORDS)?;
        rig.service.end()?;
    }
    Ok(())
}

/// An open or a read of a file of the store fails once while a host opens the store of a killed host. The exit code
/// must be 75, so that a supervisor starts the host again, or the host must continue. No event may be lost.
#[test]
fn failed_open_or_read_at_a_start_is_temporary() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| rig.until_accepted(producer, 200))?;
    for call in ["open", "read"] {
        let mut failures = 0;
        for number in (1..).step_by(FAILED_CALL_STEP) {
            rig.service.kill()?;
            rig.disk.fail_call(call, number, "/store/")?;
            rig.start_again()?;
            wait_until("a listener or the end of the host", || {
                Ok(!rig.service.is_running()? || rig.service.stderr().contains(LISTENING_WORDS))
            })?;
            let has_ended = !rig.service.is_running()?;
            if rig.disk.cancel_call(call)? {
                ensure!(!has_ended, "{call} {number}: {}", rig.service.stderr());
                break;
            }
            if has_ended {
                failures += 1;
                rig.until_failed(75, "disk/store").with_context(|| format!("{call} {number}"))?;
            }
        }
        ensure!(failures >= FAILURES_MIN, "only {failures} failures of {call}");
    }
    rig.check(&accepted)
}

/// The storage engine writes tables in a background thread. If this thread fails, later writes return an error without
/// the reason of the operating system. The host must report this reason nevertheless.
#[test]
fn failure_of_the_background_thread_is_reported_with_its_reason() -> Result<()> {
    for ending in ["/blobs/0", "/tables", "current"] {
        let mut rig = Rig::start()?;
        let accepted = rig.while_producing(LARGE_PADDING_BYTES, |rig, producer| {
            rig.until_accepted(producer, 10)?;
            rig.disk.fail_next_sync(ending)?;
            rig.until_failed(1, "disk/store has failed")?;
            let log = rig.service.stderr();
            let reason = log.lines().last().context("a last line")?;
            let words = format!("{ending}: {reason}; {:?}", producer.errors());
            ensure!(reason.starts_with("error: the store in disk/store has failed"), words);
            ensure!(reason.contains("Input/output error") && !words.contains("Poisoned"), words);
            rig.start_again()?;
            rig.until_accepted(producer, 10)
        });
        let checked = accepted.and_then(|accepted| rig.check(&accepted));
        checked.with_context(|| rig.service.stderr())?;
    }
    Ok(())
}

/// The store cannot write the file that contains the number of answered groups of requests. The host must report this
/// failure once, and must continue to accept and to execute events.
#[test]
fn host_continues_without_the_count_of_answered_requests() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        rig.until_accepted(producer, 50)?;
        rig.disk.make_read_only("/store/answered")?;
        rig.service.until_says("cannot write disk/store/answered: Read-only file system")?;
        rig.until_accepted(producer, 200)?;
        let log = rig.service.stderr();
        let reports = log.matches("the next start cannot always detect the loss").count();
        ensure!(reports == 1, "{log}");
        rig.disk.make_writable()
    })?;
    rig.check(&accepted)
}

/// Shows that [`failed_sync_before_power_cut_loses_nothing`] can detect a fault. The file `closed` states that the
/// whole journal is on the disk. With this file, the process after the failed sync does not rewrite the journal, and
/// acknowledged events are lost.
#[test]
fn journal_that_is_not_rewritten_loses_events() -> Result<()> {
    let mut rig = Rig::start()?;
    rig.while_producing(0, |rig, producer| {
        rig.until_accepted(producer, 200)?;
        rig.disk.fail_next_sync(JOURNAL)?;
        rig.until_failed(1, "disk/store has failed")?;
        fs::write(rig.home.path(STORE).join("closed"), "")?;
        rig.start_again()?;
        rig.until_accepted(producer, 200)?;
        rig.cut_power()?;
        rig.start_on_good_disk()?;
        rig.until_accepted(producer, 100)
    })?;
    // The host reports the lost events as missing when later events of their keys arrive.
    rig.service.until_says("never arrived")?;
    rig.service.end()
}
