//! The newest messages that the owner of a partition sent from one outbox to one shard of a destination. An outbox
//! contains committed messages that are to be published. A destination is an exchange, a stream or a file whose
//! messages the store numbers. Each shard (slice of the store) numbers the messages of its keys.
//!
//! A store can go back in time: after a failure, the store lacks its newest writes. The store may then lack messages
//! that the outbox records as published. The owner sends the messages of a commit in parts of a fixed size, called
//! chunks in the code. [`PublishHistory`] keeps the parts that the owner sent most recently, with the numbers that the
//! store gave to their messages. Each call to the store names the newest outbox position that the store confirmed. A
//! store that lacks this position has lost messages, and reports the newest position that it has. From this report, the
//! history computes which parts the owner must send again, in which order, and under which numbers. A message must
//! never get a lower number than an earlier message of its key.
//!
//! Times are in milliseconds since any fixed moment.

use std::collections::{BTreeMap, VecDeque};

/// The time after which a history forgets all its parts, counted from the store's confirmation of the newest part. A
/// failover of the store takes less time.
const RETENTION_MS: u64 = 120_000;
/// The maximum time between two checks that the store still has the newest messages of an outbox. A broken connection
/// to the store causes an earlier check.
const CHECK_INTERVAL_MS: u64 = 5_000;

/// The position of messages in an outbox: the commit, and the part of the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OutboxPosition {
    /// The number of the commit that contains the messages.
    pub commit: u64,
    /// The index of the part in its commit. The messages of a commit for one destination and shard are divided into
    /// parts of a fixed size, so that an index always names the same messages.
    pub chunk: u32,
}

/// The messages of one outbox position. The store numbers these messages in order.
pub trait NumberedChunk {
    /// The key of a message; the store numbers the messages of each key separately.
    type Key: Ord + ?Sized;

    /// Returns the outbox position of the messages.
    fn position(&self) -> OutboxPosition;

    /// Returns the key of each message, in order.
    fn keys(&self) -> impl Iterator<Item = &Self::Key>;

    /// Returns the approximate size of the messages, in bytes.
    fn bytes(&self) -> usize;

    /// Sets the number that each message requests from the store. The number 0 requests a new number.
    fn request_numbers(&mut self, numbers: &[u64]);
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NumberedEntry<P> {
    chunk: P,
    numbers: Vec<u64>,
}

/// A part that the store has lost and the owner must send again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LostEntry<P> {
    entry: NumberedEntry<P>,
    /// The number that each message requests. 0 for a message that can no longer have its previous number.
    requested: Vec<u64>,
}

/// The result of a call that the store has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishProgress {
    /// The number of new parts in the call; 0 if the call contained lost parts.
    pub new_chunks: usize,
    /// The number of the call's repeated messages that got another number than before the loss.
    pub changed: usize,
}

/// The parts that an owner sent most recently from one outbox to one shard, and the lost parts that the owner must send
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PublishHistory<P> {
    /// The newest outbox position that the store confirmed. After the store went back in time, this is the newest
    /// position that the store has.
    last: Option<OutboxPosition>,
    /// The parts that the owner sent most recently and that the store has confirmed, oldest first.
    recent: VecDeque<NumberedEntry<P>>,
    /// The size of the parts in `recent`, in bytes.
    bytes: usize,
    /// The newest position whose messages are no longer in memory.
    forgotten: Option<OutboxPosition>,
    lost: VecDeque<LostEntry<P>>,
    /// The number of broken connections to the store when the newest answered call began.
    checked_disconnects: u64,
    /// The time when the newest answered call began, in ms.
    checked_at: u64,
    /// The time when the store confirmed the newest part, in ms.
    last_at: u64,
}

impl<P> Default for PublishHistory<P> {
    fn default() -> Self {
        Self {
            last: None,
            recent: VecDeque::new(),
            bytes: 0,
            forgotten: None,
            lost: VecDeque::new(),
            checked_disconnects: 0,
            checked_at: 0,
            last_at: 0,
        }
    }
}

impl<P: NumberedChunk + Clone> PublishHistory<P> {
    /// Returns whether the store has not confirmed any part yet.
    pub fn is_empty(&self) -> bool {
        self.last.is_none() && self.forgotten.is_none() && !self.has_lost()
    }

    /// Returns the two values that the next call names: the newest outbox position that the store must have, and the
    /// commit up to which the store may forget messages. Normally the second value is `done`, the commit up to which
    /// all messages of the outbox are published. But while lost parts wait to be sent again, the second value is lower
    /// than the first commit of these parts. The store must not forget their messages, because it must recognise these
    /// messages if a call is repeated.
    pub fn next_call(&self, done: u64) -> (Option<OutboxPosition>, u64) {
        let first = self.lost.front().map(|lost| lost.entry.chunk.position().commit);
        let known = first.map_or(done, |first| done.min(first.saturating_sub(1)));
        (self.last, known)
    }

    /// Returns the size, in bytes, of the confirmed parts in memory. The size does not include lost parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of messages in memory, including the messages that the owner must send again.
    pub fn messages(&self) -> usize {
        let lost = self.lost.iter().map(|lost| &lost.entry);
        self.recent.iter().chain(lost).map(|entry| entry.numbers.len()).sum()
    }

    /// Returns the newest outbox position that the store has ever confirmed, even if the store has lost this position
    /// since.
    pub fn last_confirmed(&self) -> Option<OutboxPosition> {
        self.lost.back().map(|lost| lost.entry.chunk.position()).max(self.last)
    }

    /// Returns whether there are lost parts that the owner has not sent again yet.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the parts to send next: the lost parts if there are any, otherwise the new parts. A call never contains
    /// both kinds, because lost parts already have numbers.
    pub fn next_chunks<'a>(&'a self, new: &'a [P]) -> impl Iterator<Item = &'a P> {
        let new = if self.has_lost() { &[] } else { new };
        self.lost.iter().map(|lost| &lost.entry.chunk).chain(new)
    }

    /// Records that the store has `parts`: the first parts of [`PublishHistory::next_chunks`]. `numbers` are the
    /// numbers that the store gave to the messages of the parts. If the store may lose the parts (`may_roll_back`), the
    /// parts stay in memory.
    pub fn record_answer(
        &mut self,
        parts: &[P],
        numbers: &[u64],
        may_roll_back: bool,
        now: u64,
    ) -> PublishProgress {
        let mut progress = PublishProgress::default();
        let Some(last) = parts.last() else { return progress };
        self.last = Some(last.position());
        self.last_at = now;
        if !self.has_lost() {
            progress.new_chunks = parts.len();
        }
        // For each key with messages whose numbers this call changed: the new number of the last of these messages.
        let mut floors: BTreeMap<&P::Key, u64> = BTreeMap::new();
        let mut rest = numbers;
        for part in parts {
            if !may_roll_back {
                self.forgotten = Some(part.position());
                continue;
            }
            let (of_part, others) = rest.split_at(part.keys().count().min(rest.len()));
            rest = others;
            if let Some(LostEntry { entry: before, .. }) = self.lost.pop_front() {
                for ((key, number), before) in part.keys().zip(of_part).zip(&before.numbers) {
                    if number != before {
                        progress.changed += 1;
                        floors.insert(key, *number);
                    }
                }
            }
            self.bytes += part.bytes();
            self.recent.push_back(NumberedEntry { chunk: part.clone(), numbers: of_part.to_vec() });
        }
        // A message must not get a lower number than an earlier message of its key.
        if !floors.is_empty() {
            for LostEntry { entry: NumberedEntry { chunk: part, .. }, requested } in &mut self.lost
            {
                for (key, number) in part.keys().zip(&mut *requested) {
                    if floors.get(key).is_some_and(|floor| *number <= *floor) {
                        *number = 0;
                    }
                }
                part.request_numbers(requested);
            }
        }
        progress
    }

    /// Prepares the owner to send all messages after `last` again. `last` is the newest outbox position that the store
    /// has. Returns how many of these messages were not yet waiting to be sent again. Returns `None` if some messages
    /// after `last` are no longer in memory.
    pub fn roll_back_to(&mut self, last: Option<OutboxPosition>) -> Option<usize> {
        if self.forgotten > last {
            return None;
        }
        let at = self.recent.partition_point(|entry| Some(entry.chunk.position()) <= last);
        let behind = self.recent.split_off(at);
        self.bytes = self.recent.iter().map(|entry| entry.chunk.bytes()).sum();
        let messages = behind.iter().map(|entry| entry.numbers.len()).sum();
        // These parts are older than the parts that already wait to be sent again, so the owner sends them first.
        for mut entry in behind.into_iter().rev() {
            let requested = entry.numbers.clone();
            entry.chunk.request_numbers(&requested);
            self.lost.push_front(LostEntry { entry, requested });
        }
        self.last = last;
        Some(messages)
    }

    /// Records that the store answered a call that began at `started`. `disconnects` is the number of broken
    /// connections to the store that had been counted at that time.
    pub fn record_check(&mut self, disconnects: u64, started: u64) {
        self.checked_disconnects = disconnects;
        self.checked_at = started;
    }

    /// Returns whether the owner must check now that the store still has the confirmed parts in memory. A check is due
    /// after a broken connection, and 5 seconds after the newest check. `disconnects` is the number of broken
    /// connections to the store so far. If the store confirmed the newest part two minutes ago or earlier, this
    /// function first forgets all confirmed parts, and then returns `false`.
    pub fn is_in_doubt(&mut self, disconnects: u64, now: u64) -> bool {
        if now.saturating_sub(self.last_at) >= RETENTION_MS {
            while !self.recent.is_empty() {
                self.forget_oldest();
            }
        }
        let is_due = now.saturating_sub(self.checked_at) >= CHECK_INTERVAL_MS;
        !self.recent.is_empty() && (self.checked_disconnects != disconnects || is_due)
    }

    /// Forgets the oldest part, and returns its size in bytes.
    pub fn forget_oldest(&mut self) -> usize {
        let Some(oldest) = self.recent.pop_front() else {
            return std::mem::take(&mut self.bytes);
        };
        let bytes = oldest.chunk.bytes();
        self.bytes -= bytes;
        self.forgotten = Some(oldest.chunk.position());
        bytes
    }

    /// Forgets the oldest parts of the largest histories until all histories together take at most `limit` bytes.
    pub fn limit_bytes<'a>(histories: impl Iterator<Item = &'a mut Self>, limit: usize)
    where
        P: 'a,
    {
        let mut histories: Vec<&mut Self> = histories.collect();
        let mut bytes: usize = histories.iter().map(|history| history.bytes).sum();
        while bytes > limit
            && let Some(largest) = histories.iter_mut().max_by_key(|history| history.bytes)
        {
            bytes -= largest.forget_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message has 10 bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct TestChunk {
        place: OutboxPosition,
        key: char,
        requested: u64,
    }

    impl NumberedChunk for TestChunk {
        type Key = char;

        fn position(&self) -> OutboxPosition {
            self.place
        }

        fn keys(&self) -> impl Iterator<Item = &char> {
            std::iter::once(&self.key)
        }

        fn bytes(&self) -> usize {
            10
        }

        fn request_numbers(&mut self, numbers: &[u64]) {
            self.requested = numbers[0];
        }
    }

    fn place(commit: u64) -> OutboxPosition {
        OutboxPosition { commit, chunk: 0 }
    }

    fn part(commit: u64, key: char) -> TestChunk {
        TestChunk { place: place(commit), key, requested: 0 }
    }

    /// Returns a history of the parts 1, 2, …, one for each key of `keys`. The messages of the parts have the numbers
    /// 11, 12, ….
    fn history(keys: &str) -> PublishHistory<TestChunk> {
        let mut history = PublishHistory::default();
        let parts: Vec<TestChunk> =
            (1..).zip(keys.chars()).map(|(at, key)| part(at, key)).collect();
        let numbers: Vec<u64> = (11..).take(parts.len()).collect();
        let progress = history.record_answer(&parts, &numbers, true, 0);
        assert_eq!(progress, PublishProgress { new_chunks: parts.len(), changed: 0 });
        history
    }

    fn requested(history: &PublishHistory<TestChunk>) -> Vec<(u64, u64)> {
        history.next_chunks(&[]).map(|part| (part.place.commit, part.requested)).collect()
    }

    #[test]
    fn lost_chunks_are_sent_first_with_their_numbers() {
        let mut history = history("aaa");
        assert_eq!(history.roll_back_to(Some(place(1))), Some(2));
        let new = [part(4, 'a')];
        assert_eq!(history.next_chunks(&new).count(), 2);
        assert_eq!(requested(&history), [(2, 12), (3, 13)]);
        assert_eq!(history.next_call(9), (Some(place(1)), 1), "the calls may be repeated");

        // The owner sends one of the parts once more, and the store loses that part for the second time.
        let first: Vec<TestChunk> = history.next_chunks(&new).take(1).cloned().collect();
        assert_eq!(history.record_answer(&first, &[12], true, 0), PublishProgress::default());
        assert_eq!(history.roll_back_to(None), Some(2));
        assert_eq!(requested(&history), [(1, 11), (2, 12), (3, 13)]);
        let all: Vec<TestChunk> = history.next_chunks(&new).cloned().collect();
        history.record_answer(&all, &[11, 12, 13], true, 0);
        assert_eq!(history.next_chunks(&new).collect::<Vec<_>>(), [&new[0]]);
        assert_eq!(history.next_call(9), (Some(place(3)), 9));
    }

    #[test]
    fn message_after_a_changed_number_requests_a_new_number() {
        let mut history = history("abab");
        assert_eq!(history.roll_back_to(None), Some(4));
        let first: Vec<TestChunk> = history.next_chunks(&[]).take(1).cloned().collect();
        // Another message has number 11 now.
        assert_eq!(history.record_answer(&first, &[13], true, 0).changed, 1);
        assert_eq!(requested(&history), [(2, 12), (3, 0), (4, 14)]);
        let rest: Vec<TestChunk> = history.next_chunks(&[]).cloned().collect();
        assert_eq!(history.record_answer(&rest, &[12, 15, 14], true, 0).changed, 1);
    }

    #[test]
    fn changed_number_affects_later_calls() {
        let mut history = history("abba");
        assert_eq!(history.roll_back_to(None), Some(4));
        let mut answer_next = |number: u64| {
            let next: Vec<TestChunk> = history.next_chunks(&[]).take(1).cloned().collect();
            history.record_answer(&next, &[number], true, 0);
            requested(&history)
        };
        // Other messages have numbers 11 and 12 now.
        assert_eq!(answer_next(21), [(2, 12), (3, 13), (4, 0)]);
        assert_eq!(answer_next(22), [(3, 0), (4, 0)]);
    }

    #[test]
    fn forgotten_chunks_cannot_be_sent_again() {
        let mut small = history("a");
        let mut large = history("aaa");
        PublishHistory::limit_bytes([&mut small, &mut large].into_iter(), 25);
        assert_eq!((small.bytes(), large.bytes()), (10, 10));
        assert_eq!((small.messages(), large.messages()), (1, 1));
        assert_eq!(large.roll_back_to(Some(place(1))), None);
        assert_eq!(large.roll_back_to(Some(place(2))), Some(1));
        let mut durable = PublishHistory::default();
        durable.record_answer(&[part(1, 'a')], &[11], false, 0);
        assert_eq!((durable.bytes(), durable.roll_back_to(None)), (0, None));
    }

    #[test]
    fn disconnects_and_time_cause_doubt() {
        let mut history = history("a");
        history.record_check(3, 1_000);
        assert!(!history.is_in_doubt(3, 1_000 + CHECK_INTERVAL_MS - 1));
        assert!(history.is_in_doubt(4, 1_001));
        assert!(history.is_in_doubt(3, 1_000 + CHECK_INTERVAL_MS));
        assert!(!history.is_in_doubt(4, RETENTION_MS), "its parts are forgotten");
        assert_eq!(history.bytes(), 0);
    }
}
