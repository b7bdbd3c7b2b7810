//! The state of the files in the plugins folder. This module chooses the file to load next, and the version of each
//! handler to offer (to publish as available in this process). This module must never access a file.
//!
//! The offered version of a handler changes only when the catalog records a successful load of one of these:
//!
//! - a higher version;
//! - a lower version, if the file of the offered version has been missing for [`REMOVAL_DELAY`];
//! - new content of a file without a version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ordain_core::Build;

use super::folder::{FileStamp, HandlerFile, PluginFolder};
use super::load::LoadError;
use ordain_core::split_version;

/// Time without a change after which a running process loads a file. The operating system does not report the end of a
/// copy; this module assumes that a running copy never pauses for this long.
const DEBOUNCE_DELAY: Duration = Duration::from_millis(500);
/// Time for which a file must be missing before it counts as removed. Within this time, a replacement of the file may
/// appear.
const REMOVAL_DELAY: Duration = Duration::from_secs(1);
/// Delay before a file is loaded again after a failure that may be temporary.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The files of the plugins folder, the load result of each file, and the offered versions.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The names of the handlers that streams use.
    used: BTreeSet<String>,
    folder: PluginFolder,
    files: BTreeMap<PathBuf, CatalogEntry>,
    offered: BTreeMap<String, OfferedVersion>,
    /// For each handler whose offered version has no file any more: the time at which the catalog first found the file
    /// missing.
    missing_since: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct CatalogEntry {
    stamp: FileStamp,
    /// The time at which the catalog first saw this stamp (metadata that reveals a change of the file).
    first_seen: Instant,
    /// The result of loading the file; `None` before the first load.
    load_result: Option<Result<Build, FileFault>>,
    /// The time of the next load after a failure that may be temporary; `None` otherwise.
    retry_at: Option<Instant>,
}

/// The reason why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// The fault, and how to correct it.
    pub reason: String,
    /// True if the machine, and not the file, caused the failure: a later load of the same file may succeed.
    pub is_temporary: bool,
}

impl From<&LoadError> for FileFault {
    fn from(error: &LoadError) -> Self {
        Self { reason: error.reason.clone(), is_temporary: error.is_temporary }
    }
}

/// A version that this process offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedVersion {
    /// The file, which may have been removed or changed since it was loaded.
    pub file: HandlerFile,
    /// The build that was loaded from the file.
    pub build: Build,
}

/// The next action that the caller of [`Catalog::next_action`] must perform.
#[derive(Debug, PartialEq, Eq)]
pub enum CatalogAction {
    /// Load this file, whose current stamp is given.
    Load(HandlerFile, FileStamp),
    /// Do nothing before this time.
    WaitUntil(Instant),
    /// Do nothing before the folder changes.
    WaitForChange,
}

/// The effect of a load.
#[derive(Debug, PartialEq, Eq)]
pub enum LoadOutcome {
    /// The loaded version is offered now.
    Offered,
    /// The file cannot be used, for this reason.
    Unusable(String),
    /// No effect: the file failed as at the previous load, the file was changed or removed during the load, or the
    /// offered version stays the same.
    Unchanged,
}

/// Returns the advice for a file of the handler `name` that has other content than a file of the same version.
pub fn other_content_advice(name: &str) -> String {
    format!(
        "give the file a higher version. Some compilers write another file at each build of the same source: during \
         development, name the file {name}.wasm, without a version. Each content of such a file counts as a version of \
         its own"
    )
}

impl Catalog {
    /// Creates an empty catalog for the handlers in `used`.
    pub fn new(used: impl IntoIterator<Item = String>) -> Self {
        Self { used: used.into_iter().collect(), ..Self::default() }
    }

    /// Replaces the catalog's list of the folder's files. Returns the offered version of each handler that has just
    /// lost its only usable files: the previous list had usable files of the handler, and the new list has none. A file
    /// that has not been loaded counts as usable.
    pub fn update(&mut self, folder: PluginFolder, now: Instant) -> Vec<OfferedVersion> {
        self.files.retain(|path, _| folder.stamps.contains_key(path));
        for (path, stamp) in &folder.stamps {
            if self.files.get(path).is_none_or(|known| known.stamp != *stamp) {
                let known = CatalogEntry {
                    stamp: *stamp,
                    first_seen: now,
                    load_result: None,
                    retry_at: None,
                };
                self.files.insert(path.clone(), known);
            }
        }
        let before = std::mem::replace(&mut self.folder, folder);
        for (name, offered) in &self.offered {
            if self.folder.stamps.contains_key(&offered.file.path) {
                self.missing_since.remove(name);
            } else {
                self.missing_since.entry(name.clone()).or_insert(now);
            }
        }
        let is_broken =
            |file: &HandlerFile| self.load_result(&file.path).is_some_and(Result::is_err);
        let has = |folder: &PluginFolder, name: &str| {
            folder.handlers.get(name).is_some_and(|files| !files.iter().all(is_broken))
        };
        let gone = self.offered.iter();
        let gone = gone.filter(|(name, _)| has(&before, name) && !has(&self.folder, name));
        gone.map(|(_, offered)| offered.clone()).collect()
    }

    /// Returns the folder's contents at the last call of [`Self::update`].
    pub fn folder(&self) -> &PluginFolder {
        &self.folder
    }

    /// Returns the next action of the caller. The files that [`Self::preferred_file`] returns are loaded first. The
    /// other files follow: files that have not been loaded yet, and files whose load is to be retried.
    pub fn next_action(&self, now: Instant) -> CatalogAction {
        let wanted = self.used.iter().filter_map(|name| self.preferred_file(name, now));
        let unknown = self.folder.handlers.values().flatten().rev();
        let unknown = unknown.filter(|file| self.load_time(file).is_some());
        let mut soonest = self
            .missing_since
            .values()
            .map(|since| *since + REMOVAL_DELAY)
            .filter(|at| *at > now)
            .min();
        for file in wanted.chain(unknown) {
            let Some(known) = self.files.get(&file.path) else { continue };
            let at = self.load_time(file).unwrap_or(known.first_seen + DEBOUNCE_DELAY);
            if at <= now {
                return CatalogAction::Load(file.clone(), known.stamp);
            }
            soonest = Some(soonest.map_or(at, |soonest: Instant| soonest.min(at)));
        }
        soonest.map_or(CatalogAction::WaitForChange, CatalogAction::WaitUntil)
    }

    /// Returns the time at which to load a file that has not been loaded yet. If the load of a file failed for a reason
    /// that may be temporary, returns the time of the next load. Returns `None` for any other file.
    fn load_time(&self, file: &HandlerFile) -> Option<Instant> {
        let known = self.files.get(&file.path)?;
        match &known.load_result {
            None => Some(known.first_seen + DEBOUNCE_DELAY),
            Some(_) => known.retry_at,
        }
    }

    /// Returns the file whose version should replace the offered version of a handler, or become the first offered
    /// version; `None` if there is no such file. If no version is offered yet, this function may return a file that
    /// another program is still copying.
    pub fn preferred_file(&self, name: &str, now: Instant) -> Option<&HandlerFile> {
        let offered = self.offered.get(name);
        let is_gone =
            self.missing_since.get(name).is_some_and(|since| *since + REMOVAL_DELAY <= now);
        for file in self.folder.handlers.get(name)?.iter().rev() {
            let is_lower = offered.is_some_and(|offered| file.semver < offered.file.semver);
            if is_lower && !is_gone {
                return None;
            }
            let is_settled = self
                .files
                .get(&file.path)
                .is_some_and(|known| known.first_seen + DEBOUNCE_DELAY <= now);
            if offered.is_some() && !is_settled {
                // Skips a file that changed within `DEBOUNCE_DELAY`. If lower versions waited for this file, a file
                // that keeps changing would block the lower versions.
                continue;
            }
            let found = self.load_result(&file.path);
            let is_own = offered.is_some_and(|offered| offered.file.path == file.path);
            match found {
                // The offered version stays offered although its file has become unusable.
                Some(Err(_)) if is_own => return None,
                Some(Err(_)) => {}
                Some(Ok(found)) if offered.is_some_and(|offered| offered.build == *found) => {
                    return None;
                }
                Some(Ok(_)) | None => return Some(file),
            }
        }
        None
    }

    /// Records the result of loading a file. `stamp` is the file's stamp before the load.
    pub fn record_load(
        &mut self,
        file: &HandlerFile,
        stamp: FileStamp,
        found: Result<Build, FileFault>,
        now: Instant,
    ) -> LoadOutcome {
        let Some(known) = self.files.get(&file.path).filter(|known| known.stamp == stamp) else {
            // The file was changed or removed after this load began. A changed file will be loaded again.
            return LoadOutcome::Unchanged;
        };
        let offered = self.offered.get(&file.name);
        let other = offered.filter(|offered| {
            let same = |found: &Build| {
                found.version == offered.build.version && found.digest != offered.build.digest
            };
            found.as_ref().is_ok_and(same)
        });
        let found = match other {
            Some(other) => Err(FileFault {
                reason: format!(
                    "has other content than the version {} that runs (SHA-256 {:.12}…): {}",
                    other.build.version,
                    other.build.digest,
                    other_content_advice(&file.name)
                ),
                is_temporary: false,
            }),
            None => found,
        };
        let is_new = known.load_result.as_ref() != Some(&found);
        if let Some(known) = self.files.get_mut(&file.path) {
            known.retry_at = found
                .as_ref()
                .is_err_and(|refused| refused.is_temporary)
                .then(|| now + RETRY_DELAY);
            known.load_result = Some(found.clone());
        }
        let is_wanted = self.used.contains(&file.name)
            && self
                .preferred_file(&file.name, now)
                .is_some_and(|candidate| candidate.path == file.path);
        match found {
            Err(refused) if is_new => LoadOutcome::Unusable(refused.reason),
            Ok(build)
                if is_wanted
                    && self.offered(&file.name).is_none_or(|offered| offered.build != build) =>
            {
                let offered = OfferedVersion { file: file.clone(), build };
                self.missing_since.remove(&file.name);
                self.offered.insert(file.name.clone(), offered);
                LoadOutcome::Offered
            }
            _ => LoadOutcome::Unchanged,
        }
    }

    /// Returns the result of loading the present content of a file; `None` if this content has not been loaded.
    pub fn load_result(&self, path: &Path) -> Option<&Result<Build, FileFault>> {
        self.files.get(path)?.load_result.as_ref()
    }

    /// Returns whether this version has a file that may become usable. Such a file has not been loaded yet, or is
    /// unusable for a reason that may be temporary.
    pub fn may_become_usable(&self, version: &str) -> bool {
        let (name, semver) = split_version(version);
        let mut files = self.folder.handlers.get(name).into_iter().flatten();
        files.any(|file| {
            let found = self.load_result(&file.path);
            file.semver == semver
                && found
                    .is_none_or(|found| found.as_ref().is_err_and(|refused| refused.is_temporary))
        })
    }

    /// Returns the offered version of a handler; `None` before a version of the handler has been loaded.
    pub fn offered(&self, name: &str) -> Option<&OfferedVersion> {
        self.offered.get(name)
    }

    /// Returns the number of unusable files of each handler. The name of a file determines the handler. Files without a
    /// valid name, and folders whose names end with `.wasm`, count under the empty name.
    pub fn unusable_file_counts(&self) -> BTreeMap<&str, usize> {
        let mut refused = BTreeMap::new();
        if !self.folder.misnamed.is_empty() {
            refused.insert("", self.folder.misnamed.len());
        }
        for file in self.folder.handlers.values().flatten() {
            if let Some(Err(_)) = self.load_result(&file.path) {
                *refused.entry(&*file.name).or_default() += 1;
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use ordain_core::FileDigest;

    use super::*;

    /// A folder of files in memory, by name and content.
    struct TestFolder {
        catalog: Catalog,
        files: BTreeMap<&'static str, &'static str>,
        now: Instant,
    }

    impl TestFolder {
        fn new(files: &[(&'static str, &'static str)]) -> Self {
            let catalog = Catalog::new(["a".to_owned()]);
            let mut dir = Self { catalog, files: BTreeMap::new(), now: Instant::now() };
            dir.write_and_load(files);
            dir
        }

        /// Writes the given files (empty content removes a file), and then loads every file that is due. Returns the
        /// changes.
        fn write_and_load(&mut self, files: &[(&'static str, &'static str)]) -> Vec<String> {
            for (name, content) in files {
                if content.is_empty() {
                    self.files.remove(name);
                } else {
                    self.files.insert(name, content);
                }
            }
            let mut folder = PluginFolder::default();
            for (name, content) in &self.files {
                let path = PathBuf::from(name);
                let file = HandlerFile::from_path(&path).expect("a handler").expect("a name");
                folder.handlers.entry(file.name.clone()).or_default().push(file);
                folder.stamps.insert(path, FileStamp::of_test(content));
            }
            folder.sort();
            let gone = self.catalog.update(folder, self.now);
            let mut said: Vec<String> =
                gone.iter().map(|offered| format!("{} gone", offered.file)).collect();
            loop {
                match self.catalog.next_action(self.now) {
                    CatalogAction::WaitForChange => return said,
                    CatalogAction::WaitUntil(at) => self.now = at,
                    CatalogAction::Load(file, stamp) => {
                        let content = self.files[file.path.to_str().expect("a name")];
                        let mut digest = [0; 32];
                        digest[..content.len()].copy_from_slice(content.as_bytes());
                        let digest = FileDigest(digest);
                        let found = Build { version: file.version(digest), digest };
                        let refused = FileFault {
                            reason: content.to_owned(),
                            is_temporary: content == "away",
                        };
                        let found = match content {
                            "bad" | "away" => Err(refused),
                            _ => Ok(found),
                        };
                        match self.catalog.record_load(&file, stamp, found, self.now) {
                            LoadOutcome::Unchanged => {}
                            LoadOutcome::Offered => said.push(format!("{file} offered")),
                            LoadOutcome::Unusable(reason) => {
                                said.push(format!("{file}: {reason:.19}"));
                            }
                        }
                    }
                }
            }
        }

        fn offered(&self) -> String {
            self.catalog
                .offered("a")
                .map(|offered| offered.build.version.to_string())
                .unwrap_or_default()
        }
    }

    #[test]
    fn highest_usable_version_is_offered() {
        let mut dir = TestFolder::new(&[("a@1.0.0.wasm", "one"), ("a@2.0.0.wasm", "bad")]);
        assert_eq!(dir.offered(), "a@1.0.0");
        assert_eq!(dir.write_and_load(&[("a@3.0.0.wasm", "three")]), ["a@3.0.0 offered"]);
        assert_eq!(dir.write_and_load(&[("a@4.0.0.wasm", "bad")]), ["a@4.0.0: bad"]);
        // The offered version's own file is damaged, and then gets other content.
        assert_eq!(dir.write_and_load(&[("a@3.0.0.wasm", "bad")]), ["a@3.0.0: bad"]);
        assert_eq!(
            dir.write_and_load(&[("a@3.0.0.wasm", "other")]),
            ["a@3.0.0: has other content t"]
        );
        assert_eq!(dir.offered(), "a@3.0.0");
        // The original content is back: nothing changes.
        assert_eq!(dir.write_and_load(&[("a@3.0.0.wasm", "three")]), Vec::<String>::new());
        assert_eq!(dir.write_and_load(&[("a@4.0.0.wasm", "four")]), ["a@4.0.0 offered"]);
        // No stream uses this handler.
        assert_eq!(dir.write_and_load(&[("b@9.0.0.wasm", "nine"), ("b.wasm", "bad")]), ["b: bad"]);
        assert_eq!(dir.catalog.unusable_file_counts(), [("a", 1), ("b", 1)].into());
        assert_eq!(dir.offered(), "a@4.0.0");
    }

    #[test]
    fn removal_offers_lower_version_and_keeps_last_version() {
        let mut dir =
            TestFolder::new(&[("a@1.0.0.wasm", "one"), ("a@2.0.0.wasm", "two"), ("a.wasm", "x")]);
        assert_eq!(dir.offered(), "a@2.0.0");
        assert_eq!(dir.write_and_load(&[("a@2.0.0.wasm", "")]), ["a@1.0.0 offered"]);
        assert_eq!(dir.write_and_load(&[("a@1.0.0.wasm", "")]), ["a offered"]);
        assert_eq!(dir.write_and_load(&[("a.wasm", "")]), ["a gone"]);
        assert!(dir.offered().starts_with("a+"));
        assert_eq!(dir.write_and_load(&[]), Vec::<String>::new(), "the loss is reported once");
        // The file of the version that still runs is back.
        assert_eq!(dir.write_and_load(&[("a.wasm", "x")]), Vec::<String>::new());
    }

    #[test]
    fn temporary_failure_is_retried() {
        let mut dir = TestFolder::new(&[("a@1.0.0.wasm", "one")]);
        let path = PathBuf::from("a@2.0.0.wasm");
        let before = dir.now;
        dir.files.insert("a@2.0.0.wasm", "away");
        let file = HandlerFile::from_path(&path).expect("a handler").expect("a name");
        let mut folder = dir.catalog.folder().clone();
        folder.handlers.get_mut("a").expect("it").push(file.clone());
        let stamp = FileStamp::of_test("away");
        folder.stamps.insert(path, stamp);
        dir.catalog.update(folder, before);
        let away = FileFault { reason: "away".to_owned(), is_temporary: true };
        let later = before + DEBOUNCE_DELAY;
        assert_eq!(dir.catalog.next_action(later), CatalogAction::Load(file.clone(), stamp));
        let change = dir.catalog.record_load(&file, stamp, Err(away.clone()), later);
        assert_eq!(change, LoadOutcome::Unusable("away".to_owned()));
        assert_eq!(dir.catalog.next_action(later), CatalogAction::WaitUntil(later + RETRY_DELAY));
        assert_eq!(
            dir.catalog.next_action(later + RETRY_DELAY),
            CatalogAction::Load(file.clone(), stamp)
        );
        assert!(
            dir.catalog.may_become_usable("a@2.0.0") && !dir.catalog.may_become_usable("a@1.0.0")
        );
        // A repeated load with the same failure reports no new failure.
        let change = dir.catalog.record_load(&file, stamp, Err(away), later + RETRY_DELAY);
        assert_eq!(change, LoadOutcome::Unchanged);
        let found = Build { version: "a@2.0.0".into(), digest: FileDigest([2; 32]) };
        let change = dir.catalog.record_load(&file, stamp, Ok(found), later + 2 * RETRY_DELAY);
        assert_eq!((change, &*dir.offered()), (LoadOutcome::Offered, "a@2.0.0"));
    }

    #[test]
    fn replaced_file_does_not_count_as_removed() {
        let mut dir = TestFolder::new(&[("a@1.0.0.wasm", "one"), ("a@2.0.0.wasm", "two")]);
        let whole = dir.catalog.folder().clone();
        let mut without = whole.clone();
        without.handlers.get_mut("a").expect("it").pop();
        without.stamps.remove(Path::new("a@2.0.0.wasm"));
        let now = dir.now;
        dir.catalog.update(without.clone(), now);
        assert_eq!(dir.catalog.next_action(now), CatalogAction::WaitUntil(now + REMOVAL_DELAY));
        dir.catalog.update(whole, now + REMOVAL_DELAY / 2);
        dir.catalog.update(without, now + REMOVAL_DELAY);
        assert_eq!(
            dir.catalog.next_action(now + REMOVAL_DELAY),
            CatalogAction::WaitUntil(now + 2 * REMOVAL_DELAY)
        );
        assert!(matches!(
            dir.catalog.next_action(now + 2 * REMOVAL_DELAY),
            CatalogAction::Load(..)
        ));
    }

    #[test]
    fn different_contents_without_a_version_are_different_versions() {
        let mut dir = TestFolder::new(&[("a.wasm", "one")]);
        let first = dir.offered();
        assert_eq!(dir.write_and_load(&[("a.wasm", "bad")]), ["a: bad"]);
        assert_eq!(dir.write_and_load(&[("a.wasm", "two")]), ["a offered"]);
        assert_ne!(dir.offered(), first);
    }

    #[test]
    fn file_that_is_still_being_copied_is_not_loaded() {
        let mut dir = TestFolder::new(&[("a@1.0.0.wasm", "one")]);
        let mut folder = dir.catalog.folder().clone();
        let path = PathBuf::from("a@2.0.0.wasm");
        let file = HandlerFile::from_path(&path).expect("a handler").expect("a name");
        folder.handlers.get_mut("a").expect("it").push(file.clone());
        for (after, content) in [(0, "t"), (300, "tw"), (300, "two")] {
            dir.now += Duration::from_millis(after);
            folder.stamps.insert(path.clone(), FileStamp::of_test(content));
            dir.catalog.update(folder.clone(), dir.now);
            assert_eq!(
                dir.catalog.next_action(dir.now),
                CatalogAction::WaitUntil(dir.now + DEBOUNCE_DELAY)
            );
        }
        let CatalogAction::Load(load, stamp) = dir.catalog.next_action(dir.now + DEBOUNCE_DELAY)
        else {
            panic!("settled")
        };
        assert_eq!(load, file);
        // The file changes during the load.
        folder.stamps.insert(path, FileStamp::of_test("three"));
        dir.catalog.update(folder, dir.now);
        let found = Build { version: "a@2.0.0".into(), digest: FileDigest([1; 32]) };
        let now = dir.now;
        assert_eq!(dir.catalog.record_load(&file, stamp, Ok(found), now), LoadOutcome::Unchanged);
        assert_eq!(dir.offered(), "a@1.0.0");
    }
}
