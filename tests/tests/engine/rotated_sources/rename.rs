//! Log rotation that renames the file, and creates a new file of the same name.

use std::fs;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::http::{LINES_TYPE, ingress, post_with};
use ordain_tests::log::{by_key, in_turn, line, text, unnumbered};
use ordain_tests::tally;
use serde_json::json;

use super::support::{EVENTS, SINK_FILE, Writer, config};

#[test]
fn rest_of_file_rotated_while_stopped_is_read() -> Result<()> {
    for rotations in 1..=3 {
        let mut writer = Writer::after_run(40, 50)?;
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
        let mut writer = Writer::after_run(40, 50)?;
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
    let mut service = writer.start_reading()?;
    writer.rename("idle.ndjson", "idle.ndjson.1")?;
    writer.home.write("idle.ndjson", "")?;
    writer.rotate()?;
    writer.create(EVENTS, 1_000)?;
    // The next rotation follows immediately.
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
    let (mut writer, mut service) = Writer::running(100, 20)?;
    service.pause()?;
    writer.append(EVENTS, 20)?;
    for _ in 0..4 {
        writer.rotate()?;
        writer.create(EVENTS, 20)?;
    }
    // The rotation removes the file of which the host has read a part.
    fs::remove_file(writer.home.path("events.ndjson.4"))?;
    service.resume()?;
    writer.finish(&mut service)
}

/// A program still appends to the renamed file. The last line of this file has no line end.
#[test]
fn lines_appended_to_the_renamed_file_are_read() -> Result<()> {
    let (mut writer, mut service) = Writer::running(40, 20)?;
    writer.rotate()?;
    writer.append("events.ndjson.1", 10)?;
    writer.until_all(&mut service)?;
    let next = writer.next(10);
    writer.home.append("events.ndjson.1", next.trim_end())?;
    writer.create(EVENTS, 10)?;
    writer.finish(&mut service)
}

#[test]
fn file_rotated_before_sigterm_is_finished_by_the_next_run() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 8_000)?;
    writer.create(EVENTS, 20_000)?;
    let mut service = writer.start_reading()?;
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

/// Log rotation has renamed the file, and no program has created the next file yet.
#[test]
fn run_starts_before_the_next_file_is_created() -> Result<()> {
    let mut writer = Writer::after_run(40, 20)?;
    writer.append(EVENTS, 10)?;
    writer.rotate()?;
    writer.home.run_once()?;
    let mut service = writer.start()?;
    service.until_says("reading the file from its checkpoint")?;
    writer.create(EVENTS, 10)?;
    writer.finish(&mut service)
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
    // The first start does not read files that were rotated before this start, so the test waits until the host has
    // read the file.
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
    writer.finish(&mut service)?;

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
    let mut writer = Writer::after_run(40, 20)?;
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

#[test]
fn older_file_without_read_permission_ends_no_run() -> Result<()> {
    let mut writer = Writer::new(EVENTS, 40)?;
    writer.create(EVENTS, 20)?;
    let mut service = writer.start_as_ordinary_user()?;
    writer.until_all(&mut service)?;
    let older = "events.ndjson.5";
    writer.home.write("other", text(&writer.lines[20..30]))?;
    writer.set_mode("other", 0o000)?;
    writer.rename("other", older)?;
    service.until_says("older file skipped")?;
    ensure!(service.stderr().contains(older), "{}", service.stderr());
    writer.set_mode(older, 0o600)?;
    writer.written += 10;
    writer.until_all(&mut service)?;
    writer.append(EVENTS, 10)?;
    writer.finish(&mut service)
}
