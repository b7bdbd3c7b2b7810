//! Data shared by readers and the writer thread. This module must never hold a lock while it reads or writes a table.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tokio::sync::SetOnce;

use super::folder::StoreFolder;
use super::tables::{Tables, damage_error, is_damage, is_truncation, reason};
use ordain_store::clock::MonotonicClock;
use ordain_store::{Partition, StoreError};

pub(super) struct SharedStore {
    pub(super) tables: Tables,
    pub(super) clock: MonotonicClock,
    pub(super) due: DueWatermarks,
    pub(super) dead_ttl: u64,
    pub(super) shards: u32,
    failure: SetOnce<String>,
    /// The folder must be the last field, because fields are dropped in their order: the engine must be closed before
    /// the folder is released.
    folder: StoreFolder,
}

impl SharedStore {
    pub(super) fn new(
        tables: Tables,
        clock: MonotonicClock,
        folder: StoreFolder,
        dead_ttl: u64,
        shards: u32,
    ) -> Self {
        let due = DueWatermarks::default();
        let failure = SetOnce::new();
        Self { tables, clock, due, dead_ttl, shards, failure, folder }
    }

    /// Disables this store after an error of the engine. After a failed write, the content of the disk is unknown, so
    /// the store must answer no more requests. It can read the real content only when it is opened again.
    pub(super) fn fail(&self, error: &fjall::Error) {
        self.disable(&failure(self.folder.path(), error));
    }

    /// Disables this store because its data is damaged. A panic counts as damage, because damaged data on the disk
    /// makes assertions of the engine fail.
    pub(super) fn fail_damaged(&self, words: &str) {
        self.disable(&damage_error(self.folder.path(), words));
    }

    /// Disables this store, because its folder or the engine's folder is no longer at its path.
    pub(super) fn fail_without_folder(&self) {
        self.disable(&format!(
            "the store's folder {}, or its subfolder data, is missing or was replaced by another folder. Was it moved, \
             removed or unmounted? Events acknowledged in the last second may be only in the old folder. Put the old \
             folder back at its path, then start again",
            self.folder.path().display()
        ));
    }

    fn disable(&self, words: &str) {
        if self.failure.set(words.to_owned()).is_ok() {
            tracing::error!(
                "the store accepts no more requests until Ordain is started again: {words}"
            );
        }
    }

    /// Returns whether the store's folder and the engine's folder are still at their paths.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.still_exists()
    }

    /// Makes all written data durable, and records that the store was closed cleanly.
    pub(super) fn close(&self) {
        if self.check().is_ok() && self.tables.sync().is_ok() {
            self.folder.close();
        }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |words| Err(StoreError::Failed(words.clone())))
    }

    /// Returns the text about damaged data that a request has found. `words` describes the damage.
    pub(super) fn damage_text(&self, words: &str) -> String {
        format!(
            "{words}; the store's folder {} is damaged: stop the process, and restore the folder from a backup",
            self.folder.path().display()
        )
    }

    /// Adds the path of the folder, and the next step for the operator, to an error about damaged data.
    pub(super) fn with_folder(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Corrupt(words) => StoreError::Corrupt(self.damage_text(&words)),
            error => error,
        }
    }

    pub(super) async fn failed(&self) -> StoreError {
        StoreError::Failed(self.failure.wait().await.clone())
    }

    pub(super) fn is_letter_live(&self, at: u64, now: u64) -> bool {
        at.saturating_add(self.dead_ttl) > now
    }
}

/// Returns the text about an error of the engine. The text promises that no acknowledged event is lost only if a read
/// or write failed, because damage and other errors may lose data.
fn failure(folder: &Path, error: &fjall::Error) -> String {
    if is_damage(error) {
        return damage_error(folder, &reason(error));
    }
    let promise = match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error))
            if !is_truncation(error) =>
        {
            "No acknowledged event is lost. "
        }
        _ => "",
    };
    format!(
        "the store in {} has failed: {}. {promise}Check the disk (its free space, quota and \
         health), then start again: the store continues with the content of the disk",
        folder.display(),
        reason(error)
    )
}

/// The due watermarks of the partitions. The due watermark of a partition is a time: the due index has no earlier entry
/// of the partition. A read of the due index without the argument `after` starts at the due watermark. A read from the
/// beginning of the index would be slow, because it would scan all removed entries that the engine has not compacted
/// yet.
///
/// The map has a watermark for each partition whose due index this process has read or written.
#[derive(Default)]
pub(super) struct DueWatermarks(Mutex<HashMap<Partition, DueWatermark>>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DueWatermark {
    pub(super) from: u64,
    /// The number of times that [`DueWatermarks::lower`] was called for the partition. If the number changes during a
    /// read, the read may have missed a new entry, and must not advance the watermark.
    lowered_count: u64,
}

impl DueWatermarks {
    /// Returns the watermark for a read of the due index. The caller must call this function before it takes the
    /// snapshot of the tables for this read.
    pub(super) fn get(&self, partition: &Partition) -> DueWatermark {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.get(partition).copied().unwrap_or_default()
    }

    /// Advances the watermark to `from`. The caller must have checked that no entry has an earlier time. Does nothing
    /// if [`Self::lower`] was called after the caller got `seen` from [`Self::get`].
    pub(super) fn advance(&self, partition: &Partition, seen: DueWatermark, from: u64) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match marks.get_mut(partition) {
            Some(mark) if mark.lowered_count == seen.lowered_count => {
                mark.from = mark.from.max(from);
            }
            Some(_) => {}
            None => {
                marks.insert(partition.clone(), DueWatermark { from, lowered_count: 0 });
            }
        }
    }

    /// Lowers the watermark to `at` if the watermark is later, because a write has added an entry with this time. The
    /// caller must call this function after the entry has become visible to readers.
    pub(super) fn lower(&self, partition: &Partition, at: u64) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If the partition has no watermark yet, create one, so that a read that is in progress notices the write.
        let mark = marks.entry(partition.clone()).or_default();
        mark.lowered_count += 1;
        mark.from = mark.from.min(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_error_of_a_failed_write_states_that_nothing_is_lost() {
        let full = fjall::Error::Io(std::io::Error::other("no space"));
        let words = failure(Path::new("folder"), &full);
        assert!(words.contains("no space. No acknowledged event is lost. Check"), "{words}");
        for unknown in [fjall::Error::Unrecoverable, fjall::Error::Poisoned] {
            let words = failure(Path::new("folder"), &unknown);
            assert!(!words.contains("No acknowledged event is lost"), "{words}");
        }
        let words = failure(Path::new("folder"), &fjall::Error::Unrecoverable);
        assert!(words.contains("is damaged") && words.contains("from a backup"), "{words}");
    }
}
