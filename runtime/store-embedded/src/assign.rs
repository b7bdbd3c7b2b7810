//! Numbers messages, retains the messages for replay, and puts the messages into the queues of their streams.
//!
//! The records that one call writes and that expire at the same time share one entry of the time index. The entry lists
//! the table keys of the records. Each table key is preceded by its length.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fjall::{OwnedWriteBatch, Slice};
use ordain_core::{Event, EventDigests, KeyStatus, QueuePosition, QueueRun};

use super::keys;
use super::queue::QueueEndsRecord;
use super::record::EmbeddedRecord;
use super::tables::Tables;
use ordain_store::codec::{
    AssignedChunk, KeyCounter, OriginRecord, decode_assigned, encode_assigned, encode_retained,
};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest,
    Destination, NumberingSettings, OriginOutbox, OutboxChunk, OutboxPosition, Partition,
    StoreError,
};

/// The minimum number of blocks that an origin must have before a call removes any of them. An origin is the outbox
/// from which messages come, and a block contains the new messages of one call. A call removes the oldest blocks whose
/// messages are all published, up to `TRIM_BLOCKS_LIMIT` blocks.
const TRIM_BLOCKS_THRESHOLD: u64 = 8;
const TRIM_BLOCKS_LIMIT: u64 = 16;

/// The changes of one call, which `run` collects before the writer thread writes them.
pub(super) struct AssignChanges<'a> {
    tables: &'a Tables,
    assign: &'a AssignRequest,
    now: u64,
    /// The time from which the life of new data counts ([`MonotonicClock::life_start`]).
    ///
    /// [`MonotonicClock::life_start`]: ordain_store::clock::MonotonicClock::life_start
    life_start: u64,
    pub(super) batch: OwnedWriteBatch,
    counters: HashMap<&'a str, KeyCounter>,
    queues: BTreeMap<u32, QueueAppend>,
    /// If the store goes back in time and another call then writes entries with the same numbers, this random number
    /// distinguishes the entries of the two calls.
    nonce: u64,
    /// The ids, retained messages and blocks to write into the table `log`, by table key; `None` removes the entry.
    log: HashMap<Vec<u8>, Option<Vec<u8>>>,
    /// The table keys of the records that this call writes, grouped by expiry time. Each table key is preceded by its
    /// length.
    expiries: BTreeMap<u64, Vec<u8>>,
    /// The earliest expiry time of the records that this call writes; `u64::MAX` if no record expires.
    pub(super) earliest: u64,
}

struct QueueAppend {
    queue: QueueEndsRecord,
    before: u64,
    history: u64,
}

pub(super) enum AssignFailure {
    Engine(fjall::Error),
    Store(StoreError),
}

impl From<fjall::Error> for AssignFailure {
    fn from(error: fjall::Error) -> Self {
        Self::Engine(error)
    }
}

impl<'a> AssignChanges<'a> {
    pub(super) fn new(
        tables: &'a Tables,
        assign: &'a AssignRequest,
        now: u64,
        life_start: u64,
    ) -> Self {
        let items = assign.items().count();
        Self {
            tables,
            assign,
            now,
            life_start,
            batch: OwnedWriteBatch::with_capacity(tables.db.clone(), 3 * items + 8),
            counters: HashMap::new(),
            queues: BTreeMap::new(),
            nonce: rand::random(),
            log: HashMap::new(),
            expiries: BTreeMap::new(),
            earliest: u64::MAX,
        }
    }

    /// Processes all messages, adds the changes to `batch`, and returns the reply. Changes nothing if a queue is full.
    pub(super) fn run(&mut self) -> Result<AssignReply, AssignFailure> {
        if self.is_full()? {
            return Ok(AssignReply::Full);
        }
        let mut origins = HashSet::new();
        let mut replies = Vec::with_capacity(self.assign.groups.len());
        for group in &self.assign.groups {
            replies.push(match &group.origin {
                None => AssignGroupReply::Done(self.assign_producer_group(group)?),
                Some(origin) => {
                    let table_key =
                        keys::origin(&self.assign.destination, self.assign.shard, origin);
                    if origins.insert(table_key.clone()) {
                        self.assign_owner_group(group, origin, &table_key)?
                    } else {
                        // An earlier group of the request has the same origin. The caller must send this later group in
                        // another call.
                        AssignGroupReply::Fenced
                    }
                }
            });
        }
        let runs = self.finish();
        Ok(AssignReply::Groups(replies, runs))
    }

    fn assign_producer_group(
        &mut self,
        group: &'a AssignGroup,
    ) -> Result<Vec<AssignItemReply>, AssignFailure> {
        let mut answers = Vec::new();
        let mut stops = false;
        for item in group.items() {
            let assigned =
                if stops { AssignItemReply::AfterConflict } else { self.put_by_id(item)? };
            stops |= assigned.is_refused();
            answers.push(assigned);
        }
        Ok(answers)
    }

    /// Processes the messages of an owner. The number of the commit and the id together identify a message.
    fn assign_owner_group(
        &mut self,
        group: &'a AssignGroup,
        origin: &OriginOutbox,
        table_key: &[u8],
    ) -> Result<AssignGroupReply, AssignFailure> {
        let mut record = match self.tables.log.get(table_key)? {
            Some(bytes) => OriginRecord::decode(&bytes)
                .map_err(|error| AssignFailure::Store(corrupt(error)))?,
            None => OriginRecord::default(),
        };
        if origin.epoch < record.epoch {
            return Ok(AssignGroupReply::Fenced);
        }
        let last_assigned = (record.epoch, record.last);
        if origin.last_confirmed.is_some_and(|before| last_assigned < (origin.epoch, before)) {
            let last = (record.epoch == origin.epoch).then_some(record.last);
            return Ok(AssignGroupReply::RolledBack(last));
        }
        if origin.epoch > record.epoch && record.highest.commit > origin.claimed_commit {
            self.drop_lost_commits(table_key, &mut record, origin.claimed_commit)?;
        }
        let highest = record.highest;
        let is_behind_all = group.chunks.iter().all(|chunk| chunk.position > highest);
        let known_numbers = if is_behind_all {
            HashMap::new()
        } else {
            self.known_numbers(table_key, &record, group)?
        };
        let known_number = |chunk: &OutboxChunk, item: &AssignItem| {
            known_numbers.get(&(chunk.position.commit, item.event.id_digest())).copied()
        };
        // A late chunk is a chunk at or before the last assigned outbox position. The chunk may come from an old
        // request, whose caller no longer waits for a reply. If a late chunk has a message that is not in the blocks of
        // the origin, refuse the group.
        let is_late =
            |chunk: &&OutboxChunk| origin.epoch == record.epoch && chunk.position <= record.last;
        let mut late = group.chunks.iter().filter(is_late);
        if late.any(|chunk| chunk.items.iter().any(|item| known_number(chunk, item).is_none())) {
            return Ok(AssignGroupReply::Fenced);
        }
        let mut answers = Vec::new();
        let mut new = Vec::new();
        // The number of the last processed message of each key. Each later message of the key must get a higher number.
        let mut floors: HashMap<&str, u64> = HashMap::new();
        for chunk in &group.chunks {
            let mut messages = Vec::new();
            for item in &chunk.items {
                let sequence = if let Some(sequence) = known_number(chunk, item) {
                    answers.push(AssignItemReply::Known(sequence));
                    sequence
                } else {
                    let floor = floors.get(item.event.key()).copied().unwrap_or_default();
                    let own = self.lost_number(item)?.filter(|number| *number > floor);
                    let sequence = self.put_message(item, own, false)?.unwrap_or_default();
                    answers.push(AssignItemReply::New(sequence));
                    messages.push((item.event.id_digest(), sequence));
                    sequence
                };
                floors.insert(item.event.key(), sequence);
            }
            if !messages.is_empty() {
                new.push(AssignedChunk { position: chunk.position, messages });
            }
            record.record_assigned(origin.epoch, chunk.position);
        }
        self.trim_blocks(table_key, &mut record, origin.published_commit)?;
        record.is_unordered &= record.first < record.next;
        if let Some(first) = new.first() {
            record.is_unordered |=
                record.first < record.next && first.position.commit < highest.commit;
            // If `log` already contains the removal of a lost block with the same number, this insertion replaces the
            // removal.
            self.log
                .insert(keys::assigned_block(table_key, record.next), Some(encode_assigned(&new)));
            record.next += 1;
        }
        self.batch.insert(&self.tables.log, table_key, record.encode());
        Ok(AssignGroupReply::Done(answers))
    }

    /// Returns the numbers that the store has already given to messages of the group's commits, by commit and id
    /// digest.
    fn known_numbers(
        &self,
        table_key: &[u8],
        record: &OriginRecord,
        group: &AssignGroup,
    ) -> Result<HashMap<(u64, u64), u64>, AssignFailure> {
        let commits = group.chunks.iter().map(|chunk| chunk.position.commit);
        let from = commits.clone().min().unwrap_or(0);
        let to = commits.max().unwrap_or(0);
        let mut low = record.first;
        let mut high = record.next;
        while low < high && !record.is_unordered {
            let middle = low.midpoint(high);
            let block = self.block(table_key, middle)?;
            if block.last().is_some_and(|chunk| chunk.position.commit < from) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut known_numbers = HashMap::new();
        for number in low..record.next {
            let block = self.block(table_key, number)?;
            if !record.is_unordered && block.first().is_some_and(|chunk| chunk.position.commit > to)
            {
                break;
            }
            for AssignedChunk { position, messages } in block {
                known_numbers.extend(
                    messages.into_iter().map(|(id, sequence)| ((position.commit, id), sequence)),
                );
            }
        }
        Ok(known_numbers)
    }

    fn block(&self, table_key: &[u8], number: u64) -> Result<Vec<AssignedChunk>, AssignFailure> {
        let field = keys::assigned_block(table_key, number);
        if let Some(Some(bytes)) = self.log.get(&field) {
            return decode_assigned(bytes).map_err(|error| AssignFailure::Store(corrupt(error)));
        }
        let Some(bytes) = self.tables.log.get(field)? else {
            let words = format!("block {number} of an origin is missing");
            return Err(AssignFailure::Store(corrupt(words)));
        };
        decode_assigned(&bytes).map_err(|error| AssignFailure::Store(corrupt(error)))
    }

    /// Removes the messages of all commits after `claimed_commit`, because the outbox has lost these commits. If
    /// commits ascend from block to block, only the blocks at the end contain such messages; otherwise any block may
    /// contain them.
    fn drop_lost_commits(
        &mut self,
        table_key: &[u8],
        record: &mut OriginRecord,
        claimed_commit: u64,
    ) -> Result<(), AssignFailure> {
        for number in (record.first..record.next).rev() {
            let mut block = self.block(table_key, number)?;
            let chunk_count = block.len();
            block.retain(|chunk| chunk.position.commit <= claimed_commit);
            if block.is_empty() && number + 1 == record.next {
                self.log.insert(keys::assigned_block(table_key, number), None);
                record.next = number;
            } else if block.len() < chunk_count {
                self.log
                    .insert(keys::assigned_block(table_key, number), Some(encode_assigned(&block)));
            } else if !record.is_unordered {
                break;
            }
        }
        record.highest = OutboxPosition { commit: claimed_commit, chunk: u32::MAX };
        Ok(())
    }

    /// Removes the oldest blocks of an origin, up to `TRIM_BLOCKS_LIMIT` blocks, if the origin has at least
    /// `TRIM_BLOCKS_THRESHOLD` blocks. Stops at the first block with a commit after `published_commit`.
    fn trim_blocks(
        &mut self,
        table_key: &[u8],
        record: &mut OriginRecord,
        published_commit: u64,
    ) -> Result<(), AssignFailure> {
        if record.next - record.first < TRIM_BLOCKS_THRESHOLD {
            return Ok(());
        }
        for number in record.first..record.next.min(record.first + TRIM_BLOCKS_LIMIT) {
            if self
                .block(table_key, number)?
                .iter()
                .any(|chunk| chunk.position.commit > published_commit)
            {
                break;
            }
            self.log.insert(keys::assigned_block(table_key, number), None);
            record.first = number + 1;
        }
        Ok(())
    }

    fn is_full(&mut self) -> Result<bool, AssignFailure> {
        let (Some(limit), Destination::Stream(stream)) =
            (self.assign.rules.queue_limit, &self.assign.destination)
        else {
            return Ok(false);
        };
        for item in self.assign.items() {
            if self.queues.contains_key(&item.partition) {
                continue;
            }
            let partition = Partition { stream: Arc::clone(stream), number: item.partition };
            let found = self.tables.log.get(keys::queue(&partition, self.assign.shard))?;
            let queue = QueueEndsRecord::decode(found.as_deref()).map_err(AssignFailure::Store)?;
            let before = queue.ends.last.number;
            let history = queue.next_history(self.nonce);
            self.queues.insert(item.partition, QueueAppend { queue, before, history });
        }
        Ok(self.queues.values().any(|filling| filling.queue.ends.len() >= limit))
    }

    /// Processes a message of a producer. A message with a number of its producer is identified by this number, and any
    /// other message by its id. If the destination numbers no messages, every message is new. Refuses a lost message
    /// that would not get its earlier number.
    fn put_by_id(&mut self, item: &'a AssignItem) -> Result<AssignItemReply, AssignFailure> {
        let to = &self.assign.destination;
        let event = &item.event;
        let Some(numbers) = self.assign.rules.numbering else {
            return Ok(AssignItemReply::New(
                self.put_message(item, None, true)?.unwrap_or_default(),
            ));
        };
        let [table_key, earlier_key] = match event.sequence() {
            Some(sequence) => {
                let table_key = keys::retained(to, event.key(), sequence);
                [table_key.clone(), table_key]
            }
            None => event.identity_digests().map(|id| keys::id(to, event.key(), id)),
        };
        let mut found = self.published(event.sequence(), &table_key)?;
        if found.is_none() && earlier_key != table_key {
            found = self.published(event.sequence(), &earlier_key)?;
        }
        if let Some((sequence, content)) = found {
            let is_same = event.content_digests().any(|digest| digest == content);
            let known = if is_same { AssignItemReply::Known } else { AssignItemReply::Conflict };
            return Ok(known(sequence));
        }
        if event.sequence().is_none()
            && let Some(refusal) = self.numbered_elsewhere(event, &numbers)?
        {
            if matches!(refusal, AssignItemReply::KeyEnded | AssignItemReply::Settled(_)) {
                self.end_counter(event.key(), &numbers)?;
            }
            return Ok(refusal);
        }
        if event.sequence().is_none() && item.number > 0 {
            let next = self.counter(event.key(), &numbers)?.next;
            if next != item.number {
                return Ok(AssignItemReply::OtherNumber(next));
            }
        }
        let sequence = self.put_message(item, event.sequence(), true)?.unwrap_or_default();
        if event.sequence().is_none() {
            let until = self.life_start.saturating_add(numbers.retain);
            let content = event.content().to_be_bytes();
            let value = [sequence.to_le_bytes(), content, until.to_le_bytes()].concat();
            self.schedule_expiry(until, &table_key);
            self.log.insert(table_key, Some(value));
        }
        Ok(AssignItemReply::New(sequence))
    }

    /// Returns the number and the content digest of the earlier message whose record is under `table_key`; `None` if
    /// the store has no such record, or if the record has expired. `own` is the number that the producer gave the new
    /// message, if any.
    fn published(
        &self,
        own: Option<u64>,
        table_key: &[u8],
    ) -> Result<Option<(u64, u64)>, AssignFailure> {
        if let Some(found) = self.log.get(table_key) {
            return Ok(found.as_deref().and_then(|stored| self.decode_published(own, stored)));
        }
        let stored = self.tables.log.get(table_key)?;
        Ok(stored.and_then(|stored| self.decode_published(own, &stored)))
    }

    /// Checks whether a reader of the destination (a stream) has events of the key with higher numbers than the store
    /// has given. Returns `None` if no reader has such events. Otherwise returns the refusal. The refusal is
    /// [`AssignItemReply::KeyEnded`] if the key has ended in the reader with the highest of these numbers. Otherwise,
    /// it is [`AssignItemReply::NumberedElsewhere`] with the sequence after the highest of these numbers. If the call
    /// publishes lost events again, returns [`Self::lost_reply`] instead of the refusal. In this case, also ignores
    /// early dead letters, because the store cannot compare an event with such a letter.
    fn numbered_elsewhere(
        &self,
        event: &Event,
        numbers: &NumberingSettings,
    ) -> Result<Option<AssignItemReply>, AssignFailure> {
        let mut highest = 0;
        let mut has_ended = false;
        self.each_reader(event.key(), |_, found| {
            let record = &found.key_record;
            let sequence = if self.assign.reuses_lost_numbers {
                record.unused_sequence()
            } else {
                record.sequence_after_letters()
            };
            let is_completed = record.status == KeyStatus::Completed;
            has_ended = is_completed && sequence >= highest || has_ended && sequence <= highest;
            highest = highest.max(sequence);
            Ok(())
        })?;
        let next = self.counter(event.key(), numbers)?.next;
        if highest <= next {
            return Ok(None);
        }
        if self.assign.reuses_lost_numbers {
            return self.lost_reply(event, next, has_ended);
        }
        Ok(Some(if has_ended {
            AssignItemReply::KeyEnded
        } else {
            AssignItemReply::NumberedElsewhere(highest)
        }))
    }

    /// Returns the reply to an event that a producer publishes again because the store lost its number. `next` is the
    /// next number of the event's key. If every reader that has this number has the same event under it, returns
    /// `None`, and the store gives the event this number. If the key has ended, the store gives no number, so that the
    /// key does not start again. In this case, the event counts as settled if the readers have it under any sequence.
    fn lost_reply(
        &self,
        event: &Event,
        next: u64,
        has_ended: bool,
    ) -> Result<Option<AssignItemReply>, AssignFailure> {
        if !has_ended {
            let is_repeat = self.readers_have(event, next)?;
            return Ok((!is_repeat).then_some(AssignItemReply::UnprovenRepeat(next)));
        }
        let digests: Vec<u64> = event.repeat_digests().collect();
        let mut sequences = vec![next];
        self.each_reader(event.key(), |_, found| {
            let record = &found.key_record;
            if record.status == KeyStatus::Completed {
                let same = |(_, stored): &(u64, u32)| {
                    EventDigests::matches(*stored, digests.iter().copied())
                };
                sequences
                    .extend(record.settled_digests().filter(same).map(|(sequence, _)| sequence));
            }
            Ok(())
        })?;
        for sequence in sequences {
            if self.readers_have(event, sequence)? {
                return Ok(Some(AssignItemReply::Settled(sequence)));
            }
        }
        Ok(Some(AssignItemReply::KeyEnded))
    }

    /// Returns whether each reader that has this sequence of the event's key has the same event as `event` under this
    /// sequence. A reader has a sequence if it has settled or spilled this sequence or a later one. Returns `false` if
    /// no reader has the sequence.
    fn readers_have(&self, event: &Event, sequence: u64) -> Result<bool, AssignFailure> {
        let mut is_found = false;
        let mut is_same = true;
        self.each_reader(event.key(), |stream, found| {
            let record = &found.key_record;
            if record.unused_sequence() <= sequence {
                return Ok(());
            }
            is_found = true;
            is_same &= if sequence < record.next {
                let settled = record.settled_digests().find(|(at, _)| *at == sequence);
                settled.is_some_and(|(_, digest)| {
                    EventDigests::matches(digest, event.repeat_digests())
                })
            } else {
                let spilled = self.tables.spill.get(keys::event(stream, event.key(), sequence))?;
                let spilled = spilled.and_then(|bytes| Event::decode(bytes.into()).ok());
                spilled.is_some_and(|spilled| event.repeats(&spilled))
            };
            Ok(())
        })?;
        Ok(is_found && is_same)
    }

    /// Sets the expiry time of the counter of an ended key to the expiry time of the key record that shows the end.
    /// Usually the last event of the key sets the expiry time of the counter. But the store has lost this event, so the
    /// counter would otherwise stay for ever.
    fn end_counter(
        &mut self,
        key: &'a str,
        numbers: &NumberingSettings,
    ) -> Result<(), AssignFailure> {
        let mut expire_at = 0;
        self.each_reader(key, |_, found| {
            if found.key_record.status == KeyStatus::Completed {
                expire_at = expire_at.max(found.envelope.expire_at);
            }
            Ok(())
        })?;
        let mut counter = self.counter(key, numbers)?;
        if expire_at > 0 && counter.end == 0 && counter.next > numbers.first {
            counter.end = expire_at.min(self.life_start.saturating_add(numbers.complete_ttl));
            self.schedule_expiry(counter.end, &keys::key_counter(&self.assign.destination, key));
            self.counters.insert(key, counter);
        }
        Ok(())
    }

    /// Calls `visit` for each reader of the destination that has an unexpired record of the key, with the name of the
    /// reader and the record.
    fn each_reader(
        &self,
        key: &str,
        mut visit: impl FnMut(&str, &EmbeddedRecord<'_>) -> Result<(), AssignFailure>,
    ) -> Result<(), AssignFailure> {
        for stream in &self.assign.readers {
            let stored = self.tables.jobs.get(keys::key_record(stream, key))?;
            let record = stored.as_deref().and_then(|bytes| EmbeddedRecord::parse(bytes).ok());
            if let Some(record) = record.filter(|record| !record.envelope.is_expired(self.now)) {
                visit(stream, &record)?;
            }
        }
        Ok(())
    }

    /// Decodes the stored record of the message that already has the number or the id of a new message. If the producer
    /// gave the new message a number (`own`), the record is the stored message with this number. Otherwise, the record
    /// belongs to the id. Returns the number and the content digest of the stored message; `None` if the record has
    /// expired.
    fn decode_published(&self, own: Option<u64>, found: &[u8]) -> Option<(u64, u64)> {
        let (parts, _) = found.as_chunks::<8>();
        let (until, sequence, content) = match own {
            Some(sequence) => (parts.first()?, sequence, parts.get(1)?),
            None => (parts.get(2)?, u64::from_le_bytes(*parts.first()?), parts.get(1)?),
        };
        let is_there = u64::from_le_bytes(*until) > self.now;
        is_there.then(|| (sequence, u64::from_be_bytes(*content)))
    }

    /// Returns the number that the message had before the store lost the message. Returns `None` if the message had no
    /// number, or if another message has the number now.
    fn lost_number(&self, item: &AssignItem) -> Result<Option<u64>, AssignFailure> {
        if item.number == 0 {
            return Ok(None);
        }
        let table_key = keys::retained(&self.assign.destination, item.event.key(), item.number);
        let stored = match self.log.get(&table_key) {
            Some(found) => found.as_deref().map(<[u8]>::to_vec),
            None => self.tables.log.get(&table_key)?.map(|stored| stored.to_vec()),
        };
        let is_taken = stored
            .is_some_and(|stored| self.decode_published(Some(item.number), &stored).is_some());
        Ok((!is_taken).then_some(item.number))
    }

    /// Numbers and retains a message if the messages of the destination have numbers. Adds the message to its queue if
    /// the destination is a stream. `own` is the number that the message must get; `None` for the next number of its
    /// key. Returns the number of the message; `None` if the message has no number.
    fn put_message(
        &mut self,
        item: &'a AssignItem,
        own: Option<u64>,
        is_from_producer: bool,
    ) -> Result<Option<u64>, AssignFailure> {
        let sequence = match self.assign.rules.numbering {
            Some(numbers) => Some(self.assign_number(item, own, &numbers)?),
            None => item.event.sequence(),
        };
        let to = &self.assign.destination;
        let event = &item.event;
        let value = encode_retained(event, sequence, is_from_producer);
        if let Some(QueueAppend { queue, history, .. }) = self.queues.get_mut(&item.partition)
            && let Destination::Stream(stream) = to
        {
            let number = queue.ends.last.number + 1;
            queue.ends.last = QueuePosition { number, history: *history };
            let partition = Partition { stream: Arc::clone(stream), number: item.partition };
            let table_key = keys::queued(&partition, self.assign.shard, number);
            let entry = [&history.to_le_bytes()[..], &value[8..]].concat();
            self.batch.insert(&self.tables.queue, table_key, entry);
        }
        if let (Some(numbers), Some(sequence)) = (self.assign.rules.numbering, sequence) {
            let table_key = keys::retained(to, event.key(), sequence);
            let until = self.life_start.saturating_add(numbers.retain);
            self.schedule_expiry(until, &table_key);
            let value = [&until.to_le_bytes()[..], &value].concat();
            self.log.insert(table_key, Some(value));
            if let Some(old) = sequence.checked_sub(numbers.retain_events) {
                self.log.insert(keys::retained(to, event.key(), old), None);
            }
        }
        Ok(sequence)
    }

    /// Returns the number for a message: `own` if the message has its own number, otherwise the next number of its key.
    fn assign_number(
        &mut self,
        item: &'a AssignItem,
        own: Option<u64>,
        numbers: &NumberingSettings,
    ) -> Result<u64, AssignFailure> {
        let key = item.event.key();
        let mut counter = self.counter(key, numbers)?;
        let sequence = own.unwrap_or(counter.next);
        counter.next = counter.next.max(sequence.saturating_add(1));
        if item.event.end() {
            counter.end = self.life_start.saturating_add(numbers.complete_ttl);
            let table_key = keys::key_counter(&self.assign.destination, key);
            self.schedule_expiry(counter.end, &table_key);
        }
        self.counters.insert(key, counter);
        Ok(sequence)
    }

    /// Returns a new counter if the store has none, or if the stored counter has expired.
    fn counter(&self, key: &str, numbers: &NumberingSettings) -> Result<KeyCounter, AssignFailure> {
        let counter = match self.counters.get(key) {
            Some(counter) => Some(*counter),
            None => match self.tables.log.get(keys::key_counter(&self.assign.destination, key))? {
                Some(bytes) => Some(
                    KeyCounter::decode(&bytes)
                        .map_err(|error| AssignFailure::Store(corrupt(error)))?,
                ),
                None => None,
            },
        };
        let valid = counter.filter(|counter| counter.end == 0 || counter.end > self.now);
        Ok(valid.unwrap_or(KeyCounter { next: numbers.first, end: 0 }))
    }

    fn schedule_expiry(&mut self, until: u64, table_key: &[u8]) {
        let block = self.expiries.entry(until).or_default();
        block.extend_from_slice(&(table_key.len() as u32).to_le_bytes());
        block.extend_from_slice(table_key);
    }

    /// Adds the remaining changes to `batch`, and returns the range of new entries of each queue.
    fn finish(&mut self) -> Vec<(u32, QueueRun)> {
        for (table_key, value) in self.log.drain() {
            match value {
                Some(value) => self.batch.insert(&self.tables.log, table_key, value),
                None => self.batch.remove(&self.tables.log, table_key),
            }
        }
        for (key, counter) in &self.counters {
            let table_key = keys::key_counter(&self.assign.destination, key);
            self.batch.insert(&self.tables.log, table_key, counter.encode());
        }
        let mut runs = Vec::new();
        let call = self.assign.call.map_or(0, |call| call.call);
        if let Destination::Stream(stream) = &self.assign.destination {
            for (number, QueueAppend { queue, before, history }) in &self.queues {
                let last = queue.ends.last.number;
                if last > *before {
                    let run = QueueRun { first: before + 1, last, history: *history, call };
                    runs.push((*number, run));
                }
                let partition = Partition { stream: Arc::clone(stream), number: *number };
                let table_key = keys::queue(&partition, self.assign.shard);
                self.batch.insert(&self.tables.log, table_key, queue.encode());
            }
        }
        for (until, block) in std::mem::take(&mut self.expiries) {
            self.earliest = self.earliest.min(until);
            self.batch.insert(&self.tables.times, keys::retained_age(until, rand::random()), block);
        }
        runs
    }
}

fn corrupt(words: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(words.to_string())
}

/// Removes the expired records that an entry of the time index lists. Returns the number of these records.
pub(super) fn remove_expired(
    tables: &Tables,
    batch: &mut OwnedWriteBatch,
    entry: Slice,
    now: u64,
) -> fjall::Result<usize> {
    let Some(block) = tables.times.get(&entry)? else { return Ok(0) };
    let mut rest = &block[..];
    let mut count = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((table_key, after)) = after.split_at_checked(length) else { break };
        // If a later call has rewritten the record, the record has a later expiry time, and stays.
        let until =
            tables.log.get(table_key)?.and_then(|value| keys::expiry_time(table_key, &value));
        if until.is_none_or(|until| until <= now) {
            batch.remove(&tables.log, table_key);
        }
        rest = after;
        count += 1;
    }
    batch.remove(&tables.times, entry);
    Ok(count)
}
