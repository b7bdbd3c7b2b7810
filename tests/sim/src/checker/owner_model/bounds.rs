//! Checks an owner that has no further effects to request: the owner must be within its limits (I7), and must have
//! written its failed attempts into the key records.

use ordain_core::{Stats, shard_of};

use super::super::{Checker, at};
use crate::handler::MESSAGE_LIMIT;
use crate::store::Store;

/// Number of bytes that an owner may hold beyond the memory budget, for the last deliveries and turns that it accepted.
const MEMORY_SLACK_BYTES: usize = 64 << 10;

impl Checker {
    pub(crate) fn drained(
        &mut self,
        owner: u64,
        partition: u32,
        stats: &Stats,
        credit: usize,
        store: &Store,
    ) {
        let settings = &self.plan.settings;
        // When the outbox becomes full, executed events that are not durable yet may still add their messages.
        let mut ahead = settings.run_ahead * MESSAGE_LIMIT as usize;
        if settings.forward_letters {
            // One batch of each shard may be under way, and may have one dead letter for each of its events.
            let batch = settings.batch_events + settings.quantum + settings.lane_buffer;
            ahead += settings.shards as usize * (batch + settings.gap.max_width as usize);
        }
        let bounds = [
            ("lanes", stats.lanes, settings.max_lanes),
            ("bytes in memory", stats.memory, settings.memory_budget + MEMORY_SLACK_BYTES),
            ("unacknowledged deliveries", stats.unacknowledged + credit, settings.prefetch),
            ("events ahead of durability", stats.ahead, settings.run_ahead),
            ("turns", stats.turns, settings.max_turns),
            ("loads", stats.loads, settings.max_loads),
            ("unpublished messages", stats.outbox, settings.max_outbox + ahead),
        ];
        for (resource, amount, limit) in bounds {
            if amount > limit {
                return self.broke("I7", format!("{resource}: {amount}, but {limit} allowed"));
            }
        }
        let outbox = store.outbox_len(Some(partition));
        let limit = settings.max_outbox + ahead;
        // After the store went back, repeated commits put messages into the outbox again, so the limit does not hold.
        if outbox > limit && self.rollback_count == 0 {
            let detail = format!("{outbox} messages in the store's outbox, but {limit} allowed");
            return self.broke("I7", detail);
        }
        if stats.outbox < settings.max_outbox && !self.lacks_commits {
            self.attempts_written(owner, store);
        }
    }

    /// Checks that the owner has written the failed attempts of each key into the key record. The owner cannot write
    /// them while it waits for a load of the key or for a commit of the key's shard.
    fn attempts_written(&mut self, owner: u64, store: &Store) {
        let settings = self.plan.settings.clone();
        let corrupt = self.corrupt.clone();
        let owner_model = self.owner_model(owner);
        // A newer owner may have cleared the counts, for example because of a new handler version.
        if owner_model.stopped || owner_model.taken_over {
            return;
        }
        let mut missing = None;
        owner_model.failures.retain(|key, _| !corrupt.contains(key));
        owner_model.failures.retain(|key, (sequence, count)| {
            let shard = shard_of(key, settings.shards);
            // An owner does not write a key while it loads the record of the key again.
            let loading = owner_model.loads.values().any(|loading| loading == key);
            if loading
                || owner_model.commits.contains_key(&shard)
                || owner_model.unknown.contains_key(&shard)
            {
                return true;
            }
            let key_record = store.records.get(key).map(|record| &record.key_record);
            let is_next = key_record.is_none_or(|key_record| key_record.next == *sequence);
            let durable = key_record.map_or(0, |key_record| key_record.attempts);
            if is_next && *count < settings.retry.attempts && durable < *count {
                missing = Some((key.clone(), *sequence, *count, durable));
            }
            is_next
        });
        if let Some((key, sequence, count, durable)) = missing {
            let detail = format!(
                "{}: {count} attempts failed, but the key record has {durable}",
                at(&key, sequence)
            );
            self.broke("retry", detail);
        }
    }
}
