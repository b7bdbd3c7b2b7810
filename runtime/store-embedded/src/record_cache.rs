//! A cache of recently written key records. Every write of a key record depends on the previous record of the key, and
//! reading this record from the engine costs more than the rest of the write. The cache must contain only the current
//! content of the tables. Code that changes a key record in the tables must therefore update the record in the cache,
//! or remove it from the cache.

use std::collections::HashMap;

use fjall::Slice;
use foldhash::fast::RandomState;

use super::tables::Tables;

/// The maximum size of the table keys and values in each of the two halves, in bytes: enough for some ten thousand
/// keys of ordinary size. A value that the engine also has in memory takes no additional memory in the cache.
const HALF_BYTES_LIMIT: usize = 8 << 20;

/// A cache of two halves. Each written key record goes into the young half. When the young half is full, it becomes the
/// old half, and a new young half begins. The cache then drops the previous old half, and with it each key record that
/// was not written since the previous replacement.
#[derive(Default)]
pub(super) struct RecordCache {
    young: HashMap<Slice, Slice, RandomState>,
    old: HashMap<Slice, Slice, RandomState>,
    bytes: usize,
}

impl RecordCache {
    /// Returns the key record at this table key: from the cache, or, if the cache lacks the record, from the tables.
    pub(super) fn get(&self, tables: &Tables, table_key: &Slice) -> fjall::Result<Option<Slice>> {
        match self.young.get(table_key).or_else(|| self.old.get(table_key)) {
            Some(record) => Ok(Some(record.clone())),
            None => tables.jobs.get(table_key),
        }
    }

    pub(super) fn put(&mut self, table_key: &Slice, record: Slice) {
        self.bytes += table_key.len() + record.len();
        if let Some(before) = self.young.insert(table_key.clone(), record) {
            self.bytes -= table_key.len() + before.len();
        }
        if self.bytes > HALF_BYTES_LIMIT {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// Removes a key record from the cache. The caller must call this function when it removes the key record from the
    /// tables, or changes it there without calling [`Self::put`].
    pub(super) fn remove(&mut self, table_key: &[u8]) {
        if let Some(before) = self.young.remove(table_key) {
            self.bytes -= table_key.len() + before.len();
        }
        self.old.remove(table_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(recent: &RecordCache, table_key: &Slice) -> Option<Slice> {
        recent.young.get(table_key).or_else(|| recent.old.get(table_key)).cloned()
    }

    #[test]
    fn cache_is_bounded_and_removes_oldest_records() {
        let mut recent = RecordCache::default();
        let table_key = |number: u32| Slice::from(number.to_be_bytes());
        let value = |byte: u8| Slice::from(vec![byte; 1 << 10]);
        let many = (HALF_BYTES_LIMIT >> 10) as u32;
        for number in 0..5 * many / 2 {
            recent.put(&table_key(number), value(1));
            // A repeated write of a key record counts its size only once.
            recent.put(&table_key(number), value(2));
        }
        assert!(recent.bytes <= HALF_BYTES_LIMIT);
        assert!(recent.young.len() + recent.old.len() <= 2 * many as usize);
        assert_eq!(held(&recent, &table_key(0)), None, "the first key record was written long ago");

        let last = table_key(5 * many / 2 - 1);
        let of_old = recent.old.keys().next().cloned().expect("the old half is not empty");
        for table_key in [last, of_old] {
            assert_eq!(held(&recent, &table_key), Some(value(2)));
            // The young half now has a newer value than the old half. `remove` must remove both.
            recent.put(&table_key, value(3));
            assert_eq!(held(&recent, &table_key), Some(value(3)));
            recent.remove(&table_key);
            assert_eq!(held(&recent, &table_key), None);
        }
        let bytes: usize =
            recent.young.iter().map(|(table_key, record)| table_key.len() + record.len()).sum();
        assert_eq!(recent.bytes, bytes);
    }
}
