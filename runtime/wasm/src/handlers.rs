//! The handlers of a process: what is known of the folder, what is compiled, and what executes the events of
//! which stream. `loading` makes it at the start, `versions` changes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_core::{Build, Decided};
use tokio::sync::{Notify, watch};

use crate::{Active, Catalog, Engine, Folder, Handler, HandlerFile, Refused};
use ordain_util::histogram::Histogram;

/// Versions that execute nothing any more and whose times are still shown: until each has been seen by
/// whoever reads metrics once a minute, where they change every few seconds.
const FORMER: usize = 16;

/// The engine, what is known of the folder, and what executes the events of each stream.
pub struct Handlers {
    /// What runs them.
    pub engine: Arc<Engine>,
    stock: Mutex<Stock>,
    streams: BTreeMap<Arc<str>, Running>,
    /// Somebody needs a newer decision than is known.
    pub needed: Notify,
}

#[derive(Default)]
pub(super) struct Stock {
    pub(super) catalog: Catalog,
    /// Those that are offered, or execute events.
    pub(super) compiled: Vec<Arc<Handler>>,
    /// Times of those that did.
    pub(super) former: Vec<(String, String, Histogram)>,
}

/// What executes the events of a stream.
struct Running {
    handler: String,
    chosen: watch::Sender<Chosen>,
    needs: watch::Sender<u64>,
}

/// What executes the events of a stream, or why nothing does.
pub type Chosen = Result<Arc<Active>, Missing>;

/// That nothing here may execute the events of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What was decided on, if anything was.
    pub decided: Option<Arc<Decided>>,
    /// Why it is not here, and what to do.
    pub reason: String,
    /// Whether another instance has it.
    pub is_elsewhere: bool,
}

/// What a partition's driver learns of it, and asks for.
pub struct VersionFeed {
    chosen: watch::Receiver<Chosen>,
    needs: watch::Sender<u64>,
    handlers: Arc<Handlers>,
}

impl VersionFeed {
    /// What executes events now.
    pub fn active(&mut self) -> Option<Arc<Active>> {
        self.chosen.borrow_and_update().as_ref().ok().map(Arc::clone)
    }

    /// Waits until that is something else than at the last time.
    pub async fn changed(&mut self) -> Option<Arc<Active>> {
        if self.chosen.changed().await.is_err() {
            return std::future::pending().await;
        }
        self.active()
    }

    /// Says that a job was executed under this decision.
    pub fn needs(&self, generation: u64) {
        let is_new = self.needs.send_if_modified(|needs| {
            let is_new = *needs < generation;
            *needs = generation.max(*needs);
            is_new
        });
        if is_new {
            self.handlers.needed.notify_one();
        }
    }
}

impl Handlers {
    /// With what a start has loaded, for streams and the handlers that they name.
    pub(crate) fn new(
        engine: Arc<Engine>,
        stock: Stock,
        streams: impl IntoIterator<Item = (Arc<str>, String)>,
    ) -> Self {
        let streams = streams.into_iter().map(|(name, handler)| {
            let reason = "nothing is decided yet".to_owned();
            let missing = Missing { decided: None, reason, is_elsewhere: false };
            let chosen = watch::Sender::new(Err(missing));
            (name, Running { handler, chosen, needs: watch::Sender::new(0) })
        });
        let streams = streams.collect();
        Self { engine, stock: Mutex::new(stock), streams, needed: Notify::new() }
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the folder.
    pub fn with_catalog<T>(&self, look: impl FnOnce(&mut Catalog) -> T) -> T {
        look(&mut self.stock().catalog)
    }

    /// For a driver.
    pub fn feed(self: &Arc<Self>, stream: &str) -> Option<VersionFeed> {
        let Running { chosen, needs, .. } = self.streams.get(stream)?;
        let (chosen, needs) = (chosen.subscribe(), needs.clone());
        Some(VersionFeed { chosen, needs, handlers: Arc::clone(self) })
    }

    /// The generation that a job of a stream was executed under, as far as any was loaded.
    pub fn needs(&self, stream: &str) -> u64 {
        self.streams.get(stream).map_or(0, |it| *it.needs.borrow())
    }

    /// The streams, each with the name of its handler.
    pub fn streams(&self) -> impl Iterator<Item = (&Arc<str>, &str)> {
        self.streams.iter().map(|(stream, running)| (stream, &*running.handler))
    }

    /// What executes the events of a stream; `None` for one that is not configured.
    pub fn chosen(&self, stream: &str) -> Option<Chosen> {
        self.streams.get(stream).map(|it| it.chosen.borrow().clone())
    }

    /// Lets something else execute the events of a stream. Tells whether that is news.
    pub fn choose(&self, stream: &str, new: Chosen) -> bool {
        let Some(running) = self.streams.get(stream) else { return false };
        let same = match (&*running.chosen.borrow(), &new) {
            (Ok(one), Ok(other)) => one.decided == other.decided,
            (Err(one), Err(other)) => one == other,
            _ => false,
        };
        if !same {
            // Before anybody hears of it, so that whoever lets the old one go then is the last to hold it.
            let others = self.streams.iter().filter(|(other, _)| ***other != *stream);
            let active = others.filter_map(|(_, it)| id_of(&it.chosen.borrow())).chain(id_of(&new));
            self.let_go(&active.collect::<Vec<u64>>());
            running.chosen.send_modify(|chosen| *chosen = new);
        }
        !same
    }

    /// What is in the folder.
    pub fn folder(&self) -> Folder {
        self.stock().catalog.folder().clone()
    }

    /// What was found in a file, if somebody has looked, and whether that is offered.
    pub fn look(&self, file: &HandlerFile) -> (Option<Result<Build, Refused>>, bool) {
        let stock = self.stock();
        let found = stock.catalog.found(&file.path).cloned();
        let offered = stock.catalog.offered(&file.name).filter(|it| it.file.path == file.path);
        let is_offered =
            offered.is_some_and(|it| found.as_ref().is_some_and(|f| f.as_ref() == Ok(&it.build)));
        (found, is_offered)
    }

    /// What is offered of a handler.
    pub fn offered(&self, name: &str) -> Option<Build> {
        self.stock().catalog.offered(name).map(|it| it.build.clone())
    }

    /// How many files cannot be used, by the handler that their names give.
    pub fn refused(&self) -> BTreeMap<String, usize> {
        let stock = self.stock();
        let refused = stock.catalog.refused();
        refused.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// A stream whose events nothing here may execute, nor any other instance. Where another one may, it is
    /// no use to wait for this one: a rolling update that does would never end the last one that has it.
    pub fn missing(&self) -> Option<Arc<str>> {
        let is_missing =
            |it: &Running| it.chosen.borrow().as_ref().is_err_and(|it| !it.is_elsewhere);
        let missing = self.streams.iter().find(|(_, it)| is_missing(it));
        missing.map(|(stream, _)| Arc::clone(stream))
    }

    /// Under which decision the events of each stream are executed.
    pub fn generations(&self) -> Vec<(String, u64)> {
        let of = |(stream, running): (&Arc<str>, &Running)| {
            let generation = running.chosen.borrow().as_ref().ok()?.decided.generation;
            Some((stream.to_string(), generation))
        };
        self.streams.iter().filter_map(of).collect()
    }

    /// The compiled handler of a build, if it is here.
    pub fn compiled(&self, build: &Build) -> Option<Arc<Handler>> {
        self.stock().compiled.iter().find(|it| it.build() == build).cloned()
    }

    /// Keeps a handler that is offered now.
    pub fn keep(&self, handler: Arc<Handler>) {
        self.stock().compiled.push(handler);
        let active = self.streams.values().filter_map(|it| id_of(&it.chosen.borrow()));
        self.let_go(&active.collect::<Vec<u64>>());
    }

    /// Lets go of what is neither offered nor executes events.
    fn let_go(&self, active: &[u64]) {
        let mut stock = self.stock();
        let Stock { catalog, compiled, former } = &mut *stock;
        let (stay, go) = std::mem::take(compiled).into_iter().partition(|it| {
            let offered = catalog.offered(&it.file().name);
            active.contains(&it.id()) || offered.is_some_and(|offered| offered.build == *it.build())
        });
        *compiled = stay;
        let go: Vec<Arc<Handler>> = go;
        for gone in go {
            former.push((gone.file().name.clone(), gone.version().to_string(), gone.times()));
        }
        let beyond = former.len().saturating_sub(FORMER);
        former.drain(..beyond);
    }

    /// What is offered for each stream.
    pub fn offers(&self) -> BTreeMap<String, Build> {
        let stock = self.stock();
        let offers = self.streams.iter().filter_map(|(stream, running)| {
            let offered = stock.catalog.offered(&running.handler)?;
            Some((stream.to_string(), offered.build.clone()))
        });
        offers.collect()
    }

    /// How long each version took for events, by handler and version: those that are here, and those
    /// that were.
    pub fn times(&self) -> Vec<(String, String, Histogram)> {
        let stock = self.stock();
        let mut times = stock.former.clone();
        for handler in &stock.compiled {
            let (name, version) = (&handler.file().name, handler.version().to_string());
            match times.iter_mut().find(|it| (&it.0, &it.1) == (name, &version)) {
                Some((.., sum)) => sum.merge(&handler.times()),
                None => times.push((name.clone(), version, handler.times())),
            }
        }
        times
    }
}

/// What executes events, if anything does.
fn id_of(chosen: &Chosen) -> Option<u64> {
    chosen.as_ref().ok().map(|active| active.handler.id())
}
