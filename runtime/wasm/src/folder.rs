//! The plugins folder: maps files to handlers and versions. This module reads file names and metadata only; `load`
//! reads the contents.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ordain_core::{FileDigest, VersionName};

use ordain_config::ResourceName;

const FILE_EXTENSION: &str = ".wasm";

/// The contents of a plugins folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginFolder {
    /// The versions of each handler, ascending.
    pub handlers: BTreeMap<String, Vec<HandlerFile>>,
    /// Entries of the folder that end with `.wasm` and cannot be handlers, sorted by path: files with an invalid name,
    /// and folders.
    pub misnamed: Vec<MisnamedFile>,
    /// The stamp of each file in `handlers`. A changed stamp reveals that the file has changed.
    pub stamps: BTreeMap<PathBuf, FileStamp>,
}

/// Metadata that reveals a change of a file, so that this module need not read the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStamp {
    size: u64,
    modified: Option<SystemTime>,
    /// The inode, which changes when another file replaces the file.
    inode: u64,
    /// Time of the last change of the inode, in seconds and nanoseconds. A change of permissions also changes this
    /// time.
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Self {
        // If the metadata cannot be read, the later load of the file reports the error.
        let Ok(metadata) = std::fs::metadata(path) else { return Self::default() };
        let stamp =
            Self { size: metadata.len(), modified: metadata.modified().ok(), ..Self::default() };
        #[cfg(unix)]
        let stamp = {
            use std::os::unix::fs::MetadataExt as _;
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            Self { inode: metadata.ino(), changed, ..stamp }
        };
        stamp
    }

    #[cfg(test)]
    pub(super) fn of_test(content: &str) -> Self {
        Self { inode: ordain_core::digest(content.as_bytes()), ..Self::default() }
    }
}

/// The file of one version of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerFile {
    /// The handler's name: the file name up to the `@` or the extension.
    pub name: String,
    /// The version in the file name; `None` for a file name without a version, which counts as the lowest version.
    pub semver: Option<semver::Version>,
    /// The file's path.
    pub path: PathBuf,
}

/// A file with the extension `.wasm` and an invalid name, or a folder with this extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisnamedFile {
    /// The file's path.
    pub path: PathBuf,
    /// The fault, and how to correct it.
    pub reason: String,
}

impl PluginFolder {
    /// Reads the names and the metadata of the files in `dir`. Ignores hidden files and files with other extensions, so
    /// that a file can be copied under a hidden name and renamed when it is complete.
    pub fn scan(dir: &Path) -> io::Result<Self> {
        let mut folder = Self::default();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            match HandlerFile::from_path(&path) {
                Some(Ok(file)) => {
                    folder.stamps.insert(path.clone(), FileStamp::of(&path));
                    folder.handlers.entry(file.name.clone()).or_default().push(file);
                }
                Some(Err(reason)) => folder.misnamed.push(MisnamedFile { path, reason }),
                None => {}
            }
        }
        folder.sort();
        Ok(folder)
    }

    pub(super) fn sort(&mut self) {
        for versions in self.handlers.values_mut() {
            versions.sort_by(|a, b| a.semver.cmp(&b.semver));
        }
        self.misnamed.sort_by(|a, b| a.path.cmp(&b.path));
    }

    /// Returns the file of the highest version of a handler; `None` if the folder has no file of the handler.
    pub fn highest(&self, name: &str) -> Option<&HandlerFile> {
        self.handlers.get(name)?.last()
    }
}

impl HandlerFile {
    /// Parses the file name of a path: `<handler>@<semver>.wasm` or `<handler>.wasm`. Returns `None` for a hidden file
    /// and for a file with another extension. Returns an error for a `.wasm` file with an invalid name, and for a
    /// folder whose name ends with `.wasm`.
    pub fn from_path(path: &Path) -> Option<Result<Self, String>> {
        let file = path.file_name()?.to_string_lossy();
        let stem = file.strip_suffix(FILE_EXTENSION)?;
        if stem.starts_with('.') {
            return None;
        }
        Some(Self::parse(stem, path))
    }

    fn parse(stem: &str, path: &Path) -> Result<Self, String> {
        if path.is_dir() {
            return Err("is a folder; a handler is one file".to_owned());
        }
        let (name, semver) = match stem.split_once('@') {
            None => (stem, None),
            Some((name, version)) => (name, Some(parse_version(version)?)),
        };
        check_name(name).map_err(|error| match corrected_stem(stem) {
            Some(stem) => {
                format!(
                    "{error}; write an @ before the version: rename the file to {stem}{FILE_EXTENSION}"
                )
            }
            None => error,
        })?;
        Ok(Self { name: name.to_owned(), semver, path: path.to_owned() })
    }

    /// Returns the version as the store records it: `name@semver`. For a file without a semver, the version consists of
    /// the name and the first digits of the file's digest. Different contents of such a file are therefore different
    /// versions.
    pub fn version(&self, digest: FileDigest) -> VersionName {
        match &self.semver {
            Some(_) => Arc::from(self.to_string()),
            None => Arc::from(format!("{self}+{digest:.DIGEST_DIGITS$}")),
        }
    }
}

/// Formats the file's name without its extension.
impl fmt::Display for HandlerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.semver {
            Some(semver) => write!(f, "{}@{semver}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Number of hexadecimal digits of a digest in the name of a version: 48 bits are enough to distinguish the builds of a
/// handler.
const DIGEST_DIGITS: usize = 12;

fn parse_version(text: &str) -> Result<semver::Version, String> {
    semver::Version::parse(text).map_err(|error| {
        format!(
            "`{text}` after the @ is not a valid version ({error}); write a version such as 1.2.3"
        )
    })
}

fn check_name(name: &str) -> Result<(), String> {
    // The name of the handler must be a valid `ResourceName`, because a stream's setting `handler` has this type.
    let wrong = |right| format!("`{name}` is not {right}, such as `orders` in orders@1.2.3.wasm");
    ResourceName::new(name).map(|_| ()).map_err(wrong)
}

/// Returns the valid form `NAME@VERSION` of a file name without its extension that has another character in place of
/// the @, such as `orders-1.2.3`. Returns `None` for any other name.
fn corrected_stem(stem: &str) -> Option<String> {
    stem.match_indices(['-', '_', '.', ' ']).find_map(|(at, separator)| {
        let name = &stem[..at];
        let version = &stem[at + separator.len()..];
        let version = version.strip_prefix('v').unwrap_or(version);
        let is_valid = check_name(name).is_ok() && parse_version(version).is_ok();
        is_valid.then(|| format!("{name}@{version}"))
    })
}

#[cfg(test)]
mod tests {
    use ordain_core::split_version;

    use super::*;

    #[test]
    fn versions_are_sorted_and_invalid_names_have_reasons() -> io::Result<()> {
        let dir = std::env::temp_dir().join(format!("ordain-folder-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("folder.wasm"))?;
        for name in [
            "orders.wasm",
            "orders@1.10.0.wasm",
            "orders@1.9.0.wasm",
            "orders@2.0.0-rc.1.wasm",
            "tally@0.1.0.wasm",
            ".orders@9.0.0.wasm",
            "README.md",
            "orders@one.wasm",
            "@1.0.0.wasm",
            "or ders.wasm",
        ] {
            std::fs::write(dir.join(name), b"")?;
        }
        let folder = PluginFolder::scan(&dir)?;
        std::fs::remove_dir_all(&dir)?;

        let versions = |name| {
            let version = |file: &HandlerFile| file.version(FileDigest([0xab; 32])).to_string();
            folder.handlers[name].iter().map(version).collect::<Vec<_>>()
        };
        assert_eq!(
            versions("orders"),
            ["orders+abababababab", "orders@1.9.0", "orders@1.10.0", "orders@2.0.0-rc.1"]
        );
        assert_eq!(versions("tally"), ["tally@0.1.0"]);
        assert_eq!(split_version("orders+abababababab"), ("orders", None));
        let candidate = split_version("orders@2.0.0-rc.1+5");
        assert_eq!(candidate, ("orders", semver::Version::parse("2.0.0-rc.1+5").ok()));
        assert_eq!(folder.highest("orders"), folder.handlers["orders"].last());
        assert_eq!(folder.highest("nobody"), None);

        let names = folder.misnamed.iter().filter_map(|file| file.path.file_name()?.to_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["@1.0.0.wasm", "folder.wasm", "or ders.wasm", "orders@one.wasm"]
        );
        let reason = &folder.misnamed[3].reason;
        assert!(reason.contains("`one`") && reason.contains("1.2.3"), "{reason}");
        Ok(())
    }

    #[test]
    fn wrong_separator_of_a_version_is_named() {
        for (stem, right) in [
            ("visits-0.1.2", Some("visits@0.1.2")),
            ("my-visits_v1.0.0-rc.1", Some("my-visits@1.0.0-rc.1")),
            ("visits.0.1.2", Some("visits@0.1.2")),
            ("or ders", None),
            ("visits-1.2", None),
        ] {
            assert_eq!(corrected_stem(stem).as_deref(), right, "{stem}");
        }
    }
}
