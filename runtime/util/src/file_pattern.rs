//! The path of a file source: one file, or all files whose names match a pattern such as `orders-*.ndjson`. This module
//! also recognises the names that log rotation gives to older files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::canonical_path::canonical_path;

/// Extensions of compressed files.
const COMPRESSED_EXTENSIONS: [&str; 6] = ["gz", "zst", "xz", "bz2", "lz4", "Z"];
/// Smallest number of digits of a date in the name of an older file, as in `events.ndjson-20261128`. A name with a
/// shorter number after a hyphen, such as `events-2.ndjson`, may be the name of an independent file.
const DATE_DIGITS: usize = 8;

/// The path of a file source, as its folder and its file name, which may be a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePattern {
    folder: PathBuf,
    name: String,
}

/// The role of a file in the folder of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileRole {
    /// An older file, under a name that log rotation gave it. `number` is the number that the rotation added to the
    /// name, as in `events.ndjson.2` or `events.2.ndjson`; 0 if the rotation added a date or `.old`.
    Rotated {
        /// The number in the name. If two files have numbers, the older file has the higher number.
        number: u64,
    },
    /// A compressed older file, which a source cannot read.
    Compressed,
    /// A file that the path of the source names.
    Live,
}

impl FilePattern {
    /// Creates the pattern of a path. In the file name, `*` stands for any characters, and `?` for one character.
    pub fn new(path: &Path) -> Self {
        Self {
            folder: path.parent().map(Path::to_owned).unwrap_or_default(),
            name: path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned(),
        }
    }

    /// Returns the path or pattern in the spelling of the configuration.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns the path of the file to which this path leads, if this path is a link. Log rotation then renames that
    /// file, not the link, so the older files are in the folder of the returned path. Returns `None` if this path is no
    /// link, or if the file name of this path or of its target has wildcards.
    pub fn target(&self) -> Option<Self> {
        if self.is_glob() {
            return None;
        }
        let target = canonical_path(&self.path());
        let own = canonical_path(self.folder()).join(&self.name);
        let target = (target != own).then(|| Self::new(&target))?;
        (!has_wildcard(&target.name)).then_some(target)
    }

    /// Returns whether the file with this canonical path belongs to the source.
    pub fn names(&self, canonical: &Path) -> bool {
        canonical.parent() == Some(&canonical_path(self.folder()))
            && canonical.file_name().is_some_and(|name| self.role(name).is_some())
    }

    /// Returns the folder of the files; `.` if the path names no folder.
    pub fn folder(&self) -> &Path {
        if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder }
    }

    /// Returns the path of the file `name` in the folder.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns whether the file name has a wildcard, so that the path stands for all files whose names match.
    pub fn is_glob(&self) -> bool {
        has_wildcard(&self.name)
    }

    /// Returns whether the path of the folder contains a wildcard. Wildcards are only supported in the file name.
    pub fn has_wildcard_in_folder(&self) -> bool {
        has_wildcard(&self.folder.to_string_lossy())
    }

    /// Returns the role of a file in the folder; `None` if the file does not belong to the source. In a name that is
    /// not UTF-8, each invalid sequence of bytes counts as one character.
    pub fn role(&self, name: &OsStr) -> Option<FileRole> {
        let name = &*name.to_string_lossy();
        if matches(&self.name, name) {
            return Some(self.glob_role(name));
        }
        if let Some(number) = self.rotation_number(name) {
            return Some(FileRole::Rotated { number });
        }
        let (plain, extension) = name.rsplit_once('.')?;
        let is_compressed = COMPRESSED_EXTENSIONS.contains(&extension)
            && (matches(&self.name, plain) || self.rotation_number(plain).is_some());
        is_compressed.then_some(FileRole::Compressed)
    }

    /// Returns the newest of `names` that is earlier than this name in the same series (see [`is_earlier_in_series`]).
    pub fn newest_predecessor<'a>(&self, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        names.filter(|name| is_earlier_in_series(name, &self.name)).max()
    }

    /// Returns the role of a file whose name matches the pattern. A pattern such as `events*` also matches the names of
    /// older files, to which log rotation has appended a number, `.old` or the extension of a compressed file. If the
    /// pattern also matches the name without this appended part, the file counts as an older file. A date counts as a
    /// part of the name, because many programs begin a new file on each day and rename no file.
    fn glob_role(&self, name: &str) -> FileRole {
        let Some((plain, extension)) = name.rsplit_once('.') else { return FileRole::Live };
        if !self.is_glob() || !matches(&self.name, plain) {
            return FileRole::Live;
        }
        if COMPRESSED_EXTENSIONS.contains(&extension) {
            return FileRole::Compressed;
        }
        match suffix_number(&name[plain.len()..]) {
            Some(number) if number > 0 || extension == "old" => FileRole::Rotated { number },
            _ => FileRole::Live,
        }
    }

    /// Returns the number in the name of an older file; 0 if the rotation added a date or `.old`. Returns `None` if the
    /// name is not the name of an older file.
    fn rotation_number(&self, name: &str) -> Option<u64> {
        let after = |name: &str, pattern: &str| {
            let ends = name.char_indices().filter(|(_, part)| matches!(part, '.' | '-' | '_'));
            ends.filter(|(at, _)| matches(pattern, &name[..*at]))
                .find_map(|(at, _)| suffix_number(&name[at..]))
        };
        after(name, &self.name).or_else(|| {
            let (stem, extension) =
                self.name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?;
            let plain = name.strip_suffix(extension)?.strip_suffix('.')?;
            after(plain, stem)
        })
    }
}

/// Returns whether two names belong to a series, and `earlier` is earlier than `later`. Programs that begin a new file
/// on each day or in each hour write the date or the time into the names. The two names have the same length, differ
/// only in digits, and have at least eight digits, like a date.
pub fn is_earlier_in_series(earlier: &str, later: &str) -> bool {
    let mut pairs = earlier.bytes().zip(later.bytes());
    let is_same =
        |(one, other): (u8, u8)| one == other || one.is_ascii_digit() && other.is_ascii_digit();
    earlier.len() == later.len()
        && earlier < later
        && pairs.all(is_same)
        && later.bytes().filter(u8::is_ascii_digit).count() >= DATE_DIGITS
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Returns the number of a suffix such as `.2`; 0 for a date or for `.old`. Returns `None` for any other text.
fn suffix_number(suffix: &str) -> Option<u64> {
    let rest = &suffix[1..];
    if suffix.starts_with('.') && !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Some(if rest.len() < DATE_DIGITS { rest.parse().ok()? } else { 0 });
    }
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let is_date = digits >= DATE_DIGITS
        && rest.starts_with(|first: char| first.is_ascii_digit())
        && rest.bytes().all(|byte| byte.is_ascii_digit() || b".-_:T".contains(&byte));
    (is_date || suffix == ".old").then_some(0)
}

/// Returns whether a text matches a pattern with the wildcards `*` and `?`.
fn matches(mut pattern: &str, mut text: &str) -> bool {
    // The rest of the pattern after the last `*`, and the rest of the text after the part that this `*` matches so far.
    let mut star: Option<(&str, &str)> = None;
    while let Some(next) = text.chars().next() {
        let mut pattern_rest = pattern.chars();
        match pattern_rest.next() {
            Some('*') => {
                pattern = pattern_rest.as_str();
                star = Some((pattern, text));
            }
            Some(expected) if expected == '?' || expected == next => {
                pattern = pattern_rest.as_str();
                text = &text[next.len_utf8()..];
            }
            _ => {
                let Some((after, uncovered)) = star else { return false };
                let mut uncovered = uncovered.chars();
                uncovered.next();
                pattern = after;
                text = uncovered.as_str();
                star = Some((after, text));
            }
        }
    }
    pattern.chars().all(|rest| rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(path: &str, name: &str) -> Option<FileRole> {
        FilePattern::new(Path::new(path)).role(OsStr::new(name))
    }

    #[test]
    fn rotated_names_are_recognised() {
        let rotated = |number| Some(FileRole::Rotated { number });
        for (name, expected) in [
            ("events.ndjson", Some(FileRole::Live)),
            ("events.ndjson.1", rotated(1)),
            ("events.ndjson.12", rotated(12)),
            ("events.1.ndjson", rotated(1)),
            ("events.ndjson-20261128", rotated(0)),
            ("events.ndjson.2026-11-28T10:00:00", rotated(0)),
            ("events-20261128.ndjson", rotated(0)),
            ("events.ndjson.1764316800", rotated(0)),
            ("events.ndjson.old", rotated(0)),
            ("events.ndjson.2.gz", Some(FileRole::Compressed)),
            ("events.ndjson-20261128.zst", Some(FileRole::Compressed)),
            ("events.ndjson.gz", Some(FileRole::Compressed)),
            ("events-2.ndjson", None),
            ("events-eu.ndjson", None),
            ("events.ndjson.", None),
            ("events.ndjson.bak", None),
            ("events.ndjson.1x", None),
            ("other.ndjson.1", None),
            ("events.ndjso", None),
        ] {
            assert_eq!(role("in/events.ndjson", name), expected, "{name}");
        }
    }

    #[test]
    fn link_leads_to_another_pattern() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("events");
        let pattern = FilePattern::new(&link);
        assert_eq!(pattern.target(), None, "the file is missing");
        std::os::unix::fs::symlink("app/log", &link).expect("a link");
        let target = pattern.target().expect("the target of the link");
        let app = canonical_path(folder.path()).join("app");
        assert_eq!((target.folder(), &*target.name), (&*app, "log"), "the target is missing");
        std::fs::create_dir(&app).expect("a folder");
        std::fs::write(app.join("log"), "").expect("a file");
        assert_eq!(pattern.target(), Some(target.clone()));
        assert_eq!(target.target(), None, "the target is no link");
        assert!(target.names(&app.join("log.1")) && !target.names(&folder.path().join("log.1")));
    }

    #[test]
    fn names_of_a_series_have_an_order() {
        for (earlier, later, expected) in [
            ("e-20261128", "e-20261129", true),
            ("e.2026-11-30T23.log", "e.2026-12-01T00.log", true),
            ("e.1764316800", "e.1764403200", true),
            ("e-20261129", "e-20261128", false),
            ("e-20261128", "e-20261128", false),
            ("d-20261128", "e-20261129", false),
            ("e-20261128", "e-202611290", false),
            ("e-2026112x", "e-20261129", false),
            ("e-1.ndjson", "e-2.ndjson", false),
        ] {
            assert_eq!(is_earlier_in_series(earlier, later), expected, "{earlier} {later}");
        }
        let pattern = FilePattern::new(Path::new("log/e-20261129"));
        let names = ["e-20261127", "e-20261128", "e-20261130", "e-9"];
        assert_eq!(pattern.newest_predecessor(names.into_iter()), Some("e-20261128"));
    }

    #[test]
    fn name_that_is_not_utf8_matches_a_pattern() {
        use std::os::unix::ffi::OsStrExt as _;
        let name = OsStr::from_bytes(b"o-caf\xe9.ndjson");
        let role = |path: &str| FilePattern::new(Path::new(path)).role(name);
        assert_eq!((role("o-*.ndjson"), role("o-?.ndjson")), (Some(FileRole::Live), None));
    }

    #[test]
    fn wildcards_match_names() {
        for (pattern, name, is_live) in [
            ("orders-*.ndjson", "orders-.ndjson", true),
            ("orders-*.ndjson", "orders-a.ndjson.ndjson", true),
            ("orders-*.ndjson", "orders-a.json", false),
            ("orders-??.ndjson", "orders-äb.ndjson", true),
            ("orders-??.ndjson", "orders-a.ndjson", false),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            ("*", "anything", true),
        ] {
            assert_eq!(role(pattern, name) == Some(FileRole::Live), is_live, "{pattern} {name}");
        }
        for (pattern, name, expected) in [
            ("events*", "events.ndjson.1", FileRole::Rotated { number: 1 }),
            ("events*", "events.ndjson.old", FileRole::Rotated { number: 0 }),
            ("events*", "events.ndjson.1.gz", FileRole::Compressed),
            ("events*", "events.ndjson.gz", FileRole::Compressed),
            ("events*", "events.ndjson", FileRole::Live),
            ("events*", "events-20261128", FileRole::Live),
            ("events*", "events.20261128", FileRole::Live),
            ("events.*", "events.1", FileRole::Live),
            ("*.gz", "events.gz", FileRole::Live),
        ] {
            assert_eq!(role(pattern, name), Some(expected), "{pattern} {name}");
        }
        assert_eq!(role("o-*.ndjson", "o-a.ndjson.3"), Some(FileRole::Rotated { number: 3 }));
        assert_eq!(role("o-*.ndjson", "o-a.ndjson.3.gz"), Some(FileRole::Compressed));
        let pattern = FilePattern::new(Path::new("a*/events.ndjson"));
        assert!(pattern.has_wildcard_in_folder() && !pattern.is_glob());
    }
}
