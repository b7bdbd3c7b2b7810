//! The path of the source: patterns, links, other spellings, and a changed path.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;

use super::support::{EVENTS, SINK_FILE, Writer, config};

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
    symlink(writer.home.folder(), &linked)?;
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
    let letters = writer.letters()?;
    ensure!(letters.len() == 1, "{letters:?}");
    Ok(())
}

/// The path is a symbolic or hard link to a file whose name looks like the name of a rotated file.
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

/// A program begins a file on each day, writes the date into its name, and lets a link lead to the newest file. No run
/// takes place while the link leads to two of these files.
#[test]
fn files_that_a_link_has_passed_are_read() -> Result<()> {
    let mut writer = Writer::new("current", 40)?;
    let lead_to = |writer: &Writer, name: &str| -> Result<()> {
        symlink(name, writer.home.path("new"))?;
        writer.rename("new", "current")
    };
    // The link led to this file before the first start.
    writer.home.write("log-20261126", "no event\n")?;
    writer.create("log-20261127", 20)?;
    lead_to(&writer, "log-20261127")?;
    writer.home.run_once()?;
    writer.append("log-20261127", 10)?;
    writer.create("log-20261128", 20)?;
    writer.create("log-20261129", 20)?;
    writer.create("log-20261130", 20)?;
    lead_to(&writer, "log-20261130")?;
    writer.home.run_once()?;
    ensure!(writer.home.run_once()?["delivered"] == 0);
    // The program prepares the file of the next day.
    writer.home.write("log-20261202", "no event\n")?;
    writer.append("log-20261130", 10)?;
    writer.create("log-20261201", 20)?;
    lead_to(&writer, "log-20261201")?;
    let mut service = writer.start()?;
    writer.until_all(&mut service)?;
    writer.append("log-20261201", 10)?;
    writer.finish(&mut service)
}

/// The link of the path has passed a file that the host has no permission to reach. The folder also has such a file
/// with an older date.
#[test]
fn passed_file_without_read_permission_ends_no_run() -> Result<()> {
    let mut writer = Writer::new("current", 20)?;
    writer.create("log-20261127", 20)?;
    symlink("log-20261127", writer.home.path("current"))?;
    fs::create_dir(writer.home.path("private"))?;
    writer.home.write("private/log", "no event\n")?;
    writer.set_mode("private", 0o000)?;
    let mut service = writer.start_as_ordinary_user()?;
    writer.until_all(&mut service)?;
    for name in ["log-20250101", "log-20261128"] {
        symlink("private/log", writer.home.path(name))?;
    }
    writer.create("log-20261129", 20)?;
    symlink("log-20261129", writer.home.path("new"))?;
    writer.rename("new", "current")?;
    service.until_says("older file skipped")?;
    writer.until_all(&mut service)?;
    let log = service.stderr();
    ensure!(log.contains("log-20261128") && !log.contains("log-20250101"), "{log}");
    writer.append("log-20261129", 10)?;
    writer.finish(&mut service)?;
    writer.set_mode("private", 0o700)
}

/// A link leads in a circle: one link of a pattern, and for a while the path itself. No event is lost, and the run
/// continues.
#[test]
fn link_in_a_circle_does_not_end_the_run() -> Result<()> {
    for path in ["events*.ndjson", EVENTS] {
        let mut writer = Writer::new(path, 40)?;
        symlink("events-circle.ndjson", writer.home.path("events-circle.ndjson"))?;
        writer.create(EVENTS, 20)?;
        let mut service = writer.start()?;
        writer.until_all(&mut service)?;
        fs::remove_file(writer.home.path(EVENTS))?;
        symlink(EVENTS, writer.home.path(EVENTS))?;
        // The source reads this file while the path leads in a circle.
        writer.create("older", 20)?;
        writer.rename("older", "events.ndjson.1")?;
        writer.until_all(&mut service)?;
        writer.create("new", 20)?;
        writer.rename("new", EVENTS)?;
        writer.finish(&mut service).with_context(|| path.to_owned())?;
    }
    Ok(())
}

/// The checkpoint contains the names of the files as text, so the source cannot read a file whose name is not UTF-8.
#[test]
fn file_whose_name_is_not_utf8_is_reported() -> Result<()> {
    let mut writer = Writer::new("orders-*.ndjson", 40)?;
    writer.create("orders-a.ndjson", 20)?;
    let folder = writer.home.folder().to_owned();
    let latin1 = folder.join(OsStr::from_bytes(b"orders-caf\xe9.ndjson"));
    let next = writer.next(20);
    fs::write(&latin1, next)?;
    let output = writer.home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && log.contains("file skipped: its name is not UTF-8"),
        "{log}"
    );
    fs::rename(&latin1, writer.home.path("orders-b.ndjson"))?;
    writer.home.run_once()?;
    writer.check()
}

/// The path in the settings changes, but the former file keeps its name. The stream must not read the former file any
/// more.
#[test]
fn file_of_an_earlier_path_is_forgotten() -> Result<()> {
    let mut writer = Writer::after_run(40, 20)?;
    writer.home.write("ordain.toml", config("other.ndjson"))?;
    writer.create("other.ndjson", 20)?;
    let output = writer.home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("file forgotten"), "{log}");
    writer.home.append(EVENTS, "no event\n")?;
    ensure!(writer.home.run_once()?["delivered"] == 0);
    writer.check()
}
