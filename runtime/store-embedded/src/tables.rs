//! The engine and its tables, with all their limits.
//!
//! Tables with small values keep the values in the engine's trees. Tables with large values keep these values in
//! separate files (see `open_engine`). This module must not depend on the content of the tables.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use fjall::{
    Database, Guard, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Slice,
};

use super::{engine_log, journal};
use ordain_store::StoreError;
use ordain_util::io_error::may_pass;

const MIB: u64 = 1024 * 1024;

/// The maximum size of all journal files together. The limit keeps the time to open the store short (about a second),
/// because opening reads all journals. The limit also bounds the memory of rarely written tables, because the engine
/// writes a table from memory to disk before it removes the oldest journal.
const JOURNALS_BYTES_LIMIT: u64 = 128 * MIB;

/// The number of the engine's background threads. With more threads, the engine's first thread spins while another
/// thread compacts, and this costs more time than the additional threads save.
const WORKER_THREADS: usize = 1;

/// The engine writes the in-memory part of a table to disk when the part reaches this size, in bytes. Tables with
/// large, short-lived values have the larger of the two limits, so that most values are removed before the engine
/// writes them to disk. A still larger limit would only make searches longer. When four such parts of one table wait to
/// be written, the engine blocks writes. The limits of all tables add up to 128 MiB, so all tables together need at
/// most four times 128 MiB, and usually a fifth of this maximum. Writing to disk and merging need additional memory,
/// which grows with the length of keys.
const SMALL_TABLE_BYTES: u64 = 8 * MIB;
const LARGE_TABLE_BYTES: u64 = 16 * MIB;

/// The number of folders in the engine's folder `keyspaces`: one that the engine itself needs, and one for each table
/// of [`Tables`].
pub(super) const KEYSPACE_COUNT: usize = 1 + 10;

/// The numbers of the table folders that contain a folder `blobs` for large values. These are the tables of [`Tables`]
/// that are opened with `separate`, numbered in the order of their creation. If `blobs` is missing, the engine opens
/// the table without an error, but lacks the values.
pub(super) const KEYSPACES_WITH_VALUE_FILES: [usize; 6] = [2, 3, 5, 6, 7, 8];

/// The size, in bytes, below which the store copies a value that the engine returns. The engine returns a slice of a
/// block, and the slice keeps the whole block in memory. Without the copy, a state of 100 bytes would keep 4 KiB in
/// memory.
const COPY_BELOW_BYTES: usize = 4096;

enum EngineOpenError {
    Engine(fjall::Error),
    Panic(String),
}

pub(super) struct Tables {
    /// Key records: [`keys::key_record`](super::keys::key_record).
    pub(super) jobs: Keyspace,
    /// Handler states that are too large to be stored together with the key record, at the same table keys as the key
    /// records.
    pub(super) states: Keyspace,
    pub(super) spill: Keyspace,
    pub(super) ids: Keyspace,
    pub(super) letters: Keyspace,
    /// Committed messages and dead letters to be published, one value for each commit.
    pub(super) outbox: Keyspace,
    /// Records of destinations: counters, retained messages, ids, origins.
    pub(super) log: Keyspace,
    /// Queued entries for streams that receive events through this store: from other streams, from producers or over
    /// HTTP.
    pub(super) queue: Keyspace,
    /// The time index, whose entries sort by time: due keys, expiring key records, dead letters by age, and records of
    /// destinations by expiry time.
    pub(super) times: Keyspace,
    /// Fences, marks (small named records), the last published commits, the number of synced groups of requests, and
    /// times of the store's clock. A fence contains the owner and the last commit of a partition in a shard.
    pub(super) meta: Keyspace,
    pub(super) db: Database,
}

impl Tables {
    pub(super) fn create(folder: &Path, cache: u64) -> Result<(), StoreError> {
        let tables = Self::open(folder, cache)?;
        tables.sync().map_err(|error| open_error(folder, &error))
    }

    /// Opens the engine and its tables. If the engine refuses the newest journal, removes a torn (incomplete) batch
    /// from the end of this journal, and tries again.
    pub(super) fn open(folder: &Path, cache: u64) -> Result<Self, StoreError> {
        match Self::try_open(folder, cache) {
            Err(EngineOpenError::Engine(fjall::Error::JournalRecovery(_))) => {
                let cut = journal::truncate_torn_batch(folder);
                if let Some(kept) = cut.map_err(|error| open_error(folder, &error.into()))? {
                    tracing::warn!(
                        "the end of the database journal was damaged, as after a power failure. Ordain has removed the \
                         damaged end, and keeps a copy of the whole journal in {}. If Ordain finds that acknowledged \
                         commits are lost, this start ends with an error",
                        kept.display()
                    );
                }
                Self::try_open(folder, cache)
            }
            opened => opened,
        }
        .map_err(|refused| match refused {
            EngineOpenError::Engine(error) => open_error(folder, &error),
            EngineOpenError::Panic(words) => StoreError::Unusable(damage_error(folder, &words)),
        })
    }

    fn try_open(folder: &Path, cache: u64) -> Result<Self, EngineOpenError> {
        // The engine panics if damaged data on the disk makes one of its assertions fail.
        match catch_unwind(AssertUnwindSafe(|| Self::open_engine(folder, cache))) {
            Ok(opened) => opened.map_err(EngineOpenError::Engine),
            Err(panic) => Err(EngineOpenError::Panic(panic_message(panic.as_ref()))),
        }
    }

    fn open_engine(folder: &Path, cache: u64) -> fjall::Result<Self> {
        let db = Database::builder(folder)
            .cache_size(cache)
            .max_journaling_size(JOURNALS_BYTES_LIMIT)
            .worker_threads(WORKER_THREADS)
            .open()?;
        let table = |name, memory, values: &Option<KvSeparationOptions>| {
            db.keyspace(name, || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memory)
                    .with_kv_separation(values.clone())
            })
        };
        let inline = &None;
        // The engine keeps values of at least 1 KiB (its default) in separate files. Otherwise a merge of tables would
        // hold all moved values in memory.
        let separate = &Some(KvSeparationOptions::default());
        Ok(Self {
            jobs: table("jobs", LARGE_TABLE_BYTES, inline)?,
            states: table("states", LARGE_TABLE_BYTES, separate)?,
            spill: table("spill", LARGE_TABLE_BYTES, separate)?,
            ids: table("ids", SMALL_TABLE_BYTES, inline)?,
            letters: table("letters", SMALL_TABLE_BYTES, separate)?,
            outbox: table("outbox", LARGE_TABLE_BYTES, separate)?,
            log: table("log", LARGE_TABLE_BYTES, separate)?,
            queue: table("queue", LARGE_TABLE_BYTES, separate)?,
            times: table("times", SMALL_TABLE_BYTES, inline)?,
            meta: table("meta", SMALL_TABLE_BYTES, inline)?,
            db,
        })
    }

    /// Makes all written data durable. A sync without the file's metadata is enough, because the space of the journal
    /// is preallocated and its length does not change.
    pub(super) fn sync(&self) -> fjall::Result<()> {
        self.db.persist(PersistMode::SyncData)
    }

    pub(super) fn flush_to_system(&self) -> fjall::Result<()> {
        self.db.persist(PersistMode::Buffer)
    }
}

/// Returns a copy of an entry's key. The key that the engine returns is a slice of a block. A pending removal that kept
/// this slice would keep the whole block, with its values, in memory.
pub(super) fn copy_key(entry: Guard) -> fjall::Result<Slice> {
    Ok(Slice::new(&entry.key()?))
}

/// Converts a value of the engine into bytes that the caller may keep: a small value is copied, so that it does not
/// keep its block in memory.
pub(super) fn into_owned_bytes(value: fjall::Slice) -> Bytes {
    if value.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(&value) } else { value.into() }
}

/// Returns whether an error counts as damage of the data. Returns `false` for a failed read or write, for an engine
/// that has stopped, and for a database that another process has open. Returns `true` for any other error.
pub(super) fn is_damage(error: &fjall::Error) -> bool {
    use fjall::{Error, LsmError};
    !matches!(
        error,
        Error::Io(_) | Error::Storage(LsmError::Io(_)) | Error::Poisoned | Error::Locked
    )
}

/// Returns the text of an error: the text of the operating system's error if there is one, otherwise usually the
/// engine's text. If a background thread of the engine has failed, returns the reason that the engine logged.
pub(super) fn reason(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Poisoned => {
            let logged = engine_log::last_error().unwrap_or_else(|| "for an unknown reason".into());
            format!("the storage engine has stopped: {logged}")
        }
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            error.to_string()
        }
        fjall::Error::Storage(fjall::LsmError::ChecksumMismatch { .. }) => {
            "a block of a file in data/keyspaces has the wrong checksum".to_owned()
        }
        error => error.to_string(),
    }
}

pub(super) fn read_error(error: &fjall::Error) -> StoreError {
    if is_damage(error) {
        StoreError::Corrupt(reason(error))
    } else {
        StoreError::Unavailable(reason(error))
    }
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    words
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

fn open_error(folder: &Path, error: &fjall::Error) -> StoreError {
    match error {
        fjall::Error::Locked => StoreError::InUse(format!(
            "another process has the database in {} open; stop it first",
            folder.display()
        )),
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error))
            if !is_truncation(error) && error.kind() != std::io::ErrorKind::NotFound =>
        {
            let words = format!(
                "cannot open the database in {}: {error}; check the disk, its free space and the \
                 folder's permissions, then start again",
                folder.display()
            );
            if may_pass(error) {
                StoreError::Unavailable(words)
            } else {
                StoreError::Unusable(words)
            }
        }
        error => StoreError::Unusable(damage_error(folder, &reason(error))),
    }
}

/// Returns whether the cause of the error may be a truncated file. In a truncated file, the engine tries to read after
/// the end of the file or before its beginning.
pub(super) fn is_truncation(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

pub(super) fn damage_error(folder: &Path, words: &str) -> String {
    format!(
        "the database in {} is damaged ({words}); restore the store's folder from a backup, or \
         move it away to start with an empty store",
        folder.display()
    )
}
