//! Tests of the file set. Each test changes the files of the folder between two steps of a scan.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;
use ordain_store::checkpoint::{FilePosition, created_ns};
use ordain_util::file_pattern::FilePattern;
use tempfile::TempDir;

use super::identity::fingerprint;
use super::listed_file::matching_files;
use super::*;

/// A folder with event files, and the set of these files.
struct Fixture {
    folder: TempDir,
    pattern: FilePattern,
    set: FileSet,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pattern = FilePattern::new(&folder.path().join(name));
        let set = FileSet::new(pattern.clone(), "s", OrderingMode::Fifo, false);
        Self { folder, pattern, set }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let file = File::options().create(true).append(true).open(self.path(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Copies a file, and keeps the inode of an existing file `to`.
    fn copy(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).unwrap();
    }

    fn truncate(&self, name: &str) {
        File::options().write(true).open(self.path(name)).unwrap().set_len(0).unwrap();
    }

    /// Records that the source has read the first bytes of a file, up to a position.
    fn read(&mut self, index: usize, offset: u64, line: u64) {
        let tracked = &mut self.set.files[index];
        let print = fingerprint(&File::open(&tracked.progress.path).unwrap(), offset).unwrap();
        tracked.progress = tracked.progress.clone().at(FilePosition { offset, line }, print);
        tracked.read_to = offset;
    }

    /// Returns the file names and the positions of the tracked files, without the lost files.
    fn files(&self) -> Vec<(String, u64)> {
        let present = self.set.files.iter().filter(|tracked| !tracked.progress.is_lost);
        let name = |tracked: &TrackedFile| {
            let name = Path::new(&tracked.name).file_name().unwrap().to_str().unwrap().to_owned();
            (name, tracked.progress.position().offset)
        };
        present.map(name).collect()
    }

    fn has_loss(&self) -> bool {
        self.set.files.iter().any(|tracked| tracked.loss.is_some())
            || !self.set.compressed.unreported.is_empty()
    }

    /// Writes the last part of a gzip file whose content has this length, with a modification time in the past.
    fn compress(&self, name: &str, length: u32, age_secs: u64) {
        let content = [[0; 16].as_slice(), &length.to_le_bytes()].concat();
        fs::write(self.path(name), content).unwrap();
        self.age(name, age_secs);
    }

    /// Writes a gzip file with this content.
    fn gzip(&self, name: &str, content: &str) {
        let file = File::create(self.path(name)).unwrap();
        let mut encoder = GzEncoder::new(file, Compression::default());
        encoder.write_all(content.as_bytes()).unwrap();
        encoder.finish().unwrap();
    }

    /// Appends the compressed form of nothing to a gzip file.
    fn append_empty_member(&self, name: &str) {
        let file = File::options().append(true).open(self.path(name)).unwrap();
        GzEncoder::new(file, Compression::default()).finish().unwrap();
    }

    /// Gives a file a modification time in the past.
    fn age(&self, name: &str, age_secs: u64) {
        let modified = std::time::SystemTime::now() - Duration::from_secs(age_secs);
        let file = File::options().write(true).open(self.path(name)).unwrap();
        file.set_modified(modified).unwrap();
    }

    /// Waits until a new file gets a later creation time than the file `name`. Returns `false` if the file system does
    /// not record when a file was created.
    fn until_newer(&self, name: &str) -> bool {
        let before = created_ns(&fs::metadata(self.path(name)).unwrap());
        // The clock of the file system has ticks of several milliseconds.
        loop {
            fs::write(self.path("probe"), "").unwrap();
            let created = created_ns(&fs::metadata(self.path("probe")).unwrap());
            fs::remove_file(self.path("probe")).unwrap();
            if created == 0 || created > before {
                return created > 0;
            }
        }
    }

    /// Starts again with the checkpoint of the present state.
    fn restart(&mut self) {
        let checkpoint = Checkpoint::new(self.set.progress(), Vec::new())
            .with_compressed(self.set.known_compressed());
        let checkpoint = Checkpoint::decode(&checkpoint.encode()).unwrap();
        let pattern = self.pattern.clone();
        self.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
    }

    /// Returns the description of the lost rest of a file; an empty text if the set reports no such loss.
    fn loss(&self, name: &str) -> &str {
        let mut files = self.set.files.iter();
        let tracked = files.find(|tracked| Path::new(&tracked.name).ends_with(name));
        tracked.and_then(|tracked| tracked.loss.as_deref()).unwrap_or_default()
    }

    /// Returns the names of the compressed files with lines that were never read.
    fn unreported(&self) -> Vec<String> {
        let paths = self.set.compressed.unreported.iter().map(|file| &file.progress.path);
        let name =
            |path: &String| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        paths.map(name).collect()
    }
}

/// A program truncates the copied file after the scan has found the file, and before the scan compares the copy. The
/// source has read the first of two lines, or nothing.
#[test]
fn file_truncated_during_the_scan_continues_in_its_copy() {
    for offset in [0, 4] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "one\ntwo\n");
        fixture.set.scan().unwrap();
        fixture.read(0, offset, offset / 4);
        fixture.copy("f", "f.1");
        let listed = fixture.set.list(&fixture.pattern, |_| true).unwrap().unwrap();
        fixture.set.find_tracked(&fixture.pattern, &listed).unwrap();
        fixture.truncate("f");
        fixture.set.add_unknown(&listed).unwrap();
        assert!(fixture.set.is_listing_outdated, "the file was truncated");
        assert_eq!(fixture.files(), [("f".to_owned(), offset)], "the copy must not count as new");
        fixture.append("f", "3\n");
        assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
        assert_eq!(fixture.files(), [("f.1".to_owned(), offset), ("f".to_owned(), 0)]);
        assert!(!fixture.has_loss());
    }
}

/// A program rewrites a file without a change of its length and its modification time. The scan must detect the change
/// when it compares a new file, and must not repeat its listings without end.
#[test]
fn rewritten_file_does_not_repeat_the_scan_without_end() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    let modified = fs::metadata(fixture.path("f")).unwrap().modified().unwrap();
    fs::write(fixture.path("f"), "two\n").unwrap();
    File::options().write(true).open(fixture.path("f")).unwrap().set_modified(modified).unwrap();
    fixture.append("f.1", "another line\n");
    assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
    assert_eq!(fixture.files(), [("f.1".to_owned(), 0), ("f".to_owned(), 0)]);
}

/// A program copies a file over the older file, and then truncates the copied file. The inode of the older file stays
/// the same, but the older file now has unread lines.
#[test]
fn overwritten_older_file_counts_as_unknown() {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", "first\n");
    fixture.append("f", "second\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 6, 1);
    fixture.read(1, 7, 1);
    fixture.set.scan().unwrap();
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
    std::os::unix::fs::symlink(fixture.path("missing"), fixture.path("f.1")).unwrap();
    assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

/// A program moves the folder away after the check that the folder exists, and before the listing.
#[test]
fn folder_that_vanishes_before_its_listing_is_no_error() {
    let fixture = Fixture::new("folder/f");
    assert!(matching_files(&fixture.pattern, |_| true).unwrap().is_none());
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
        let listed = matching_files(&fixture.pattern, |_| true);
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
    fixture.set.scan().unwrap();
    fixture.append("e-b.ndjson.1", &format!("{half}\"id\":\"1\"}}\n"));
    fixture.set.scan().unwrap();
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
    fixture.set.scan().unwrap();
    fs::rename(fixture.path("folder"), fixture.path("away")).unwrap();
    assert_eq!(fixture.set.scan().unwrap(), ScanResult::NotListed);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    assert!(!fixture.has_loss());
    assert!(fixture.set.has_unknown_older_file().unwrap(), "no file may be read before a scan");
}

/// A program truncates a file before the source has read anything of it, and the file grows beyond its earlier length
/// before the next scan. The unread lines are lost, are in a copy, or were in a copy that is not in the folder beside
/// another older file.
#[test]
fn unread_file_that_grows_after_a_truncation_is_recognised() {
    for (is_copied, has_other) in [(false, false), (true, false), (false, true)] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "one\ntwo\n");
        fixture.set.scan().unwrap();
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
        assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
        assert_eq!(fixture.has_loss(), !is_copied);
        let files: &[&str] = if is_copied || has_other { &["f.1", "f"] } else { &["f"] };
        let files: Vec<_> = files.iter().map(|name| ((*name).to_owned(), 0)).collect();
        assert_eq!(fixture.files(), files);
    }
}

/// The set remembers a removed file that was read to its end. A copy then appears that was made before the last lines
/// were written.
#[test]
fn shorter_copy_of_a_removed_file_is_not_read_again() {
    let mut fixture = Fixture::new("f");
    let half = "a line\n".repeat(1_000);
    fixture.append("backup", &half);
    fixture.append("f.1", &half.repeat(2));
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 14_000, 2_000);
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.set.files[0].file = None;
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    fixture.copy("backup", "f.old");
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f.old".to_owned(), 7_000), ("f".to_owned(), 0)]);
    assert!(!fixture.has_loss());
}

/// The folder of the files has another name, and the link in the path of the source leads to the new name. The source
/// had closed the file.
#[test]
fn closed_file_is_opened_after_its_folder_was_renamed() {
    let mut fixture = Fixture::new("link/f");
    fs::create_dir(fixture.path("a")).unwrap();
    std::os::unix::fs::symlink("a", fixture.path("link")).unwrap();
    fixture.append("a/f", "one\ntwo\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 8, 2);
    fixture.set.scan().unwrap();
    fixture.set.files[0].file = None;
    fs::rename(fixture.path("a"), fixture.path("b")).unwrap();
    fs::remove_file(fixture.path("link")).unwrap();
    std::os::unix::fs::symlink("b", fixture.path("link")).unwrap();
    fixture.copy("b/f", "b/f.1");
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f".to_owned(), 8)], "the copy has nothing new");
    assert!(fixture.set.files[0].progress.path.ends_with("/b/f"));
    fixture.set.files[0].file = None;
    fixture.set.files[0].progress.path = fixture.path("a/f").display().to_string();
    assert!(fixture.set.open(0).unwrap().is_some());
}

/// A compressed file of an earlier generation has the length that was read. The newest compressed file has more bytes,
/// and may contain unread lines.
#[test]
fn older_compressed_file_of_equal_length_hides_no_loss() {
    for (newest_length, has_loss) in [(8_u32, true), (4, false)] {
        let mut fixture = Fixture::new("f-*.nd");
        fixture.append("f-a.nd", "one\n");
        fixture.append("f-b.nd", "two\n");
        fixture.compress("f-a.nd.2.gz", 4, 30);
        fixture.compress("f-b.nd.1.gz", 9, 10);
        fixture.set.scan().unwrap();
        fixture.read(0, 4, 1);
        fixture.read(1, 4, 1);
        fixture.set.scan().unwrap();
        fixture.compress("f-a.nd.1.gz", newest_length, 20);
        let index = fixture.set.files.iter().position(|tracked| tracked.name.ends_with("a.nd"));
        fixture.set.files[index.unwrap()].file = None;
        fs::remove_file(fixture.path("f-a.nd")).unwrap();
        fixture.set.scan().unwrap();
        assert_eq!(fixture.has_loss(), has_loss);
    }
}

/// The set has read three files of the same length. Three compressed files appear, and later a fourth compressed file
/// of this length.
#[test]
fn file_matches_only_one_compressed_file() {
    let mut fixture = Fixture::new("f");
    for (name, text) in [("f.2", "one\n"), ("f.1", "two\n"), ("f", "six\n")] {
        fixture.append(name, text);
    }
    fixture.set.scan().unwrap();
    for index in 0..3 {
        fixture.read(index, 4, 1);
    }
    fixture.set.scan().unwrap();
    for (compressed, name) in [("f.4.gz", "f.2"), ("f.3.gz", "f.1"), ("f.2.gz", "f")] {
        fs::remove_file(fixture.path(name)).unwrap();
        // Each content has another checksum.
        let content = [name.repeat(16).as_bytes(), &4_u32.to_le_bytes()].concat();
        fs::write(fixture.path(compressed), content).unwrap();
    }
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), [""; 0]);
    fixture.compress("f.1.gz", 4, 0);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
}

/// The set knows the compressed files of its first scan. After a restart, the set recognises these files under other
/// names and as copies, and distinguishes them from a new file.
#[test]
fn known_compressed_files_are_recognised_after_a_restart() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.compress("f.1.gz", 5, 30);
    fixture.compress("f.2.gz", 6, 40);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), [""; 0]);
    let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new())
        .with_compressed(fixture.set.known_compressed());
    let pattern = fixture.pattern.clone();
    fixture.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
    fs::rename(fixture.path("f.2.gz"), fixture.path("f.3.gz")).unwrap();
    fixture.copy("f.1.gz", "f.2.gz");
    fixture.compress("f.1.gz", 7, 20);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
    // A further scan finds the same file, and the set knows the file as soon as the stream gets the dead letter.
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
    let known = fixture.set.known_compressed().unwrap().len();
    let (_, progress) = fixture.set.take_unreported().unwrap();
    assert_eq!(progress.compressed.unwrap().len(), known + 1);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), [""; 0]);
}

/// A program has not finished the compressed file while the folder still has the uncompressed file.
#[test]
fn unfinished_compressed_file_is_no_loss() {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", "one\n");
    fixture.append("f", "second\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fs::write(fixture.path("f.1.gz"), "half").unwrap();
    fixture.set.scan().unwrap();
    assert!(!fixture.has_loss());
    fixture.compress("f.1.gz", 4, 0);
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.set.scan().unwrap();
    assert!(!fixture.has_loss());
}

/// A program has not finished the compressed file of the live file.
#[test]
fn unfinished_compressed_live_file_is_no_loss() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fs::write(fixture.path("f.gz"), "half").unwrap();
    fixture.set.scan().unwrap();
    assert!(!fixture.has_loss());
    fixture.compress("f.gz", 4, 0);
    fixture.set.scan().unwrap();
    assert!(!fixture.has_loss(), "the program keeps the uncompressed file");
    fs::remove_file(fixture.path("f")).unwrap();
    fixture.set.scan().unwrap();
    assert!(!fixture.has_loss());
}

/// While the source is stopped, a program appends to the live file, compresses the file, and creates a new live file.
/// The process ends before the stream has the dead letter, so the next start repeats the report.
#[test]
fn new_live_file_hides_no_rest_in_a_compressed_file() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fixture.compress("f.gz", 8, 0);
    fs::remove_file(fixture.path("f")).unwrap();
    fixture.append("f", "three\n");
    for _ in 0..2 {
        let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new())
            .with_compressed(fixture.set.known_compressed());
        let pattern = fixture.pattern.clone();
        fixture.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
        fixture.set.scan().unwrap();
        assert!(fixture.set.files.iter().any(|tracked| tracked.unreported_rest().is_some()));
        assert_eq!(fixture.unreported(), [""; 0]);
    }
}

/// Log rotation renames the file that the source has read. Before the next scan, a program compresses a further file,
/// and creates a new live file.
#[test]
fn new_live_file_hides_no_compressed_file() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fs::rename(fixture.path("f"), fixture.path("f.1")).unwrap();
    fixture.compress("f.gz", 8, 30);
    fixture.append("f", "three\n");
    // The stream has no dead letter yet, so a further scan finds the same file.
    for _ in 0..2 {
        fixture.set.scan().unwrap();
        assert_eq!(fixture.unreported(), ["f.gz"]);
    }
}

/// The set has found a file but read nothing of it when the process ends. Before the next start, a program truncates
/// the file, and the file grows beyond its earlier length.
#[test]
fn unread_file_truncated_while_stopped_is_recognised() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\ntwo\n");
    fixture.set.scan().unwrap();
    let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new()).encode();
    let checkpoint = Checkpoint::decode(&checkpoint).unwrap();
    fixture.truncate("f");
    fixture.append("f", "three\nfour\n");
    let pattern = fixture.pattern.clone();
    fixture.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
    fixture.set.scan().unwrap();
    assert!(fixture.has_loss());
}

/// Returns a fixture whose first scan has ignored the older file `f.1` with two lines.
fn with_ignored_file() -> Fixture {
    let mut fixture = Fixture::new("f");
    fixture.set.is_first_start = true;
    fixture.append("f.1", "1\n2\n");
    fixture.append("f", "3\n");
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f.1".to_owned(), 4), ("f".to_owned(), 0)]);
    fixture
}

/// Older files that existed at the first start leave the folder and return: moved, as copies, or as a copy that a
/// program is still writing. The checkpoint of the time between contains these files.
#[test]
fn ignored_file_that_returns_is_not_read() {
    let long = format!("{}\n", "x".repeat(5_000));
    for (name, content) in [("f.1", "1\n2\n"), ("f.2", &*long)] {
        let mut fixture = with_ignored_file();
        fixture.append("f.2", &long);
        fixture.set.is_first_start = true;
        fixture.set.scan().unwrap();
        fs::rename(fixture.path(name), fixture.path("away")).unwrap();
        assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
        assert_eq!(fixture.files().len(), 2, "the file is missing");

        let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new());
        let checkpoint = Checkpoint::decode(&checkpoint.encode()).unwrap();
        let resumed =
            FileSet::resume(fixture.pattern.clone(), "s", OrderingMode::Fifo, &checkpoint);
        fixture.set = resumed;
        fixture.set.scan().unwrap();
        let live = fixture.set.files.iter().position(|tracked| tracked.progress.is_live);
        fixture.read(live.unwrap(), 2, 1);
        // A running reader may find the returned file before its next scan.
        fixture.append(name, &content[..content.len().min(4_500)]);
        fixture.set.discover().unwrap();
        for _ in 0..2 {
            assert_eq!(fixture.set.scan().unwrap(), ScanResult::Complete);
            assert_eq!(fixture.files().len(), 3);
            assert!(!fixture.set.files.iter().any(TrackedFile::is_unread), "{:?}", fixture.files());
        }
        fixture.append(name, &content[content.len().min(4_500)..]);
        fixture.set.scan().unwrap();
        fs::remove_file(fixture.path(name)).unwrap();
        fixture.set.scan().unwrap();
        fs::rename(fixture.path("away"), fixture.path(name)).unwrap();
        fixture.set.scan().unwrap();
        assert_eq!(fixture.files().len(), 3);
        assert!(!fixture.set.files.iter().any(TrackedFile::is_unread), "{:?}", fixture.files());
    }
}

/// An ignored file returns under the name of a new file, so the path of the source names the file.
#[test]
fn ignored_file_with_the_name_of_a_new_file_is_read() {
    let mut fixture = with_ignored_file();
    fs::rename(fixture.path("f.1"), fixture.path("away")).unwrap();
    fixture.set.scan().unwrap();
    fixture.read(1, 2, 1);
    fs::rename(fixture.path("f"), fixture.path("f.1")).unwrap();
    fs::rename(fixture.path("away"), fixture.path("f")).unwrap();
    for _ in 0..2 {
        fixture.set.scan().unwrap();
        assert_eq!(fixture.files(), [("f.1".to_owned(), 2), ("f".to_owned(), 0)]);
    }
    fixture.append("f.2", "4\n");
    fixture.set.scan().unwrap();
    assert!(fixture.files().contains(&("f.2".to_owned(), 0)));
    assert!(!fixture.has_loss());
}

/// Log rotation removes ignored files. The checkpoint must not grow, and other missing files must stay in the set.
#[test]
fn number_of_missing_ignored_files_is_limited() {
    let mut fixture = Fixture::new("f");
    fixture.set.is_first_start = true;
    fixture.append("f", "a\n");
    fixture.append("f.1", "b\n");
    fixture.set.scan().unwrap();
    for number in 1_000..1_300 {
        fixture.append(&format!("f.{number}"), &format!("{number}\n"));
    }
    fixture.set.is_first_start = true;
    fixture.set.scan().unwrap();
    for number in 1_000..1_300 {
        fs::remove_file(fixture.path(&format!("f.{number}"))).unwrap();
    }
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.set.scan().unwrap();
    let is_missing = |tracked: &&TrackedFile| tracked.progress.is_lost;
    assert_eq!(fixture.set.files.iter().filter(is_missing).count(), 256);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

/// An ignored file left the folder long ago. A new compressed file has the same length, but contains lines that the
/// source has never read.
#[test]
fn ignored_file_hides_no_later_compressed_file() {
    let mut fixture = with_ignored_file();
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.set.scan().unwrap();
    fixture.compress("f.1.gz", 4, 0);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
}

/// Log rotation renames a file that the source has read, and creates a new file. The process ends. A program appends
/// lines to both files, and then compresses both. The letter of each file must name its own compressed file.
#[test]
fn lines_appended_to_a_renamed_file_are_named_with_this_file() {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", "one\n");
    fixture.append("f", "");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fixture.gzip("f.3.gz", "one\ntwo\n");
    fixture.gzip("f.2.gz", "three\n");
    fs::remove_file(fixture.path("f.1")).unwrap();
    fs::remove_file(fixture.path("f")).unwrap();
    // The process ends before the stream has the dead letters, so the next start repeats the reports.
    for _ in 0..2 {
        fixture.restart();
        fixture.set.scan().unwrap();
        for (name, compressed) in [("f.1", "f.3.gz"), ("f", "f.2.gz")] {
            assert!(fixture.loss(name).contains(compressed), "{name}: {:?}", fixture.loss(name));
        }
        assert_eq!(fixture.unreported(), [""; 0]);
    }
}

/// A compressed file has the length of a file that the source has read, but contains lines that the source has never
/// read. The file that the source has read has grown, and is in another compressed file.
#[test]
fn other_content_of_equal_length_is_reported() {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", "one\n");
    fixture.append("f", "live\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fixture.gzip("f.2.gz", "one\ntwo\n");
    fixture.gzip("f.1.gz", "six\n");
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.restart();
    fixture.set.scan().unwrap();
    assert!(fixture.loss("f.1").contains("f.2.gz"), "{:?}", fixture.loss("f.1"));
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
}

/// The set remembers a removed file. A compressed file of the same length appears later.
#[test]
fn removed_file_hides_no_compressed_file_of_equal_length() {
    for (content, unreported) in [("six\n", &["f.2.gz"][..]), ("one\n", &[][..])] {
        let mut fixture = Fixture::new("f");
        fixture.append("f.1", "one\n");
        fixture.append("f", "live\n");
        fixture.set.scan().unwrap();
        fixture.read(0, 4, 1);
        fixture.set.scan().unwrap();
        fs::remove_file(fixture.path("f.1")).unwrap();
        fixture.restart();
        fixture.set.scan().unwrap();
        assert!(!fixture.has_loss());
        fixture.gzip("f.2.gz", content);
        fixture.set.scan().unwrap();
        assert_eq!(fixture.unreported(), unreported);
    }
}

/// Returns a fixture with the file `f`, and with the compressed file `f.1.gz`. The source had read the content of
/// 14,000 bytes before a program compressed it. Returns `None` if the file system does not record when a file was
/// created.
fn with_compressed_file(content: &str) -> Option<Fixture> {
    let mut fixture = Fixture::new("f");
    fixture.append("f.1", content);
    fixture.append("f", "live\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 14_000, 2_000);
    fixture.set.scan().unwrap();
    fixture.gzip("f.1.gz", content);
    fs::remove_file(fixture.path("f.1")).unwrap();
    fixture.restart();
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    assert!(!fixture.has_loss());
    fixture.until_newer("f.1.gz").then_some(fixture)
}

/// A program slowly uncompresses a file that the source has read. Scans find the file with few bytes, and with half of
/// its bytes.
#[test]
fn half_uncompressed_file_is_not_read_again() {
    let content = "a line\n".repeat(2_000);
    let Some(mut fixture) = with_compressed_file(&content) else { return };
    for part in [0_usize..0, 0..100, 100..7_000] {
        fixture.append("f.1", &content[part]);
        fixture.set.discover().unwrap();
        assert!(!fixture.set.has_unknown_older_file().unwrap());
        fixture.set.scan().unwrap();
        assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    }
    fixture.append("f.1", &content[7_000..]);
    for _ in 0..2 {
        fixture.set.scan().unwrap();
        assert_eq!(fixture.files(), [("f.1".to_owned(), 14_000), ("f".to_owned(), 0)]);
        let _ = fs::remove_file(fixture.path("f.1.gz"));
    }
    assert!(!fixture.has_loss());
}

/// A program compresses a file after it has appended lines to the file. The path of the source names the file, and the
/// stream has a dead letter about the appended lines. A program then uncompresses the file, slowly or at once. Scans
/// find the file before and after the program has removed the compressed file.
#[test]
fn uncompressed_file_with_a_name_in_the_path_is_not_read_again() {
    let content = "a line\n".repeat(2_100);
    for (is_slow, is_removed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut fixture = Fixture::new("f-*.nd");
        fixture.append("f-1.nd", &content[..14_000]);
        fixture.append("f-2.nd", "live\n");
        fixture.set.scan().unwrap();
        let index = fixture.set.files.iter().position(|tracked| tracked.name.ends_with("f-1.nd"));
        let index = index.unwrap();
        fixture.read(index, 14_000, 2_000);
        fixture.set.scan().unwrap();
        fixture.gzip("f-1.nd.gz", &content);
        fs::remove_file(fixture.path("f-1.nd")).unwrap();
        fixture.restart();
        fixture.set.scan().unwrap();
        assert!(fixture.loss("f-1.nd").contains("f-1.nd.gz"), "{:?}", fixture.loss("f-1.nd"));
        let compressed = fixture.set.files[index].unreported_rest().unwrap();
        fixture.set.record_reported(compressed);
        fixture.set.files[index].record_loss();
        fixture.set.files[index].loss = None;
        fixture.restart();
        fixture.set.scan().unwrap();
        assert!(!fixture.has_loss());
        if !fixture.until_newer("f-1.nd.gz") {
            return;
        }

        if is_slow {
            for part in [0..0, 0..7_000] {
                fixture.append("f-1.nd", &content[part]);
                fixture.set.discover().unwrap();
                fixture.set.scan().unwrap();
                assert_eq!(fixture.files(), [("f-2.nd".to_owned(), 0)]);
            }
            fixture.append("f-1.nd", &content[7_000..]);
        } else {
            fixture.append("f-1.nd", &content);
        }
        if is_removed {
            fs::remove_file(fixture.path("f-1.nd.gz")).unwrap();
            if !is_slow {
                fixture.age("f-1.nd", 30);
            }
        }
        fixture.set.discover().unwrap();
        for _ in 0..2 {
            fixture.set.scan().unwrap();
            let mut files = fixture.files();
            files.sort();
            let expected = [("f-1.nd".to_owned(), 14_000), ("f-2.nd".to_owned(), 0)];
            assert_eq!(files, expected, "slow: {is_slow}, removed: {is_removed}");
        }
        assert!(!fixture.has_loss());
    }
}

/// A program compressed a file, and other programs later write the same lines to a new file of the same name.
#[test]
fn new_file_with_the_content_of_a_compressed_file_is_read() {
    let mut fixture = Fixture::new("f");
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    fixture.read(0, 4, 1);
    fixture.set.scan().unwrap();
    fixture.gzip("f.1.gz", "one\n");
    fs::remove_file(fixture.path("f")).unwrap();
    fixture.restart();
    fixture.set.scan().unwrap();
    assert!(fixture.files().is_empty());
    fixture.append("f", "one\n");
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

/// A new older file has the name of a longer compressed file, but other content.
#[test]
fn new_file_beside_a_longer_compressed_file_is_read() {
    let Some(mut fixture) = with_compressed_file(&"a line\n".repeat(2_000)) else { return };
    fixture.append("f.1", "another line\n");
    assert!(fixture.set.has_unknown_older_file().unwrap());
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f.1".to_owned(), 0), ("f".to_owned(), 0)]);
}

/// An operator recovers only a part of a compressed file, and leaves the compressed file in the folder.
#[test]
fn part_of_a_compressed_file_is_read_when_it_no_longer_changes() {
    let content = "a line\n".repeat(2_000);
    let mut fixture = Fixture::new("f");
    fixture.append("f", "live\n");
    fixture.set.scan().unwrap();
    fixture.gzip("f.3.gz", &content);
    if !fixture.until_newer("f.3.gz") {
        return;
    }
    fixture.append("f.3", &content[..7_000]);
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)], "a program may still be writing the file");
    fixture.age("f.3", 60);
    assert!(fixture.set.has_unknown_older_file().unwrap());
    fixture.set.scan().unwrap();
    assert_eq!(fixture.files(), [("f.3".to_owned(), 0), ("f".to_owned(), 0)]);
}

/// The last bytes of a gzip file do not state the length of its content, because the file ends with an empty member or
/// with NULs. The source has never read the lines of this file.
#[test]
fn gzip_file_whose_end_states_no_length_is_reported() {
    for has_member in [true, false] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "live\n");
        fixture.set.scan().unwrap();
        fixture.gzip("f.1.gz", &"a line\n".repeat(500));
        if has_member {
            fixture.append_empty_member("f.1.gz");
        } else {
            fixture.append("f.1.gz", &"\0".repeat(512));
        }
        fixture.gzip("f.2.gz", "");
        fixture.set.scan().unwrap();
        assert_eq!(fixture.unreported(), ["f.1.gz"]);
        fixture.set.take_unreported().unwrap();
        fixture.set.scan().unwrap();
        assert_eq!(fixture.unreported(), [""; 0]);
    }
}

/// The source has read a file before a program compressed it. The last bytes of the gzip file do not state the length
/// of its content.
#[test]
fn gzip_file_whose_end_states_no_length_is_matched_with_its_original() {
    for has_member in [true, false] {
        let mut fixture = Fixture::new("f");
        fixture.append("f.1", "one\n");
        fixture.append("f", "live\n");
        fixture.set.scan().unwrap();
        fixture.read(0, 4, 1);
        fixture.set.scan().unwrap();
        fixture.gzip("f.1.gz", "one\n");
        if has_member {
            fixture.append_empty_member("f.1.gz");
        } else {
            fixture.append("f.1.gz", &"\0".repeat(512));
        }
        fs::remove_file(fixture.path("f.1")).unwrap();
        fixture.restart();
        fixture.set.scan().unwrap();
        assert!(!fixture.has_loss(), "{:?}", fixture.unreported());
    }
}
