//! What readers and the writer have in common. Must never hold a lock while it reads or writes
//! a table.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::SetOnce;

use super::clock::Monotone;
use super::folder::Folder;
use super::tables::Tables;
use ordain_store::{Partition, StoreError};

pub(super) struct Shared {
    pub(super) tables: Tables,
    pub(super) clock: Monotone,
    pub(super) due: DueMarks,
    /// [`Options::dead_ttl`](super::Options::dead_ttl).
    pub(super) dead_ttl: u64,
    pub(super) shards: u32,
    failure: SetOnce<String>,
    /// Last, so that the folder is given back when the engine is closed.
    folder: Folder,
}

impl Shared {
    pub(super) fn new(
        tables: Tables,
        clock: Monotone,
        folder: Folder,
        dead_ttl: u64,
        shards: u32,
    ) -> Self {
        let (due, failure) = (DueMarks::default(), SetOnce::new());
        Self { tables, clock, due, dead_ttl, shards, failure, folder }
    }

    /// Ends the use of this store for good: after a failed write nobody knows what the disk
    /// holds, so nothing more may be answered from it. Only opening it again finds out.
    pub(super) fn fail(&self, reason: &str) {
        self.end(&format!(
            "the store in {} has failed: {reason}. Nothing that was acknowledged is lost. See to \
             the disk (its free space, quota and health) and start again: it goes on from there",
            self.folder.path().display()
        ));
    }

    /// Ends the use of this store since its folder is not under its path any more.
    pub(super) fn fail_without_folder(&self) {
        self.end(&format!(
            "the store's folder {} is not there any more, or is another one: was it moved, removed or \
             unmounted? What was acknowledged in the last second may be in the old folder alone. Put \
             that back and start again",
            self.folder.path().display()
        ));
    }

    fn end(&self, words: &str) {
        if self.failure.set(words.to_owned()).is_ok() {
            tracing::error!("out of use until it is opened again: {words}");
        }
    }

    /// Whether its folder is still under its path.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_there()
    }

    /// Notes that all that was written is on the disk, and that nothing more will be.
    pub(super) fn close(&self) {
        if self.check().is_ok() && self.tables.sync().is_ok() {
            self.folder.close();
        }
    }

    /// That it has not failed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |words| Err(StoreError::Failed(words.clone())))
    }

    /// Waits until it has failed.
    pub(super) async fn failed(&self) -> StoreError {
        StoreError::Failed(self.failure.wait().await.clone())
    }

    /// Whether a letter put at `at` is still kept.
    pub(super) fn letter_lives(&self, at: u64, now: u64) -> bool {
        at.saturating_add(self.dead_ttl) > now
    }
}

/// Before which time a partition has no due entry. Reading an index from its beginning would
/// pass over the remains of all entries that were removed, until the engine has compacted them.
///
/// One mark for each partition that was ever read here.
#[derive(Default)]
pub(super) struct DueMarks(Mutex<HashMap<Partition, DueMark>>);

/// Where to begin to read, as it was at some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DueMark {
    pub(super) from: u64,
    /// How often an earlier entry was put: a reader that overlapped such a write must not move
    /// the mark past it.
    lowered: u64,
}

impl DueMarks {
    /// To be called before the snapshot that is read.
    pub(super) fn get(&self, partition: &Partition) -> DueMark {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.get(partition).copied().unwrap_or_default()
    }

    /// There was nothing before `from` when `seen` was got.
    pub(super) fn advance(&self, partition: &Partition, seen: DueMark, from: u64) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match marks.get_mut(partition) {
            Some(mark) if mark.lowered == seen.lowered => mark.from = mark.from.max(from),
            Some(_) => {}
            None => {
                marks.insert(partition.clone(), DueMark { from, lowered: 0 });
            }
        }
    }

    /// An entry has been put at `at`. To be called when readers can see it.
    pub(super) fn lower(&self, partition: &Partition, at: u64) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a mark, a reader that overlaps must still notice.
        let mark = marks.entry(partition.clone()).or_default();
        mark.lowered += 1;
        mark.from = mark.from.min(at);
    }
}
