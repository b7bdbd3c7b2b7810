//! One version of a handler, and what was decided on it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ordain_core::{Build, Decided, Version};
use wasmtime::component::{ComponentExportIndex, InstancePre};

use super::folder::HandlerFile;
use super::guest::Guest;
use ordain_util::histogram::Histogram;

/// One version of a handler, compiled.
pub struct Handler {
    /// Never used twice in a process.
    pub(super) id: u64,
    pub(super) file: HandlerFile,
    pub(super) build: Build,
    pub(super) migrates: bool,
    pub(super) pre: InstancePre<Guest>,
    pub(super) handle: ComponentExportIndex,
    pub(super) times: Mutex<Histogram>,
}

impl Handler {
    /// Which file it is.
    pub fn file(&self) -> &HandlerFile {
        &self.file
    }

    /// How it is recorded with what it executes.
    pub fn build(&self) -> &Build {
        &self.build
    }

    /// The name of its version.
    pub fn version(&self) -> &Version {
        &self.build.version
    }

    /// Whether it can take over the state of an older version.
    pub fn migrates(&self) -> bool {
        self.migrates
    }

    /// How long it took for an event, in seconds: for each the average of its turn.
    pub fn times(&self) -> Histogram {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds what a worker has measured, which then begins anew.
    pub(super) fn note_times(&self, measured: &mut Histogram) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).merge(measured);
        measured.clear();
    }

    /// Tells it apart from all others of this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn pre(&self) -> &InstancePre<Guest> {
        &self.pre
    }

    pub(super) fn handle(&self) -> &ComponentExportIndex {
        &self.handle
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler({} {})", self.build.version, self.build.digest)
    }
}

/// What executes the events of a stream.
#[derive(Debug, Clone)]
pub struct Active {
    /// The version.
    pub handler: Arc<Handler>,
    /// Under what it was decided on.
    pub decided: Arc<Decided>,
}

impl Active {
    /// What nobody else has decided on: the first of its stream.
    pub fn first(handler: Arc<Handler>) -> Arc<Self> {
        let Build { version, digest } = handler.build().clone();
        Arc::new(Self { handler, decided: Decided::first(version, digest) })
    }
}
