//! Tests of a sink's file on a failing disk. No line that the store counts as published may be lost.

use anyhow::{Context as _, Result, ensure};

use super::support::{OUT, Rig};

/// A power failure removes a new file if its folder was not synced. So the host must sync the folder before the store
/// counts lines of the file as published.
#[test]
fn new_file_survives_power_cut() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        let home = &rig.home;
        rig.service.until("published lines", || home.lines(OUT) > 0)?;
        // The commits of these later events record durably that the earlier lines are published.
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

/// A sync of the sink's file fails, and the disk never gets the lines of this sync. The host must end, and the next
/// process must write these lines again.
#[test]
fn failed_sync_of_file_loses_no_line() -> Result<()> {
    // The power fails right after the failed sync, or after the next process has accepted 10 or 500 events.
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
