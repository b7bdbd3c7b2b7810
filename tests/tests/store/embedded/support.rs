//! An embedded store in a temporary folder, with a clock that only the test advances.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_store::Store;
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore, TimeSource};
use ordain_tests::conformance::{DEAD_TTL, Fixture};

/// The time at the start of a test, in milliseconds.
const START_MS: u64 = 1_000_000;

pub(super) struct Rig {
    store: Option<EmbeddedStore>,
    folder: tempfile::TempDir,
    remembered: Option<tempfile::TempDir>,
    wall: Arc<AtomicU64>,
    steady: Arc<AtomicU64>,
}

impl Rig {
    /// Creates a new store in a temporary folder.
    pub(super) fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let wall = Arc::new(AtomicU64::new(START_MS));
        let steady = Arc::default();
        let mut rig = Self { store: None, folder, remembered: None, wall, steady };
        rig.store = Some(EmbeddedStore::open(rig.options()).expect("a new store"));
        rig
    }

    pub(super) fn options(&self) -> EmbeddedOptions {
        let wall = self.wall.clone();
        let steady = self.steady.clone();
        EmbeddedOptions {
            dead_ttl: DEAD_TTL,
            clock: TimeSource::new(
                "the machine's clock",
                move || wall.load(Ordering::Relaxed),
                move || steady.load(Ordering::Relaxed),
            ),
            ..EmbeddedOptions::new(self.path())
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sets the wall clock of the store, in milliseconds.
    pub(super) fn set_clock(&self, now: u64) {
        self.wall.store(now, Ordering::Relaxed);
    }

    pub(super) fn close(&mut self) {
        self.store = None;
    }
}

impl Fixture for Rig {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().expect("an open store")
    }

    async fn advance_clock(&mut self, ms: u64) {
        // The store may read its clock between the two changes. In the other order, the store would count the time
        // twice.
        self.steady.fetch_add(ms, Ordering::Relaxed);
        self.wall.fetch_add(ms, Ordering::Relaxed);
    }

    async fn reopen(&mut self) {
        self.close();
        self.store = Some(EmbeddedStore::open(self.options()).expect("the store again"));
    }

    async fn take_snapshot(&mut self) {
        self.close();
        let copy = tempfile::tempdir().expect("a folder");
        copy_all(self.path(), copy.path());
        self.remembered = Some(copy);
        self.reopen().await;
    }

    async fn go_back(&mut self) {
        self.close();
        for entry in std::fs::read_dir(self.path()).expect("a folder") {
            let path = entry.expect("an entry").path();
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
            removed.expect("removed");
        }
        copy_all(self.remembered.as_ref().expect("a remembered copy").path(), self.path());
        self.reopen().await;
    }

    async fn overwrite_record(&mut self, stream: &str, key: &str, bytes: Vec<u8>) {
        let store = self.store.as_ref().expect("an open store");
        store.overwrite_record(stream, key, bytes).await.expect("garbage");
    }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            std::fs::create_dir_all(&to).expect("a folder");
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("a copy");
        }
    }
}
