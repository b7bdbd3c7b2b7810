//! Compressed files, and the losses that the set reports because of them.

use std::fs;

use super::fixture::Fixture;

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
        fixture.scan();
        fixture.read(0, 4, 1);
        fixture.read(1, 4, 1);
        fixture.scan();
        fixture.compress("f-a.nd.1.gz", newest_length, 20);
        let index = fixture.index("f-a.nd");
        fixture.set.files[index].file = None;
        fixture.remove("f-a.nd");
        fixture.scan();
        assert_eq!(fixture.has_loss(), has_loss);
    }
}

/// The source has read three files of the same length. Three compressed files appear, and later a fourth compressed
/// file of this length.
#[test]
fn file_matches_only_one_compressed_file() {
    let mut fixture = Fixture::new("f");
    for (name, text) in [("f.2", "one\n"), ("f.1", "two\n"), ("f", "six\n")] {
        fixture.append(name, text);
    }
    fixture.scan();
    for index in 0..3 {
        fixture.read(index, 4, 1);
    }
    fixture.scan();
    for (compressed, name) in [("f.4.gz", "f.2"), ("f.3.gz", "f.1"), ("f.2.gz", "f")] {
        fixture.remove(name);
        // Each content has another checksum.
        let content = [name.repeat(16).as_bytes(), &4_u32.to_le_bytes()].concat();
        fs::write(fixture.path(compressed), content).unwrap();
    }
    fixture.scan();
    assert_eq!(fixture.unreported(), [""; 0]);
    fixture.compress("f.1.gz", 4, 0);
    fixture.scan();
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
    fixture.scan();
    assert_eq!(fixture.unreported(), [""; 0]);
    fixture.restart();
    fixture.rename("f.2.gz", "f.3.gz");
    fixture.copy("f.1.gz", "f.2.gz");
    fixture.compress("f.1.gz", 7, 20);
    fixture.scan();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
    // The next scan finds the same file, and the set knows the file as soon as the stream gets the dead letter.
    fixture.scan();
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
    let known = fixture.set.known_compressed().unwrap().len();
    let (_, progress) = fixture.set.take_unreported().unwrap();
    assert_eq!(progress.compressed.unwrap().len(), known + 1);
    fixture.scan();
    assert_eq!(fixture.unreported(), [""; 0]);
}

#[test]
fn unfinished_compressed_file_is_no_loss() {
    let mut fixture = Fixture::with_read_older_file("one\n", "second\n");
    fs::write(fixture.path("f.1.gz"), "half").unwrap();
    fixture.scan();
    assert!(!fixture.has_loss());
    fixture.compress("f.1.gz", 4, 0);
    fixture.remove("f.1");
    fixture.scan();
    assert!(!fixture.has_loss());
}

#[test]
fn unfinished_compressed_live_file_is_no_loss() {
    let mut fixture = Fixture::with_read_file("one\n");
    fs::write(fixture.path("f.gz"), "half").unwrap();
    fixture.scan();
    assert!(!fixture.has_loss());
    fixture.compress("f.gz", 4, 0);
    fixture.scan();
    assert!(!fixture.has_loss(), "the program keeps the uncompressed file");
    fixture.remove("f");
    fixture.scan();
    assert!(!fixture.has_loss());
}

/// While the source is stopped, a program appends to the live file, compresses the file, and creates a new live file.
/// The process ends before the stream has the dead letter, so the next start repeats the report.
#[test]
fn new_live_file_hides_no_rest_in_a_compressed_file() {
    let mut fixture = Fixture::with_read_file("one\n");
    fixture.compress("f.gz", 8, 0);
    fixture.remove("f");
    fixture.append("f", "three\n");
    for _ in 0..2 {
        fixture.restart();
        fixture.scan();
        assert!(fixture.set.files.iter().any(|tracked| tracked.unreported_rest().is_some()));
        assert_eq!(fixture.unreported(), [""; 0]);
    }
}

/// Log rotation renames the file that the source has read. Before the next scan, a program compresses another file, and
/// creates a new live file.
#[test]
fn new_live_file_hides_no_compressed_file() {
    let mut fixture = Fixture::with_read_file("one\n");
    fixture.rename("f", "f.1");
    fixture.compress("f.gz", 8, 30);
    fixture.append("f", "three\n");
    // The stream has no dead letter yet, so the second scan finds the same file.
    for _ in 0..2 {
        fixture.scan();
        assert_eq!(fixture.unreported(), ["f.gz"]);
    }
}

/// Log rotation renames a file that the source has read, and creates a new file. The process ends. A program appends
/// lines to both files, and then compresses both. The letter of each file must name its own compressed file.
#[test]
fn lines_appended_to_a_renamed_file_are_named_with_this_file() {
    let mut fixture = Fixture::with_read_older_file("one\n", "");
    fixture.gzip("f.3.gz", "one\ntwo\n");
    fixture.gzip("f.2.gz", "three\n");
    fixture.remove("f.1");
    fixture.remove("f");
    // The process ends before the stream has the dead letters, so the next start repeats the reports.
    for _ in 0..2 {
        fixture.restart();
        fixture.scan();
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
    let mut fixture = Fixture::with_read_older_file("one\n", "live\n");
    fixture.gzip("f.2.gz", "one\ntwo\n");
    fixture.gzip("f.1.gz", "six\n");
    fixture.remove("f.1");
    fixture.restart();
    fixture.scan();
    assert!(fixture.loss("f.1").contains("f.2.gz"), "{:?}", fixture.loss("f.1"));
    assert_eq!(fixture.unreported(), ["f.1.gz"]);
}

/// The set remembers a removed file. A compressed file of the same length appears later.
#[test]
fn removed_file_hides_no_compressed_file_of_equal_length() {
    for (content, unreported) in [("six\n", &["f.2.gz"][..]), ("one\n", &[][..])] {
        let mut fixture = Fixture::with_read_older_file("one\n", "live\n");
        fixture.remove("f.1");
        fixture.restart();
        fixture.scan();
        assert!(!fixture.has_loss());
        fixture.gzip("f.2.gz", content);
        fixture.scan();
        assert_eq!(fixture.unreported(), unreported);
    }
}

/// The last bytes of a gzip file do not state the length of its content, because the file ends with an empty member or
/// with NULs. The source has never read the lines of this file.
#[test]
fn gzip_file_whose_end_states_no_length_is_reported() {
    for has_member in [true, false] {
        let mut fixture = Fixture::new("f");
        fixture.append("f", "live\n");
        fixture.scan();
        fixture.gzip("f.1.gz", &"a line\n".repeat(500));
        fixture.obscure_length("f.1.gz", has_member);
        fixture.gzip("f.2.gz", "");
        fixture.scan();
        assert_eq!(fixture.unreported(), ["f.1.gz"]);
        fixture.set.take_unreported().unwrap();
        fixture.scan();
        assert_eq!(fixture.unreported(), [""; 0]);
    }
}

/// The source has read a file before a program compressed it. The last bytes of the gzip file do not state the length
/// of its content.
#[test]
fn gzip_file_whose_end_states_no_length_is_matched_with_its_original() {
    for has_member in [true, false] {
        let mut fixture = Fixture::with_read_older_file("one\n", "live\n");
        fixture.gzip("f.1.gz", "one\n");
        fixture.obscure_length("f.1.gz", has_member);
        fixture.remove("f.1");
        fixture.restart();
        fixture.scan();
        assert!(!fixture.has_loss(), "{:?}", fixture.unreported());
    }
}
