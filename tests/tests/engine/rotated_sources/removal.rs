//! Files and folders that are removed or moved away. Some of them return.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Result, ensure};
use ordain_tests::log::{line, text, unnumbered};
use serde_json::json;

use super::support::{EVENTS, SINK_FILE, Writer};

/// The host ends before it has read the whole file. Then the test removes the file.
#[test]
fn removed_rest_is_reported_with_its_length() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 8_000)?;
    writer.create(EVENTS, 20_000)?;
    let length = writer.home.read(EVENTS).len() as u64;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    let mut service = writer.start_reading()?;
    service.end()?;
    let read = writer.home.lines(SINK_FILE);
    ensure!(read < 20_000, "the host had already read the whole file");
    let offset = text(&writer.lines[..read]).len() as u64;
    fs::remove_file(writer.home.path(EVENTS))?;
    writer.home.write(EVENTS, "")?;
    let log = writer.run_strictly()?;
    let words = format!("inode {inode}: at least {} bytes from byte {offset} on", length - offset);
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    Ok(())
}

/// The test compresses and uncompresses a file that the host has read to its end, and moves this file to another folder
/// and back.
#[test]
fn returned_file_is_not_read_again() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    writer.rotate()?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    fs::create_dir(writer.home.path("away"))?;
    let older = "events.ndjson.1";
    for is_moved in [false, true] {
        if is_moved {
            writer.rename(older, "away/file")?;
        } else {
            writer.compress(older)?;
        }
        writer.home.run_once()?;
        if is_moved {
            writer.rename("away/file", older)?;
        } else {
            writer.uncompress("events.ndjson.1.gz")?;
        }
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 0, "moved: {is_moved}: {report}");
    }
    // The host still reads lines that a program appends to the returned file.
    writer.append(older, 10)?;
    writer.home.run_once()?;
    writer.check()
}

/// Files that were rotated before the first start leave the folder, and return: uncompressed, moved back or copied. The
/// number of returned files is higher than the number of read files that the host remembers.
#[test]
fn ignored_file_that_returns_is_not_read() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    let older: Vec<String> = (1..=20).map(|number| format!("{EVENTS}.{number}")).collect();
    for (number, name) in older.iter().enumerate() {
        let events = (1..=3).map(|n| line("ignored", number as u64 * 3 + n, &json!({ "n": n })));
        writer.home.write(name, text(&unnumbered(&events.collect::<Vec<_>>())?))?;
    }
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    fs::create_dir(writer.home.path("away"))?;
    for way in ["compressed", "moved", "copied"] {
        for name in &older {
            match way {
                "compressed" => writer.compress(name)?,
                _ => writer.rename(name, &format!("away/{name}"))?,
            }
        }
        writer.append(EVENTS, 20)?;
        writer.home.run_once()?;
        for name in &older {
            match way {
                "compressed" => writer.uncompress(&format!("{name}.gz"))?,
                "moved" => writer.rename(&format!("away/{name}"), name)?,
                _ => writer.home.write(name, writer.home.read(&format!("away/{name}")))?,
            }
        }
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 0, "{way}: {report}");
    }
    writer.check()
}

/// The host holds only some of the files open. The test moves a file away that the host has not opened yet, and later
/// moves the file back.
#[test]
fn lost_file_that_returns_is_read_in_the_same_run() -> Result<()> {
    let mut writer = Writer::slow("e-*.ndjson", 3_000)?;
    for number in 100..240 {
        writer.create(&format!("e-{number}.ndjson"), 20)?;
    }
    fs::create_dir(writer.home.path("away"))?;
    let mut service = writer.start_reading()?;
    writer.rename("e-239.ndjson", "away/file")?;
    service.until_says("unread lines lost")?;
    writer.rename("away/file", "e-239.ndjson")?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check_output()
}

/// The folder of the file is missing for a while. The host must log when the source waits, and when the source
/// continues.
#[test]
fn folder_that_returns_is_reported() -> Result<()> {
    let mut writer = Writer::new("folder/events.ndjson", 10)?;
    fs::create_dir(writer.home.path("folder"))?;
    writer.create("folder/events.ndjson", 20)?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    writer.rename("folder", "away")?;
    service.until_says("source waits: the folder is missing")?;
    writer.rename("away", "folder")?;
    service.until_says("source continues: the folder is available again")?;
    writer.append("folder/events.ndjson", 30)?;
    writer.finish(&mut service)
}
