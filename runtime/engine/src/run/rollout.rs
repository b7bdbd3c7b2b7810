//! Manages handler versions during a run. The module monitors the folder of handlers, and loads new files while other
//! versions run. It publishes the offer of this instance: for each handler, the highest version that this instance can
//! use. The module also writes rollouts into the store, and follows the rollouts that other instances write. A rollout
//! records the version that executes a stream's events.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecursiveMode, Watcher as _};
use ordain_core::{Build, Rollout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::RunError;
use crate::membership::Membership;
use ordain_config::LoadedConfig;
use ordain_core::rollout::RolloutMemory;
use ordain_core::split_version;
use ordain_store::InstanceInfo;
use ordain_store::{MembershipTable, Store};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::text::escape_invisible;
use ordain_util::wait;
use ordain_wasm::warn_of_migrate;
use ordain_wasm::{ActivationResult, HandlerRegistry, VersionUnavailable};
use ordain_wasm::{
    ActiveVersion, CatalogAction, CompilePriority, FileFault, FileStamp, Handler, HandlerFile,
    LoadError, LoadOutcome, PluginFolder, other_content_advice,
};

/// The scans supplement the notifications of changes, because not every file system sends notifications.
const FOLDER_SCAN_INTERVAL: Duration = Duration::from_secs(2);
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Delay before a scan. Changes that belong together usually arrive within this delay, so that one scan finds all of
/// them.
const DEBOUNCE_DELAY: Duration = Duration::from_millis(50);
/// Time between two warnings that the folder cannot be read, or that no rollout can be written.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The result of loading a handler file.
type PendingLoad = oneshot::Receiver<Result<Arc<Handler>, LoadError>>;

pub(super) struct RolloutController<'a> {
    loaded: &'a LoadedConfig,
    store: &'a Arc<dyn Store>,
    handlers: &'a Arc<HandlerRegistry>,
    membership: Membership,
    table: Arc<MembershipTable>,
    states: BTreeMap<Arc<str>, RolloutState>,
    folder_throttle: LogThrottle,
    rollout_throttle: LogThrottle,
}

#[derive(Default)]
struct RolloutState {
    memory: RolloutMemory,
    /// Since this time, this instance lacks the version of the rollout.
    missing_since: Option<Instant>,
}

impl<'a> RolloutController<'a> {
    pub(super) fn new(
        loaded: &'a LoadedConfig,
        store: &'a Arc<dyn Store>,
        handlers: &'a Arc<HandlerRegistry>,
        mut membership: Membership,
    ) -> Self {
        let table = membership.table();
        Self {
            loaded,
            store,
            handlers,
            membership,
            table,
            states: BTreeMap::new(),
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
            rollout_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    /// Manages the versions until an error occurs. With `once`, a version that is missing for longer than the lease
    /// duration is an error.
    pub(super) async fn run(mut self, once: bool) -> RunError {
        let (notify_change, mut changes) = mpsc::channel(1);
        let _watcher = self.watch_folder(notify_change);
        let mut scan_interval = interval(FOLDER_SCAN_INTERVAL);
        scan_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loading: Option<(HandlerFile, FileStamp, PendingLoad)> = None;
        // The scan runs on another thread, because a scan blocks its thread if the file system does not respond.
        let mut pending_scan: Option<JoinHandle<io::Result<PluginFolder>>> = None;
        loop {
            let retry_at = self.start_rollouts().await;
            if once && let Some(error) = self.check_missing() {
                return error;
            }
            let next = self.handlers.with_catalog(|catalog| catalog.next_action(Instant::now()));
            let at = match next {
                CatalogAction::Load(file, stamp) if loading.is_none() => {
                    let load = self.start_load(&file);
                    loading = Some((file, stamp, load));
                    None
                }
                CatalogAction::WaitUntil(at) => Some(at),
                CatalogAction::Load(..) | CatalogAction::WaitForChange => None,
            };
            let handlers = Arc::clone(self.handlers);
            tokio::select! {
                () = self.membership.changed() => self.table = self.membership.table(),
                Some(()) = changes.recv(), if pending_scan.is_none() => pending_scan = Some(self.start_scan()),
                _ = scan_interval.tick(), if pending_scan.is_none() => pending_scan = Some(self.start_scan()),
                folder = scan_finished(&mut pending_scan) => {
                    pending_scan = None;
                    self.handle_scan(folder);
                }
                () = wait::sleep_until(at), if loading.is_none() => {}
                () = wait::sleep_until(retry_at) => {}
                () = handlers.rollout_required.notified() => self.refresh_table().await,
                loaded = load_finished(&mut loading) => {
                    if let Some((file, stamp, _)) = loading.take() {
                        self.handle_load(&file, stamp, loaded);
                    }
                }
            }
        }
    }

    /// Returns the error for a stream whose version has been missing for longer than the lease duration. Within this
    /// duration, the store removes a dead instance from the membership. After the removal, the version of the dead
    /// instance no longer counts as available.
    fn check_missing(&mut self) -> Option<RunError> {
        let timeout = Duration::from_millis(self.loaded.config.runtime.lease.0);
        for (stream, _) in self.handlers.streams() {
            let state = self.states.entry(Arc::clone(stream)).or_default();
            let Some(Err(missing)) = self.handlers.activation(stream) else {
                state.missing_since = None;
                continue;
            };
            if state.missing_since.get_or_insert_with(Instant::now).elapsed() > timeout {
                let stream = Arc::clone(stream);
                return Some(RunError::VersionMissing { stream, reason: missing.reason });
            }
        }
        None
    }

    /// Requests notifications about changes of the folder. If the request fails, only the scans at each
    /// `FOLDER_SCAN_INTERVAL` find changes.
    fn watch_folder(&self, notify_change: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
        let dir = &self.loaded.config.plugins.dir;
        // If a notification already waits, drop this notification: the next scan finds all changes.
        let changed = move |event: notify::Result<notify::Event>| {
            // A scan itself reads the folder, and these reads must not trigger another scan.
            let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
            let needs_scan = event.is_ok_and(|event| {
                let paths = &event.paths;
                let may_be_relevant =
                    paths.is_empty() || paths.iter().any(|path| may_be_handler(path));
                may_be_relevant && (!event.kind.is_access() || event.kind == written)
            });
            if needs_scan {
                let _ = notify_change.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(changed).and_then(|mut watcher| {
            watcher.watch(dir, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        watcher
            .inspect_err(
                |error| tracing::debug!(%error, "folder of handlers not watched: polling it"),
            )
            .ok()
    }

    fn start_scan(&self) -> JoinHandle<io::Result<PluginFolder>> {
        let dir = self.loaded.config.plugins.dir.clone();
        tokio::task::spawn_blocking(move || {
            // Wait first, so that this scan finds all changes that belong together.
            std::thread::sleep(DEBOUNCE_DELAY);
            PluginFolder::scan(&dir)
        })
    }

    /// Logs new invalid file names and removed handlers.
    fn handle_scan(&mut self, folder: io::Result<PluginFolder>) {
        let folder = match folder {
            Ok(folder) => folder,
            Err(error) => {
                let dir = &self.loaded.config.plugins.dir;
                if self.folder_throttle.allow() {
                    tracing::warn!(
                        dir = %escape_invisible(&dir.display().to_string()), %error,
                        "folder of handlers unreadable; running versions continue"
                    );
                }
                return;
            }
        };
        let (new, removed) = self.handlers.with_catalog(|catalog| {
            let known = &catalog.folder().misnamed;
            let known: BTreeSet<&Path> = known.iter().map(|file| &*file.path).collect();
            let new = folder.misnamed.iter().filter(|file| !known.contains(&*file.path));
            let new: Vec<_> = new.cloned().collect();
            (new, catalog.update(folder, Instant::now()))
        });
        for refused in new {
            let path = refused.path.display().to_string();
            tracing::error!(
                path = %escape_invisible(&path), reason = %escape_invisible(&refused.reason),
                "file ignored: its name is not the name of a handler file"
            );
        }
        for file in removed {
            tracing::warn!(
                handler = &*file.build.version,
                "last file of a handler removed; the running version continues. Put a file of this handler back into \
                 the folder: without such a file, the next start fails"
            );
        }
    }

    /// Starts a thread that loads the file. Other versions continue to run during the load.
    fn start_load(&self, file: &HandlerFile) -> PendingLoad {
        tracing::info!(file = %escape_invisible(&file.path.display().to_string()), "loading handler");
        let (sender, receiver) = oneshot::channel();
        let engine = Arc::clone(&self.handlers.engine);
        let file = file.clone();
        let load = move || {
            // If the receiver is dropped, the result is not needed.
            let _ = sender.send(engine.load_in_child(&file, CompilePriority::Low));
        };
        // If the thread cannot start, the sender is dropped, and this instance loads the file again later.
        let _ = std::thread::Builder::new().name("ordain-loader".to_owned()).spawn(load);
        receiver
    }

    fn handle_load(
        &self,
        file: &HandlerFile,
        stamp: FileStamp,
        loaded: Option<Result<Arc<Handler>, LoadError>>,
    ) {
        let loaded = loaded.unwrap_or_else(|| {
            let reason =
                "cannot be loaded: the loader's thread did not start, or ended unexpectedly";
            Err(LoadError {
                path: file.path.clone(),
                reason: reason.to_owned(),
                is_temporary: true,
            })
        });
        let found = loaded.as_ref().map(|handler| handler.build().clone()).map_err(FileFault::from);
        let now = Instant::now();
        let change =
            self.handlers.with_catalog(|catalog| catalog.record_load(file, stamp, found, now));
        match (change, loaded) {
            (LoadOutcome::Offered, Ok(handler)) => {
                warn_of_migrate(&handler);
                self.handlers.insert(handler);
                self.membership.offer(self.handlers.offered_builds());
            }
            (LoadOutcome::Unusable(reason), _) => tracing::error!(
                path = %escape_invisible(&file.path.display().to_string()),
                reason = %escape_invisible(&reason),
                "handler version unusable; running versions continue"
            ),
            (_, Ok(handler)) => {
                let instead = self.handlers.offered_build(&file.name);
                let instead = instead.map_or_else(
                    || "no stream uses this handler".to_owned(),
                    |build| format!("this process keeps using {}", build.version),
                );
                let handler = &**handler.version();
                tracing::info!(handler, "handler version loaded but not used: {instead}");
            }
            _ => {}
        }
    }

    /// Handles the notification of a rollout that is newer than all rollouts that this instance has read. Events of a
    /// key were executed under this newer rollout. Reads the membership table, which normally contains that rollout. If
    /// the store went back in time and lost the rollout, the next rollout gets a higher number than the lost rollout.
    async fn refresh_table(&mut self) {
        let Ok(table) = self.store.table().await else {
            tokio::time::sleep(STORE_RETRY_DELAY).await;
            return self.handlers.rollout_required.notify_one();
        };
        for (stream, _) in self.handlers.streams() {
            let needs = self.handlers.required_rollout(stream);
            if table.versions.get(stream).is_none_or(|rollout| rollout.number < needs) {
                self.states.entry(Arc::clone(stream)).or_default().memory.require(needs);
            }
        }
        self.table = Arc::new(table);
    }

    /// Writes the rollouts that are due, and applies the rollouts in the membership table. Returns the time of the next
    /// attempt if a rollout could not be written, and `None` otherwise.
    async fn start_rollouts(&mut self) -> Option<Instant> {
        let handlers = Arc::clone(self.handlers);
        let offers = handlers.offered_builds();
        let others = InstanceInfo::of_other_instances(&self.table, self.membership.id());
        let mut retry_at = None;
        for (stream, name) in handlers.streams() {
            let Some(own_offer) = offers.get(&**stream) else { continue };
            let other_offers: Vec<Build> =
                others.iter().filter_map(|other| other.offers.get(&**stream)).cloned().collect();
            let rollout = self.table.versions.get(stream).cloned();
            let memory = &mut self.states.entry(Arc::clone(stream)).or_default().memory;
            let may_become_usable = rollout.as_ref().is_some_and(|rollout| {
                let version = &rollout.build.version;
                handlers.with_catalog(|catalog| catalog.may_become_usable(version))
            });
            let new = memory.next(rollout.as_deref(), own_offer, &other_offers, may_become_usable);
            if memory.newest_number() + 1 >= Rollout::NUMBER_END && self.rollout_throttle.allow() {
                tracing::error!(
                    stream = &**stream,
                    rollout = memory.newest_number(),
                    "handler version of the stream can no longer change: the number of its rollout in the store has \
                     reached the highest possible value. Ordain itself never counts to this value, so another program \
                     has changed the number. Restore the store from a backup"
                );
            }
            let is_replaced = new.is_some();
            if let Some(new) = new {
                match self.store.start_rollout(stream, rollout.as_deref(), &new).await {
                    // The next membership table contains this rollout, or a rollout that another instance wrote first.
                    Ok(_) => self.membership.trigger(),
                    Err(error) => {
                        if self.rollout_throttle.allow() {
                            tracing::warn!(
                                %error,
                                "choice of a handler version (rollout) not written to the store; retrying"
                            );
                        }
                        retry_at = Some(Instant::now() + STORE_RETRY_DELAY);
                    }
                }
            }
            let Some(rollout) = rollout.filter(|rollout| memory.is_newest(rollout)) else {
                continue;
            };
            // Do not report a version as missing if another version is about to replace it.
            let is_here = || handlers.compiled(&rollout.build).is_some();
            if !is_replaced || is_here() {
                let is_elsewhere = other_offers.contains(&rollout.build);
                self.apply_rollout(stream, name, &rollout, is_elsewhere);
            }
        }
        retry_at
    }

    /// Records the reason if this instance lacks the version of the rollout.
    fn apply_rollout(
        &self,
        stream: &Arc<str>,
        name: &str,
        rollout: &Arc<Rollout>,
        is_elsewhere: bool,
    ) {
        let activation: ActivationResult = match self.handlers.compiled(&rollout.build) {
            Some(handler) => Ok(Arc::new(ActiveVersion { handler, rollout: Arc::clone(rollout) })),
            None => Err(VersionUnavailable {
                reason: self.missing_reason(name, rollout),
                rollout: Some(Arc::clone(rollout)),
                is_available_elsewhere: is_elsewhere,
            }),
        };
        let missing_reason =
            activation.as_ref().err().map(|unavailable| unavailable.reason.clone());
        if !self.handlers.activate(stream, activation) {
            return;
        }
        let version = &*rollout.build.version;
        match missing_reason {
            None => tracing::info!(
                stream = &**stream,
                version,
                rollout = rollout.number,
                "handler version active: it executes the events from now on"
            ),
            Some(reason) => tracing::warn!(
                stream = &**stream,
                version,
                rollout = rollout.number,
                reason = %escape_invisible(&reason),
                "handler version missing; in this process, the keys of the stream wait for this version"
            ),
        }
    }

    fn missing_reason(&self, name: &str, rollout: &Rollout) -> String {
        let dir = self.loaded.config.plugins.dir.display();
        let configured_elsewhere = || {
            let (other, _) = split_version(&rollout.build.version);
            (other != name).then(|| {
                format!(
                    "another instance runs the handler {other} for this stream, but this instance is configured with \
                     {name}: give all instances the same configuration. The stream switches to {name} when no instance \
                     with the handler {other} runs any more"
                )
            })
        };
        self.handlers.with_catalog(|catalog| {
            let files = catalog.folder().handlers.get(name).into_iter().flatten();
            for file in files {
                let path = file.path.display();
                match catalog.load_result(&file.path) {
                    Some(Ok(found)) if found.version == rollout.build.version => {
                        return format!(
                            "{path} has the right version, but not the same content as the file of the other \
                             instances (SHA-256 {:.12}…, not {:.12}…). Copy the file from another \
                             instance, or {}",
                            found.digest,
                            rollout.build.digest,
                            other_content_advice(name)
                        );
                    }
                    Some(Err(refused)) if *rollout.build.version == *file.to_string() => {
                        return format!("{path} {}", refused.reason);
                    }
                    None if *rollout.build.version == *file.to_string() => {
                        return format!("{path} is being loaded");
                    }
                    _ => {}
                }
            }
            configured_elsewhere().unwrap_or_else(|| {
                format!(
                    "there is no file of this version in {dir}: copy the file from an instance that has it"
                )
            })
        })
    }
}

/// Waits for the end of the running load, and returns its result; `None` if the thread could not start or panicked.
/// Never returns if no load is running.
async fn load_finished(
    loading: &mut Option<(HandlerFile, FileStamp, PendingLoad)>,
) -> Option<Result<Arc<Handler>, LoadError>> {
    match loading {
        Some((.., pending)) => pending.await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for the end of the running scan, and returns its result. Never returns if no scan is running.
async fn scan_finished(
    pending_scan: &mut Option<JoinHandle<io::Result<PluginFolder>>>,
) -> io::Result<PluginFolder> {
    match pending_scan {
        Some(scan) => scan.await.unwrap_or_else(|panic| Err(io::Error::other(panic))),
        None => std::future::pending().await,
    }
}

/// Returns whether a changed file may be a handler, according to its name.
fn may_be_handler(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    path.extension().is_some_and(|extension| extension == "wasm")
        && !name.as_encoded_bytes().starts_with(b".")
}
