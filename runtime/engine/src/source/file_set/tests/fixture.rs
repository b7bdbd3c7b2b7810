//! A folder with event files, and the set of these files.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use ordain_core::OrderingMode;
use ordain_store::checkpoint::{Checkpoint, FilePosition, created_ns};
use ordain_util::file_pattern::FilePattern;
use tempfile::TempDir;

use super::super::identity::fingerprint;
use super::super::{FileSet, ScanResult, TrackedFile};

pub(super) struct Fixture {
    folder: TempDir,
    pub(super) pattern: FilePattern,
    pub(super) set: FileSet,
}

impl Fixture {
    pub(super) fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pattern = FilePattern::new(&folder.path().join(name));
        let set = FileSet::new(pattern.clone(), "s", OrderingMode::Fifo, false);
        Self { folder, pattern, set }
    }

    pub(super) fn with_read_file(content: &str) -> Self {
        let mut fixture = Self::new("f");
        fixture.append("f", content);
        fixture.read_first(content);
        fixture
    }

    /// The source has read the older file `f.1`, and nothing of the file `f`.
    pub(super) fn with_read_older_file(older: &str, live: &str) -> Self {
        let mut fixture = Self::new("f");
        fixture.append("f.1", older);
        fixture.append("f", live);
        fixture.read_first(older);
        fixture
    }

    /// Scans the folder before and after the first file is read.
    fn read_first(&mut self, content: &str) {
        self.scan();
        self.read(0, content.len() as u64, content.lines().count() as u64);
        self.scan();
    }

    pub(super) fn scan(&mut self) -> ScanResult {
        self.set.scan().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn append(&self, name: &str, text: &str) {
        let file = File::options().create(true).append(true).open(self.path(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(super) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    pub(super) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Copies a file. An existing file `to` keeps its inode.
    pub(super) fn copy(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).unwrap();
    }

    pub(super) fn truncate(&self, name: &str) {
        File::options().write(true).open(self.path(name)).unwrap().set_len(0).unwrap();
    }

    pub(super) fn read(&mut self, index: usize, offset: u64, line: u64) {
        let tracked = &mut self.set.files[index];
        let print = fingerprint(&File::open(&tracked.progress.path).unwrap(), offset).unwrap();
        tracked.progress = tracked.progress.clone().at(FilePosition { offset, line }, print);
        tracked.read_to = offset;
    }

    pub(super) fn files(&self) -> Vec<(String, u64)> {
        let present = self.set.files.iter().filter(|tracked| !tracked.progress.is_lost);
        let name = |tracked: &TrackedFile| {
            let name = Path::new(&tracked.name).file_name().unwrap().to_str().unwrap().to_owned();
            (name, tracked.progress.position().offset)
        };
        present.map(name).collect()
    }

    pub(super) fn has_loss(&self) -> bool {
        self.set.files.iter().any(|tracked| tracked.loss.is_some())
            || !self.set.compressed.unreported.is_empty()
    }

    /// Writes the last part of a gzip file whose content has this length, with a modification time in the past.
    pub(super) fn compress(&self, name: &str, length: u32, age_secs: u64) {
        let content = [[0; 16].as_slice(), &length.to_le_bytes()].concat();
        fs::write(self.path(name), content).unwrap();
        self.age(name, age_secs);
    }

    pub(super) fn gzip(&self, name: &str, content: &str) {
        let file = File::create(self.path(name)).unwrap();
        let mut encoder = GzEncoder::new(file, Compression::default());
        encoder.write_all(content.as_bytes()).unwrap();
        encoder.finish().unwrap();
    }

    /// Appends an empty member or NULs to a gzip file, so that the last bytes of the file do not state the length of
    /// its content.
    pub(super) fn obscure_length(&self, name: &str, has_member: bool) {
        if has_member {
            let file = File::options().append(true).open(self.path(name)).unwrap();
            GzEncoder::new(file, Compression::default()).finish().unwrap();
        } else {
            self.append(name, &"\0".repeat(512));
        }
    }

    pub(super) fn age(&self, name: &str, age_secs: u64) {
        let modified = SystemTime::now() - Duration::from_secs(age_secs);
        let file = File::options().write(true).open(self.path(name)).unwrap();
        file.set_modified(modified).unwrap();
    }

    /// Waits until a new file gets a later creation time than the file `name`. Returns `false` if the file system does
    /// not record when a file was created.
    pub(super) fn until_newer(&self, name: &str) -> bool {
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

    pub(super) fn restart(&mut self) {
        let checkpoint = Checkpoint::new(self.set.progress(), Vec::new())
            .with_compressed(self.set.known_compressed());
        self.resume(&checkpoint);
    }

    pub(super) fn resume(&mut self, checkpoint: &Checkpoint) {
        let checkpoint = Checkpoint::decode(&checkpoint.encode()).unwrap();
        let pattern = self.pattern.clone();
        self.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
    }

    pub(super) fn index(&self, name: &str) -> usize {
        let mut files = self.set.files.iter();
        files.position(|tracked| tracked.name.ends_with(name)).unwrap()
    }

    /// Returns the description of the lost rest of a file; an empty text if the set reports no such loss.
    pub(super) fn loss(&self, name: &str) -> &str {
        let mut files = self.set.files.iter();
        let tracked = files.find(|tracked| Path::new(&tracked.name).ends_with(name));
        tracked.and_then(|tracked| tracked.loss.as_deref()).unwrap_or_default()
    }

    pub(super) fn unreported(&self) -> Vec<String> {
        let paths = self.set.compressed.unreported.iter().map(|file| &file.progress.path);
        let name =
            |path: &String| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        paths.map(name).collect()
    }
}
