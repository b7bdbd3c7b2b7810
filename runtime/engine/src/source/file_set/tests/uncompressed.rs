//! Files that programs uncompress beside their compressed files.

use std::fs;

use super::fixture::Fixture;

/// Returns a fixture with the file `f`, and with the compressed file `f.1.gz`. The source had read the content of
/// 14,000 bytes before a program compressed it. Returns `None` if the file system does not record when a file was
/// created.
fn with_compressed_file(content: &str) -> Option<Fixture> {
    let mut fixture = Fixture::with_read_older_file(content, "live\n");
    fixture.gzip("f.1.gz", content);
    fixture.remove("f.1");
    fixture.restart();
    fixture.scan();
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
        fixture.scan();
        assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
    }
    fixture.append("f.1", &content[7_000..]);
    for _ in 0..2 {
        fixture.scan();
        assert_eq!(fixture.files(), [("f.1".to_owned(), 14_000), ("f".to_owned(), 0)]);
        let _ = fs::remove_file(fixture.path("f.1.gz"));
    }
    assert!(!fixture.has_loss());
}

/// A program compresses a file after it has appended lines to the file. The path of the source names the file, and the
/// stream has a dead letter about the appended lines. A program then uncompresses the file, slowly or in one step.
/// Scans find the file before and after the program has removed the compressed file.
#[test]
fn uncompressed_file_with_a_name_in_the_path_is_not_read_again() {
    let content = "a line\n".repeat(2_100);
    for (is_slow, is_removed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut fixture = Fixture::new("f-*.nd");
        fixture.append("f-1.nd", &content[..14_000]);
        fixture.append("f-2.nd", "live\n");
        fixture.scan();
        let index = fixture.index("f-1.nd");
        fixture.read(index, 14_000, 2_000);
        fixture.scan();
        fixture.gzip("f-1.nd.gz", &content);
        fixture.remove("f-1.nd");
        fixture.restart();
        fixture.scan();
        assert!(fixture.loss("f-1.nd").contains("f-1.nd.gz"), "{:?}", fixture.loss("f-1.nd"));
        let compressed = fixture.set.files[index].unreported_rest().unwrap();
        fixture.set.record_reported(compressed);
        fixture.set.files[index].record_loss();
        fixture.set.files[index].loss = None;
        fixture.restart();
        fixture.scan();
        assert!(!fixture.has_loss());
        if !fixture.until_newer("f-1.nd.gz") {
            return;
        }

        if is_slow {
            for part in [0..0, 0..7_000] {
                fixture.append("f-1.nd", &content[part]);
                fixture.set.discover().unwrap();
                fixture.scan();
                assert_eq!(fixture.files(), [("f-2.nd".to_owned(), 0)]);
            }
            fixture.append("f-1.nd", &content[7_000..]);
        } else {
            fixture.append("f-1.nd", &content);
        }
        if is_removed {
            fixture.remove("f-1.nd.gz");
            if !is_slow {
                fixture.age("f-1.nd", 30);
            }
        }
        fixture.set.discover().unwrap();
        for _ in 0..2 {
            fixture.scan();
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
    let mut fixture = Fixture::with_read_file("one\n");
    fixture.gzip("f.1.gz", "one\n");
    fixture.remove("f");
    fixture.restart();
    fixture.scan();
    assert!(fixture.files().is_empty());
    fixture.append("f", "one\n");
    fixture.scan();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)]);
}

#[test]
fn new_file_beside_a_longer_compressed_file_is_read() {
    let Some(mut fixture) = with_compressed_file(&"a line\n".repeat(2_000)) else { return };
    fixture.append("f.1", "another line\n");
    assert!(fixture.set.has_unknown_older_file().unwrap());
    fixture.scan();
    assert_eq!(fixture.files(), [("f.1".to_owned(), 0), ("f".to_owned(), 0)]);
}

/// An operator recovers only a part of a compressed file, and leaves the compressed file in the folder.
#[test]
fn part_of_a_compressed_file_is_read_when_it_no_longer_changes() {
    let content = "a line\n".repeat(2_000);
    let mut fixture = Fixture::new("f");
    fixture.append("f", "live\n");
    fixture.scan();
    fixture.gzip("f.3.gz", &content);
    if !fixture.until_newer("f.3.gz") {
        return;
    }
    fixture.append("f.3", &content[..7_000]);
    fixture.scan();
    assert_eq!(fixture.files(), [("f".to_owned(), 0)], "a program may still be writing the file");
    fixture.age("f.3", 60);
    assert!(fixture.set.has_unknown_older_file().unwrap());
    fixture.scan();
    assert_eq!(fixture.files(), [("f.3".to_owned(), 0), ("f".to_owned(), 0)]);
}
