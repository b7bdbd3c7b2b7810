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

#[cfg(test)]
mod tests {
    use super::*;

    fn held(recent: &Recent, place: &Slice) -> Option<Slice> {
        recent.young.get(place).or_else(|| recent.old.get(place)).cloned()
    }

    #[test]
    fn it_is_bounded_and_forgets() {
        let mut recent = Recent::default();
        let place = |number: u32| Slice::from(number.to_be_bytes());
        let value = |byte: u8| Slice::from(vec![byte; 1 << 10]);
        let many = (HALF >> 10) as u32;
        for number in 0..5 * many / 2 {
            recent.put(&place(number), value(1));
            // Written again and again, it takes its room once.
            recent.put(&place(number), value(2));
        }
        assert!(recent.bytes <= HALF);
        assert!(recent.young.len() + recent.old.len() <= 2 * many as usize);
        assert_eq!(held(&recent, &place(0)), None, "it was written long ago");

        let last = place(5 * many / 2 - 1);
        let of_old = recent.old.keys().next().cloned().expect("there is an old half");
        for place in [last, of_old] {
            assert_eq!(held(&recent, &place), Some(value(2)));
            // What is newer hides what is older, until both are forgotten.
            recent.put(&place, value(3));
            assert_eq!(held(&recent, &place), Some(value(3)));
            recent.forget(&place);
            assert_eq!(held(&recent, &place), None);
        }
        let bytes: usize = recent.young.iter().map(|(place, job)| place.len() + job.len()).sum();
        assert_eq!(recent.bytes, bytes);
    }
}
