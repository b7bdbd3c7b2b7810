//! Versions while it runs: looks into the folder of handlers, loads what is new there beside what runs,
//! says what is offered, and follows what the store has decided.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecursiveMode, Watcher as _};
use ordain_core::{Build, Decided};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::RunError;
use crate::instance::Membership;
use ordain_config::Loaded;
use ordain_core::rollout::{Known, decide};
use ordain_core::split_version;
use ordain_store::About;
use ordain_store::{Store, Table};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::text::clean;
use ordain_util::wait;
use ordain_wasm::warn_of_migrate;
use ordain_wasm::{
    Active, Change, Folder, Handler, HandlerFile, LoadError, Manner, Next, Refused, Stamp,
};
use ordain_wasm::{Chosen, Handlers, Missing};

/// Between two looks into the folder, where nobody says that something has changed there: not every
/// file system does.
const LOOK: Duration = Duration::from_secs(2);
/// Before the store is asked again that did not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// Between a change in the folder and a look.
const TOGETHER: Duration = Duration::from_millis(50);
/// Time between two warnings that the folder cannot be read, or that no version can be decided on.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// What a load has come to.
type Loading = oneshot::Receiver<Result<Arc<Handler>, LoadError>>;

pub(super) struct Versions<'a> {
    loaded: &'a Loaded,
    store: &'a Arc<dyn Store>,
    handlers: &'a Arc<Handlers>,
    membership: Membership,
    table: Arc<Table>,
    /// By stream.
    seen: BTreeMap<Arc<str>, Seen>,
    folder_throttle: LogThrottle,
    decision_throttle: LogThrottle,
}

/// What was seen of a stream.
#[derive(Default)]
struct Seen {
    /// The highest generation.
    newest: u64,
    /// The decision that this instance has offered, or may go back from since it has just started.
    had: Option<Arc<Decided>>,
    has_begun: bool,
    /// Since when what was decided on is not here.
    missing: Option<Instant>,
}

impl<'a> Versions<'a> {
    pub(super) fn new(
        loaded: &'a Loaded,
        store: &'a Arc<dyn Store>,
        handlers: &'a Arc<Handlers>,
        mut membership: Membership,
    ) -> Self {
        let table = membership.table();
        Self {
            loaded,
            store,
            handlers,
            membership,
            table,
            seen: BTreeMap::new(),
            folder_throttle: LogThrottle::new(WARN_INTERVAL),
            decision_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    /// Follows the folder and the store as long as it is polled. A run that waits for its end (`once`) ends
    /// where what it lacks does not come.
    pub(super) async fn run(mut self, once: bool) -> RunError {
        let (tell, mut changes) = mpsc::channel(1);
        let _watcher = self.watch(tell);
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loading: Option<(HandlerFile, Stamp, Loading)> = None;
        // Of a file system that does not answer, only this hears.
        let mut looking: Option<JoinHandle<io::Result<Folder>>> = None;
        loop {
            let again = self.decide_all().await;
            if once && let Some(error) = self.gives_up() {
                return error;
            }
            let next = self.handlers.with_catalog(|catalog| catalog.next(Instant::now()));
            let at = match next {
                Next::Load(file, stamp) if loading.is_none() => {
                    let load = self.load(&file);
                    loading = Some((file, stamp, load));
                    None
                }
                Next::At(at) => Some(at),
                Next::Load(..) | Next::Nothing => None,
            };
            let handlers = Arc::clone(self.handlers);
            tokio::select! {
                () = self.membership.changed() => self.table = self.membership.table(),
                Some(()) = changes.recv(), if looking.is_none() => looking = Some(self.look()),
                _ = look.tick(), if looking.is_none() => looking = Some(self.look()),
                folder = looked(&mut looking) => {
                    looking = None;
                    self.looked(folder);
                }
                () = wait::until(at), if loading.is_none() => {}
                () = wait::until(again) => {}
                () = handlers.needed.notified() => self.look_for_newer().await,
                loaded = loaded(&mut loading) => {
                    if let Some((file, stamp, _)) = loading.take() {
                        self.loaded(&file, stamp, loaded);
                    }
                }
            }
        }
    }

    /// A stream that has been without what was decided on for longer than others may take to go.
    fn gives_up(&mut self) -> Option<RunError> {
        let patience = Duration::from_millis(self.loaded.config.runtime.lease.0);
        for (stream, _) in self.handlers.streams() {
            let seen = self.seen.entry(Arc::clone(stream)).or_default();
            let Some(Err(missing)) = self.handlers.chosen(stream) else {
                seen.missing = None;
                continue;
            };
            if seen.missing.get_or_insert_with(Instant::now).elapsed() > patience {
                let stream = Arc::clone(stream);
                return Some(RunError::Missing { stream, reason: missing.reason });
            }
        }
        None
    }

    /// Has somebody say when something changes in the folder. Where nobody can, there is `LOOK`.
    fn watch(&self, tell: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
        let dir = &self.loaded.config.plugins.dir;
        // One that is waiting is enough.
        let changed = move |event: notify::Result<notify::Event>| {
            // A look into the folder opens it, and must not be what wakes the next one.
            let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
            let is_news = event.is_ok_and(|it| {
                let is_meant = it.paths.is_empty() || it.paths.iter().any(|it| may_be_handler(it));
                is_meant && (!it.kind.is_access() || it.kind == written)
            });
            if is_news {
                let _ = tell.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(changed).and_then(|mut watcher| {
            watcher.watch(dir, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        watcher
            .inspect_err(|error| tracing::debug!(%error, "the folder of handlers is polled"))
            .ok()
    }

    /// Looks into the folder.
    fn look(&self) -> JoinHandle<io::Result<Folder>> {
        let dir = self.loaded.config.plugins.dir.clone();
        tokio::task::spawn_blocking(move || {
            // What changes together is seen together.
            std::thread::sleep(TOGETHER);
            Folder::scan(&dir)
        })
    }

    /// Takes in what is in the folder.
    fn looked(&mut self, folder: io::Result<Folder>) {
        let folder = match folder {
            Ok(folder) => folder,
            Err(error) => {
                let dir = &self.loaded.config.plugins.dir;
                if self.folder_throttle.allow() {
                    tracing::warn!(
                        dir = %clean(&dir.display().to_string()), %error,
                        "the folder of handlers cannot be read: what runs goes on"
                    );
                }
                return;
            }
        };
        let (new, gone) = self.handlers.with_catalog(|catalog| {
            let known = &catalog.folder().refused;
            let known: BTreeSet<&Path> = known.iter().map(|it| &*it.path).collect();
            let new = folder.refused.iter().filter(|it| !known.contains(&*it.path));
            let new: Vec<_> = new.cloned().collect();
            (new, catalog.look(folder, Instant::now()))
        });
        for refused in new {
            let path = refused.path.display().to_string();
            tracing::error!(path = %clean(&path), reason = %clean(&refused.reason), "not a handler");
        }
        for offered in gone {
            tracing::warn!(
                handler = &*offered.build.version,
                "the last file of a handler was removed: what runs goes on, and a start would find nothing"
            );
        }
    }

    /// Loads a file on a thread of its own, beside what runs.
    fn load(&self, file: &HandlerFile) -> Loading {
        tracing::info!(file = %clean(&file.path.display().to_string()), "loading a handler");
        let (tell, done) = oneshot::channel();
        let (engine, file) = (Arc::clone(&self.handlers.engine), file.clone());
        let load = move || {
            // Whoever asked may be gone.
            let _ = tell.send(engine.load_beside(&file, Manner::Polite));
        };
        // Where there is no thread the answer never comes, and the file is looked into again.
        let _ = std::thread::Builder::new().name("ordain-loader".to_owned()).spawn(load);
        done
    }

    fn loaded(
        &self,
        file: &HandlerFile,
        stamp: Stamp,
        loaded: Option<Result<Arc<Handler>, LoadError>>,
    ) {
        let loaded = loaded.unwrap_or_else(|| {
            let reason = "cannot be loaded: there was no thread for that, or it ended unexpectedly";
            Err(LoadError { path: file.path.clone(), reason: reason.to_owned(), may_pass: true })
        });
        let found = loaded.as_ref().map(|it| it.build().clone()).map_err(Refused::from);
        let now = Instant::now();
        let change = self.handlers.with_catalog(|catalog| catalog.loaded(file, stamp, found, now));
        match (change, loaded) {
            (Change::Offered, Ok(handler)) => {
                warn_of_migrate(&handler);
                self.handlers.keep(handler);
                self.membership.offer(self.handlers.offers());
            }
            (Change::Refused(reason), _) => tracing::error!(
                path = %clean(&file.path.display().to_string()),
                reason = %clean(&reason),
                "a handler cannot be used: what runs goes on"
            ),
            (_, Ok(handler)) => {
                let instead = self.handlers.offered(&file.name);
                let instead = instead.map_or_else(
                    || "no stream names it".to_owned(),
                    |it| format!("{} is offered, which is not lower", it.version),
                );
                let handler = &**handler.version();
                tracing::info!(handler, "a handler could be used, and is not: {instead}");
            }
            _ => {}
        }
    }

    /// A job was executed under a decision that is not known here: it is to come, unless the store went
    /// back in time and has lost it.
    async fn look_for_newer(&mut self) {
        let Ok(table) = self.store.table().await else {
            tokio::time::sleep(AGAIN).await;
            return self.handlers.needed.notify_one();
        };
        for (stream, _) in self.handlers.streams() {
            let needs = self.handlers.needs(stream);
            if table.versions.get(stream).is_none_or(|it| it.generation < needs) {
                let seen = self.seen.entry(Arc::clone(stream)).or_default();
                seen.newest = seen.newest.max(needs);
            }
        }
        self.table = Arc::new(table);
    }

    /// Asks the store for what is to be decided, and follows what is. Answers when it is to be asked
    /// again, if it did not answer.
    async fn decide_all(&mut self) -> Option<Instant> {
        let handlers = Arc::clone(self.handlers);
        let offers = handlers.offers();
        let others = About::all_but(&self.table, self.membership.id());
        let mut again = None;
        for (stream, name) in handlers.streams() {
            let Some(mine) = offers.get(&**stream) else { continue };
            let of_others: Vec<Build> =
                others.iter().filter_map(|it| it.offers.get(&**stream)).cloned().collect();
            let decided = self.table.versions.get(stream).cloned();
            let seen = self.seen.entry(Arc::clone(stream)).or_default();
            let begins = !std::mem::replace(&mut seen.has_begun, true);
            let is_mine = decided.as_ref().is_some_and(|it| *mine == it.build);
            // One that starts beside it has no say later, when whoever has it dies.
            let stands_alone = decided.as_ref().is_none_or(|it| {
                let is_higher = split_version(&it.build.version).1 > split_version(&mine.version).1;
                !(is_higher && of_others.contains(&it.build))
            });
            if is_mine || (begins && stands_alone) {
                seen.had.clone_from(&decided);
            }
            seen.newest = seen.newest.max(decided.as_ref().map_or(0, |it| it.generation));
            // A fault of the machine at a start is no reason to go back.
            let may_come = || {
                let version = decided.as_ref().map(|it| &it.build.version);
                version.is_some_and(|it| handlers.with_catalog(|catalog| catalog.may_come(it)))
            };
            let known = Known {
                decided: decided.as_deref(),
                mine,
                others: &of_others,
                may_go_back: seen.had == decided && !may_come(),
                newest: seen.newest,
            };
            if seen.newest + 1 >= Decided::END && self.decision_throttle.allow() {
                tracing::error!(
                    stream = &**stream,
                    generation = seen.newest,
                    "no version can be decided on any more: somebody else has written to the store"
                );
            }
            let new = decide(&known);
            let is_left = new.is_some();
            if let Some(new) = new {
                let before = decided.as_ref().map_or(0, |it| it.generation);
                match self.store.decide(stream, before, &new).await {
                    // The next table has it, or what somebody else has decided.
                    Ok(_) => self.membership.beat_soon(),
                    Err(error) => {
                        if self.decision_throttle.allow() {
                            tracing::warn!(%error, "the store cannot be told which version is to execute events");
                        }
                        again = Some(Instant::now() + AGAIN);
                    }
                }
            }
            let Some(decided) = decided.filter(|it| it.generation == seen.newest) else { continue };
            // What is about to be left is not missed.
            let is_here = || handlers.compiled(&decided.build).is_some();
            if !is_left || is_here() {
                let is_elsewhere = of_others.contains(&decided.build);
                self.follow(stream, name, &decided, is_elsewhere);
            }
        }
        again
    }

    /// Lets what was decided on execute the events of a stream, or says why it cannot.
    fn follow(&self, stream: &Arc<str>, name: &str, decided: &Arc<Decided>, is_elsewhere: bool) {
        let chosen: Chosen = match self.handlers.compiled(&decided.build) {
            Some(handler) => Ok(Arc::new(Active { handler, decided: Arc::clone(decided) })),
            None => Err(Missing {
                reason: self.why_missing(name, decided),
                decided: Some(Arc::clone(decided)),
                is_elsewhere,
            }),
        };
        let missing = chosen.as_ref().err().map(|it| it.reason.clone());
        if !self.handlers.choose(stream, chosen) {
            return;
        }
        let (version, generation) = (&*decided.build.version, decided.generation);
        match missing {
            None => tracing::info!(
                stream = &**stream,
                version,
                generation,
                "events are executed by this version from now on"
            ),
            Some(reason) => tracing::warn!(
                stream = &**stream, version, generation, reason = %clean(&reason),
                "the keys of the stream wait, since this version is to execute their events and is not here"
            ),
        }
    }

    /// Why what was decided on is not here.
    fn why_missing(&self, name: &str, decided: &Decided) -> String {
        let dir = self.loaded.config.plugins.dir.display();
        let of_another = || {
            let (other, _) = split_version(&decided.build.version);
            (other != name).then(|| {
                format!(
                    "another instance runs the stream with the handler {other}, and this one is configured with \
                     {name}: give all the same configuration. It is {name} as soon as nobody offers {other}"
                )
            })
        };
        self.handlers.with_catalog(|catalog| {
            let files = catalog.folder().handlers.get(name).into_iter().flatten();
            for file in files {
                let path = file.path.display();
                match catalog.found(&file.path) {
                    Some(Ok(found)) if found.version == decided.build.version => {
                        return format!(
                            "{path} has another content (SHA-256 {:.12}…) than what was decided on \
                             ({:.12}…): copy that one, or give this one a higher version",
                            found.digest, decided.build.digest
                        );
                    }
                    Some(Err(refused)) if *decided.build.version == *file.to_string() => {
                        return format!("{path} {}", refused.reason);
                    }
                    None if *decided.build.version == *file.to_string() => {
                        return format!("{path} is being loaded");
                    }
                    _ => {}
                }
            }
            of_another().unwrap_or_else(|| {
                format!(
                    "there is no file of it in {dir}: copy it from where another instance has it"
                )
            })
        })
    }
}

/// What a load has come to; `None` where its thread could not start or panicked.
async fn loaded(
    loading: &mut Option<(HandlerFile, Stamp, Loading)>,
) -> Option<Result<Arc<Handler>, LoadError>> {
    match loading {
        Some((.., done)) => done.await.ok(),
        None => std::future::pending().await,
    }
}

/// What a look has come to.
async fn looked(looking: &mut Option<JoinHandle<io::Result<Folder>>>) -> io::Result<Folder> {
    match looking {
        Some(look) => look.await.unwrap_or_else(|panic| Err(io::Error::other(panic))),
        None => std::future::pending().await,
    }
}

/// Whether a change of this file may be one of a handler.
fn may_be_handler(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    path.extension().is_some_and(|it| it == "wasm") && !name.as_encoded_bytes().starts_with(b".")
}
