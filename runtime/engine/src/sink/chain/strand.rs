//! The messages of one outbox for one shard of a destination, while the belt gives them to the store.
//!
//! [`PublishHistory`] decides which messages the belt gives again, and under which numbers. This module must not.

use std::sync::Arc;
use std::time::Instant;

use ordain_core::PublishHistory;

use crate::sink::PartitionHandle;
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, AssignGroup, AssignItem, AssignItemReply, OriginOutbox,
    OutboxChunk, OutboxPosition, Partition,
};

/// The messages that an owner has given from an outbox to one shard.
pub(super) struct OutboxHistory {
    pub(super) target: Arc<PartitionHandle>,
    pub(super) history: PublishHistory<OutboxChunk>,
}

/// The used room of one call.
#[derive(Default)]
pub(super) struct CallBudget {
    items: usize,
    bytes: usize,
}

impl CallBudget {
    /// Takes the room of a part. Returns whether it fits; the first one always does.
    fn take(&mut self, part: &OutboxChunk) -> bool {
        let is_first = self.items == 0;
        self.items += part.items.len();
        self.bytes += part.items.iter().map(|item| item.event.memory()).sum::<usize>();
        is_first || (self.items <= ASSIGN_LIMIT && self.bytes <= ASSIGN_BYTES)
    }
}

/// Messages of one outbox for one shard.
pub(super) struct OutboxCursor {
    pub(super) target: Arc<PartitionHandle>,
    /// The shard of the outbox.
    pub(super) of: u32,
    /// The shard of the destination.
    pub(super) to: u32,
    /// New messages.
    parts: Vec<OutboxChunk>,
    /// The origin of each new message: the index of its batch, and its index in the batch.
    pub(super) from: Vec<(usize, usize)>,
    /// The number of parts that are done.
    done: usize,
    /// The result for each message of the parts that are done. The remaining messages belong to another owner.
    pub(super) assigned: Vec<AssignItemReply>,
    /// The messages that were given before, and the lost ones among them.
    history: PublishHistory<OutboxChunk>,
    /// True if the next call checks that the store still has all given messages, even if there is no new one.
    pub(super) checks: bool,
    /// True if this process has given up the partition.
    is_over: bool,
    /// The value of [`Store::breaks`](ordain_store::Store::breaks) before the first call.
    breaks: u64,
    /// The time of that value, in milliseconds since the belt was created.
    started: u64,
    /// When the store first reported another owner; `None` if the last reply did not.
    fenced: Option<Instant>,
}

impl OutboxCursor {
    /// Creates a strand without messages. `breaks` and `started` are the values before its first call.
    pub(super) fn new(
        target: Arc<PartitionHandle>,
        of: u32,
        to: u32,
        given: Option<OutboxHistory>,
        breaks: u64,
        started: u64,
    ) -> Self {
        // Places given under an earlier claim do not count under this one.
        let given = given.filter(|given| given.target.claim.epoch == target.claim.epoch);
        Self {
            target,
            of,
            to,
            parts: Vec::new(),
            from: Vec::new(),
            done: 0,
            assigned: Vec::new(),
            history: given.map(|given| given.history).unwrap_or_default(),
            checks: false,
            is_over: false,
            breaks,
            started,
            fenced: None,
        }
    }

    /// Adds a message. The messages of a commit are divided into parts of a size that never changes. `from` has the
    /// index of the message's batch, and the index in the batch.
    pub(super) fn put(&mut self, commit: u64, item: AssignItem, from: (usize, usize)) {
        self.from.push(from);
        let part = match self.parts.last_mut() {
            Some(last) if last.place.commit == commit && last.items.len() < ASSIGN_LIMIT => {
                last.items.push(item);
                return;
            }
            Some(last) if last.place.commit == commit => last.place.part + 1,
            _ => 0,
        };
        self.parts.push(OutboxChunk { place: OutboxPosition { commit, part }, items: vec![item] });
    }

    /// Returns whether the store knows of another owner.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Returns the next parts as far as there is room for them, or `None` if there is nothing to give or to check.
    pub(super) fn next_lot(&self, room: &mut CallBudget) -> Option<AssignGroup> {
        let PartitionHandle { partition, claim, tenure, found, done, .. } = &*self.target;
        // `done` is read before the tenure, because the messages of another owner may also be marked done here.
        let done = done[self.of as usize].through();
        if tenure.is_over() || self.is_over {
            return None;
        }
        let next = self.history.next_parts(&self.parts[self.done..]);
        let parts: Vec<OutboxChunk> = next.take_while(|part| room.take(part)).cloned().collect();
        if parts.is_empty() && !self.checks {
            return None;
        }
        let (before, done) = self.history.next_call(done);
        let origin = Some(OriginOutbox {
            partition: partition.clone(),
            shard: self.of,
            epoch: claim.epoch,
            found: found[self.of as usize],
            before,
            done,
        });
        Some(AssignGroup { origin, parts })
    }

    /// Records that a lot is done. Its parts stay in memory if the store may lose them (`may_go_back`).
    pub(super) fn done(
        &mut self,
        lot: &AssignGroup,
        assigned: &[AssignItemReply],
        may_go_back: bool,
        now: u64,
    ) {
        self.fenced = None;
        self.checks = false;
        let numbers: Vec<u64> = assigned.iter().map(|result| result.sequence()).collect();
        let progress = self.history.answered(&lot.parts, &numbers, may_go_back, now);
        if progress.new_parts > 0 {
            self.assigned.extend(assigned);
            self.done += progress.new_parts;
        }
        if progress.changed > 0 {
            tracing::error!(
                stream = &*self.target.partition.stream,
                shard = self.to,
                messages = progress.changed,
                "messages that the store had lost have new numbers, because the store gave their numbers to other \
                 messages meanwhile: check the receivers of the last minutes for numbers that two messages share"
            );
        }
    }

    /// Records that the store reported another owner. Returns the time of the first report.
    pub(super) fn fence(&mut self) -> Instant {
        *self.fenced.get_or_insert_with(Instant::now)
    }

    /// Prepares to give again all messages behind `last`, the last place that the store has. Returns their number, or
    /// `None` if memory does not have all of them.
    pub(super) fn went_back(&mut self, last: Option<OutboxPosition>) -> Option<usize> {
        let messages = self.history.went_back(last)?;
        self.checks = false;
        Some(messages)
    }

    /// Ends the strand, because this process has given up the partition.
    pub(super) fn give_up(&mut self) {
        self.is_over = true;
    }

    /// Takes out the given messages for the strand's successor; `None` if there are none.
    pub(super) fn take_given(&mut self) -> Option<((Partition, u32, u32), OutboxHistory)> {
        let mut history = std::mem::take(&mut self.history);
        if history.is_empty() {
            return None;
        }
        history.checked(self.breaks, self.started);
        let given = OutboxHistory { target: Arc::clone(&self.target), history };
        Some(((self.target.partition.clone(), self.of, self.to), given))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use ordain_core::{Event, EventParts};
    use ordain_store::{Claim, Ownership};

    use super::*;
    use crate::sink::PublishWatermark;

    /// The partition's handle, whose messages are done for good through this commit.
    fn target(done: u64) -> Arc<PartitionHandle> {
        let of_shard = PublishWatermark::default();
        of_shard.mark(done, done);
        of_shard.committed(done + 1);
        Arc::new(PartitionHandle {
            partition: Partition { stream: "orders".into(), number: 0 },
            claim: Claim { epoch: 1, random: 0 },
            dead_letter: None,
            completions: tokio::sync::mpsc::channel(1).0,
            tenure: Arc::new(Ownership::sole()),
            found: Box::new([0]),
            done: Box::new([of_shard]),
            commits: Box::new([AtomicU64::new(done + 1)]),
            driven: AtomicBool::new(true),
        })
    }

    #[test]
    fn lost_messages_are_not_reported_as_done() {
        let mut strand = OutboxCursor::new(target(8), 0, 0, None, 0, 0);
        for commit in 1..=8 {
            let event = Arc::new(Event::new(&EventParts { key: "a", ..EventParts::default() }));
            strand.put(commit, AssignItem { event, partition: 0, number: 0 }, (0, 0));
        }
        let done_of = |lot: &AssignGroup| lot.origin.as_ref().map(|origin| origin.done);
        let lot = strand.next_lot(&mut CallBudget::default()).expect("new messages");
        assert_eq!(done_of(&lot), Some(8));
        let numbers: Vec<AssignItemReply> = (1..=8).map(AssignItemReply::New).collect();
        strand.done(&lot, &numbers, true, 0);

        // The store forgets messages that are done. A repeat of this call must find the message that it gave again.
        assert_eq!(strand.went_back(Some(OutboxPosition { commit: 7, part: 0 })), Some(1));
        let lot = strand.next_lot(&mut CallBudget::default()).expect("a lost message");
        assert_eq!(done_of(&lot), Some(7));
    }
}
