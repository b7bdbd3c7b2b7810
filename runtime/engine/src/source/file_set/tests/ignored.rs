//! Older files that existed at the first start. The source does not read these files.

use super::super::{Checkpoint, ScanResult, TrackedFile};
use super::fixture::Fixture;

/// Returns a fixture whose first scan has ignored the older file `f.1` with two lines.
fn with_ignored_file() -> Fixture {
    let mut fixture = Fixture::new("f");
    fixture.set.is_first_start = true;
    fixture.append("f.1", "1\n2\n");
    fixture.append("f", "3\n");
    fixture.scan();
    assert_eq!(fixture.files(), [("f.1".to_owned(), 4), ("f".to_owned(), 0)]);
    fixture
}

/// Older files that existed at the first start leave the folder and return: moved, as copies, or as a copy that a
/// program is still writing. While these files are away, a checkpoint contains them.
#[test]
fn ignored_file_that_returns_is_not_read() {
    let long = format!("{}\n", "x".repeat(5_000));
    for (name, content) in [("f.1", "1\n2\n"), ("f.2", &*long)] {
        let mut fixture = with_ignored_file();
        fixture.append("f.2", &long);
        fixture.set.is_first_start = true;
        fixture.scan();
        fixture.rename(name, "away");
        assert_eq!(fixture.scan(), ScanResult::Complete);
        assert_eq!(fixture.files().len(), 2, "the file is missing");

        let checkpoint = Checkpoint::new(fixture.set.progress(), Vec::new());
        fixture.resume(&checkpoint);
        fixture.scan();
        let live = fixture.set.files.iter().position(|tracked| tracked.progress.is_live);
        fixture.read(live.unwrap(), 2, 1);
        // A running reader may find the returned file before its next scan.
        fixture.append(name, &content[..content.len().min(4_500)]);
        fixture.set.discover().unwrap();
        for _ in 0..2 {
            assert_eq!(fixture.scan(), ScanResult::Complete);
            assert_eq!(fixture.files().len(), 3);
            assert!(!fixture.set.files.iter().any(TrackedFile::is_unread), "{:?}", fixture.files());
        }
        fixture.append(name, &content[content.len().min(4_500)..]);
        fixture.scan();
        fixture.remove(name);
        fixture.scan();
        fixture.rename("away", name);
        fixture.scan();
        assert_eq!(fixture.files().len(), 3);
        assert!(!fixture.set.files.iter().any(TrackedFile::is_unread), "{:?}", fixture.files());
    }
}

/// An ignored file returns under the name of a new file, so the path of the source names the file.
#[test]
fn ignored_file_with_the_name_of_a_new_file_is_read() {
    let mut fixture = with_ignored_file();
    fixture.rename("f.1", "away");
    fixture.scan();
    fixture.read(1, 2, 1);
    fixture.rename("f", "f.1");
    fixture.rename("away", "f");
    for _ in 0..2 {
        fixture.scan();
        assert_eq!(fixture.files(), [("f.1".to_owned(), 2), ("f".to_owned(), 0)]);
    }
    fixture.append("f.2", "4\n");
    fixture.scan();
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
    fixture.scan();
    for number in 1_000..1_300 {
        fixture.append(&format!("f.{number}"), &format!("{number}\n"));
    }
    fixture.set.is_first_start = true;
    fixture.scan();
    for number in 1_000..1_300 {
        fixture.remove(&format!("f.{number}"));
    }
    fixture.remove("f.1");
    fixture.scan();
    let is_missing = |tracked: &&TrackedFile| tracked.progress.is_lost;
    assert_eq!(fixture.set.files.iter().filter(is_missing).count(), 256);
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

/// An ignored file left the folder long ago. A new compressed file has the same length, but contains lines that the
/// source has never read.
#[test]
fn ignored_file_hides_no_later_compressed_file() {
    let mut fixture = with_ignored_file();
    fixture.remove("f.1");
    fixture.scan();
    fixture.compress("f.1.gz", 4, 0);
    fixture.scan();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
}
