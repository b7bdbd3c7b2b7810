//! The engine and its tables, and every limit that is put on them.
//!
//! Values stay in the trees (no key-value separation): they are a few MiB at most, and most of
//! those that are large live shortly, in the outbox and the spill area, where a second garbage
//! collector would only lag behind. Must know nothing of what is in the tables.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use fjall::{
    Database, Guard, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Slice,
};

use super::journal;
use ordain_store::StoreError;

const MIB: u64 = 1024 * 1024;

/// Journal files together. They bound how long opening takes (about a second) and, since a table
/// is written out when the oldest of them is to be removed, what rarely written tables hold in
/// memory.
const JOURNALS: u64 = 128 * MIB;

/// Background threads. With more than one the engine's first spins as long as another compacts,
/// which costs more than it gives.
const WORKERS: usize = 1;

/// What a table holds in memory before it is written out. What is large and short-lived gets more
/// room, so that it is mostly gone by then; beyond this, larger ones only make each search in
/// them longer. The engine holds writers back when four of a table wait to be written out, 608 MiB
/// for all tables together; ordinarily they have a fifth of that. What it takes to write them out
/// and to merge them comes on top, and grows with the length of keys.
const SMALL_TABLE: u64 = 8 * MIB;
const LARGE_TABLE: u64 = 16 * MIB;

/// Folders of tables: one of the engine's own, and those of [`Tables`].
pub(super) const KEYSPACES: usize = 1 + 10;

/// Values smaller than this are copied out of what the engine hands over, which is a slice of a
/// whole block: else 100 bytes of state in a lane would hold 4 KiB.
const COPY_BELOW: usize = 4096;

/// Why the engine did not open.
enum Refused {
    Engine(fjall::Error),
    Panic(String),
}

/// The engine's tables.
pub(super) struct Tables {
    /// Jobs: [`keys::job`](super::keys::job).
    pub(super) jobs: Keyspace,
    /// States that are too large for the job's record, under the same keys.
    pub(super) states: Keyspace,
    /// Spilled events.
    pub(super) spill: Keyspace,
    /// Ids that were taken.
    pub(super) ids: Keyspace,
    /// Dead letters.
    pub(super) letters: Keyspace,
    /// Committed messages, one value for each commit.
    pub(super) outbox: Keyspace,
    /// Of destinations: counts, what is kept for replay, ids, origins.
    pub(super) log: Keyspace,
    /// What waits for streams that are fed from here.
    pub(super) queue: Keyspace,
    /// Entries in order of time: due keys, expiring jobs, dead letters by age, what is kept for replay.
    pub(super) times: Keyspace,
    /// Fences, marks, counters.
    pub(super) meta: Keyspace,
    pub(super) db: Database,
}

impl Tables {
    /// Makes empty ones in a new folder of their own.
    pub(super) fn make(folder: &Path, cache: u64) -> Result<(), StoreError> {
        let tables = Self::open(folder, cache)?;
        tables.sync().map_err(|error| unusable(folder, &error))
    }

    /// Opens them in a folder of their own.
    pub(super) fn open(folder: &Path, cache: u64) -> Result<Self, StoreError> {
        match Self::try_open(folder, cache) {
            Err(Refused::Engine(fjall::Error::JournalRecovery(_))) => {
                let cut = journal::cut_torn_batch(folder);
                if let Some(kept) = cut.map_err(|error| unusable(folder, &error.into()))? {
                    tracing::warn!(
                        "the end of the database's journal is torn, as by a power failure, and \
                         was cut off; as it was it is kept in {}",
                        kept.display()
                    );
                }
                Self::try_open(folder, cache)
            }
            opened => opened,
        }
        .map_err(|refused| match refused {
            Refused::Engine(error) => unusable(folder, &error),
            Refused::Panic(words) => damaged(folder, &words),
        })
    }

    fn try_open(folder: &Path, cache: u64) -> Result<Self, Refused> {
        // The engine asserts what it finds on disk here and there.
        match catch_unwind(AssertUnwindSafe(|| Self::open_engine(folder, cache))) {
            Ok(opened) => opened.map_err(Refused::Engine),
            Err(panic) => Err(Refused::Panic(words_of(panic.as_ref()))),
        }
    }

    fn open_engine(folder: &Path, cache: u64) -> fjall::Result<Self> {
        let db = Database::builder(folder)
            .cache_size(cache)
            .max_journaling_size(JOURNALS)
            .worker_threads(WORKERS)
            .open()?;
        let table = |name, memory, values: &Option<KvSeparationOptions>| {
            db.keyspace(name, || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memory)
                    .with_kv_separation(values.clone())
            })
        };
        let inside = &None;
        // Large values go to files of their own, by the engine's measure (1 KiB): a merge of
        // tables would hold all that it moves in memory.
        let apart = &Some(KvSeparationOptions::default());
        Ok(Self {
            jobs: table("jobs", LARGE_TABLE, inside)?,
            states: table("states", LARGE_TABLE, apart)?,
            spill: table("spill", LARGE_TABLE, apart)?,
            ids: table("ids", SMALL_TABLE, inside)?,
            letters: table("letters", SMALL_TABLE, apart)?,
            outbox: table("outbox", LARGE_TABLE, apart)?,
            log: table("log", LARGE_TABLE, apart)?,
            queue: table("queue", LARGE_TABLE, apart)?,
            times: table("times", SMALL_TABLE, inside)?,
            meta: table("meta", SMALL_TABLE, inside)?,
            db,
        })
    }

    /// Makes everything written so far durable. The size of the journal is set beforehand, so
    /// its data are all that has to reach the disk.
    pub(super) fn sync(&self) -> fjall::Result<()> {
        self.db.persist(PersistMode::SyncData)
    }

    /// Hands everything written so far to the operating system.
    pub(super) fn push(&self) -> fjall::Result<()> {
        self.db.persist(PersistMode::Buffer)
    }
}

/// The key of an entry, by itself: as it is read it is part of the block that it stood in, and
/// whoever keeps it (a removal that is to be written does) keeps the values there as well.
pub(super) fn own_key(entry: Guard) -> fjall::Result<Slice> {
    Ok(Slice::new(&entry.key()?))
}

/// A value as it may be kept for long.
pub(super) fn detach(value: fjall::Slice) -> Bytes {
    if value.len() < COPY_BELOW { Bytes::copy_from_slice(&value) } else { value.into() }
}

/// Whether the engine could read, and found something wrong.
pub(super) fn is_damage(error: &fjall::Error) -> bool {
    use fjall::{Error, LsmError};
    !matches!(
        error,
        Error::Io(_) | Error::Storage(LsmError::Io(_)) | Error::Poisoned | Error::Locked
    )
}

/// What an error says, without the engine's own words where the system has better ones.
pub(super) fn reason(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            error.to_string()
        }
        error => error.to_string(),
    }
}

/// The error of a read.
pub(super) fn read_error(error: &fjall::Error) -> StoreError {
    if is_damage(error) {
        StoreError::Corrupt(error.to_string())
    } else {
        StoreError::Unavailable(reason(error))
    }
}

/// What a panic said.
pub(super) fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    words
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

fn unusable(folder: &Path, error: &fjall::Error) -> StoreError {
    match error {
        fjall::Error::Locked => StoreError::InUse(format!(
            "another process has the database in {} open; stop it first",
            folder.display()
        )),
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error))
            if !is_cut_short(error) =>
        {
            StoreError::Unusable(format!(
                "cannot open the database in {}: {error}; see to the disk and the folder's \
                 permissions, then start again",
                folder.display()
            ))
        }
        error => damaged(folder, &error.to_string()),
    }
}

/// How a file that lost its end shows: its own places lie beyond it, or before its beginning.
fn is_cut_short(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

fn damaged(folder: &Path, words: &str) -> StoreError {
    StoreError::Unusable(format!(
        "the database in {} is damaged ({words}); put the store's folder back from a backup, or \
         move it away to begin with an empty one",
        folder.display()
    ))
}
