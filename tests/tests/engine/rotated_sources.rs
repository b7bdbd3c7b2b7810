//! Tests of event files under log rotation. Another program may rename, copy, truncate, compress or remove the files at
//! any time. The host must read each line once and in order, and must not end. If the host cannot find the lines that
//! it has not read yet, it must report the loss. The stream is `fifo`, so the sequences of later events do not show
//! that the host has skipped a line.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post_with};
use ordain_tests::log::{by_key, in_turn, line, text, unnumbered};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::json;

const EVENTS: &str = "events.ndjson";
const SINK_FILE: &str = "out.ndjson";
/// The number of keys of the events.
const KEYS: usize = 5;

/// A program that writes lines to event files, and the home of the host that reads these files.
struct Writer {
    home: Home,
    /// The lines of the events with sequences. The test compares the output with these lines.
    numbered: Vec<String>,
    /// The lines of the events without sequences, as the program writes them.
    lines: Vec<String>,
    written: usize,
}

/// Returns the configuration of a `fifo` stream that reads the files of `path`.
fn config(path: &str) -> String {
    let source = format!(
        "ordering = \"fifo\"\nid_window = 1025\nsource = {{ kind = \"file\", path = \"{path}\", prefetch = 1 }}"
    );
    tally::CONFIG.replace("source = { kind = \"file\", path = \"events.ndjson\" }", &source)
}

impl Writer {
    /// Creates the home of the host, and the lines of `events` events of each key.
    fn new(path: &str, events: u64) -> Result<Self> {
        Self::with(path, in_turn(KEYS, events))
    }

    /// Creates the home of the host, and the lines of `events` events of one key. The handler needs about half a
    /// millisecond for each event, so the reader of the files often waits for the handler.
    fn slow(path: &str, events: u64) -> Result<Self> {
        let event = |sequence| line("slow-a", sequence, &json!({ "n": sequence }));
        Self::with(path, (1..=events).map(event).collect())
    }

    fn with(path: &str, numbered: Vec<String>) -> Result<Self> {
        let lines = unnumbered(&numbered)?;
        let home = Home::new(&["tally"], &config(path))?;
        Ok(Self { home, numbered, lines, written: 0 })
    }

    /// Returns the next `count` lines as one text, and counts these lines as written.
    fn next(&mut self, count: usize) -> String {
        let next = &self.lines[self.written..self.written + count];
        self.written += count;
        text(next)
    }

    /// Creates a file with the next lines.
    fn create(&mut self, name: &str, count: usize) -> Result<()> {
        let next = self.next(count);
        self.home.write(name, next)
    }

    /// Appends the next lines to a file.
    fn append(&mut self, name: &str, count: usize) -> Result<()> {
        let next = self.next(count);
        self.home.append(name, next)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.home.path(from), self.home.path(to))?)
    }

    /// Moves each older file to the next number, and the file of events to `events.ndjson.1`.
    fn rotate(&self) -> Result<()> {
        for number in (1..9).rev() {
            let from = format!("{EVENTS}.{number}");
            if self.home.path(&from).exists() {
                self.rename(&from, &format!("{EVENTS}.{}", number + 1))?;
            }
        }
        self.rename(EVENTS, &format!("{EVENTS}.1"))
    }

    /// Copies the file of events to `events.ndjson.1`, and then truncates the file of events. First renames an earlier
    /// copy to `events.ndjson.2`.
    fn copy_and_truncate(&self) -> Result<()> {
        let first = format!("{EVENTS}.1");
        if self.home.path(&first).exists() {
            self.rename(&first, &format!("{EVENTS}.2"))?;
        }
        fs::copy(self.home.path(EVENTS), self.home.path(&first))?;
        self.truncate(EVENTS)
    }

    /// Truncates a file to zero bytes.
    fn truncate(&self, name: &str) -> Result<()> {
        Ok(File::options().write(true).open(self.home.path(name))?.set_len(0)?)
    }

    fn start(&self) -> Result<Service> {
        Service::start(&self.home, &["run"])
    }

    /// Waits until the messages of all written lines are in the output.
    fn until_all(&self, service: &mut Service) -> Result<()> {
        let waited = service.until("all messages", || self.home.lines(SINK_FILE) >= self.written);
        waited.with_context(|| format!("{} of {}", self.home.lines(SINK_FILE), self.written))
    }

    /// Checks that the output has one message for each written line, in order.
    fn check_output(&self) -> Result<()> {
        let written = &self.numbered[..self.written];
        tally::check(&by_key(written)?, &self.home.read(SINK_FILE))
    }

    /// Checks the output, and that no dead letter exists.
    fn check(&self) -> Result<()> {
        self.check_output()?;
        let letters = self.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(letters.is_empty(), "{letters:?}");
        Ok(())
    }
}

#[test]
fn rest_of_file_rotated_while_stopped_is_read() -> Result<()> {
    // The number of rotations between the two runs.
    for rotations in 1..=3 {
        let mut writer = Writer::new(EVENTS, 40)?;
        writer.create(EVENTS, 50)?;
        writer.home.run_once()?;
        writer.append(EVENTS, 10)?;
        for _ in 0..rotations {
            writer.rotate()?;
            writer.create(EVENTS, 20)?;
        }
        writer.home.run_once()?;
        writer.check().with_context(|| format!("{rotations} rotations"))?;
        // The next start finds nothing new.
        ensure!(writer.home.run_once()?["delivered"] == 0);
    }
    Ok(())
}

/// The rotation gives the older files other names than `events.ndjson.1`, as some rotation programs do.
#[test]
fn other_names_of_older_files_are_found() -> Result<()> {
    for [oldest, older] in [
        ["events.ndjson-20261126", "events.ndjson-20261127"],
        ["events-2026-11-26.ndjson", "events-2026-11-27.ndjson"],
        ["events.2.ndjson", "events.1.ndjson"],
        // If the host has read a part of a file, it recognises the file under any name.
        ["archived", "events.ndjson.old"],
    ] {
        let mut writer = Writer::new(EVENTS, 40)?;
        writer.create(EVENTS, 50)?;
        writer.home.run_once()?;
        writer.append(EVENTS, 10)?;
        writer.rename(EVENTS, oldest)?;
        writer.create(EVENTS, 20)?;
        writer.rename(EVENTS, older)?;
        writer.create(EVENTS, 20)?;
        writer.home.run_once()?;
        writer.check().context(oldest)?;
    }
    Ok(())
}

/// Files that were rotated before the first start do not belong to the stream.
#[test]
fn files_rotated_before_the_first_start_are_not_read() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.home.write("events.ndjson.1", "no event\n")?;
    writer.home.write("events.ndjson.2", text(&unnumbered(&in_turn(1, 3))?))?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.rotate()?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    // A backup copy of a file has no new lines.
    fs::copy(writer.home.path(EVENTS), writer.home.path("events.ndjson.7"))?;
    writer.append(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.check()
}

#[test]
fn rotation_ends_no_stream() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 1_000)?;
    let idle = "\n[streams.idle]\nhandler = \"tally\"\nsource = { kind = \"file\", path = \"idle.ndjson\" }\n";
    writer.home.write("ordain.toml", config(EVENTS) + idle)?;
    writer.home.write("idle.ndjson", "")?;
    writer.create(EVENTS, 3_000)?;
    let mut service = writer.start()?;
    service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
    writer.rename("idle.ndjson", "idle.ndjson.1")?;
    writer.home.write("idle.ndjson", "")?;
    writer.rotate()?;
    writer.create(EVENTS, 1_000)?;
    // The next rotation follows at once.
    writer.rotate()?;
    writer.create(EVENTS, 0)?;
    writer.rotate()?;
    writer.create(EVENTS, 100)?;
    writer.until_all(&mut service)?;
    for _ in 0..3 {
        writer.rotate()?;
        writer.create(EVENTS, 10)?;
        writer.until_all(&mut service)?;
    }
    service.end()?;
    writer.check()
}

/// The test rotates the files while the host is paused and holds the first file open.
#[test]
fn paused_host_reads_all_rotated_files() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 100)?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    service.pause()?;
    writer.append(EVENTS, 20)?;
    for _ in 0..4 {
        writer.rotate()?;
        writer.create(EVENTS, 20)?;
    }
    // The rotation removes the file of which the host has read a part.
    fs::remove_file(writer.home.path("events.ndjson.4"))?;
    service.resume()?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

/// A program still appends to the renamed file. The last line of this file has no line end.
#[test]
fn lines_appended_to_the_renamed_file_are_read() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    writer.rotate()?;
    writer.append("events.ndjson.1", 10)?;
    writer.until_all(&mut service)?;
    let next = writer.next(10);
    writer.home.append("events.ndjson.1", next.trim_end())?;
    writer.create(EVENTS, 10)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

#[test]
fn file_rotated_before_sigterm_is_finished_by_the_next_run() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 8_000)?;
    writer.create(EVENTS, 20_000)?;
    let mut service = writer.start()?;
    service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
    writer.rotate()?;
    writer.create(EVENTS, 100)?;
    service.end()?;
    ensure!(writer.home.lines(SINK_FILE) < 20_000, "the host had already read the whole file");
    writer.rotate()?;
    writer.create(EVENTS, 100)?;
    let mut service = writer.start()?;
    service.until("further messages", || writer.home.lines(SINK_FILE) > 0)?;
    service.kill()?;
    writer.home.run_once()?;
    writer.check()
}

#[test]
fn copied_and_truncated_file_is_read_to_its_end() -> Result<()> {
    // In the first part of the test, the host does not run while the files change.
    let mut writer = Writer::new(EVENTS, 100)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
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

/// Runs the host once with `--strict`. The run must end with the exit code 1. Returns its log.
fn run_strictly(home: &Home) -> Result<String> {
    let output = home.output(&["run", "--once", "--strict"])?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
    Ok(log)
}

/// The host cannot read a compressed file, and reports the lines in this file that it has not read yet. When the file
/// is uncompressed again, the host reads these lines.
#[test]
fn rest_in_compressed_file_is_reported() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    writer.append(EVENTS, 10)?;
    let rest = writer.written;
    writer.rotate()?;
    gzip(&writer.home.path("events.ndjson.1"), "-k")?;
    fs::remove_file(writer.home.path("events.ndjson.1"))?;
    writer.home.write(EVENTS, "")?;
    let log = run_strictly(&writer.home)?;
    let expected = [format!("inode {inode}"), "events.ndjson.1.gz".to_owned()];
    for words in &expected {
        ensure!(log.contains(&**words), "the log lacks {words:?}: {log}");
    }
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
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
    gzip(&writer.home.path("events.ndjson.1.gz"), "-d")?;
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
    gzip(&writer.home.path("orders-1.ndjson"), "-f")?;
    let compressed = writer.home.path("orders-1.ndjson.gz");
    if fs::metadata(&compressed)?.created().is_err() {
        return Ok(());
    }
    run_strictly(&writer.home)?;
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

/// A compressed file is damaged, and an operator recovers only its first lines. The compressed file stays in the folder.
/// The host logs that it does not read the lines yet, and reads them when the new file has not changed for a minute.
#[test]
fn part_of_a_damaged_compressed_file_is_read() -> Result<()> {
    let older = "events.ndjson.3";
    let mut writer = Writer::new(EVENTS, 100)?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.home.write(older, text(&writer.lines[20..]))?;
    gzip(&writer.home.path(older), "-f")?;
    let compressed = File::options().write(true).open(writer.home.path("events.ndjson.3.gz"))?;
    if compressed.metadata()?.created().is_err() {
        return Ok(());
    }
    let length = compressed.metadata()?.len();
    compressed.set_len(length - length / 4)?;
    // The file states a length of which the recovered lines are only a part.
    compressed.write_all_at(&u32::MAX.to_le_bytes(), length - length / 4 - 4)?;
    run_strictly(&writer.home)?;
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
        let mut writer = Writer::new(EVENTS, 40)?;
        writer.create(EVENTS, 50)?;
        writer.home.run_once()?;
        for _ in 0..2 {
            if is_copied {
                writer.copy_and_truncate()?;
            } else {
                writer.rotate()?;
                writer.home.write(EVENTS, "")?;
            }
            gzip(&writer.home.path("events.ndjson.1"), "-f")?;
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
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
    writer.append(EVENTS, 10)?;
    let length = writer.home.read(EVENTS).len();
    writer.copy_and_truncate()?;
    gzip(&writer.home.path("events.ndjson.1"), "-f")?;
    let log = run_strictly(&writer.home)?;
    let words = format!("events.ndjson.1.gz, which is compressed and contains {length} bytes");
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1, "{letters:?}");
    gzip(&writer.home.path("events.ndjson.1.gz"), "-d")?;
    writer.append(EVENTS, 10)?;
    writer.home.run_once()?;
    writer.check_output()
}

/// While the host is stopped, a program appends lines to the file, compresses the file, and creates a new file of the
/// same name.
#[test]
fn rest_in_compressed_file_beside_a_new_file_is_reported() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
    writer.append(EVENTS, 10)?;
    let length = writer.home.read(EVENTS).len();
    gzip(&writer.home.path(EVENTS), "-f")?;
    writer.home.write(EVENTS, "")?;
    let log = run_strictly(&writer.home)?;
    let words = format!("events.ndjson.gz, which is compressed and contains {length} bytes");
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1, "{letters:?}");
    writer.rename("events.ndjson.gz", "events.ndjson.1.gz")?;
    gzip(&writer.home.path("events.ndjson.1.gz"), "-d")?;
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
    gzip(&writer.home.path("events.ndjson.7"), "-f")?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    service.pause()?;
    writer.append(EVENTS, 10)?;
    compress_as(&writer, 4)?;
    for number in [3, 2] {
        writer.create(EVENTS, 20)?;
        compress_as(&writer, number)?;
    }
    writer.home.write(EVENTS, "")?;
    service.resume()?;
    service.until("the rest of the first file", || writer.home.lines(SINK_FILE) == 30)?;
    for name in ["events.ndjson.3.gz", "events.ndjson.2.gz"] {
        service.until_lines(1, &["unread lines lost", name])?;
    }
    for number in [3, 2] {
        gzip(&writer.home.path(&format!("{EVENTS}.{number}.gz")), "-d")?;
    }
    writer.until_all(&mut service)?;
    service.end()?;
    // The host has read these lines now.
    for number in [3, 2] {
        gzip(&writer.home.path(&format!("{EVENTS}.{number}")), "-f")?;
    }
    ensure!(writer.home.run_once()?["dead_total"] == 0);
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 2, "{letters:?}");
    writer.check_output()
}

/// Gives the file of events a number, and compresses the file.
fn compress_as(writer: &Writer, number: usize) -> Result<()> {
    let name = format!("{EVENTS}.{number}");
    writer.rename(EVENTS, &name)?;
    gzip(&writer.home.path(&name), "-f")
}

/// A stopped host has not read the rest of one file and the whole of two other files before a rotation compresses these
/// files. Each file has a dead letter of its own.
#[test]
fn each_compressed_file_with_unread_lines_is_named() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    writer.append(EVENTS, 10)?;
    compress_as(&writer, 3)?;
    for number in [2, 1] {
        writer.create(EVENTS, 20)?;
        compress_as(&writer, number)?;
    }
    writer.home.write(EVENTS, "")?;
    let log = run_strictly(&writer.home)?;
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 3, "{letters:?}\n{log}");
    let errors: Vec<_> = letters.iter().filter_map(|letter| letter["error"].as_str()).collect();
    for number in 1..=3 {
        let name = format!("{EVENTS}.{number}.gz");
        let named: Vec<_> = errors.iter().filter(|error| error.contains(&name)).collect();
        ensure!(named.len() == 1, "{name}: {errors:?}\n{log}");
        // The letter about a file that was never read names the inode of the compressed file. This inode may be that of
        // the removed file.
        let is_rest = named[0].contains(&format!("inode {inode}: the bytes from byte "));
        ensure!((number == 3) == is_rest, "{name}: {named:?}\n{log}");
        let is_unread = named[0].starts_with(&format!("{name}, device "));
        ensure!((number != 3) == is_unread, "{name}: {named:?}\n{log}");
    }
    let report = writer.home.run_once()?;
    ensure!(report["dead_total"] == 0, "{report}, after the run with this log: {log}");
    for number in 1..=3 {
        gzip(&writer.home.path(&format!("{EVENTS}.{number}.gz")), "-d")?;
    }
    writer.home.run_once()?;
    writer.check_output()
}

/// After a rotation, the host reads the rest of the renamed file, and finds the new empty file. While the host is
/// stopped, programs append lines to both files, and a rotation compresses both. The dead letter of each file names the
/// compressed file that contains its lines.
#[test]
fn lines_appended_to_a_renamed_file_are_found_in_its_compressed_file() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
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
    gzip(&writer.home.path("events.ndjson.3"), "-f")?;
    compress_as(&writer, 2)?;
    writer.home.write(EVENTS, "")?;
    let log = run_strictly(&writer.home)?;
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 2, "{letters:?}\n{log}");
    for (inode, compressed) in &expected {
        let is_named = letters.iter().filter_map(|letter| letter["error"].as_str()).any(|error| {
            error.contains(&**inode) && error.contains(&format!("may be in {compressed}, "))
        });
        ensure!(is_named, "no letter names {inode}and {compressed}: {letters:?}\n{log}");
    }
    for number in [3, 2] {
        gzip(&writer.home.path(&format!("{EVENTS}.{number}.gz")), "-d")?;
    }
    writer.home.run_once()?;
    writer.check_output()
}

fn gzip(path: &Path, option: &str) -> Result<()> {
    let status = Command::new("gzip").arg(option).arg(path).status()?;
    ensure!(status.success(), "gzip {}: {status}", path.display());
    Ok(())
}

/// The host ends before it has read the whole file. Then the test removes the file.
#[test]
fn removed_rest_is_reported_with_its_length() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 8_000)?;
    writer.create(EVENTS, 20_000)?;
    let length = writer.home.read(EVENTS).len() as u64;
    let inode = fs::metadata(writer.home.path(EVENTS))?.ino();
    let mut service = writer.start()?;
    service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
    service.end()?;
    let read = writer.home.lines(SINK_FILE);
    ensure!(read < 20_000, "the host had already read the whole file");
    let offset = text(&writer.lines[..read]).len() as u64;
    fs::remove_file(writer.home.path(EVENTS))?;
    writer.home.write(EVENTS, "")?;
    let log = run_strictly(&writer.home)?;
    let words = format!("inode {inode}: at least {} bytes from byte {offset} on", length - offset);
    ensure!(log.contains(&words), "the log lacks {words:?}: {log}");
    Ok(())
}

/// A stream whose path is a pattern reads all files that match the pattern, including files that appear later, and the
/// files that a rotation renames.
#[test]
fn all_files_of_a_pattern_are_read() -> Result<()> {
    let mut writer = Writer::new("orders-*.ndjson", 100)?;
    writer.home.write("other.ndjson", "no event\n")?;
    writer.create("orders-a.ndjson", 20)?;
    writer.home.run_once()?;
    writer.create("orders-b.ndjson", 20)?;
    writer.home.run_once()?;
    writer.append("orders-a.ndjson", 20)?;
    writer.home.run_once()?;
    let mut service = writer.start()?;
    writer.create("orders-c.ndjson", 20)?;
    writer.until_all(&mut service)?;
    writer.append("orders-b.ndjson", 20)?;
    writer.until_all(&mut service)?;
    service.end()?;
    // The rotated file no longer matches the pattern.
    writer.append("orders-a.ndjson", 20)?;
    writer.rename("orders-a.ndjson", "orders-a.ndjson.1")?;
    writer.create("orders-a.ndjson", 20)?;
    writer.home.run_once()?;
    ensure!(writer.home.run_once()?["delivered"] == 0);
    writer.check()
}

/// The first run reads the files in the order of their last changes.
#[test]
fn files_of_a_pattern_are_read_in_order() -> Result<()> {
    let mut writer = Writer::new("orders-*.ndjson", 100)?;
    let names = ["orders-z.ndjson", "orders-a.ndjson", "orders-m.ndjson"];
    for (name, at) in names.into_iter().zip(1..) {
        writer.create(name, 20)?;
        let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at);
        File::options().write(true).open(writer.home.path(name))?.set_modified(modified)?;
    }
    writer.home.run_once()?;
    writer.check()
}

#[test]
fn sink_that_writes_to_a_file_of_a_pattern_is_refused() -> Result<()> {
    for path in ["o*.ndjson", "out.?djson"] {
        let home = Home::new(&["tally"], &config(path))?;
        let output = home.output(&["run", "--once"])?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(78), "{path}: {}: {log}", output.status);
        ensure!(log.contains("is the same file as streams.cases.source.path"), "{log}");
    }
    Ok(())
}

/// The host recognises the file under every spelling of its path, and from every folder.
#[test]
fn spelling_of_the_path_does_not_matter() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.append(EVENTS, "no event\n")?;
    ensure!(writer.home.run_once()?["dead_total"] == 1);
    let absolute = writer.home.path(EVENTS).display().to_string();
    let linked = writer.home.path("link");
    std::os::unix::fs::symlink(writer.home.folder(), &linked)?;
    for path in ["./events.ndjson", "plugins/../events.ndjson", &absolute, "link/events.ndjson"] {
        writer.home.write("ordain.toml", config(path))?;
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 0, "{path}: {report}");
    }
    let mut command = writer.home.ordain(&["run", "--once", "--json"])?;
    let config = writer.home.path("ordain.toml");
    let output = command.current_dir("/").arg(config).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(writer.home.lines(SINK_FILE) == writer.written);
    let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1, "{letters:?}");
    Ok(())
}

/// The path is a symbolic link or a hard link to a file whose name looks like the name of a rotated file.
#[test]
fn path_may_lead_to_a_file_with_an_older_name() -> Result<()> {
    for is_link in [true, false] {
        let mut writer = Writer::new(EVENTS, 40)?;
        let files = ["events-20261127.ndjson", "events-20261128.ndjson"];
        for file in files {
            writer.create(file, 20)?;
            let path = writer.home.path(EVENTS);
            if path.is_symlink() || path.exists() {
                fs::remove_file(&path)?;
            }
            if is_link {
                symlink(file, &path)?;
            } else {
                fs::hard_link(writer.home.path(file), &path)?;
            }
            writer.home.run_once()?;
            writer.append(file, 20)?;
        }
        writer.home.run_once()?;
        writer.check().with_context(|| format!("link: {is_link}"))?;
    }
    Ok(())
}

/// The path is a symbolic link to a file in another folder, and log rotation renames the files in this folder.
#[test]
fn link_into_another_folder_is_followed() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    fs::create_dir(writer.home.path("app"))?;
    symlink("app/log", writer.home.path(EVENTS))?;
    // This file was rotated before the first start.
    writer.home.write("app/log.9", "no event\n")?;
    writer.create("app/log", 20)?;
    writer.home.run_once()?;
    writer.append("app/log", 10)?;
    writer.rename("app/log", "app/log.2")?;
    writer.create("app/log.1", 20)?;
    writer.create("app/log", 20)?;
    writer.home.run_once()?;
    // The link now leads to a file in another folder, whose older files do not belong to the stream.
    fs::create_dir(writer.home.path("other"))?;
    writer.home.write("other/log.1", "no event\n")?;
    writer.create("other/log", 20)?;
    fs::remove_file(writer.home.path(EVENTS))?;
    symlink("other/log", writer.home.path(EVENTS))?;
    writer.home.run_once()?;
    writer.rename("other/log.1", "other/log.3")?;
    writer.rename("other/log", "other/log.2")?;
    writer.create("other/log.1", 20)?;
    writer.create("other/log", 20)?;
    writer.home.run_once()?;
    writer.check()
}

/// The program does not append to the file, but writes at the position where its previous write ended. So after a
/// truncation, the file begins with NULs.
#[test]
fn files_that_begin_with_nuls_are_distinguished() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 100)?;
    writer.create(EVENTS, 60)?;
    writer.home.run_once()?;
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
    let mut service = writer.start()?;
    service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
    writer.copy_and_truncate()?;
    service.until("further messages", || writer.home.lines(SINK_FILE) > 1_500)?;
    writer.append(EVENTS, 10)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

/// The host has read lines that a program appended between the copy and the truncation. The copy lacks these lines. The
/// host must still recognise the copy, and must not read it again.
#[test]
fn shorter_copy_is_not_read_again() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 100)?;
    writer.home.run_once()?;
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
        let mut service = writer.start()?;
        service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
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
            let log = run_strictly(&writer.home)?;
            ensure!(log.contains("at least 400 bytes from byte 0 on were not read"), "{log}");
        }
        writer.append("e-b.ndjson", 10)?;
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 10 && report["dead_total"] == 0, "{report}");
        writer.check_output()?;
        let letters = writer.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(letters.len() == usize::from(!is_copied), "{letters:?}");
    }
    Ok(())
}

/// The test compresses and uncompresses a file that the host has read to its end, and moves this file to another folder
/// and back.
#[test]
fn returned_file_is_not_read_again() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 50)?;
    writer.home.run_once()?;
    writer.rotate()?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    fs::create_dir(writer.home.path("away"))?;
    let older = "events.ndjson.1";
    for is_moved in [false, true] {
        if is_moved {
            writer.rename(older, "away/file")?;
        } else {
            gzip(&writer.home.path(older), "-f")?;
        }
        writer.home.run_once()?;
        if is_moved {
            writer.rename("away/file", older)?;
        } else {
            gzip(&writer.home.path("events.ndjson.1.gz"), "-d")?;
        }
        let report = writer.home.run_once()?;
        ensure!(report["delivered"] == 0, "moved: {is_moved}: {report}");
    }
    // The host still reads lines that a program appends to the returned file.
    writer.append(older, 10)?;
    writer.home.run_once()?;
    writer.check()
}

/// Files that were rotated before the first start leave the folder, and return: uncompressed, moved back or copied.
/// More files return than the host remembers of the files that it has read.
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
                "compressed" => gzip(&writer.home.path(name), "-f")?,
                _ => writer.rename(name, &format!("away/{name}"))?,
            }
        }
        writer.append(EVENTS, 20)?;
        writer.home.run_once()?;
        for name in &older {
            match way {
                "compressed" => gzip(&writer.home.path(&format!("{name}.gz")), "-d")?,
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
    let mut service = writer.start()?;
    service.until("the first messages", || writer.home.lines(SINK_FILE) > 0)?;
    writer.rename("e-239.ndjson", "away/file")?;
    service.until_says("unread lines lost")?;
    writer.rename("away/file", "e-239.ndjson")?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check_output()
}

/// A second stream receives events over HTTP while the test rotates the file of the first stream. The rotations must
/// not end the second stream or make the host reject its events.
#[test]
fn rotation_disturbs_no_stream_over_http() -> Result<()> {
    let web = "[ingress]\nlisten = \"127.0.0.1:0\"\n\
        [streams.web]\nhandler = \"tally\"\nsource = { kind = \"http\" }\n";
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.home.write("ordain.toml", config(EVENTS) + web)?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start()?;
    // The first start does not read files that were rotated before it, so the test waits until the host has read the
    // file.
    writer.until_all(&mut service)?;
    let address = ingress(&mut service)?;
    let posted: Vec<String> = (1..=200).map(|n| line("web", n, &json!({ "n": n }))).collect();
    let content_type = format!("content-type: {LINES_TYPE}");
    thread::scope(|scope| -> Result<()> {
        let posting = scope.spawn(|| -> Result<()> {
            for event in &posted {
                let answer = post_with(address, "/v1/streams/web/events", &[&content_type], event)?;
                ensure!(answer.status == 202, "{answer:?}");
            }
            Ok(())
        });
        for _ in 0..6 {
            writer.rotate()?;
            writer.create(EVENTS, 20)?;
            service.until("the messages of the file", || {
                let out = writer.home.read(SINK_FILE);
                let of_file = out.lines().filter(|line| !line.contains("\"subject\":\"web\""));
                of_file.count() == writer.written
            })?;
        }
        posting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let all = [&writer.numbered[..writer.written], &posted].concat();
    service.until("all messages", || writer.home.lines(SINK_FILE) == all.len())?;
    service.end()?;
    tally::check(&by_key(&all)?, &writer.home.read(SINK_FILE))
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
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

/// A rotation renames the file before a program has completed the last line of the file.
#[test]
fn incomplete_line_of_a_renamed_file_is_read_when_complete() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    let next = writer.next(1);
    let (half, rest) = next.split_at(60);
    writer.home.append(EVENTS, half)?;
    writer.home.run_once()?;
    writer.rotate()?;
    writer.home.write(EVENTS, "")?;
    writer.home.run_once()?;
    let mut service = writer.start()?;
    service.until_says("reading the file from its checkpoint")?;
    writer.home.append("events.ndjson.1", rest)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()?;

    // The program has begun another line in the older file, and now writes to the new file. A run with `--once` cannot
    // wait for the rest of this line.
    writer.home.append("events.ndjson.1", "{\"specversion\":")?;
    writer.append(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.check()
}

/// The new file has only the first half of a line. The older files begin with the same bytes, but the host must not
/// take them for copies of the new file.
#[test]
fn half_line_hides_no_older_file() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.rename(EVENTS, "events.ndjson.2")?;
    writer.create("events.ndjson.1", 20)?;
    let next = writer.next(1);
    let (half, rest) = next.split_at(8);
    writer.home.write(EVENTS, half)?;
    let report = writer.home.run_once()?;
    ensure!(report["delivered"] == 20, "{report}");
    writer.home.append(EVENTS, rest)?;
    writer.home.run_once()?;
    writer.check()
}

/// The user who runs the host has no permission to read an older file. Root can read every file, so if the host runs as
/// root, the test takes away the capabilities that permit this.
#[test]
fn older_file_without_read_permission_ends_no_run() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    let is_root = fs::metadata("/proc/self")?.uid() == 0;
    let by = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"].map(str::to_owned);
    let by = if is_root { &by[..] } else { &[] };
    let mut service = Service::start_by(&writer.home, by, &["run"])?;
    writer.until_all(&mut service)?;
    let set_mode = |name: &str, mode| {
        fs::set_permissions(writer.home.path(name), fs::Permissions::from_mode(mode))
    };
    let older = "events.ndjson.5";
    writer.home.write("other", text(&writer.lines[20..30]))?;
    set_mode("other", 0o000)?;
    writer.rename("other", older)?;
    service.until_says("older file skipped")?;
    ensure!(service.stderr().contains(older), "{}", service.stderr());
    set_mode(older, 0o600)?;
    writer.written += 10;
    writer.until_all(&mut service)?;
    writer.append(EVENTS, 10)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

/// The path in the settings changes, but the former file keeps its name. The stream must not read the former file any
/// more.
#[test]
fn file_of_an_earlier_path_is_forgotten() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.home.write("ordain.toml", config("other.ndjson"))?;
    writer.create("other.ndjson", 20)?;
    let output = writer.home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("file forgotten"), "{log}");
    writer.home.append(EVENTS, "no event\n")?;
    ensure!(writer.home.run_once()?["delivered"] == 0);
    writer.check()
}

/// Log rotation has renamed the file, and no program has created the next file yet.
#[test]
fn run_starts_before_the_next_file_is_created() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.append(EVENTS, 10)?;
    writer.rotate()?;
    writer.home.run_once()?;
    let mut service = writer.start()?;
    service.until_says("reading the file from its checkpoint")?;
    writer.create(EVENTS, 10)?;
    writer.until_all(&mut service)?;
    service.end()?;
    writer.check()
}

/// The host cannot determine the length of the data in this compressed file. But the host has read all lines that it
/// knows of, so it must not report a loss.
#[test]
fn compressed_file_of_unknown_length_is_no_loss() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    fs::remove_file(writer.home.path(EVENTS))?;
    writer.home.write("events.ndjson.1.xz", "compressed")?;
    writer.create(EVENTS, 20)?;
    writer.home.run_once()?;
    writer.check()
}
