//! Numbers of messages, retained messages, and queues. All data of a destination (an exchange, a stream or a file that
//! receives messages) in a shard is in one hash. `scripts/assign.lua` describes the fields of the hash. This module
//! only builds the calls of scripts and parses their replies.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::{EVENT_SEQUENCE_OFFSET, Key, QueuePosition, QueueRun, WriterCalls, shard_of};
use redis::{Cmd, Value, cmd};

use super::RedisStore;
use super::claim::register_partition;
use super::commit::{claim_bytes, record_field, send_durably};
use super::names::{RedisKeyKind, escape_pattern};
use super::record::RedisRecord;
use super::script::LuaScript;
use super::value::{array, bytes, number, parts, unexpected_reply};
use ordain_store::codec::{decode_queued, decode_retained, encode_retained};
use ordain_store::{
    AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest, Claim,
    DequeueResult, Destination, FoundEvents, KEY_SIZE_LIMIT, MessageLog, OriginOutbox,
    OutboxPosition, Partition, QueueEnds, QueuePage, StoreError, Witness, WriterCall, ok_or_log,
};

/// The maximum number of sequences that one call of the script `retained` requests.
const SEQUENCES_LIMIT: usize = 1_000;
/// If a caller requests the messages of more sequences than this number, the store may first find the sequences that
/// have retained messages ([`is_scan_shorter`]). The number of requested sequences has no limit, because a gap may be
/// wide. The number of retained messages is limited.
const WANTED_SEQUENCES_LIMIT: u64 = 100 * SEQUENCES_LIMIT as u64;
/// The approximate number of fields that a scan of the log examines in the time that the search for one sequence takes.
const SCANNED_FIELDS: u64 = 5;

#[async_trait]
impl MessageLog for RedisStore {
    async fn assign(&self, assign: Arc<AssignRequest>) -> Result<AssignReply, StoreError> {
        if let Destination::Stream(stream) = &assign.destination {
            let numbers: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
            for number in numbers {
                // A claim registers a partition, but perhaps no owner has claimed this partition yet. Register it here
                // too.
                register_partition(self, &Partition { stream: Arc::clone(stream), number }).await?;
            }
        }
        let script = &self.scripts.assign;
        let mut names = vec![self.log_key(assign.shard, &assign.destination)];
        for stream in &assign.readers {
            names.extend(self.stream_keys(assign.shard, stream, [RedisKeyKind::Data]));
        }
        let mut call = self.script_call(script, &names);
        put_request(&mut call, &assign);
        let answer = self.run_durably(script, call, assign.shard).await?;
        let answer = bytes(answer).ok_or_else(|| unexpected_reply(script.name))?;
        if answer == "W" {
            return Err(self.rolled_back());
        }
        let reply = parse_reply(&answer, &assign).ok_or_else(|| unexpected_reply(script.name))?;
        if let AssignReply::Groups(replies, _) = &reply
            && replies.iter().any(|reply| matches!(reply, AssignGroupReply::RolledBack(_)))
        {
            self.record_rollback();
        }
        Ok(reply)
    }

    async fn retained_messages(
        &self,
        to: &Destination,
        key: &Key,
        wanted: &[RangeInclusive<u64>],
        mut room: usize,
    ) -> Result<FoundEvents, StoreError> {
        let script = &self.scripts.retained;
        let names = [self.log_key(shard_of(key, self.shards), to)];
        let mut found = FoundEvents { events: Vec::new(), until: u64::MAX };
        let existing;
        let width = width(wanted);
        let wanted = if width > WANTED_SEQUENCES_LIMIT
            && is_scan_shorter(width, fields_of(self, &names[0]).await?)
        {
            existing = retained_sequences(self, &names, key, wanted).await?;
            &existing[..]
        } else {
            wanted
        };
        let mut wanted = wanted.iter().cloned().flatten().peekable();
        while let Some(first) = wanted.peek().copied() {
            if room == 0 {
                found.until = first;
                break;
            }
            let sequences: Vec<u64> = wanted.by_ref().take(SEQUENCES_LIMIT).collect();
            let mut call = self.script_call(script, &names);
            call.arg(&**key).arg(room);
            for sequence in &sequences {
                call.arg(&sequence.to_be_bytes()[..]);
            }
            let [values, read] = parts(self.run_script(script, call).await?, script.name)?;
            for value in array(values, script.name)? {
                let value = bytes(value).ok_or_else(|| unexpected_reply(script.name))?;
                room = room.saturating_sub(value.len());
                let event = ok_or_log(key, decode_retained(&value));
                found.events.extend(event.and_then(|event| Some((event.sequence()?, event))));
            }
            let read = number(&read).ok_or_else(|| unexpected_reply(script.name))?;
            if let Some(sequence) = sequences.get(read as usize) {
                found.until = *sequence;
                break;
            }
        }
        Ok(found)
    }

    async fn read_queue(
        &self,
        partition: &Partition,
        shard: u32,
        after: QueuePosition,
        limit: usize,
        room: usize,
    ) -> Result<QueuePage, StoreError> {
        let script = &self.scripts.read_queue;
        let to = Destination::Stream(Arc::clone(&partition.stream));
        let mut call = self.script_call(script, &[self.log_key(shard, &to)]);
        call.arg(partition.number).arg(after.number).arg(&after.history.to_le_bytes()[..]);
        call.arg(limit).arg(room);
        let mut answer = array(self.run_script(script, call).await?, script.name)?.into_iter();
        let Some(first) = answer.next() else { return Err(self.rolled_back()) };
        let first = number(&first).ok_or_else(|| unexpected_reply(script.name))?;
        let mut entries = Vec::new();
        while let (Some(at), Some(history), Some(event)) =
            (answer.next(), answer.next(), answer.next())
        {
            let history = bytes(history).and_then(|value| value.first_chunk().copied());
            let position = number(&at).zip(history.map(u64::from_le_bytes));
            let (number, history) = position.ok_or_else(|| unexpected_reply(script.name))?;
            let event = bytes(event).ok_or_else(|| unexpected_reply(script.name))?;
            entries.push((QueuePosition { number, history }, decode_queued(event)));
        }
        Ok(QueuePage { first, entries })
    }

    async fn dequeue(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePosition,
    ) -> Result<DequeueResult, StoreError> {
        let script = &self.scripts.dequeue;
        let to = Destination::Stream(Arc::clone(&partition.stream));
        let [data] = self.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
        loop {
            let mut call = self.script_call(script, &[data.clone(), self.log_key(shard, &to)]);
            call.arg(partition.number).arg(&claim_bytes(claim)[..]).arg(commit);
            call.arg(through.number).arg(&through.history.to_le_bytes()[..]);
            match number(&self.run_script(script, call).await?) {
                Some(0) => return Ok(DequeueResult::Done),
                Some(1) => {}
                Some(2) => return Err(self.rolled_back()),
                Some(3) => return Ok(DequeueResult::MissingCommit),
                _ => return Err(unexpected_reply(script.name)),
            }
        }
    }

    async fn partitions_of(
        &self,
        stream: &str,
        keys: &[&str],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let by_shard = indexes_by_shard(keys, self.shards);
        let requests = by_shard.iter().map(async |(shard, indexes)| {
            let [data] = self.stream_keys(*shard, stream, [RedisKeyKind::Data]);
            let mut ask = cmd("HMGET");
            ask.arg(&data);
            for at in indexes {
                let key = keys[*at];
                // Truncate a key above `KEY_SIZE_LIMIT` to one byte more than the limit. No stored key is that long, so
                // the server finds no record.
                ask.arg(record_field(&key[..key.floor_char_boundary(KEY_SIZE_LIMIT + 1)]));
            }
            array(self.run_command(&ask).await?, "HMGET")
        });
        let mut partitions = vec![None; keys.len()];
        for (indexes, found) in by_shard.values().zip(try_join_all(requests).await?) {
            for (at, record) in indexes.iter().zip(found) {
                let record = bytes(record);
                let record = record.as_deref().and_then(|bytes| RedisRecord::parse(bytes).ok());
                partitions[*at] = record.map(|record| record.key_record.partition);
            }
        }
        Ok(partitions)
    }

    async fn has_counters(&self, to: &Destination, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        let by_shard = indexes_by_shard(keys, self.shards);
        let requests = by_shard.iter().map(async |(shard, indexes)| {
            let mut ask = cmd("HMGET");
            ask.arg(self.log_key(*shard, to));
            for at in indexes {
                ask.arg(format!("c{}", keys[*at]));
            }
            array(self.run_command(&ask).await?, "HMGET")
        });
        let mut has_counters = vec![false; keys.len()];
        for (indexes, found) in by_shard.values().zip(try_join_all(requests).await?) {
            for (at, counter) in indexes.iter().zip(found) {
                has_counters[*at] = bytes(counter).is_some();
            }
        }
        Ok(has_counters)
    }

    async fn writer_calls(
        &self,
        partition: &Partition,
        shard: u32,
        writer: u64,
    ) -> Result<(WriterCalls, QueueEnds), StoreError> {
        let to = Destination::Stream(Arc::clone(&partition.stream));
        let log = self.log_key(shard, &to);
        let mut ask = cmd("HMGET");
        let field = format!("r{}", writer_id(writer));
        ask.arg(&log).arg(format!("q{}", partition.number)).arg(&field);
        let [ends, record] = parts(self.run_command(&ask).await?, "HMGET")?;
        let ends = bytes(ends).as_deref().map_or(EMPTY_QUEUE, parse_ends);
        let Some(record) = bytes(record) else { return Ok((WriterCalls::default(), ends)) };
        let calls = parse_calls(&record).ok_or_else(|| {
            StoreError::Corrupt(format!(
                "field {field} of {log} does not contain a valid record of a writer"
            ))
        })?;
        Ok((calls, ends))
    }

    async fn queue_ends(&self, partition: &Partition) -> Result<Vec<QueueEnds>, StoreError> {
        let to = Destination::Stream(Arc::clone(&partition.stream));
        let requests = (0..self.shards).map(async |shard| {
            let mut ask = cmd("HGET");
            ask.arg(self.log_key(shard, &to)).arg(format!("q{}", partition.number));
            let found = bytes(self.run_command(&ask).await?);
            Ok(found.as_deref().map_or(EMPTY_QUEUE, parse_ends))
        });
        try_join_all(requests).await
    }
}

/// Returns the positions of the keys in `keys`, by the shard of each key.
fn indexes_by_shard(keys: &[&str], shards: u32) -> BTreeMap<u32, Vec<usize>> {
    let mut by_shard: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        by_shard.entry(shard_of(key, shards)).or_default().push(at);
    }
    by_shard
}

fn width(ranges: &[RangeInclusive<u64>]) -> u64 {
    let widths = ranges.iter().map(|range| (range.end() - range.start()).saturating_add(1));
    widths.fold(0, u64::saturating_add)
}

/// Returns whether a scan of all fields of a log takes less time than a search for each wanted sequence.
fn is_scan_shorter(wanted: u64, fields: u64) -> bool {
    fields / SCANNED_FIELDS < wanted
}

async fn fields_of(store: &RedisStore, name: &str) -> Result<u64, StoreError> {
    let fields = store.run_command(cmd("HLEN").arg(name)).await?;
    number(&fields).ok_or_else(|| unexpected_reply("HLEN"))
}

/// Returns the sequences in `wanted` for which the log of the destination has retained messages of the key. `names`
/// contains the Redis key of the log. Each range of the result contains one sequence. The duration of this search
/// depends on the number of fields of the log, not on the number of wanted sequences. `wanted` must be in ascending
/// order.
async fn retained_sequences(
    store: &RedisStore,
    names: &[String],
    key: &str,
    wanted: &[RangeInclusive<u64>],
) -> Result<Vec<RangeInclusive<u64>>, StoreError> {
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(Vec::new()) };
    let script = &store.scripts.retained_sequences;
    // Each `?` of the pattern stands for one of the eight bytes of a sequence.
    let pattern = format!("m{}????????", escape_pattern(key));
    let is_wanted = |sequence: u64| {
        let at = wanted.partition_point(|range| *range.end() < sequence);
        wanted.get(at).is_some_and(|range| range.contains(&sequence))
    };
    let mut sequences = BTreeSet::new();
    let mut cursor = 0;
    loop {
        let mut call = store.script_call(script, names);
        call.arg(&pattern);
        call.arg(&first.start().to_be_bytes()[..]).arg(&last.end().to_be_bytes()[..]).arg(cursor);
        let [next, found] = parts(store.run_script(script, call).await?, script.name)?;
        for sequence in array(found, script.name)? {
            let sequence = bytes(sequence).and_then(|bytes| <[u8; 8]>::try_from(&bytes[..]).ok());
            let sequence = sequence.ok_or_else(|| unexpected_reply(script.name))?;
            sequences.insert(u64::from_be_bytes(sequence));
        }
        cursor = number(&next).ok_or_else(|| unexpected_reply(script.name))?;
        if cursor == 0 {
            break;
        }
    }
    let existing = sequences.into_iter().filter(|sequence| is_wanted(*sequence));
    Ok(existing.map(|sequence| sequence..=sequence).collect())
}

/// The ends of a queue that never had an entry.
const EMPTY_QUEUE: QueueEnds =
    QueueEnds { first: 1, last: QueuePosition { number: 0, history: 0 } };

/// Decodes the record with the ends of a queue. For a damaged record, returns the ends of an empty queue, because the
/// scripts that read the queue report the damage.
fn parse_ends(found: &[u8]) -> QueueEnds {
    match found.as_chunks::<8>() {
        ([first, last, history, _], []) => QueueEnds {
            first: u64::from_le_bytes(*first),
            last: QueuePosition {
                number: u64::from_le_bytes(*last),
                history: u64::from_le_bytes(*history),
            },
        },
        _ => EMPTY_QUEUE,
    }
}

fn writer_id(writer: u64) -> String {
    format!("{writer:016x}")
}

/// Decodes the record of a writer, and returns the calls that the shard has processed. The record contains its expiry
/// time, and then the ranges of the numbers of these calls.
fn parse_calls(record: &[u8]) -> Option<WriterCalls> {
    let (_, ranges) = record.split_first_chunk::<8>()?;
    let (ranges, []) = ranges.as_chunks::<16>() else { return None };
    if ranges.is_empty() {
        return None;
    }
    let range = |bytes: &[u8; 16]| {
        let (first, last) = bytes.split_first_chunk::<8>()?;
        Some(u64::from_le_bytes(*first)..=u64::from_le_bytes(*last.first_chunk()?))
    };
    Some(WriterCalls::new(ranges.iter().map(range).collect::<Option<_>>()?))
}

impl RedisStore {
    fn rolled_back(&self) -> StoreError {
        self.record_rollback();
        StoreError::RolledBack
    }

    /// Records that a reply has shown a store rollback: the store went back in time. The store may then have lost other
    /// confirmed writes too.
    pub(super) fn record_rollback(&self) {
        self.rollbacks.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn log_key(&self, shard: u32, to: &Destination) -> String {
        self.names.of_stream(shard, RedisKeyKind::Log, &to.to_string())
    }

    /// Runs a script that writes, and repeats it until the required number of replicas has the write.
    async fn run_durably(
        &self,
        script: &LuaScript,
        call: Cmd,
        shard: u32,
    ) -> Result<Value, StoreError> {
        if self.wait_connections.is_empty() {
            return self.run_script(script, call).await;
        }
        let what = || format!("{} of {}", script.name, LuaScript::keys(&call).concat());
        let send = || async {
            send_durably(self, script, shard, call.clone()).await?.ok_or_else(|| {
                let few = format!("fewer than {} replicas have the write", self.replicas);
                StoreError::Unavailable(few)
            })
        };
        let answer = self.retry(send, what).await;
        self.with_key_name(answer, || LuaScript::keys(&call)).await
    }
}

/// Appends the arguments of the script `assign`: the rules of the destination, a random number, the witness, the id of
/// the writer, the number of its call, a flag, and the groups. The flag states whether the call publishes lost events
/// again.
fn put_request(call: &mut Cmd, assign: &AssignRequest) {
    let rules = assign.rules;
    match rules.numbering {
        None => call.arg(0).arg(0).arg(0).arg(0).arg(0),
        Some(numbers) => call
            .arg(1)
            .arg(numbers.first)
            .arg(numbers.retain)
            .arg(numbers.retain_events)
            .arg(numbers.complete_ttl),
    };
    match rules.queue_limit {
        None => call.arg(""),
        Some(limit) => call.arg(limit),
    };
    call.arg(&rand::random::<u64>().to_le_bytes()[..]);
    put_witness(call, assign.witness.as_ref());
    match assign.call {
        None => call.arg("").arg(""),
        Some(WriterCall { writer, call: number }) => call.arg(writer_id(writer)).arg(number),
    };
    call.arg(u8::from(assign.reuses_lost_numbers));
    call.arg(assign.groups.len());
    for group in &assign.groups {
        put_origin(call, group.origin.as_ref());
        call.arg(group.chunks.len());
        for chunk in &group.chunks {
            call.arg(chunk.position.commit).arg(chunk.position.chunk).arg(chunk.items.len());
            for item in &chunk.items {
                put_item(call, item, rules.numbering.is_some(), group.origin.is_some());
            }
        }
    }
}

/// Appends a witness (the newest message or the newest call that the shard has confirmed to a producer) as four
/// arguments. The first argument is the kind of the witness. The other three arguments depend on the kind:
///
/// - for a message that the store numbered: the key, the id and the number;
/// - for a message that its producer numbered: the key, the number, and an argument with two parts. The parts are the
///   content digest, and the number of the later message of the key whose assignment removes this message from the log;
/// - for a call: the id of the writer, the number of the call, and an empty argument.
pub(super) fn put_witness(call: &mut Cmd, witness: Option<&Witness>) {
    match witness {
        None => call.arg("").arg("").arg("").arg(""),
        Some(Witness::StoreNumbered { key, id, sequence }) => {
            call.arg("i").arg(&**key).arg(&id.to_le_bytes()[..]).arg(&sequence.to_le_bytes()[..])
        }
        Some(Witness::ProducerNumbered { key, sequence, content, evicted_by }) => call
            .arg("m")
            .arg(&**key)
            .arg(&sequence.to_be_bytes()[..])
            .arg([content.to_be_bytes(), evicted_by.to_le_bytes()].concat()),
        Some(Witness::Call(WriterCall { writer, call: number })) => {
            call.arg("r").arg(writer_id(*writer)).arg(*number).arg("")
        }
    };
}

/// Appends an [`OriginOutbox`]: the name of the outbox, the epoch, the last commit when the owner wrote its claim, the
/// last confirmed outbox position, and the commit up to which all messages are published. Appends empty or zero values
/// for the messages of a producer.
fn put_origin(call: &mut Cmd, origin: Option<&OriginOutbox>) {
    let Some(origin) = origin else {
        call.arg("").arg(0).arg(0).arg("").arg("").arg(0);
        return;
    };
    let of = &origin.partition;
    let name = format!("{}:{}:{}", of.number, origin.shard, of.stream);
    call.arg(name).arg(origin.epoch).arg(origin.claimed_commit);
    match origin.last_confirmed {
        Some(before) => call.arg(before.commit).arg(before.chunk),
        None => call.arg("").arg(""),
    };
    call.arg(origin.published_commit);
}

/// Appends three arguments for a message that the store is to assign. The first argument is the key. The third argument
/// has the bytes of the event after its number. The second argument begins with two flags. The first flag is 1 if the
/// message has its own number. It is 2 if a producer repeats a lost message, which may get only the number that it had
/// before the loss. Otherwise it is 0. The second flag is 1 for the last message of a key. These parts follow the
/// flags:
///
/// 1. the partition
/// 2. the content digest
/// 3. the digest of the id (for a producer's message, of source and id)
/// 4. the bytes of the event up to and including its number
/// 5. the digest of the id alone, which earlier versions stored
/// 6. the other digests under which a record may have the message
///    ([`Event::repeat_digests`](ordain_core::Event::repeat_digests))
fn put_item(call: &mut Cmd, item: &AssignItem, is_numbered: bool, has_origin: bool) {
    let event = &item.event;
    let own_number = event.sequence().or((item.number > 0).then_some(item.number));
    let sequence = own_number.or(is_numbered.then_some(0));
    // `value` consists of the content digest and the event.
    let value = encode_retained(event, sequence, !has_origin);
    let (before, rest) = value.split_at(8 + EVENT_SEQUENCE_OFFSET);
    let (own, rest) = rest.split_at(8);
    let names_lost_number = !has_origin && event.sequence().is_none() && item.number > 0;
    let number_flag = u8::from(own_number.is_some()) + u8::from(names_lost_number);
    let mut header = vec![number_flag, u8::from(event.end())];
    header.extend_from_slice(&item.partition.to_le_bytes());
    header.extend_from_slice(&before[..8]);
    // The messages of an outbox have one source, so the id alone identifies them.
    let [identity, id] = event.identity_digests();
    header.extend_from_slice(&(if has_origin { id } else { identity }).to_le_bytes());
    header.extend_from_slice(&before[8..]);
    header.extend_from_slice(own);
    header.extend_from_slice(&id.to_le_bytes());
    // The first digest is the content digest, which the argument already contains.
    header.extend(event.repeat_digests().skip(1).flat_map(u64::to_be_bytes));
    call.arg(event.key()).arg(header).arg(rest);
}

fn parse_reply(answer: &Bytes, assign: &AssignRequest) -> Option<AssignReply> {
    let mut rest = match answer.split_first()? {
        (b'F', []) => return Some(AssignReply::Full),
        (b'A', rest) => rest,
        _ => return None,
    };
    let mut replies = Vec::with_capacity(assign.groups.len());
    for group in &assign.groups {
        let (kind, after) = rest.split_first()?;
        rest = after;
        replies.push(match kind {
            b'C' => AssignGroupReply::Fenced,
            b'B' => {
                let (position, after) = rest.split_first_chunk::<12>()?;
                rest = after;
                let position = parse_position(position)?;
                AssignGroupReply::RolledBack((position.commit > 0).then_some(position))
            }
            b'D' => {
                let (answers, after) = rest.split_at_checked(9 * group.items().count())?;
                rest = after;
                let (answers, _) = answers.as_chunks::<9>();
                AssignGroupReply::Done(answers.iter().map(parse_result).collect::<Option<_>>()?)
            }
            _ => return None,
        });
    }
    let (runs, rest) = rest.as_chunks::<28>();
    let call = assign.call.map_or(0, |call| call.call);
    let runs = runs.iter().map(|run| parse_run(run, call)).collect::<Option<_>>()?;
    rest.is_empty().then_some(AssignReply::Groups(replies, runs))
}

/// Decodes an outbox position. The commit in the position is 0 if the store has assigned no messages for the owner yet.
fn parse_position(bytes: &[u8; 12]) -> Option<OutboxPosition> {
    let (commit, chunk) = bytes.split_first_chunk::<8>()?;
    let chunk = chunk.first_chunk::<4>()?;
    Some(OutboxPosition { commit: u64::from_le_bytes(*commit), chunk: u32::from_le_bytes(*chunk) })
}

/// Returns the partition, and the range of entries that the call added to its queue.
fn parse_run(bytes: &[u8; 28], call: u64) -> Option<(u32, QueueRun)> {
    let (partition, rest) = bytes.split_first_chunk::<4>()?;
    let ([first, last, history], []) = rest.as_chunks::<8>() else { return None };
    let run = QueueRun {
        first: u64::from_le_bytes(*first),
        last: u64::from_le_bytes(*last),
        history: u64::from_le_bytes(*history),
        call,
    };
    Some((u32::from_le_bytes(*partition), run))
}

fn parse_result([kind, sequence @ ..]: &[u8; 9]) -> Option<AssignItemReply> {
    let sequence = u64::from_le_bytes(*sequence);
    Some(match kind {
        0 => AssignItemReply::New(sequence),
        1 => AssignItemReply::Known(sequence),
        2 => AssignItemReply::Conflict(sequence),
        3 => AssignItemReply::AfterConflict,
        4 => AssignItemReply::NumberedElsewhere(sequence),
        5 => AssignItemReply::KeyEnded,
        6 => AssignItemReply::UnprovenRepeat(sequence),
        7 => AssignItemReply::Settled(sequence),
        8 => AssignItemReply::OtherNumber(sequence),
        _ => return None,
    })
}

#[test]
fn store_scans_the_log_only_if_the_log_is_small_for_the_wanted_sequences() {
    assert!(is_scan_shorter(WANTED_SEQUENCES_LIMIT + 1, 0));
    assert!(is_scan_shorter(200_000, 999_999));
    assert!(!is_scan_shorter(200_000, 1_000_000));
    assert!(is_scan_shorter(u64::MAX, 1 << 32));
}
