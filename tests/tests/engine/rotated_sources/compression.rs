//! Files that a program compresses or uncompresses. The host cannot read a compressed file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use anyhow::{Context as _, Result, ensure};
use ordain_tests::log::text;

use super::support::{EVENTS, SINK_FILE, Writer};

/// The host cannot read a compressed file, and reports the lines in this file that it has not read yet. When the file
/// is uncompressed again, the host reads these lines.
#[test]
fn rest_in_compressed_file_is_reported() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    writer.append(EVENTS, 10)?;
    let rest = writer.written;
    writer.rotate()?;
    writer.gzip("events.ndjson.1", "-k")?;
    fs::remove_file(writer.home.path("events.ndjson.1"))?;
    writer.home.write(EVENTS, "")?;
    let log = writer.run_strictly()?;
    let expected = [format!("inode {inode}"), "events.ndjson.1.gz".to_owned()];
    for words in &expected {
        ensure!(log.contains(&**words), "the log lacks {words:?}: {log}");
    }
    let letters = writer.letters()?;
    ensure!(
        letters.len() == 1
            && letters[0]["error"]
                .as_str()
                .is_some_and(|error| { expected.iter().all(|words| error.contains(&**words)) }),
        "{letters:?}"
    );
    // The next run does not report the loss again.
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    ensure!(writer.home.lines(SINK_FILE) == rest - 10);
    writer.uncompress("events.ndjson.1.gz")?;
    writer.append(EVENTS, 10)?;
    writer.home.run_once()?;
    writer.check_output()
}

/// The path of the source names a file that a program has compressed after it appended lines to the file. The host
/// reports these lines. While the host runs, a program slowly uncompresses the file under its own name.
#[test]
fn slowly_uncompressed_file_with_a_name_in_the_path_is_not_read_again() -> Result<()> {
    let mut writer = Writer::new("orders-*.ndjson", 1_000)?;
    writer.create("orders-1.ndjson", 3_000)?;
    writer.home.run_once()?;
    writer.create("orders-2.ndjson", 20)?;
    writer.home.run_once()?;
    writer.append("orders-1.ndjson", 100)?;
    let content = writer.home.read("orders-1.ndjson");
    writer.compress("orders-1.ndjson")?;
    let compressed = writer.home.path("orders-1.ndjson.gz");
    if fs::metadata(&compressed)?.created().is_err() {
        return Ok(());
    }
    writer.run_strictly()?;
    let mut service = writer.start()?;
    service.until_says("ready: stream cases receives")?;
    let (half, rest) = content.split_at(content.len() / 2);
    writer.home.write("orders-1.ndjson", half)?;
    service.until_says("file not read yet")?;
    writer.home.append("orders-1.ndjson", rest)?;
    fs::remove_file(&compressed)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check_output()
}

/// A compressed file is damaged, and an operator recovers only its first lines. The compressed file stays in the
/// folder. The host logs that it does not read the lines yet, and reads them when the new file has not changed for a
/// minute.
#[test]
fn part_of_a_damaged_compressed_file_is_read() -> Result<()> {
    let older = "events.ndjson.3";
    let mut writer = Writer::after_run(100, 20)?;
    writer.home.write(older, text(&writer.lines[20..]))?;
    writer.compress(older)?;
    let compressed = File::options().write(true).open(writer.home.path("events.ndjson.3.gz"))?;
    if compressed.metadata()?.created().is_err() {
        return Ok(());
    }
    let length = compressed.metadata()?.len();
    compressed.set_len(length - length / 4)?;
    // The file states a length that exceeds the length of the recovered lines.
    compressed.write_all_at(&u32::MAX.to_le_bytes(), length - length / 4 - 4)?;
    writer.run_strictly()?;
    writer.create(older, 100)?;
    let output = writer.home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("file not read yet"), "{log}");
    ensure!(writer.home.lines(SINK_FILE) == 20, "{log}");
    let modified = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
    File::options().write(true).open(writer.home.path(older))?.set_modified(modified)?;
    writer.home.run_once()?;
    writer.check_output()
}

/// A rotation may compress a file that the host has read to its end, or a copy of such a file.
#[test]
fn compressed_file_without_rest_is_not_reported() -> Result<()> {
    for is_copied in [false, true] {
        let mut writer = Writer::after_run(40, 50)?;
        for _ in 0..2 {
            if is_copied {
                writer.copy_and_truncate()?;
            } else {
                writer.rotate()?;
                writer.home.write(EVENTS, "")?;
            }
            writer.compress("events.ndjson.1")?;
            writer.append(EVENTS, 10)?;
            writer.home.run_once()?;
        }
        writer.check().with_context(|| format!("copied: {is_copied}"))?;
    }
    Ok(())
}

/// A rotation copies the file, compresses the copy and truncates the file, before the host has read the last lines.
#[test]
fn rest_in_compressed_copy_is_reported() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    writer.append(EVENTS, 10)?;
    let length = writer.home.read(EVENTS).len();
    writer.copy_and_truncate()?;
    writer.compress("events.ndjson.1")?;
    let log = writer.run_strictly()?;
    let words = format!("events.ndjson.1.gz, which is compressed and contains {length} bytes");
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.letters()?;
    ensure!(letters.len() == 1, "{letters:?}");
    writer.uncompress("events.ndjson.1.gz")?;
    writer.append(EVENTS, 10)?;
    writer.home.run_once()?;
    writer.check_output()
}

/// While the host is stopped, a program appends lines to the file, compresses the file, and creates a new file of the
/// same name.
#[test]
fn rest_in_compressed_file_beside_a_new_file_is_reported() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    writer.append(EVENTS, 10)?;
    let length = writer.home.read(EVENTS).len();
    writer.compress(EVENTS)?;
    writer.home.write(EVENTS, "")?;
    let log = writer.run_strictly()?;
    let words = format!("events.ndjson.gz, which is compressed and contains {length} bytes");
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.letters()?;
    ensure!(letters.len() == 1, "{letters:?}");
    writer.rename("events.ndjson.gz", "events.ndjson.1.gz")?;
    writer.uncompress("events.ndjson.1.gz")?;
    writer.append(EVENTS, 10)?;
    writer.home.run_once()?;
    writer.check_output()
}

/// While the host is paused, a rotation compresses the file that the host reads, and two files that the host has never
/// found. The host reads the rest of the first file, and reports the two other files. When these files are uncompressed
/// again, the host reads their lines.
#[test]
fn compressed_files_that_were_never_read_are_reported() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    // This file was compressed before the first start.
    writer.home.write("events.ndjson.7", "no event\n")?;
    writer.compress("events.ndjson.7")?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    service.pause()?;
    writer.append(EVENTS, 10)?;
    writer.compress_as(4)?;
    for number in [3, 2] {
        writer.create(EVENTS, 20)?;
        writer.compress_as(number)?;
    }
    writer.home.write(EVENTS, "")?;
    service.resume()?;
    service.until("the rest of the first file", || writer.home.lines(SINK_FILE) == 30)?;
    for name in ["events.ndjson.3.gz", "events.ndjson.2.gz"] {
        service.until_lines(1, &["unread lines lost", name])?;
    }
    for number in [3, 2] {
        writer.uncompress(&format!("{EVENTS}.{number}.gz"))?;
    }
    writer.until_all(&mut service)?;
    service.end()?;
    for number in [3, 2] {
        writer.compress(&format!("{EVENTS}.{number}"))?;
    }
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.letters()?;
    ensure!(letters.len() == 2, "{letters:?}");
    writer.check_output()
}

/// A stopped host has not read the rest of one file and the whole of two other files before a rotation compresses these
/// files. Each file has a dead letter of its own.
#[test]
fn each_compressed_file_with_unread_lines_is_named() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    writer.append(EVENTS, 10)?;
    writer.compress_as(3)?;
    for number in [2, 1] {
        writer.create(EVENTS, 20)?;
        writer.compress_as(number)?;
    }
    writer.home.write(EVENTS, "")?;
    let log = writer.run_strictly()?;
    let letters = writer.letters()?;
    ensure!(letters.len() == 3, "{letters:?}\n{log}");
    let errors: Vec<_> = letters.iter().filter_map(|letter| letter["error"].as_str()).collect();
    for number in 1..=3 {
        let name = format!("{EVENTS}.{number}.gz");
        let named: Vec<_> = errors.iter().filter(|error| error.contains(&name)).collect();
        ensure!(named.len() == 1, "{name}: {errors:?}\n{log}");
        // For a file that was never read, the letter names the inode of the compressed file. This inode may be the
        // inode of the removed file.
        let is_rest = named[0].contains(&format!("inode {inode}: the bytes from byte "));
        ensure!((number == 3) == is_rest, "{name}: {named:?}\n{log}");
        let is_unread = named[0].starts_with(&format!("{name}, device "));
        ensure!((number != 3) == is_unread, "{name}: {named:?}\n{log}");
    }
    let report = writer.home.run_once()?;
    ensure!(report["dead_total"] == 0, "{report}, after the run with this log: {log}");
    for number in 1..=3 {
        writer.uncompress(&format!("{EVENTS}.{number}.gz"))?;
    }
    writer.home.run_once()?;
    writer.check_output()
}

/// After a rotation, the host reads the rest of the renamed file, and finds the new empty file. While the host is
/// stopped, programs append lines to both files, and a rotation compresses both. The dead letter of each file names the
/// compressed file that contains its lines.
#[test]
fn lines_appended_to_a_renamed_file_are_found_in_its_compressed_file() -> Result<()> {
    let mut writer = Writer::after_run(40, 50)?;
    writer.rotate()?;
    writer.append("events.ndjson.1", 10)?;
    writer.home.write(EVENTS, "")?;
    writer.home.run_once()?;
    let mut expected = Vec::new();
    for (name, number) in [("events.ndjson.1", 3), (EVENTS, 2)] {
        let inode = fs::metadata(writer.home.path(name))?.ino();
        expected.push((format!("inode {inode}: "), format!("{EVENTS}.{number}.gz")));
        writer.append(name, 10)?;
    }
    writer.rename("events.ndjson.1", "events.ndjson.3")?;
    writer.compress("events.ndjson.3")?;
    writer.compress_as(2)?;
    writer.home.write(EVENTS, "")?;
    let log = writer.run_strictly()?;
    let letters = writer.letters()?;
    ensure!(letters.len() == 2, "{letters:?}\n{log}");
    for (inode, compressed) in &expected {
        let is_named = letters.iter().filter_map(|letter| letter["error"].as_str()).any(|error| {
            error.contains(&**inode) && error.contains(&format!("may be in {compressed}, "))
        });
        ensure!(is_named, "no letter names {inode}and {compressed}: {letters:?}\n{log}");
    }
    for number in [3, 2] {
        writer.uncompress(&format!("{EVENTS}.{number}.gz"))?;
    }
    writer.home.run_once()?;
    writer.check_output()
}

/// The host cannot determine the length of the data in this compressed file. But the host has read all lines that it
/// knows of, so it must not report a loss.
#[test]
fn compressed_file_of_unknown_length_is_no_loss() -> Result<()> {
    let mut writer = Writer::after_run(40, 20)?;
    fs::remove_file(writer.home.path(EVENTS))?;
    writer.home.write("events.ndjson.1.xz", "compressed")?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.check()
}
