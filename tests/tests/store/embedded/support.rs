//! An embedded store in a folder of its own, with a clock that stands still.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_store::Store;
use ordain_store_embedded::{Clock, Embedded, Options};
use ordain_tests::conformance::{DEAD_TTL, Fixture};

/// The time at which a test begins.
const START: u64 = 1_000_000;

/// A store under test.
pub(super) struct Rig {
    store: Option<Embedded>,
    folder: tempfile::TempDir,
    wall: Arc<AtomicU64>,
    steady: Arc<AtomicU64>,
}

impl Rig {
    /// A new one.
    pub(super) fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (wall, steady) = (Arc::new(AtomicU64::new(START)), Arc::default());
        let mut rig = Self { store: None, folder, wall, steady };
        rig.store = Some(Embedded::open(rig.options()).expect("a new store"));
        rig
    }

    /// How it is opened.
    pub(super) fn options(&self) -> Options {
        let (wall, steady) = (self.wall.clone(), self.steady.clone());
        Options {
            dead_ttl: DEAD_TTL,
            clock: Clock::new(
                move || wall.load(Ordering::Relaxed),
                move || steady.load(Ordering::Relaxed),
            ),
            ..Options::new(self.path())
        }
    }

    /// Its folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sets its wall clock to any time.
    pub(super) fn set_clock(&self, now: u64) {
        self.wall.store(now, Ordering::Relaxed);
    }

    /// Closes it.
    pub(super) fn close(&mut self) {
        self.store = None;
    }
}

impl Fixture for Rig {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().expect("it is open")
    }

    async fn pass(&mut self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::Relaxed);
        self.steady.fetch_add(ms, Ordering::Relaxed);
    }

    async fn reopen(&mut self) {
        self.close();
        self.store = Some(Embedded::open(self.options()).expect("the store again"));
    }

    async fn garble(&mut self, stream: &str, key: &str, bytes: Vec<u8>) {
        let store = self.store.as_ref().expect("it is open");
        store.overwrite_job(stream, key, bytes).await.expect("garbage");
    }
}
