//! Log rotation that copies the file and then truncates it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};

use super::support::{EVENTS, SINK_FILE, Writer};

#[test]
fn copied_and_truncated_file_is_read_to_its_end() -> Result<()> {
    // In the first part of the test, the host does not run while the files change.
    let mut writer = Writer::after_run(100, 50)?;
    for _ in 0..2 {
        writer.append(EVENTS, 20)?;
        writer.copy_and_truncate()?;
    }
    writer.append(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.check().context("stopped")?;

    // In the second part of the test, the host runs or is paused while the files change.
    let mut service = writer.start()?;
    for pauses in [false, true, false, true] {
        if pauses {
            service.pause()?;
        }
        writer.append(EVENTS, 20)?;
        writer.copy_and_truncate()?;
        writer.append(EVENTS, 30)?;
        if pauses {
            service.resume()?;
        }
        writer.until_all(&mut service)?;
    }
    service.end()?;
    writer.check().context("running")
}

/// The program does not append to the file, but writes at the position where its previous write ended. So after a
/// truncation, the file begins with NULs.
#[test]
fn files_that_begin_with_nuls_are_distinguished() -> Result<()> {
    let mut writer = Writer::after_run(100, 60)?;
    for rotations in [1, 2] {
        for _ in 0..rotations {
            let length = fs::metadata(writer.home.path(EVENTS))?.len();
            writer.copy_and_truncate()?;
            let next = writer.next(60);
            let file = File::options().write(true).open(writer.home.path(EVENTS))?;
            file.write_all_at(next.as_bytes(), length)?;
        }
        writer.home.run_once()?;
    }
    writer.check()
}

/// The reader waits for the handler while another program copies and truncates the file.
#[test]
fn file_is_copied_and_truncated_while_the_handler_is_slow() -> Result<()> {
    let mut writer = Writer::slow(EVENTS, 4_000)?;
    writer.create(EVENTS, 3_500)?;
    let mut service = writer.start_reading()?;
    writer.copy_and_truncate()?;
    service.until("further messages", || writer.home.lines(SINK_FILE) > 1_500)?;
    writer.append(EVENTS, 10)?;
    writer.finish(&mut service)
}

/// The host has read lines that a program appended between the copy and the truncation. The copy lacks these lines. The
/// host must still recognise the copy, and must not read it again.
#[test]
fn shorter_copy_is_not_read_again() -> Result<()> {
    let mut writer = Writer::after_run(40, 100)?;
    fs::copy(writer.home.path(EVENTS), writer.home.path("events.ndjson.1"))?;
    writer.append(EVENTS, 10)?;
    writer.home.run_once()?;
    writer.truncate(EVENTS)?;
    writer.append(EVENTS, 10)?;
    let report = writer.home.run_once()?;
    ensure!(report["delivered"] == 10, "{report}");
    writer.check()
}

/// The host has read nothing of the file before another program copies and truncates it. In the second part of the
/// test, a rotation also renames the truncated file.
#[test]
fn copy_of_an_unread_file_is_read_first() -> Result<()> {
    for is_renamed in [false, true] {
        let mut writer = Writer::new(EVENTS, 40)?;
        writer.home.write(EVENTS, "")?;
        writer.home.run_once()?;
        writer.append(EVENTS, 20)?;
        writer.copy_and_truncate()?;
        writer.append(EVENTS, 20)?;
        if is_renamed {
            writer.rotate()?;
            writer.create(EVENTS, 20)?;
        }
        writer.home.run_once()?;
        writer.check()?;
    }
    Ok(())
}

/// The host knows the length of the file `e-b.ndjson`, but has read nothing of this file when the test truncates it. In
/// the last part of the test, the file then grows beyond its earlier length.
#[test]
fn truncated_unread_file_is_reported_unless_copied() -> Result<()> {
    for (is_copied, has_grown) in [(true, false), (false, false), (false, true)] {
        let mut writer = Writer::slow("e-*.ndjson", 4_000)?;
        writer.create("e-a.ndjson", 3_500)?;
        let unread = if is_copied { writer.next(20) } else { "a line that is lost\n".repeat(20) };
        writer.home.write("e-b.ndjson", unread)?;
        let mut service = writer.start_reading()?;
        service.kill()?;
        let [file, copy] = ["e-b.ndjson", "e-b.ndjson.1"].map(|name| writer.home.path(name));
        if is_copied {
            fs::copy(file, copy)?;
        }
        writer.truncate("e-b.ndjson")?;
        if has_grown {
            writer.append("e-b.ndjson", 10)?;
        }
        if is_copied {
            writer.home.run_once()?;
        } else {
            let log = writer.run_strictly()?;
            ensure!(log.contains("at least 400 bytes from byte 0 on were not read"), "{log}");
        }
        writer.append("e-b.ndjson", 10)?;
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 10 && report["dead_total"] == 0, "{report}");
        writer.check_output()?;
        let letters = writer.letters()?;
        ensure!(letters.len() == usize::from(!is_copied), "{letters:?}");
    }
    Ok(())
}
