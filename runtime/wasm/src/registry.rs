//! The handlers of a process: the state of the folder, the compiled versions, and the version that executes each
//! stream's events. `setup` fills the registry at the start; `rollout` in the engine crate changes it later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_core::{Build, Rollout};
use tokio::sync::{Notify, watch};

use crate::execution_times::RetiredTimes;
use crate::{ActiveVersion, Catalog, FileFault, Handler, HandlerEngine, HandlerFile, PluginFolder};
use ordain_util::histogram::Histogram;

/// The engine, the state of the folder, and the version that executes each stream's events.
pub struct HandlerRegistry {
    /// The engine that runs the handlers.
    pub engine: Arc<HandlerEngine>,
    state: Mutex<RegistryState>,
    streams: BTreeMap<Arc<str>, StreamHandler>,
    /// Notifies that a partition needs a newer rollout than the rollout that this process has read. A rollout is the
    /// stored choice of a handler version.
    pub rollout_required: Notify,
}

#[derive(Default)]
pub(super) struct RegistryState {
    pub(super) catalog: Catalog,
    /// The versions that this process offers (publishes as available) or that execute events.
    pub(super) compiled: Vec<Arc<Handler>>,
    /// The execution times of the versions that this process has released.
    pub(super) retired_times: RetiredTimes,
}

/// The handler name of a stream, the version that executes the stream's events, and the lowest rollout number that the
/// stream needs.
struct StreamHandler {
    handler: String,
    activation: watch::Sender<ActivationResult>,
    required_rollout: watch::Sender<u64>,
}

/// The version that executes the events of a stream, or the reason why this process cannot execute the events.
pub type ActivationResult = Result<Arc<ActiveVersion>, VersionUnavailable>;

/// The reason why this process cannot execute the events of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionUnavailable {
    /// The rollout of the stream; `None` if the stream has none.
    pub rollout: Option<Arc<Rollout>>,
    /// The reason why this process lacks the version of the rollout, and the remedy.
    pub reason: String,
    /// `true` if another process has the version.
    pub is_available_elsewhere: bool,
}

/// The view of a driver (the task that processes a partition) on the version of the driver's stream. Through this view,
/// the driver receives changes of the version and requests newer rollouts.
pub struct VersionWatcher {
    activation: watch::Receiver<ActivationResult>,
    required_rollout: watch::Sender<u64>,
    handlers: Arc<HandlerRegistry>,
}

impl VersionWatcher {
    /// Returns the version that executes events now; `None` if this process cannot execute them.
    pub fn active(&mut self) -> Option<Arc<ActiveVersion>> {
        self.activation.borrow_and_update().as_ref().ok().map(Arc::clone)
    }

    /// Waits until a call of [`HandlerRegistry::activate`] changes the state of the stream. Returns the version that
    /// executes events now; `None` if this process cannot execute them.
    pub async fn changed(&mut self) -> Option<Arc<ActiveVersion>> {
        if self.activation.changed().await.is_err() {
            return std::future::pending().await;
        }
        self.active()
    }

    /// Reports that an event of a key was executed under the rollout with this number. From then on, the stream needs
    /// this rollout or a newer one.
    pub fn require_rollout(&self, rollout_number: u64) {
        let is_new = self.required_rollout.send_if_modified(|required| {
            let is_new = *required < rollout_number;
            *required = rollout_number.max(*required);
            is_new
        });
        if is_new {
            self.handlers.rollout_required.notify_one();
        }
    }
}

impl HandlerRegistry {
    /// Creates the registry from the handlers that were loaded at the start, and from the streams with their handler
    /// names.
    pub(crate) fn new(
        engine: Arc<HandlerEngine>,
        state: RegistryState,
        streams: impl IntoIterator<Item = (Arc<str>, String)>,
    ) -> Self {
        let streams = streams.into_iter().map(|(name, handler)| {
            let reason = "the stream has no rollout yet".to_owned();
            let missing =
                VersionUnavailable { rollout: None, reason, is_available_elsewhere: false };
            let activation = watch::Sender::new(Err(missing));
            (name, StreamHandler { handler, activation, required_rollout: watch::Sender::new(0) })
        });
        let streams = streams.collect();
        Self { engine, state: Mutex::new(state), streams, rollout_required: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the catalog, and returns the result of the function. The registry stays locked during the
    /// call.
    pub fn with_catalog<T>(&self, access: impl FnOnce(&mut Catalog) -> T) -> T {
        access(&mut self.state().catalog)
    }

    /// Returns a new view of a stream's version; `None` if the stream is not configured.
    pub fn watch(self: &Arc<Self>, stream: &str) -> Option<VersionWatcher> {
        let StreamHandler { activation, required_rollout, .. } = self.streams.get(stream)?;
        Some(VersionWatcher {
            activation: activation.subscribe(),
            required_rollout: required_rollout.clone(),
            handlers: Arc::clone(self),
        })
    }

    /// Returns the highest rollout number that the drivers of the stream's partitions have passed to
    /// [`VersionWatcher::require_rollout`]; 0 if there is none.
    pub fn required_rollout(&self, stream: &str) -> u64 {
        self.streams.get(stream).map_or(0, |running| *running.required_rollout.borrow())
    }

    /// Returns the streams, each with the name of its handler.
    pub fn streams(&self) -> impl Iterator<Item = (&Arc<str>, &str)> {
        self.streams.iter().map(|(stream, running)| (stream, &*running.handler))
    }

    /// Returns the version that executes the events of a stream, or the reason why this process cannot execute the
    /// events. Returns `None` for a stream that is not configured.
    pub fn activation(&self, stream: &str) -> Option<ActivationResult> {
        self.streams.get(stream).map(|running| running.activation.borrow().clone())
    }

    /// Switches a stream to another version, or records why this process cannot execute the events of the stream.
    /// Returns whether the call changed the state of the stream.
    pub fn activate(&self, stream: &str, new: ActivationResult) -> bool {
        let Some(running) = self.streams.get(stream) else { return false };
        let same = match (&*running.activation.borrow(), &new) {
            (Ok(one), Ok(other)) => one.rollout == other.rollout,
            (Err(one), Err(other)) => one == other,
            _ => false,
        };
        if !same {
            // The registry releases the old version before the drivers receive the new version. The memory of the old
            // version is then freed when the last driver or worker releases that version.
            let others = self.streams.iter().filter(|(other, _)| ***other != *stream);
            let active = others
                .filter_map(|(_, running)| active_handler_id(&running.activation.borrow()))
                .chain(active_handler_id(&new));
            self.evict(&active.collect::<Vec<u64>>());
            running.activation.send_modify(|activation| *activation = new);
        }
        !same
    }

    /// Returns the folder's contents at the last scan.
    pub fn folder(&self) -> PluginFolder {
        self.state().catalog.folder().clone()
    }

    /// Returns the result of loading a file (`None` before the first load), and whether this process offers the build
    /// of the file.
    pub fn inspect_file(&self, file: &HandlerFile) -> (Option<Result<Build, FileFault>>, bool) {
        let state = self.state();
        let found = state.catalog.load_result(&file.path).cloned();
        let offered =
            state.catalog.offered(&file.name).filter(|offered| offered.file.path == file.path);
        let is_offered = offered.is_some_and(|offered| {
            found.as_ref().is_some_and(|found| found.as_ref() == Ok(&offered.build))
        });
        (found, is_offered)
    }

    /// Returns the build that this process offers for a handler; `None` if no version of the handler is usable yet.
    pub fn offered_build(&self, name: &str) -> Option<Build> {
        self.state().catalog.offered(name).map(|offered| offered.build.clone())
    }

    /// Returns the number of unusable files of each handler. The name of a file determines the handler. Files without a
    /// valid name, and folders whose names end with `.wasm`, count under the empty name.
    pub fn unusable_file_counts(&self) -> BTreeMap<String, usize> {
        let state = self.state();
        let refused = state.catalog.unusable_file_counts();
        refused.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Returns the streams whose events neither this process nor another process can execute. Omits a stream whose
    /// events another process can execute. If the result contained such a stream, this process would not become ready.
    /// A rolling update would therefore wait for this process forever, and would never stop the other process.
    pub fn unavailable_streams(&self) -> Vec<Arc<str>> {
        let is_missing = |running: &StreamHandler| {
            running
                .activation
                .borrow()
                .as_ref()
                .is_err_and(|missing| !missing.is_available_elsewhere)
        };
        let missing = self.streams.iter().filter(|(_, running)| is_missing(running));
        missing.map(|(stream, _)| Arc::clone(stream)).collect()
    }

    /// Returns, for each stream, the number of the rollout under which its events are executed. Omits the streams whose
    /// events this process cannot execute.
    pub fn rollout_numbers(&self) -> Vec<(String, u64)> {
        let of = |(stream, running): (&Arc<str>, &StreamHandler)| {
            let rollout_number = running.activation.borrow().as_ref().ok()?.rollout.number;
            Some((stream.to_string(), rollout_number))
        };
        self.streams.iter().filter_map(of).collect()
    }

    /// Returns the compiled version of a build; `None` if this process has not loaded the build, or has released it.
    pub fn compiled(&self, build: &Build) -> Option<Arc<Handler>> {
        self.state().compiled.iter().find(|handler| handler.build() == build).cloned()
    }

    /// Adds a version that the catalog offers now, and releases the versions that are neither offered nor active any
    /// more.
    pub fn insert(&self, handler: Arc<Handler>) {
        self.state().compiled.push(handler);
        let active = self
            .streams
            .values()
            .filter_map(|running| active_handler_id(&running.activation.borrow()));
        self.evict(&active.collect::<Vec<u64>>());
    }

    /// Releases the versions that are neither offered nor active, and keeps their execution times for the metrics. The
    /// workers may still finish events with a released version. `active` has the ids of the active versions.
    fn evict(&self, active: &[u64]) {
        let mut state = self.state();
        let RegistryState { catalog, compiled, retired_times } = &mut *state;
        let (stay, go) = std::mem::take(compiled).into_iter().partition(|handler| {
            let offered = catalog.offered(&handler.file().name);
            active.contains(&handler.id())
                || offered.is_some_and(|offered| offered.build == *handler.build())
        });
        *compiled = stay;
        let go: Vec<Arc<Handler>> = go;
        for handler in go {
            let times = handler.execution_times().clone();
            retired_times.add(&handler.file().name, handler.version(), times);
        }
    }

    /// Returns, for each stream, the build that this process offers for the stream's handler.
    pub fn offered_builds(&self) -> BTreeMap<String, Build> {
        let state = self.state();
        let offers = self.streams.iter().filter_map(|(stream, running)| {
            let offered = state.catalog.offered(&running.handler)?;
            Some((stream.to_string(), offered.build.clone()))
        });
        offers.collect()
    }

    /// Returns, for each handler name and version, the histogram of the execution time of an event in seconds. Includes
    /// the most recently retired versions.
    pub fn times(&self) -> Vec<(String, String, Histogram)> {
        let state = self.state();
        let compiled = state.compiled.iter().map(|handler| {
            let times = handler.execution_times().histogram();
            (handler.file().name.clone(), handler.version().to_string(), times)
        });
        let mut sums: Vec<(String, String, Histogram)> = Vec::new();
        for (name, version, times) in state.retired_times.histograms().chain(compiled) {
            match sums.iter_mut().find(|entry| entry.0 == name && entry.1 == version) {
                Some((.., sum)) => sum.merge(&times),
                None => sums.push((name, version, times)),
            }
        }
        sums
    }
}

/// Returns the id of the version that executes the events of a stream; `None` if this process cannot execute them.
fn active_handler_id(activation: &ActivationResult) -> Option<u64> {
    activation.as_ref().ok().map(|active| active.handler.id())
}
