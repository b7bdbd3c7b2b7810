//! The embedded store: a log-structured key-value engine in one folder, for one process.
//!
//! **Durability.** A commit or a claim is answered when it is on disk: one `fdatasync` for all
//! that wait together. Marks and removals from the outbox become durable with the next of those,
//! in order.
//!
//! **Failure.** After a failed write or sync nobody knows what is on the disk, and asking again
//! would not tell. So the store then is out of use: the reason is logged once, commits answer
//! [`CommitReply::Unknown`](ordain_core::CommitReply::Unknown) and everything else [`StoreError::Failed`]. Only opening it again
//! reads what the disk really holds, so a process that runs on it ends.
//!
//! **Reading** goes to blocking threads, a few at a time: most reads are served from memory, but any
//! of them may meet the disk, or a scan of thousands of entries.
//!
//! Policy must never be decided here; what a write does and when it applies stands in the batch.

mod answered;
mod assign;
mod chains;
mod changes;
mod clock;
mod due;
mod fences;
mod folder;
mod journal;
pub mod keys;
mod leases;
pub mod list;
mod marks;
mod outbox;
pub mod queue;
mod read;
mod recent;
pub mod record;
mod records;
mod request;
mod shared;
mod spill;
mod sweep;
mod tables;
mod writer;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use self::clock::Clock;

use self::answered::Answered;
use self::clock::Monotone;
use self::fences::Fences;
use self::folder::Folder;
use self::leases::Registry;
use self::request::{Answer, Request};
use self::shared::Shared;
use self::tables::{Tables, read_error};
use self::writer::{QUEUE, Writer};
use ordain_store::{Durability, Store, StoreError};

/// How long an answer may be out before it is looked at whether the engine is still alive: when
/// its background work has failed, it makes writers wait for ever.
const STALLED: Duration = Duration::from_secs(5);

/// Time between two checks that the folder is still under its path.
const LOOK: Duration = Duration::from_millis(300);

/// Memory for blocks that were read from disk, by default. Enough for the index blocks and the
/// hot part of the jobs of a million keys; the rest is in the system's own cache.
const CACHE: u64 = 64 * 1024 * 1024;

/// Reads under way at one time. Each has a thread, which keeps memory of what it has read.
const READS: usize = 4;

/// How long dead letters are kept by default, in ms: 30 days, for somebody to look at them.
const DEAD_TTL: u64 = 30 * 24 * 60 * 60 * 1000;

/// How to open it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its folder; made where there is none.
    pub path: PathBuf,
    /// Shards; written down when the folder is made, and to be the same from then on. More than
    /// one helps nothing here.
    pub shards: u32,
    /// How long dead letters are kept, in ms.
    pub dead_ttl: u64,
    /// Memory for blocks read from disk, in bytes.
    pub cache: u64,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Options {
    /// The defaults, in a folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (path, clock) = (path.into(), Clock::machine());
        Self { path, shards: 1, dead_ttl: DEAD_TTL, cache: CACHE, clock }
    }
}

/// The embedded store. Dropping it waits for what was asked of it, and gives the folder back.
pub struct Embedded {
    shared: Arc<Shared>,
    reads: Semaphore,
    registry: Registry,
    /// `None` only while it is dropped.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// The thread that looks after the folder; it ends when its sender is dropped.
    watch: Option<(std_mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Embedded {
    /// Opens the store; reads at most the engine's journal, which is bounded. Blocks.
    pub fn open(options: Options) -> Result<Self, StoreError> {
        let Options { path, shards, dead_ttl, cache, clock } = options;
        let shards = shards.max(1);
        let folder = Folder::take(&path, shards)?;
        folder.make_data(|draft| Tables::make(draft, cache))?;
        folder.secure_journals()?;
        let tables = Tables::open(&folder.data(), cache)?;
        let commits = tables.meta.get(keys::COMMITS).map_err(|error| read_error(&error))?;
        let commits = writer::read_number(commits);
        let answered = Answered::open(folder.answered(), commits)?;
        folder.settle()?;
        let fences = Fences::load(&tables)?;
        let clock = Monotone::new(clock, fences.newest_time());
        let shared = Arc::new(Shared::new(tables, clock, folder, dead_ttl, shards));
        let (sender, requests) = mpsc::channel(QUEUE);
        let writer = Writer::new(shared.clone(), fences, answered, commits);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(requests))
            .map_err(|error| no_thread(&error))?;
        let watch = watch(&shared)?;
        let reads = Semaphore::new(READS);
        let registry = Registry::new(marks::read_all(&shared, leases::DECIDED)?.into_iter());
        let (requests, thread) = (Some(sender), Some(thread));
        Ok(Self { shared, reads, registry, requests, thread, watch: Some(watch) })
    }

    /// Puts any bytes in the place of a job. For tests of what a damaged job does.
    #[doc(hidden)]
    pub async fn overwrite_job(
        &self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let (stream, key) = (stream.to_owned(), key.to_owned());
        self.ask(|answer| Request::Overwrite { stream, key, bytes, answer }).await
    }

    /// Asks the writer and waits for its answer.
    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, StoreError> {
        self.shared.check()?;
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().expect("it is there until the drop");
        let sent = self.watched(requests.send(request(answer))).await?;
        sent.map_err(|_| self.failure())?;
        self.watched(answered).await?.map_err(|_| self.failure())
    }

    /// Waits for the writer, and looks now and then whether there is anything to wait for.
    async fn watched<T>(&self, wait: impl Future<Output = T>) -> Result<T, StoreError> {
        let mut wait = pin!(wait);
        loop {
            match timeout(STALLED, &mut wait).await {
                Ok(done) => return Ok(done),
                Err(_) => self.look_at_engine().await?,
            }
        }
    }

    /// Why the writer has gone.
    fn failure(&self) -> StoreError {
        // It says so before it drops what it was asked.
        let failed = self.shared.check().err();
        failed.unwrap_or_else(|| StoreError::Unavailable("it is being closed".to_owned()))
    }

    /// Whether the engine still takes writes: a writer that it holds back for ever cannot say.
    async fn look_at_engine(&self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let pushed = spawn_blocking(move || {
            shared.tables.push().inspect_err(|error| shared.fail(&tables::reason(error)))
        });
        match pushed.await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Reads on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.reads.acquire().await.expect("it is never closed");
        self.shared.check()?;
        let shared = self.shared.clone();
        match spawn_blocking(move || read(&shared)).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => {
                let words = tables::words_of(error.into_panic().as_ref());
                Err(StoreError::Corrupt(format!("reading it failed: {words}")))
            }
            Err(_) => Err(StoreError::Unavailable("the process is ending".to_owned())),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.requests.take());
        // A failed engine may hold the writer back for ever.
        if self.shared.check().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // Its panics are caught and told where they happen.
            let _ = thread.join();
            self.shared.close();
        }
        if let Some((sender, thread)) = self.watch.take() {
            drop(sender);
            // It must not hold the folder when the store is opened again.
            let _ = thread.join();
        }
    }
}

/// Looks now and then whether the folder is still there: the engine writes into open files, and would not
/// notice.
fn watch(shared: &Arc<Shared>) -> Result<(std_mpsc::Sender<()>, JoinHandle<()>), StoreError> {
    let (sender, ended) = std_mpsc::channel();
    let shared = Arc::downgrade(shared);
    let look = move || {
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let Some(shared) = shared.upgrade() else { return };
            if !shared.has_folder() {
                return shared.fail_without_folder();
            }
        }
    };
    let thread = std::thread::Builder::new().name("store-watch".to_owned()).spawn(look);
    thread.map(|thread| (sender, thread)).map_err(|error| no_thread(&error))
}

fn no_thread(error: &std::io::Error) -> StoreError {
    StoreError::Unusable(format!("cannot start a thread: {error}"))
}

#[async_trait]
impl Store for Embedded {
    fn shards(&self) -> u32 {
        self.shared.shards
    }

    fn durability(&self) -> Durability {
        let words = "embedded store: what is acknowledged is on this machine's disk (each commit is \
                     synced before it is answered), so it outlives a crash and a power failure, but \
                     not the disk";
        Durability { words: words.to_owned(), is_at_risk: false }
    }

    async fn failed(&self) -> StoreError {
        self.shared.failed().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.ask(|answer| Request::Flush { answer }).await
    }
}
