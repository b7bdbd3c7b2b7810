//! Finds settings that are accepted and documented but never read.
//!
//! A setting counts as read if code accesses a field with the name of the setting's field (`.name`, not `.name(`). A
//! field with this name in another struct counts too. The test therefore does not find an unread setting if another
//! struct has a field with the same name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{ReferenceRow, reference};

/// Files whose use of a setting does not count as a read: they only check or print settings.
const FILES_WITHOUT_USE: [&str; 2] = ["config/src/check.rs", "config/src/explain.rs"];

/// The file that defines the settings of the sequencer. The sequencer must read each of these settings.
const CORE_SETTINGS_FILE: &str = "core/src/settings.rs";

#[test]
fn every_setting_is_read() {
    let mut names = BTreeSet::new();
    collect(reference(), &mut names);
    assert!(names.len() > 60, "{names:?}");
    assert_eq!(
        unread(&names, &code("", &FILES_WITHOUT_USE)),
        [""; 0],
        "settings that no code reads"
    );
}

#[test]
fn every_setting_of_the_sequencer_is_read_by_it() {
    let text = fs::read_to_string(runtime().join(CORE_SETTINGS_FILE))
        .expect("the settings of the sequencer");
    let fields = text.lines().filter_map(|line| line.trim().strip_prefix("pub "));
    let fields = fields.filter_map(|field| field.split_once(": "));
    let fields = fields.filter(|(name, _)| !name.contains(' '));
    let names: BTreeSet<&str> = fields.map(|(name, _)| name).collect();
    assert!(names.contains("id_ttl") && names.len() > 30, "{names:?}");
    let core = code("core", &[CORE_SETTINGS_FILE]);
    assert_eq!(unread(&names, &core), [""; 0], "settings that the sequencer does not read");
}

#[test]
fn only_code_that_runs_reads_a_setting() {
    let reads = |text: &str| unread(&BTreeSet::from(["id_ttl"]), &[product_code(text)]).is_empty();
    for text in ["stream.id_ttl.0", "self\n    .settings\n    .id_ttl;", "{x.id_ttl}"] {
        assert!(reads(text), "{text}");
    }
    for text in [
        "id_ttl: Millis",
        "/// See [`Stream::id_ttl`], or `stream.id_ttl`.",
        "let id_ttl = 1; ids.id_ttls; ids.id_ttl(); 0..id_ttl",
        "fn f() {}\n\n#[cfg(test)]\nmod tests { fn f() { stream.id_ttl } }",
    ] {
        assert!(!reads(text), "{text}");
    }
}

/// Collects the names of the fields of all settings that are not tables.
fn collect(rows: &[ReferenceRow], names: &mut BTreeSet<&'static str>) {
    for row in rows {
        if row.rows.is_empty() {
            names.insert(row.field);
        }
        collect(row.rows, names);
    }
}

/// Returns the names that the code never accesses as a field.
fn unread<'a>(names: &BTreeSet<&'a str>, code: &[String]) -> Vec<&'a str> {
    let is_unread = |name: &&&str| !code.iter().any(|text| has_field(text, name));
    names.iter().filter(is_unread).copied().collect()
}

fn has_field(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = &text[..at];
        let after = &text[at + name.len()..];
        let is_field = before.ends_with('.') && !before.ends_with("..");
        let continues = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '(';
        is_field && !after.starts_with(continues)
    })
}

/// Returns the code of the crate `of`, or of all crates if `of` is empty, without tests and without the files in
/// `without`.
fn code(of: &str, without: &[&str]) -> Vec<String> {
    let runtime = runtime();
    let mut texts = Vec::new();
    let mut folders: Vec<PathBuf> = match of {
        "" => files(&runtime).map(|krate| krate.join("src")).collect(),
        krate => vec![runtime.join(krate).join("src")],
    };
    while let Some(folder) = folders.pop() {
        for path in files(&folder) {
            let name = path.strip_prefix(&runtime).expect("a path below the folder");
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if is_test || without.iter().any(|left_out| name == Path::new(left_out)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.push(product_code(&fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    assert!(texts.len() > 30, "{} files", texts.len());
    texts
}

/// Returns the lines of a file before its tests, without comment lines.
fn product_code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry of a folder").path())
}

fn runtime() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates").to_owned()
}
