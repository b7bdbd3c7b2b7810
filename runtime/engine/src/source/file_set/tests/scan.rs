//! Scans while programs change, move and truncate files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ordain_util::file_pattern::FileRole;
use ordain_util::io_error::leads_to_no_file;

use super::super::listed_file::matching_files;
use super::super::{Checkpoint, ScanResult};
use super::fixture::Fixture;

/// A program truncates the copied file after the scan has found the file, and before the scan compares the copy. The
/// source has read the first of two lines, or nothing.
#[test]
fn file_truncated_during_the_scan_continues_in_its_copy() {
    for offset in [0, 4] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "one\ntwo\n");
        fixture.scan();
        fixture.read(0, offset, offset / 4);
        fixture.copy("f", "f.1");
        let listed = fixture.set.list(&fixture.pattern, |_| true).unwrap().unwrap();
        fixture.set.find_tracked(&fixture.pattern, &listed).unwrap();
        fixture.truncate("f");
        fixture.set.add_unknown(&listed).unwrap();
        assert!(fixture.set.is_listing_outdated, "the file was truncated");
        assert_eq!(fixture.files(), [("f".to_owned(), offset)], "the copy must not count as new");
        fixture.append("f", "3\n");
        assert_eq!(fixture.scan(), ScanResult::Complete);
        assert_eq!(fixture.files(), [("f.1".to_owned(), offset), ("f".to_owned(), 0)]);
        assert!(!fixture.has_loss());
    }
}

/// A program rewrites a file without a change of its length and its modification time. The scan must detect the change
/// when it compares a new file, and must not repeat its listings without end.
#[test]
fn rewritten_file_does_not_repeat_the_scan_without_end() {
    let mut fixture = Fixture::with_read_file("one\n");
    let modified = fs::metadata(fixture.path("f")).unwrap().modified().unwrap();
    fs::write(fixture.path("f"), "two\n").unwrap();
    File::options().write(true).open(fixture.path("f")).unwrap().set_modified(modified).unwrap();
    fixture.append("f.1", "another line\n");
    assert_eq!(fixture.scan(), ScanResult::Complete);
    assert_eq!(fixture.files(), [("f.1".to_owned(), 0), ("f".to_owned(), 0)]);
}

/// A program copies a file over the older file, and then truncates the copied file. The inode of the older file stays
/// the same, but the older file now has unread lines.
#[test]
fn overwritten_older_file_counts_as_unknown() {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", "first\n");
    fixture.append("f", "second\n");
    fixture.scan();
    fixture.read(0, 6, 1);
    fixture.read(1, 7, 1);
    fixture.scan();
    assert!(!fixture.set.has_unknown_older_file().unwrap());
    fixture.append("f", "third\n");
    fixture.append("f.1", "appended\n");
    assert!(!fixture.set.has_unknown_older_file().unwrap(), "the older file has the bytes read");
    fixture.truncate("f");
    fs::write(fixture.path("f.1"), "fourth\n").unwrap();
    fixture.append("f", "fifth\n");
    assert!(fixture.set.has_unknown_older_file().unwrap());
}

/// A link whose target is missing never leads to a file, but its name does not vanish from the folder.
#[test]
fn link_without_target_does_not_delay_the_scan() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    symlink(fixture.path("missing"), fixture.path("f.1")).unwrap();
    assert_eq!(fixture.scan(), ScanResult::Complete);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

/// A link leads to the newest file of a series. The folder also has a much older file of the series, which is a link to
/// a path that the system refuses to follow. The scan must not follow this link.
#[test]
fn older_file_of_a_series_is_not_read_before_the_tracked_file() {
    let mut fixture = Fixture::new("current");
    fixture.append("log-20261130", "one\n");
    symlink("log-20261130", fixture.path("current")).unwrap();
    fixture.scan();
    fixture.read(0, 4, 1);
    symlink("x".repeat(300), fixture.path("log-20250101")).unwrap();
    let error = fs::metadata(fixture.path("log-20250101")).unwrap_err();
    assert!(!leads_to_no_file(&error), "{error}");
    fixture.append("log-20261201", "two\n");
    fixture.append("log-20261202", "three\n");
    fixture.remove("current");
    symlink("log-20261202", fixture.path("current")).unwrap();
    assert_eq!(fixture.scan(), ScanResult::Complete);
    let names: Vec<String> = fixture.files().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().any(|name| name == "log-20261201"), "{names:?}");
    assert!(!names.iter().any(|name| name == "log-20250101"), "{names:?}");
}

/// A program moves the folder away after the check that the folder exists, and before the listing.
#[test]
fn folder_that_vanishes_before_its_listing_is_no_error() {
    let fixture = Fixture::new("folder/f");
    assert!(matching_files(&fixture.pattern, |_| Some(FileRole::Live)).unwrap().is_none());
}

/// A program creates files so fast that each listing of the folder has new files.
#[test]
fn new_files_do_not_delay_a_listing() {
    let fixture = Fixture::new("e-*");
    for number in 0..500 {
        fixture.append(&format!("e-{number}"), "one\n");
    }
    let is_listed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 500;
            while !is_listed.load(Ordering::Relaxed) {
                fixture.append(&format!("e-{number}"), "");
                number += 1;
            }
        });
        let listed = matching_files(&fixture.pattern, |name| fixture.pattern.role(name));
        // The test must not fail before the thread ends.
        is_listed.store(true, Ordering::Relaxed);
        assert!(listed.unwrap().is_some_and(|listed| listed.len() >= 500));
    });
}

/// The file of a pattern has only the first half of a line. An older file of another name begins with the same bytes.
#[test]
fn half_line_hides_no_older_file() {
    let half = "{\"specversion\":\"1.0\",";
    let mut fixture = Fixture::new("e-*.ndjson");
    fixture.append("e-a.ndjson", half);
    fixture.scan();
    fixture.append("e-b.ndjson.1", &format!("{half}\"id\":\"1\"}}\n"));
    fixture.scan();
    let mut files = fixture.files();
    files.sort();
    assert_eq!(files, [("e-a.ndjson".to_owned(), 0), ("e-b.ndjson.1".to_owned(), 0)]);
}

/// The scan leaves the files as they are while the folder is missing, and the result shows that the caller must wait.
#[test]
fn missing_folder_is_not_listed() {
    let mut fixture = Fixture::new("folder/f");
    fs::create_dir(fixture.path("folder")).unwrap();
    fixture.append("folder/f", "one\n");
    fixture.scan();
    fixture.rename("folder", "away");
    assert_eq!(fixture.scan(), ScanResult::NotListed);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    assert!(!fixture.has_loss());
    assert!(fixture.set.has_unknown_older_file().unwrap(), "no file may be read before a scan");
}

/// A program truncates a file before the source has read anything of it, and the file grows beyond its earlier length
/// before the next scan. The test has three cases: the unread lines are lost; they are in a copy in the folder; or they
/// are lost, and the folder has another older file.
#[test]
fn unread_file_that_grows_after_a_truncation_is_recognised() {
    for (is_copied, has_other) in [(false, false), (true, false), (false, true)] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "one\ntwo\n");
        fixture.scan();
        fixture.append("f", "three\n");
        fixture.set.measure().unwrap();
        if is_copied {
            fixture.copy("f", "f.1");
        }
        if has_other {
            fixture.append("f.1", "another longer line\n");
        }
        fixture.truncate("f");
        fixture.append("f", "four\nfive\nsix\nseven\n");
        fixture.set.measure().unwrap();
        assert_eq!(fixture.set.files[0].progress.length, 14, "the length before the truncation");
        assert_eq!(fixture.scan(), ScanResult::Complete);
        assert_eq!(fixture.has_loss(), !is_copied);
        let files: &[&str] = if is_copied || has_other { &["f.1", "f"] } else { &["f"] };
        let files: Vec<_> = files.iter().map(|name| ((*name).to_owned(), 0)).collect();
        assert_eq!(fixture.files(), files);
    }
}

/// The set has found a file but read nothing of it when the process ends. Before the next start, a program truncates
/// the file, and the file grows beyond its earlier length.
#[test]
fn unread_file_truncated_while_stopped_is_recognised() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\ntwo\n");
    fixture.scan();
    let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new());
    fixture.truncate("f");
    fixture.append("f", "three\nfour\n");
    fixture.resume(&checkpoint);
    fixture.scan();
    assert!(fixture.has_loss());
}

/// The set remembers a removed file that was read to its end. Later, a copy of the file appears. This copy was made
/// before the last lines were written.
#[test]
fn shorter_copy_of_a_removed_file_is_not_read_again() {
    let mut fixture = Fixture::new("f");
    let half = "a line\n".repeat(1_000);
    fixture.append("backup", &half);
    fixture.append("f.1", &half.repeat(2));
    fixture.append("f", "one\n");
    fixture.scan();
    fixture.read(0, 14_000, 2_000);
    fixture.remove("f.1");
    fixture.set.files[0].file = None;
    fixture.scan();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    fixture.copy("backup", "f.old");
    fixture.scan();
    assert_eq!(fixture.files(), [("f.old".to_owned(), 7_000), ("f".to_owned(), 0)]);
    assert!(!fixture.has_loss());
}

/// The folder of the files has another name, and the link in the path of the source leads to the new name. The source
/// had closed the file.
#[test]
fn closed_file_is_opened_after_its_folder_was_renamed() {
    let mut fixture = Fixture::new("link/f");
    fs::create_dir(fixture.path("a")).unwrap();
    symlink("a", fixture.path("link")).unwrap();
    fixture.append("a/f", "one\ntwo\n");
    fixture.scan();
    fixture.read(0, 8, 2);
    fixture.scan();
    fixture.set.files[0].file = None;
    fixture.rename("a", "b");
    fixture.remove("link");
    symlink("b", fixture.path("link")).unwrap();
    fixture.copy("b/f", "b/f.1");
    fixture.scan();
    assert_eq!(fixture.files(), [("f".to_owned(), 8)], "the copy has nothing new");
    assert!(fixture.set.files[0].progress.path.ends_with("/b/f"));
    fixture.set.files[0].file = None;
    fixture.set.files[0].progress.path = fixture.path("a/f").display().to_string();
    assert!(fixture.set.open(0).unwrap().is_some());
}
