//! Jobs as they were written last. Every write of a job depends on the one before, and searching
//! the engine for that costs more than all the rest of the write. Must hold nothing that is not
//! in the tables: whoever changes a job there says so here.

use std::collections::HashMap;

use fjall::Slice;
use foldhash::fast::RandomState;

use super::tables::Tables;

/// Bytes of keys and values in each of the two halves: some ten thousand keys of ordinary size.
/// A value is shared with the engine as long as that has it in memory.
const HALF: usize = 8 << 20;

/// In two halves: when the young one is full, it becomes the old one, and what was not written
/// since the time before goes.
#[derive(Default)]
pub(super) struct Recent {
    young: HashMap<Slice, Slice, RandomState>,
    old: HashMap<Slice, Slice, RandomState>,
    /// Bytes in the young half.
    bytes: usize,
}

impl Recent {
    /// The job at this place.
    pub(super) fn get(&self, tables: &Tables, place: &Slice) -> fjall::Result<Option<Slice>> {
        match self.young.get(place).or_else(|| self.old.get(place)) {
            Some(job) => Ok(Some(job.clone())),
            None => tables.jobs.get(place),
        }
    }

    /// It is written.
    pub(super) fn put(&mut self, place: &Slice, job: Slice) {
        self.bytes += place.len() + job.len();
        if let Some(before) = self.young.insert(place.clone(), job) {
            self.bytes -= place.len() + before.len();
        }
        if self.bytes > HALF {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// It is removed, or written by somebody who keeps nothing here.
    pub(super) fn forget(&mut self, place: &[u8]) {
        if let Some(before) = self.young.remove(place) {
            self.bytes -= place.len() + before.len();
        }
        self.old.remove(place);
    }
}
