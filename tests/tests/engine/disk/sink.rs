//! The file of a sink on a disk that fails: no line that counts as published is lost.

use anyhow::{Context as _, Result, ensure};

use super::support::{OUT, Rig};

/// A new file is lost in a power failure if its folder was not synced. The host must therefore sync the folder before
/// the store counts lines of the file as published.
#[test]
fn new_file_survives_power_cut() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        let home = &rig.home;
        rig.service.until("published lines", || home.lines(OUT) > 0)?;
        // The commits of later events make it durable that the lines are published.
        rig.until_accepted(producer, 200)?;
        rig.cut_power()?;
        ensure!(rig.home.lines(OUT) > 0, "the file of the sink is lost");
        let log = rig.disk.log()?;
        let first = |ending: &str| log.lines().position(|line| line.ends_with(ending));
        let folder = first("/disk/out").context("the folder was not synced")?;
        let file = first("/disk/out/out.ndjson").context("the file was not synced")?;
        ensure!(folder < file, "the folder was synced after the file: {log}");
        rig.start_on_good_disk()?;
        rig.until_accepted(producer, 100)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

/// The disk never gets the lines that a failed sync should have written. The host must end, and the next process must
/// write these lines anew.
#[test]
fn failed_sync_of_file_loses_no_line() -> Result<()> {
    // The power fails right after the failed sync, or after some work of the next process.
    for more in [None, Some(10), Some(500)] {
        let mut rig = Rig::start()?;
        let accepted = rig.while_producing(0, |rig, producer| {
            rig.until_accepted(producer, 200)?;
            rig.disk.fail_next_sync("out.ndjson")?;
            rig.until_failed(1, OUT)?;
            if let Some(more) = more {
                rig.start_again()?;
                rig.until_accepted(producer, more)?;
            }
            rig.cut_power()?;
            rig.start_on_good_disk()?;
            rig.until_accepted(producer, 100)
        });
        let checked = accepted.and_then(|accepted| rig.check(&accepted));
        checked.with_context(|| format!("{more:?}: {}", rig.service.stderr()))?;
    }
    Ok(())
}
