//! Power failures, alone and after failed syncs: every event that was answered with 202 takes effect once.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::support::{Rig, STORE};

const SEEDS: u64 = 3;
const CUTS: usize = 4;
/// The longest time between an accepted event after a start and the power cut.
const CUT_DELAY_LIMIT_MS: u64 = 400;
/// The number of random bytes in an event that is much larger than the values that the engine keeps with their keys.
const LARGE_PADDING_BYTES: usize = 48_000;
/// The number of power cuts with large values.
const LARGE_CUTS: usize = 3;
/// The ending of the name of a journal.
const JOURNAL: &str = ".jnl";
/// The endings of paths whose sync may fail: the journal and the sink's file.
const FAILING_SYNC_ENDINGS: [&str; 2] = [JOURNAL, "out.ndjson"];

/// The power fails at random moments, and half of the time a sync fails before. The host must not acknowledge an
/// event, and must not mark a line as published, before the sync.
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

/// The engine writes large values into files of their own, and then a version that names these files. The names of the
/// files must be on the disk before the version: otherwise a power cut leaves a store that does not open.
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

/// Returns the sum of the numbers of versions of all tables that have files with large values. A version grows when the
/// engine has written files.
fn versions_with_values(store: &Path) -> u64 {
    let tables = fs::read_dir(store.join("data/keyspaces")).into_iter().flatten().flatten();
    let versions = tables.filter_map(|table| {
        fs::read_dir(table.path().join("blobs")).ok()?.next()?.ok()?;
        let current = fs::read(table.path().join("current")).ok()?;
        Some(u64::from_le_bytes(*current.first_chunk()?))
    });
    versions.sum()
}

/// A sync of the journal fails, and the next process reads from memory what the disk never gets. The next process must
/// write the journal anew before it acknowledges events, even if its first attempt fails too.
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

/// Shows that the test above can fail. The file `closed` says that the journal is on the disk. With this file, the
/// process after the failed sync trusts the journal, and acknowledged events are lost.
#[test]
fn journal_that_is_not_written_anew_loses_events() -> Result<()> {
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
    // The host misses the lost events before the later events of their keys.
    rig.service.until_says("never arrived")?;
    rig.service.end()
}
