//! The outbox cursor of one outbox and one shard of a destination. The cursor has the messages that the sequence
//! assigner is passing from this outbox to this shard.
//!
//! [`PublishHistory`] decides which messages the sequence assigner repeats, and under which numbers. This module must
//! never decide which messages are repeated.

use std::sync::Arc;
use std::time::Instant;

use ordain_core::{CommitTimes, PublishHistory};

use crate::sink::PartitionHandle;
use ordain_publish::incident::{
    IncidentSubject, MessagesLost, NumberedMessages, now_ms, record, time_text,
};
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, AssignGroup, AssignItem, AssignItemReply, OriginOutbox,
    OutboxChunk, OutboxPosition, Partition,
};

/// The newest messages that an owner has passed from one outbox to one shard of the destination.
pub(super) struct OutboxHistory {
    pub(super) handle: Arc<PartitionHandle>,
    pub(super) history: PublishHistory<OutboxChunk>,
    times: CommitTimes,
}

/// The number of messages and bytes that one call to the store already contains.
#[derive(Default)]
pub(super) struct CallBudget {
    items: usize,
    bytes: usize,
}

impl CallBudget {
    /// Returns whether the chunk (messages of one commit) fits into the call. The first chunk always fits. After a
    /// chunk that does not fit, no later chunk fits.
    fn reserve(&mut self, chunk: &OutboxChunk) -> bool {
        let is_first = self.items == 0;
        self.items += chunk.items.len();
        self.bytes += chunk.items.iter().map(|item| item.event.memory()).sum::<usize>();
        is_first || (self.items <= ASSIGN_LIMIT && self.bytes <= ASSIGN_BYTES)
    }
}

pub(super) struct OutboxCursor {
    pub(super) handle: Arc<PartitionHandle>,
    pub(super) outbox_shard: u32,
    pub(super) destination_shard: u32,
    chunks: Vec<OutboxChunk>,
    /// The index of each new message's batch, and its index in the batch.
    pub(super) batch_indexes: Vec<(usize, usize)>,
    /// The store has numbered this many chunks of new messages.
    done_chunks: usize,
    /// The results for the messages of the numbered chunks. After the end of the cursor, the next owner of the
    /// partition publishes the messages without a result.
    pub(super) assigned: Vec<AssignItemReply>,
    /// The messages of earlier calls, including lost messages, which the cursor must pass to the store a second time.
    history: PublishHistory<OutboxChunk>,
    times: CommitTimes,
    /// True if the next call must check whether the store still has all messages of earlier calls. The cursor makes
    /// this call even without a new message.
    pub(super) verifies: bool,
    /// True if this process has given up the partition.
    is_abandoned: bool,
    /// [`Store::disconnects`](ordain_store::Store::disconnects) before the first call.
    disconnects: u64,
    /// The time when `disconnects` was read, in milliseconds since the sequence assigner was created.
    disconnects_at: u64,
    /// The time when the store first reported another owner; `None` if the store's newest reply reported no other
    /// owner.
    fenced_since: Option<Instant>,
}

impl OutboxCursor {
    /// Creates a cursor without messages. The caller has read `disconnects` before the first call, at the time
    /// `disconnects_at`.
    pub(super) fn new(
        handle: Arc<PartitionHandle>,
        outbox_shard: u32,
        destination_shard: u32,
        history: Option<OutboxHistory>,
        disconnects: u64,
        disconnects_at: u64,
    ) -> Self {
        // Outbox positions under an earlier epoch are not valid under this claim.
        let history = history.filter(|previous| previous.handle.claim.epoch == handle.claim.epoch);
        let (history, times) =
            history.map(|previous| (previous.history, previous.times)).unwrap_or_default();
        Self {
            handle,
            outbox_shard,
            destination_shard,
            chunks: Vec::new(),
            batch_indexes: Vec::new(),
            done_chunks: 0,
            assigned: Vec::new(),
            history,
            times,
            verifies: false,
            is_abandoned: false,
            disconnects,
            disconnects_at,
            fenced_since: None,
        }
    }

    /// Adds a message. The cursor divides the messages of a commit into chunks of [`ASSIGN_LIMIT`] messages; only the
    /// final chunk of a commit may be smaller. `batch_index` has the index of the message's batch, and the index of the
    /// message in the batch.
    pub(super) fn push(&mut self, commit: u64, item: AssignItem, batch_index: (usize, usize)) {
        self.batch_indexes.push(batch_index);
        let chunk = match self.chunks.last_mut() {
            Some(last) if last.position.commit == commit && last.items.len() < ASSIGN_LIMIT => {
                last.items.push(item);
                return;
            }
            Some(last) if last.position.commit == commit => last.position.chunk + 1,
            _ => 0,
        };
        self.chunks
            .push(OutboxChunk { position: OutboxPosition { commit, chunk }, items: vec![item] });
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced_since.is_some()
    }

    /// Returns the messages for the next call. Returns `None` if there is no message to pass and nothing to check, or
    /// if this process has lost or given up the partition.
    pub(super) fn next_group(&self, budget: &mut CallBudget) -> Option<AssignGroup> {
        let PartitionHandle { partition, claim, ownership, claimed_commits, watermarks, .. } =
            &*self.handle;
        // Read the watermark (the commit up to which all messages are durably marked as published) before the check of
        // the ownership. After the loss of the ownership, the watermark may also cover messages that another owner
        // publishes.
        let watermark = watermarks[self.outbox_shard as usize].through();
        if ownership.is_lost() || self.is_abandoned {
            return None;
        }
        let next = self.history.next_chunks(&self.chunks[self.done_chunks..]);
        let chunks: Vec<OutboxChunk> =
            next.take_while(|chunk| budget.reserve(chunk)).cloned().collect();
        if chunks.is_empty() && !self.verifies {
            return None;
        }
        let (last_confirmed, published_commit) = self.history.next_call(watermark);
        let origin = Some(OriginOutbox {
            partition: partition.clone(),
            shard: self.outbox_shard,
            epoch: claim.epoch,
            claimed_commit: claimed_commits[self.outbox_shard as usize],
            last_confirmed,
            published_commit,
        });
        Some(AssignGroup { origin, chunks })
    }

    /// Records that the store has the messages of a group. If `may_roll_back` is true, the store may lose the chunks of
    /// the group, so the cursor keeps them in memory.
    pub(super) fn record_done(
        &mut self,
        group: &AssignGroup,
        assigned: &[AssignItemReply],
        may_roll_back: bool,
        now: u64,
    ) {
        self.fenced_since = None;
        self.verifies = false;
        let numbers: Vec<u64> = assigned.iter().map(|result| result.sequence()).collect();
        let progress = self.history.record_answer(&group.chunks, &numbers, may_roll_back, now);
        if progress.new_chunks > 0 {
            self.assigned.extend(assigned);
            self.done_chunks += progress.new_chunks;
            if let Some(last) = group.chunks.last() {
                self.times.record(last.position.commit, now_ms());
            }
        }
        if progress.changed > 0 {
            tracing::error!(
                stream = &*self.handle.partition.stream,
                shard = self.destination_shard,
                messages = progress.changed,
                "the store had lost messages, and Ordain wrote them again, some of them with new numbers. A message \
                 gets a new number if another message of its key has taken its old number, or if an earlier message of \
                 its key now has the old number or a higher number. Check whether a receiver has two recent \
                 messages with the same key and the same number"
            );
        }
    }

    /// Returns the time of the first report of another owner.
    pub(super) fn record_fence(&mut self) -> Instant {
        *self.fenced_since.get_or_insert_with(Instant::now)
    }

    /// Prepares to repeat all messages after `last`, the newest outbox position that the store has. Returns how many of
    /// these messages were not prepared before. Returns `None` if some of these messages are no longer in memory.
    pub(super) fn recover_lost(&mut self, last: Option<OutboxPosition>) -> Option<usize> {
        let messages = self.history.roll_back_to(last)?;
        self.verifies = false;
        Some(messages)
    }

    /// Logs lost messages, some of which are no longer in memory. `last` is the newest outbox position that the store
    /// has.
    pub(super) fn report_lost(&self, to: &str, last: Option<OutboxPosition>) {
        let Partition { stream, number } = &self.handle.partition;
        let range = self.lost_range(last);
        let messages = self.history.messages() as u64;
        let incident = MessagesLost { to: to.to_owned(), messages, numbered: Some(range) };
        tracing::error!(
            stream = &**stream,
            partition = number,
            to,
            shard = self.destination_shard,
            messages,
            cloudevent = record(stream, IncidentSubject::Partition(*number), &incident),
            "the store went back in time and lost messages that the stream sent to {to}. This process has only \
             {messages} of them in memory, so it cannot write all of them again, and ends"
        );
    }

    /// Returns the commits with messages that the store has lost, and a time before the store first numbered these
    /// messages. `last` is the newest outbox position that the store has.
    fn lost_range(&self, last: Option<OutboxPosition>) -> NumberedMessages {
        let stored = last.map(|last| last.commit);
        let confirmed = self.history.last_confirmed();
        let last = confirmed.map_or(0, |confirmed| confirmed.commit);
        let since = stored.and_then(|stored| self.times.before_commits_after(stored));
        NumberedMessages {
            shard: self.destination_shard,
            outbox: self.outbox_shard,
            // If the newest stored message and the newest lost message belong to the same commit, the shard has only a
            // part of this commit.
            first: stored.map(|stored| if stored == last { stored } else { stored + 1 }),
            last,
            since: since.map(time_text),
        }
    }

    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Returns the messages that stay in memory for the next cursor of the same outbox and shard; `None` if there are
    /// none.
    pub(super) fn take_history(&mut self) -> Option<((Partition, u32, u32), OutboxHistory)> {
        let mut history = std::mem::take(&mut self.history);
        if history.is_empty() {
            return None;
        }
        history.record_check(self.disconnects, self.disconnects_at);
        let times = std::mem::take(&mut self.times);
        let history = OutboxHistory { handle: Arc::clone(&self.handle), history, times };
        Some(((self.handle.partition.clone(), self.outbox_shard, self.destination_shard), history))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use ordain_core::{Event, EventParts};
    use ordain_store::{Claim, Ownership};

    use super::*;
    use crate::sink::PublishWatermark;

    /// The messages up to the commit `done` are durably marked as published.
    fn target(done: u64) -> Arc<PartitionHandle> {
        let of_shard = PublishWatermark::default();
        of_shard.finish_record(done, done);
        of_shard.record_commit(done + 1);
        Arc::new(PartitionHandle {
            partition: Partition { stream: "orders".into(), number: 0 },
            claim: Claim { epoch: 1, random: 0 },
            dead_letter: None,
            completions: tokio::sync::mpsc::channel(1).0,
            ownership: Arc::new(Ownership::permanent()),
            claimed_commits: Box::new([0]),
            watermarks: Box::new([of_shard]),
            durable_commits: Box::new([AtomicU64::new(done + 1)]),
            rollbacks: AtomicU64::default(),
            losses: Arc::default(),
            driven: AtomicBool::new(true),
        })
    }

    /// The cursor leads to shard 3. The store has confirmed the messages of the commits 1 to 8, each commit in its own
    /// call.
    fn with_eight_messages() -> OutboxCursor {
        let mut cursor = OutboxCursor::new(target(8), 0, 3, None, 0, 0);
        for commit in 1..=8 {
            let event = Arc::new(Event::new(&EventParts { key: "a", ..EventParts::default() }));
            cursor.push(commit, AssignItem { event, partition: 0, number: 0 }, (0, 0));
            let group = cursor.next_group(&mut CallBudget::default()).expect("a new message");
            cursor.record_done(&group, &[AssignItemReply::New(commit)], true, 0);
        }
        cursor
    }

    #[test]
    fn lost_messages_are_not_reported_as_done() {
        let mut cursor = OutboxCursor::new(target(8), 0, 0, None, 0, 0);
        for commit in 1..=8 {
            let event = Arc::new(Event::new(&EventParts { key: "a", ..EventParts::default() }));
            cursor.push(commit, AssignItem { event, partition: 0, number: 0 }, (0, 0));
        }
        let done_of =
            |group: &AssignGroup| group.origin.as_ref().map(|origin| origin.published_commit);
        let group = cursor.next_group(&mut CallBudget::default()).expect("new messages");
        assert_eq!(done_of(&group), Some(8));
        let numbers: Vec<AssignItemReply> = (1..=8).map(AssignItemReply::New).collect();
        cursor.record_done(&group, &numbers, true, 0);

        // The store may forget the positions of messages that are reported as published. The next call repeats message
        // 8. If the process then repeats this call, the store must still recognise message 8. The call must therefore
        // not report message 8 as published.
        assert_eq!(cursor.recover_lost(Some(OutboxPosition { commit: 7, chunk: 0 })), Some(1));
        let group = cursor.next_group(&mut CallBudget::default()).expect("a lost message");
        assert_eq!(done_of(&group), Some(7));
    }

    /// Some of the lost messages are no longer in memory. The report also has a time before the first of them.
    #[test]
    fn report_names_commits_of_lost_messages() {
        let before = now_ms();
        let mut cursor = with_eight_messages();
        for _ in 0..5 {
            cursor.history.forget_oldest();
        }
        let stored = Some(OutboxPosition { commit: 2, chunk: 0 });
        assert_eq!(cursor.recover_lost(stored), None);
        assert_eq!(cursor.history.messages(), 3);
        let mut lost = cursor.lost_range(stored);
        let since = lost.since.take().expect("a time");
        let since: jiff::Timestamp = since.parse().expect("a time");
        let since = since.as_millisecond().cast_unsigned();
        assert!((before..=now_ms()).contains(&since), "{since}");
        let mut right =
            NumberedMessages { shard: 3, outbox: 0, first: Some(3), last: 8, since: None };
        assert_eq!(lost, right);
        // The two remaining cases: the store has no message of this owner, or it has only a part of the messages of the
        // newest commit.
        right.first = None;
        assert_eq!(cursor.lost_range(None), right);
        let lost = cursor.lost_range(Some(OutboxPosition { commit: 8, chunk: 0 }));
        assert_eq!((lost.first, lost.last), (Some(8), 8));
    }

    /// The store goes back in time twice: the second time, it also loses messages that wait to be repeated.
    #[test]
    fn report_names_messages_that_wait_to_be_sent_again() {
        let mut cursor = with_eight_messages();
        let position = |commit| Some(OutboxPosition { commit, chunk: 0 });
        assert_eq!(cursor.recover_lost(position(5)), Some(3));
        for _ in 0..4 {
            cursor.history.forget_oldest();
        }
        assert_eq!(cursor.recover_lost(position(2)), None);
        let lost = cursor.lost_range(position(2));
        assert_eq!((lost.first, lost.last), (Some(3), 8));
    }
}
