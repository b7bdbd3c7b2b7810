//! The embedded store: a log-structured key-value engine in one folder, for one process.
//!
//! **Durability.** The store answers four kinds of requests only after their data is on the disk: commits, claims,
//! flushes, and calls that assign messages for an exchange or a file. One `fdatasync` serves all requests that wait
//! together. Other writes, such as marks (small named records), queue entries, and removals of published messages from
//! the outbox, do not cause a sync: they become durable with the next sync.
//!
//! **Failure.** After a failed write or sync, the content of the disk is unknown, and a repeated write or sync could
//! succeed although data is missing. The store then disables itself: it logs the reason once, answers commits with
//! [`CommitReply::Unknown`](ordain_core::CommitReply::Unknown), and answers all other requests that read or write
//! stored data with [`StoreError::Failed`]. The store can read the real content of the disk only when it is opened
//! again, so a process with a failed store exits.
//!
//! **Reading.** Reads run on blocking threads, a few at a time. Most reads find their data in memory, but any read may
//! need the disk, or scan thousands of entries.
//!
//! This crate must never decide anything that the sequencer decides: the batch contains each write and its condition.

mod answered_commits;
mod assign;
mod changes;
mod due;
pub mod engine_log;
mod fences;
mod folder;
mod journal;
pub mod keys;
mod leases;
pub mod list;
mod marks;
mod message_log;
mod outbox;
pub mod queue;
mod read;
pub mod record;
mod record_cache;
mod records;
mod request;
mod shared;
mod spill;
mod sweep;
mod tables;
mod writer;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use fjall::OwnedWriteBatch;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use ordain_store::clock::TimeSource;

use self::answered_commits::AnsweredCommits;
use self::fences::FenceTable;
use self::folder::StoreFolder;
use self::leases::MembershipRegistry;
use self::request::{ReplySender, WriterRequest};
use self::shared::SharedStore;
use self::tables::{Tables, damage_error, read_error};
use self::writer::{REQUEST_QUEUE_LIMIT, StoreWriter};
use ordain_store::clock::{self, CLOCK_LEAD_LIMIT_MS, MonotonicClock};
use ordain_store::{DurabilityReport, Store, StoreError};

/// The time that a caller waits for a reply before it checks that the engine still works. Without this check, a caller
/// would wait for ever after the engine's background thread has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between two checks that the folder is still at its path, and that the tables have a recent time.
const WATCH_INTERVAL: Duration = Duration::from_millis(300);

/// The default size of the cache for blocks that were read from disk. For a million keys, the index blocks and the
/// frequently used records fit into this cache. Other blocks are usually in the operating system's cache.
const DEFAULT_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// The maximum number of concurrent reads. This also limits memory: each concurrent read has a thread, and the thread
/// does not free the memory that its largest read needed.
const CONCURRENT_READS_LIMIT: usize = 4;

/// The default time to keep dead letters, in ms: 30 days, so that an operator can examine them.
const DEFAULT_DEAD_TTL_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// The options of an embedded store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// The store's folder, created if it does not exist.
    pub path: PathBuf,
    /// The number of shards (slices of the store, by hash of the key). The store records this number when it creates
    /// the folder. The number must never change afterwards. More than one shard has no benefit in this store.
    pub shards: u32,
    /// The time to keep dead letters, in ms.
    pub dead_ttl: u64,
    /// The size of the cache for blocks that were read from disk, in bytes.
    pub cache_bytes: u64,
    /// The source of the time.
    pub clock: TimeSource,
    /// The URL of the admin listener of this process. Commands of other processes find this URL in the folder
    /// ([`admin_url_of_owner`]).
    pub admin_url: Option<String>,
    /// True if the store is opened by a command that only reads. If the machine's clock has jumped, such a command
    /// neither accepts the jump nor writes the store's time.
    pub reads_only: bool,
}

impl EmbeddedOptions {
    /// Creates the default options for a folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let clock = TimeSource::machine();
        Self {
            path,
            shards: 1,
            dead_ttl: DEFAULT_DEAD_TTL_MS,
            cache_bytes: DEFAULT_CACHE_BYTES,
            clock,
            admin_url: None,
            reads_only: false,
        }
    }
}

/// Returns the URL of the admin listener of the owner: the process that has opened the store in this folder. Returns
/// `None` if no process has the store open, or if the owner has no admin listener. Returns [`StoreError::InUse`] if the
/// owner runs on another machine or in another network namespace, because another program may listen at the URL in the
/// network of this process.
pub fn admin_url_of_owner(path: &Path) -> Result<Option<String>, StoreError> {
    folder::admin_url_of_owner(path)
}

/// The embedded store. When the store is dropped, it processes the pending requests, and then releases the folder.
/// After a failure, the drop does not wait for the pending requests.
pub struct EmbeddedStore {
    shared: Arc<SharedStore>,
    reads: Semaphore,
    registry: MembershipRegistry,
    /// `None` only during the drop.
    requests: Option<mpsc::Sender<WriterRequest>>,
    thread: Option<JoinHandle<()>>,
    /// The thread that checks the folder and the time; it ends when its sender is dropped.
    watch: Option<(std_mpsc::Sender<()>, JoinHandle<()>)>,
}

impl EmbeddedStore {
    /// Opens the store. Reads the engine's journal (of limited size), all fences and all rollouts. Blocks the calling
    /// thread.
    pub fn open(options: EmbeddedOptions) -> Result<Self, StoreError> {
        let path = options.path.clone();
        clock::check_machine_clock()?;
        Self::open_folder(options).map_err(|error| match error {
            // Another start would find the same damage, so the error must not count as temporary.
            StoreError::Corrupt(words) => StoreError::Unusable(damage_error(&path, &words)),
            error => error,
        })
    }

    fn open_folder(options: EmbeddedOptions) -> Result<Self, StoreError> {
        let EmbeddedOptions {
            path,
            shards,
            dead_ttl,
            cache_bytes: cache,
            clock,
            reads_only,
            admin_url,
        } = options;
        let shards = shards.max(1);
        let folder = StoreFolder::open(&path, shards, admin_url.as_deref(), |draft| {
            Tables::create(draft, cache)
        })?;
        folder.secure_journals()?;
        let tables = Tables::open(&folder.data(), cache)?;
        let groups = tables.meta.get(keys::GROUPS).map_err(|error| read_error(&error))?;
        let groups = writer::read_number(groups);
        let answered = AnsweredCommits::open(folder.answered_file(), groups)?;
        folder.finish_opening()?;
        let fences = FenceTable::load(&tables)?;
        let read = |key: [u8; 1]| tables.meta.get(key).map(writer::read_number);
        let decided = read(keys::CLOCK_TIME).map_err(|error| read_error(&error))?;
        let seen = read(keys::CLOCK_JUMP).map_err(|error| read_error(&error))?;
        let newest = fences.newest_time().max(decided);
        let (clock, jump) = MonotonicClock::new(clock, newest, seen, !reads_only);
        if jump != seen && !reads_only {
            // If the jump is confirmed, the clock of the next process must not start earlier than the clock of this
            // process.
            let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), 2);
            batch.insert(&tables.meta, keys::CLOCK_JUMP, jump.to_le_bytes());
            batch.insert(&tables.meta, keys::CLOCK_TIME, clock.now().to_le_bytes());
            batch.commit().map_err(|error| read_error(&error))?;
        }
        let shared = Arc::new(SharedStore::new(tables, clock, folder, dead_ttl, shards));
        let (sender, requests) = mpsc::channel(REQUEST_QUEUE_LIMIT);
        let writer = StoreWriter::new(shared.clone(), fences, answered, groups);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(requests))
            .map_err(|error| thread_error(&error))?;
        let watch = start_watch(&shared, sender.downgrade())?;
        let reads = Semaphore::new(CONCURRENT_READS_LIMIT);
        let registry = MembershipRegistry::new(
            marks::read_all(&shared, leases::ROLLOUT_MARK_PREFIX)?.into_iter(),
        );
        let requests = Some(sender);
        let thread = Some(thread);
        Ok(Self { shared, reads, registry, requests, thread, watch: Some(watch) })
    }

    /// Replaces a key record with arbitrary bytes, for tests of damaged records.
    #[doc(hidden)]
    pub async fn overwrite_record(
        &self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let stream = stream.to_owned();
        let key = key.to_owned();
        self.send_request(|answer| WriterRequest::Overwrite { stream, key, bytes, answer }).await
    }

    async fn send_request<T>(
        &self,
        request: impl FnOnce(ReplySender<T>) -> WriterRequest,
    ) -> Result<T, StoreError> {
        self.shared.check()?;
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().expect("the sender exists until the drop");
        let sent = self.wait_for_writer(requests.send(request(answer))).await?;
        sent.map_err(|_| self.failure())?;
        self.wait_for_writer(answered).await?.map_err(|_| self.failure())
    }

    /// Waits for the writer thread, and regularly checks that the engine still accepts writes.
    async fn wait_for_writer<T>(&self, wait: impl Future<Output = T>) -> Result<T, StoreError> {
        let mut wait = pin!(wait);
        loop {
            match timeout(STALL_TIMEOUT, &mut wait).await {
                Ok(done) => return Ok(done),
                Err(_) => self.check_engine().await?,
            }
        }
    }

    /// Returns the reason why the writer thread has ended.
    fn failure(&self) -> StoreError {
        // The writer thread records a failure before it drops its requests, so the reason of a failure is known here.
        // If no failure is recorded, the store is closing.
        let failed = self.shared.check().err();
        failed.unwrap_or_else(|| StoreError::Unavailable("the store is closing".to_owned()))
    }

    /// Checks that the engine still accepts writes. If the engine blocks the writer thread for ever, the thread cannot
    /// report this itself.
    async fn check_engine(&self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let pushed = spawn_blocking(move || {
            shared.tables.flush_to_system().inspect_err(|error| shared.fail(error))
        });
        match pushed.await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&SharedStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.reads.acquire().await.expect("the semaphore is never closed");
        self.shared.check()?;
        let shared = self.shared.clone();
        match spawn_blocking(move || read(&shared)).await {
            Ok(result) => result.map_err(|error| self.shared.with_folder(error)),
            Err(error) if error.is_panic() => {
                let words = tables::panic_message(error.into_panic().as_ref());
                let error = StoreError::Corrupt(format!("the read failed: {words}"));
                Err(self.shared.with_folder(error))
            }
            Err(_) => Err(StoreError::Unavailable("the process is shutting down".to_owned())),
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        drop(self.requests.take());
        // After a failure, the engine may block the writer thread for ever. Wait for the thread only if the store has
        // not failed.
        if self.shared.check().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The result is ignored, because the writer thread catches and reports its own panics.
            let _ = thread.join();
            self.shared.close();
        }
        if let Some((sender, thread)) = self.watch.take() {
            drop(sender);
            // Wait for the thread, because it may hold a reference to the shared store, which keeps the folder locked.
            let _ = thread.join();
        }
    }
}

/// Starts a thread that regularly makes two checks. The first check is that the folder still exists, because the engine
/// writes into open files and would not notice the removal of the folder. The second check is that the time in the
/// tables is recent. The writer thread writes the time with a group of requests, so this thread sends a request if the
/// store is idle.
fn start_watch(
    shared: &Arc<SharedStore>,
    requests: mpsc::WeakSender<WriterRequest>,
) -> Result<(std_mpsc::Sender<()>, JoinHandle<()>), StoreError> {
    let (sender, ended) = std_mpsc::channel();
    let shared = Arc::downgrade(shared);
    let watch = move || {
        while ended.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let Some(shared) = shared.upgrade() else { return };
            if !shared.has_folder() {
                return shared.fail_without_folder();
            }
            if shared.clock.is_unwritten(shared.clock.now(), CLOCK_LEAD_LIMIT_MS) {
                flush_if_idle(&requests);
            }
        }
    };
    let thread = std::thread::Builder::new().name("store-watch".to_owned()).spawn(watch);
    thread.map(|thread| (sender, thread)).map_err(|error| thread_error(&error))
}

/// Sends a request to flush, unless requests wait in the channel.
fn flush_if_idle(requests: &mpsc::WeakSender<WriterRequest>) {
    let Some(sender) = requests.upgrade() else { return };
    if sender.capacity() == sender.max_capacity() {
        let (answer, _) = oneshot::channel();
        // If other requests have filled the channel meanwhile, their group writes the time.
        let _ = sender.try_send(WriterRequest::Flush { answer });
    }
}

fn thread_error(error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot start a thread: {error}"))
}

#[async_trait]
impl Store for EmbeddedStore {
    fn shards(&self) -> u32 {
        self.shared.shards
    }

    fn durability(&self) -> DurabilityReport {
        let words = "embedded store: each commit is synced to this machine's disk before it is answered. Acknowledged \
                     events therefore survive a crash and a power failure, but not the loss of the disk";
        DurabilityReport { description: words.to_owned(), is_at_risk: false }
    }

    async fn failed(&self) -> StoreError {
        self.shared.failed().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.send_request(|answer| WriterRequest::Flush { answer }).await
    }
}
