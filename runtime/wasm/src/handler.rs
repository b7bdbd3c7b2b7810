//! A compiled version of a handler, and the version that executes the events of a stream.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_core::{Build, Rollout, VersionName};
use wasmtime::component::{ComponentExportIndex, InstancePre};

use super::execution_times::ExecutionTimes;
use super::folder::HandlerFile;
use super::guest::GuestState;

/// A compiled version of a handler.
pub struct Handler {
    /// The id of this compiled version, unique in the process.
    id: u64,
    file: HandlerFile,
    build: Build,
    migrates: bool,
    pre: InstancePre<GuestState>,
    handle: ComponentExportIndex,
    times: ExecutionTimes,
}

impl Handler {
    pub(super) fn new(
        file: HandlerFile,
        build: Build,
        pre: InstancePre<GuestState>,
        handle: ComponentExportIndex,
        migrates: bool,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            file,
            build,
            migrates,
            pre,
            handle,
            times: ExecutionTimes::new(),
        }
    }

    /// Returns the file from which this version was loaded.
    pub fn file(&self) -> &HandlerFile {
        &self.file
    }

    /// Returns the build: the version and the SHA-256 of the file. The record of a key contains the build that executed
    /// the last committed event of the key.
    pub fn build(&self) -> &Build {
        &self.build
    }

    /// Returns the name of the version.
    pub fn version(&self) -> &VersionName {
        &self.build.version
    }

    /// Returns whether the handler exports the interface that migrates the state of an older version. Ordain does not
    /// call this interface yet.
    pub fn migrates(&self) -> bool {
        self.migrates
    }

    /// Returns the histogram of the execution time of an event, in seconds. A turn (a run of events of one key) is
    /// measured as a whole. The measured time of each event is therefore the average time of the events of its turn.
    pub(super) fn execution_times(&self) -> &ExecutionTimes {
        &self.times
    }

    /// Returns the id of this compiled version, unique in the process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn pre(&self) -> &InstancePre<GuestState> {
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

/// The version of a handler that executes the events of a stream now, with the rollout that activated it.
#[derive(Debug, Clone)]
pub struct ActiveVersion {
    /// The version.
    pub handler: Arc<Handler>,
    /// The rollout (the stored choice of a version) that activated the version.
    pub rollout: Arc<Rollout>,
}

impl ActiveVersion {
    /// Creates the active version of a stream that has had no rollout yet: `handler`, under the first rollout.
    pub fn first(handler: Arc<Handler>) -> Arc<Self> {
        let Build { version, digest } = handler.build().clone();
        Arc::new(Self { handler, rollout: Rollout::first(version, digest) })
    }
}
