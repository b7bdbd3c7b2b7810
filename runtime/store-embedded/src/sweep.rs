//! Removes expired entries, a few at a time. The writer thread runs the sweep after each group of requests, and when
//! the store is opened, so the sweep needs no task of its own. Until the sweep removes an expired record, letter or
//! message, reads treat it as missing (exception:
//! [`MessageLog::partitions_of`](ordain_store::MessageLog::partitions_of)). This module must never remove visible data.

use fjall::OwnedWriteBatch;

use super::assign;
use super::changes::{EarliestTimes, remove_record};
use super::keys;
use super::record::{EmbeddedRecord, RecordEnvelope};
use super::record_cache::RecordCache;
use super::shared::SharedStore;
use super::tables::{copy_key, is_damage};
use ordain_store::codec::letter_time;

/// The approximate maximum number of entries of each kind that the sweep removes when the store is opened. The removal
/// of this number of entries takes about a tenth of a second.
pub(super) const OPENING_SWEEP_LIMIT: usize = 10_000;
/// Returns the approximate maximum number of entries of each kind that the sweep removes after a group of requests.
/// `entries` is the number of key records, dead letters and other entries that the group wrote. The limit exceeds the
/// number of entries that the group can have added, so that the sweep keeps up with the writes. The sweep costs little
/// compared with the commits.
pub(super) fn group_sweep_limit(entries: usize) -> usize {
    16 + 2 * entries
}

/// The times at which the sweep starts its search, for each kind of entry. No entry of the kind has an earlier time. A
/// search from the beginning would scan all removed entries that the engine has not compacted yet, as described at
/// [`DueWatermarks`](super::shared::DueWatermarks).
#[derive(Debug, Default)]
pub(super) struct ExpirySweep {
    key_records_from: u64,
    letters_from: u64,
    retained_from: u64,
    /// `true` if the sweep has found damaged data. From then on, the sweep removes nothing.
    stopped: bool,
}

impl ExpirySweep {
    pub(super) fn lower(&mut self, earliest: &EarliestTimes) {
        self.key_records_from = self.key_records_from.min(earliest.expiry);
        self.letters_from = self.letters_from.min(earliest.letter);
        self.retained_from = self.retained_from.min(earliest.retained);
    }

    /// Removes at most about `limit` expired entries of each kind.
    pub(super) fn run(
        &mut self,
        shared: &SharedStore,
        recent: &mut RecordCache,
        now: u64,
        limit: usize,
    ) -> fjall::Result<()> {
        let tables = &shared.tables;
        let before = now.saturating_sub(shared.dead_ttl);
        let is_early =
            self.key_records_from > now && self.letters_from > before && self.retained_from > now;
        if self.stopped || is_early {
            return Ok(());
        }
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), 64);
        let result = self
            .sweep_key_records(shared, recent, &mut batch, now, limit)
            .and_then(|()| self.sweep_letters(shared, &mut batch, before, limit))
            .and_then(|()| self.sweep_retained(shared, &mut batch, now, limit));
        match result {
            Err(error) if is_damage(&error) => {
                tracing::error!(
                    "the store no longer removes expired key records, dead letters and messages, because its database \
                     is damaged: {error}. Restore the store's folder from a backup"
                );
                self.stopped = true;
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => batch.commit(),
        }
    }

    fn sweep_key_records(
        &mut self,
        shared: &SharedStore,
        recent: &mut RecordCache,
        batch: &mut OwnedWriteBatch,
        now: u64,
        limit: usize,
    ) -> fjall::Result<()> {
        let times = &shared.tables.times;
        let mut moved_to = u64::MAX;
        let mut work = 0;
        for entry in
            times.range(keys::expiry(self.key_records_from, &[])..keys::expiry(u64::MAX, &[]))
        {
            let entry = copy_key(entry)?;
            let Some((at, table_key)) = keys::split_timed(&entry) else { continue };
            self.key_records_from = at;
            if at > now || work >= limit {
                self.key_records_from = at.min(moved_to);
                return Ok(());
            }
            let (removed, moved) =
                sweep_key_record(shared, recent, batch, &entry, (table_key, at), now)?;
            work += removed;
            moved_to = moved_to.min(moved);
        }
        self.key_records_from = moved_to;
        Ok(())
    }

    fn sweep_letters(
        &mut self,
        shared: &SharedStore,
        batch: &mut OwnedWriteBatch,
        before: u64,
        limit: usize,
    ) -> fjall::Result<()> {
        let tables = &shared.tables;
        let from = keys::letter_age(self.letters_from, &[]);
        let to = keys::letter_age(u64::MAX, &[]);
        for (count, entry) in tables.times.range(from..to).enumerate() {
            let entry = copy_key(entry)?;
            let Some((at, table_key)) = keys::split_timed(&entry) else { continue };
            self.letters_from = at;
            if at > before || count >= limit {
                return Ok(());
            }
            // If the letter was replaced after this entry was written, the new letter has another time. The new letter
            // has its own entry, and stays.
            let stored = tables.letters.get(table_key)?;
            if stored.is_some_and(|letter| letter_time(&letter) == Some(at)) {
                batch.remove(&tables.letters, table_key);
            }
            batch.remove(&tables.times, entry);
        }
        self.letters_from = u64::MAX;
        Ok(())
    }
}

impl ExpirySweep {
    /// Removes expired records of destinations: retained messages, ids and counters.
    fn sweep_retained(
        &mut self,
        shared: &SharedStore,
        batch: &mut OwnedWriteBatch,
        now: u64,
        limit: usize,
    ) -> fjall::Result<()> {
        let times = &shared.tables.times;
        let mut work = 0;
        let from = keys::retained_age(self.retained_from, 0);
        for entry in times.range(from..keys::retained_age(u64::MAX, 0)) {
            let entry = copy_key(entry)?;
            let Some((at, _)) = keys::split_timed(&entry) else { continue };
            self.retained_from = at;
            if at > now || work >= limit {
                return Ok(());
            }
            work += assign::remove_expired(&shared.tables, batch, entry, now)?;
        }
        self.retained_from = u64::MAX;
        Ok(())
    }
}

/// Handles an expiry entry whose time has come: removes the key record or, if the key record expires later, moves the
/// entry. Returns the number of changed entries, and the new time of a moved entry (`u64::MAX` if no entry was moved).
fn sweep_key_record(
    shared: &SharedStore,
    recent: &mut RecordCache,
    batch: &mut OwnedWriteBatch,
    entry: &fjall::Slice,
    (table_key, at): (&[u8], u64),
    now: u64,
) -> fjall::Result<(usize, u64)> {
    let tables = &shared.tables;
    let stored = tables.jobs.get(table_key)?;
    // An unreadable key record is not removed, so that an operator can examine it. If the key record names another
    // expiry entry, the processed entry is stale: it comes from an earlier record of the key.
    let record = stored.as_deref().and_then(|bytes| EmbeddedRecord::parse(bytes).ok());
    match record.filter(|record| record.envelope.expiry_entry == at) {
        None => batch.remove(&tables.times, entry.clone()),
        Some(record) if record.envelope.is_expired(now) => {
            return Ok((remove_record(tables, recent, batch, table_key, &record)?, u64::MAX));
        }
        Some(record) => {
            let expire_at = record.envelope.expire_at;
            let envelope = RecordEnvelope { expiry_entry: expire_at, ..record.envelope };
            batch.remove(&tables.times, entry.clone());
            batch.insert(&tables.jobs, table_key, record.with_envelope(&envelope));
            recent.remove(table_key);
            if expire_at != 0 {
                batch.insert(&tables.times, keys::expiry(expire_at, table_key), b"");
                return Ok((1, expire_at));
            }
        }
    }
    Ok((1, u64::MAX))
}
