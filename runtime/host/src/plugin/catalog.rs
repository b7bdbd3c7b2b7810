//! What is known of the files in the plugins folder: which one is to be looked into next, and which
//! version of each handler is offered. Touches no file.
//!
//! A handler that is offered stays so until something better has been loaded. It goes up to the highest
//! version that can be loaded, and down only when its own file is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ordain_core::{Digest, Version};

use super::folder::{Folder, HandlerFile, Stamp};

/// A file is looked into when it has not changed for so long: nobody says when it is copied whole, and
/// this is longer than a copy pauses.
const SETTLED: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Handlers that some stream names.
    used: BTreeSet<String>,
    folder: Folder,
    files: BTreeMap<PathBuf, Known>,
    offered: BTreeMap<String, Offered>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    /// When it was first seen so.
    since: Instant,
    /// What was found in it.
    found: Option<Result<Found, String>>,
}

/// What is in a handler's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// How it is recorded.
    pub version: Version,
    /// Of the file.
    pub digest: Digest,
}

/// A version that can execute events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    /// Its file, which may be gone or have another content by now.
    pub file: HandlerFile,
    /// What was in it.
    pub found: Found,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// This file is to be loaded, as it is now.
    Load(HandlerFile, Stamp),
    /// Nothing before this time.
    At(Instant),
    /// Nothing before the folder changes.
    Nothing,
}

/// What a load has changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It is offered now.
    Offered,
    /// It cannot be used; the reason.
    Refused(String),
    /// Nothing: it is known, and something else is offered.
    None,
}

impl Catalog {
    /// For these handlers.
    pub fn new(used: impl IntoIterator<Item = String>) -> Self {
        Self { used: used.into_iter().collect(), ..Self::default() }
    }

    /// Takes in what is in the folder now. Answers handlers of which the last file is gone, once each.
    pub fn look(&mut self, folder: Folder, now: Instant) -> Vec<Offered> {
        self.files.retain(|path, _| folder.stamps.contains_key(path));
        for (path, stamp) in &folder.stamps {
            if self.files.get(path).is_none_or(|known| known.stamp != *stamp) {
                let known = Known { stamp: *stamp, since: now, found: None };
                self.files.insert(path.clone(), known);
            }
        }
        let before = std::mem::replace(&mut self.folder, folder);
        let had = |name: &str| before.handlers.contains_key(name);
        let has = |name: &str| self.folder.handlers.contains_key(name);
        let gone = self.offered.iter().filter(|(name, _)| had(name) && !has(name));
        gone.map(|(_, offered)| offered.clone()).collect()
    }

    /// What is in the folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The file to look into next: one that may be offered, then any that nobody has looked into.
    pub fn next(&self, now: Instant) -> Next {
        let wanted = self.used.iter().filter_map(|name| self.candidate(name));
        let unknown = self.folder.handlers.values().flatten().rev();
        let unknown = unknown.filter(|file| self.found(&file.path).is_none());
        let mut soonest = None;
        for file in wanted.chain(unknown) {
            let Some(known) = self.files.get(&file.path) else { continue };
            let at = known.since + SETTLED;
            if at <= now {
                return Next::Load(file.clone(), known.stamp);
            }
            soonest = Some(soonest.map_or(at, |soonest: Instant| soonest.min(at)));
        }
        soonest.map_or(Next::Nothing, Next::At)
    }

    /// The file that is to be offered in the place of what is, if there is one.
    pub fn candidate(&self, name: &str) -> Option<&HandlerFile> {
        let offered = self.offered.get(name);
        for file in self.folder.handlers.get(name)?.iter().rev() {
            let found = self.found(&file.path);
            let is_own = offered.is_some_and(|offered| offered.file.path == file.path);
            match found {
                // What is offered stays beside what its file has become.
                Some(Err(_)) if is_own => return None,
                Some(Err(_)) => {}
                Some(Ok(found)) if offered.is_some_and(|it| it.found == *found) => return None,
                Some(Ok(_)) | None => return Some(file),
            }
        }
        None
    }

    /// Notes what was found in a file as it was then.
    pub fn loaded(
        &mut self,
        file: &HandlerFile,
        stamp: Stamp,
        found: Result<Found, String>,
    ) -> Change {
        let Some(known) = self.files.get(&file.path).filter(|known| known.stamp == stamp) else {
            // It has changed meanwhile, and is looked into again.
            return Change::None;
        };
        let offered = self.offered.get(&file.name);
        let other = offered.filter(|offered| {
            let same = |found: &Found| {
                found.version == offered.found.version && found.digest != offered.found.digest
            };
            found.as_ref().is_ok_and(same)
        });
        let found = match other {
            Some(other) => Err(format!(
                "has another content than the version {} that runs (SHA-256 {:.12}…): give it a higher \
                 version",
                other.found.version, other.found.digest
            )),
            None => found,
        };
        let is_wanted = self.used.contains(&file.name)
            && self.candidate(&file.name).is_some_and(|it| it.path == file.path);
        let is_new = known.found.as_ref() != Some(&found);
        if let Some(known) = self.files.get_mut(&file.path) {
            known.found = Some(found.clone());
        }
        match found {
            Err(reason) if is_new => Change::Refused(reason),
            Ok(found)
                if is_wanted && self.offered(&file.name).is_none_or(|it| it.found != found) =>
            {
                let offered = Offered { file: file.clone(), found };
                self.offered.insert(file.name.clone(), offered);
                Change::Offered
            }
            _ => Change::None,
        }
    }

    /// What was found in a file as it is now, if somebody has looked.
    pub fn found(&self, path: &Path) -> Option<&Result<Found, String>> {
        self.files.get(path)?.found.as_ref()
    }

    /// The version of a handler that can execute events.
    pub fn offered(&self, name: &str) -> Option<&Offered> {
        self.offered.get(name)
    }

    /// How many files cannot be used, by the handler that their names give; those whose names give none
    /// by none.
    pub fn refused(&self) -> BTreeMap<&str, usize> {
        let mut refused = BTreeMap::new();
        if !self.folder.refused.is_empty() {
            refused.insert("", self.folder.refused.len());
        }
        for file in self.folder.handlers.values().flatten() {
            if let Some(Err(_)) = self.found(&file.path) {
                *refused.entry(&*file.name).or_default() += 1;
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of files, by name and content.
    struct Dir {
        catalog: Catalog,
        files: BTreeMap<&'static str, &'static str>,
        now: Instant,
    }

    impl Dir {
        fn new(files: &[(&'static str, &'static str)]) -> Self {
            let catalog = Catalog::new(["a".to_owned()]);
            let mut dir = Self { catalog, files: BTreeMap::new(), now: Instant::now() };
            dir.put(files);
            dir
        }

        /// Puts files there, or removes those without content, and loads what is to be loaded. Answers
        /// what happened.
        fn put(&mut self, files: &[(&'static str, &'static str)]) -> Vec<String> {
            for (name, content) in files {
                if content.is_empty() {
                    self.files.remove(name);
                } else {
                    self.files.insert(name, content);
                }
            }
            let mut folder = Folder::default();
            for (name, content) in &self.files {
                let path = PathBuf::from(name);
                let file = HandlerFile::from_path(&path).expect("a handler").expect("a name");
                folder.handlers.entry(file.name.clone()).or_default().push(file);
                folder.stamps.insert(path, Stamp::of_test(content));
            }
            folder.sort();
            let gone = self.catalog.look(folder, self.now);
            let mut said: Vec<String> = gone.iter().map(|it| format!("{} gone", it.file)).collect();
            loop {
                match self.catalog.next(self.now) {
                    Next::Nothing => return said,
                    Next::At(at) => self.now = at,
                    Next::Load(file, stamp) => {
                        let content = self.files[file.path.to_str().expect("a name")];
                        let mut digest = [0; 32];
                        digest[..content.len()].copy_from_slice(content.as_bytes());
                        let digest = Digest(digest);
                        let found = Found { version: file.version(digest), digest };
                        let found =
                            if content == "bad" { Err("bad".to_owned()) } else { Ok(found) };
                        match self.catalog.loaded(&file, stamp, found) {
                            Change::None => {}
                            Change::Offered => said.push(format!("{file} offered")),
                            Change::Refused(reason) => said.push(format!("{file}: {reason:.19}")),
                        }
                    }
                }
            }
        }

        fn offered(&self) -> String {
            self.catalog.offered("a").map(|it| it.found.version.to_string()).unwrap_or_default()
        }
    }

    #[test]
    fn the_highest_is_offered_and_bad_ones_change_nothing() {
        let mut dir = Dir::new(&[("a@1.0.0.wasm", "one"), ("a@2.0.0.wasm", "bad")]);
        assert_eq!(dir.offered(), "a@1.0.0");
        assert_eq!(dir.put(&[("a@3.0.0.wasm", "three")]), ["a@3.0.0 offered"]);
        assert_eq!(dir.put(&[("a@4.0.0.wasm", "bad")]), ["a@4.0.0: bad"]);
        // Its own file is damaged, and has another content.
        assert_eq!(dir.put(&[("a@3.0.0.wasm", "bad")]), ["a@3.0.0: bad"]);
        assert_eq!(dir.put(&[("a@3.0.0.wasm", "other")]), ["a@3.0.0: has another content"]);
        assert_eq!(dir.offered(), "a@3.0.0");
        // As it was: nothing is new.
        assert_eq!(dir.put(&[("a@3.0.0.wasm", "three")]), Vec::<String>::new());
        assert_eq!(dir.put(&[("a@4.0.0.wasm", "four")]), ["a@4.0.0 offered"]);
        // Of another handler, which nobody uses.
        assert_eq!(dir.put(&[("b@9.0.0.wasm", "nine"), ("b.wasm", "bad")]), ["b: bad"]);
        assert_eq!(dir.catalog.refused(), [("a", 1), ("b", 1)].into());
        assert_eq!(dir.offered(), "a@4.0.0");
    }

    #[test]
    fn it_goes_back_when_its_file_is_gone_and_keeps_the_last() {
        let mut dir =
            Dir::new(&[("a@1.0.0.wasm", "one"), ("a@2.0.0.wasm", "two"), ("a.wasm", "x")]);
        assert_eq!(dir.offered(), "a@2.0.0");
        assert_eq!(dir.put(&[("a@2.0.0.wasm", "")]), ["a@1.0.0 offered"]);
        assert_eq!(dir.put(&[("a@1.0.0.wasm", "")]), ["a offered"]);
        assert_eq!(dir.put(&[("a.wasm", "")]), ["a gone"]);
        assert!(dir.offered().starts_with("a+"));
        assert_eq!(dir.put(&[]), Vec::<String>::new(), "it is told once");
        // The one that still runs comes back.
        assert_eq!(dir.put(&[("a.wasm", "x")]), Vec::<String>::new());
    }

    #[test]
    fn without_a_version_another_content_is_another_version() {
        let mut dir = Dir::new(&[("a.wasm", "one")]);
        let first = dir.offered();
        assert_eq!(dir.put(&[("a.wasm", "bad")]), ["a: bad"]);
        assert_eq!(dir.put(&[("a.wasm", "two")]), ["a offered"]);
        assert_ne!(dir.offered(), first);
    }

    #[test]
    fn a_file_that_is_still_copied_is_left_alone() {
        let mut dir = Dir::new(&[("a@1.0.0.wasm", "one")]);
        let mut folder = dir.catalog.folder().clone();
        let path = PathBuf::from("a@2.0.0.wasm");
        let file = HandlerFile::from_path(&path).expect("a handler").expect("a name");
        folder.handlers.get_mut("a").expect("it").push(file.clone());
        for (after, content) in [(0, "t"), (300, "tw"), (300, "two")] {
            dir.now += Duration::from_millis(after);
            folder.stamps.insert(path.clone(), Stamp::of_test(content));
            dir.catalog.look(folder.clone(), dir.now);
            assert_eq!(dir.catalog.next(dir.now), Next::At(dir.now + SETTLED));
        }
        let Next::Load(load, stamp) = dir.catalog.next(dir.now + SETTLED) else {
            panic!("settled")
        };
        assert_eq!(load, file);
        // It changes while it is loaded.
        folder.stamps.insert(path, Stamp::of_test("three"));
        dir.catalog.look(folder, dir.now);
        let found = Found { version: "a@2.0.0".into(), digest: Digest([1; 32]) };
        assert_eq!(dir.catalog.loaded(&file, stamp, Ok(found)), Change::None);
        assert_eq!(dir.offered(), "a@1.0.0");
    }
}
