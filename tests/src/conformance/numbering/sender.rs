//! Callers that assign messages, and functions that make these messages.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_core::{Event, EventParts, Key, shard_of};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest,
    Destination, DestinationRules, FoundEvents, NumberingSettings, OriginOutbox, OutboxChunk,
    OutboxPosition, Partition, Store, StoreError, Witness,
};

/// The time for which the store retains a message, in ms. The time is much longer than a test takes.
pub(in crate::conformance) const RETENTION_MS: u64 = 100_000;
/// The time for which the store remembers the last number of an ended key, in ms. The time is much longer than a test
/// takes.
pub(in crate::conformance) const COMPLETED_TTL_MS: u64 = 400_000;

pub(in crate::conformance) const NUMBERING: NumberingSettings = NumberingSettings {
    first: 1,
    retain: RETENTION_MS,
    retain_events: 1_000,
    complete_ttl: COMPLETED_TTL_MS,
};

/// An owner with an outbox (`origin`), or a producer, that assigns messages for keys of one shard.
#[derive(Clone)]
pub(in crate::conformance) struct Sender {
    pub(in crate::conformance) destination: Destination,
    pub(in crate::conformance) rules: DestinationRules,
    pub(in crate::conformance) origin: Option<OriginOutbox>,
    pub(in crate::conformance) shard: u32,
    pub(in crate::conformance) readers: Vec<Arc<str>>,
    pub(in crate::conformance) reuses_lost_numbers: bool,
}

impl Sender {
    /// Represents an owner with a lease of this epoch, which assigns messages to an exchange.
    pub(in crate::conformance) fn exchange(store: &dyn Store, epoch: u64) -> Self {
        Self {
            destination: Destination::Exchange("next".into()),
            rules: DestinationRules { numbering: Some(NUMBERING), queue_limit: None },
            origin: Some(OriginOutbox {
                partition: Partition { stream: "first".into(), number: 3 },
                shard: 0,
                epoch,
                claimed_commit: u64::MAX >> 12,
                last_confirmed: None,
                published_commit: 0,
            }),
            shard: shard_of("key-0", store.shards()),
            readers: Vec::new(),
            reuses_lost_numbers: false,
        }
    }

    /// Represents an owner that assigns messages to a stream whose queue has a limit.
    pub(in crate::conformance) fn stream(
        store: &dyn Store,
        numbering: Option<NumberingSettings>,
        queue_limit: u64,
    ) -> Self {
        let rules = DestinationRules { numbering, queue_limit: Some(queue_limit) };
        Self { destination: Destination::Stream("next".into()), rules, ..Self::exchange(store, 1) }
    }

    /// Represents a producer that assigns messages to an exchange.
    pub(in crate::conformance) fn producer(store: &dyn Store) -> Self {
        Self { origin: None, ..Self::exchange(store, 1) }
    }

    /// The stream `cases` reads the messages of the producer.
    pub(in crate::conformance) fn producer_with_reader(store: &dyn Store) -> Self {
        Self { readers: vec!["cases".into()], ..Self::producer(store) }
    }

    /// The calls of the returned sender publish lost events again.
    pub(in crate::conformance) fn restoring(&self) -> Self {
        Self { reuses_lost_numbers: true, ..self.clone() }
    }

    /// The group has the origin of the sender.
    pub(in crate::conformance) fn group(&self, chunks: Vec<OutboxChunk>) -> AssignGroup {
        AssignGroup { origin: self.origin.clone(), chunks }
    }

    fn request(&self, groups: Vec<AssignGroup>) -> AssignRequest {
        let Self { destination, rules, shard, .. } = self;
        AssignRequest {
            destination: destination.clone(),
            shard: *shard,
            rules: *rules,
            witness: None,
            call: None,
            readers: self.readers.clone(),
            reuses_lost_numbers: self.reuses_lost_numbers,
            groups,
        }
    }

    pub(in crate::conformance) async fn send_groups(
        &self,
        store: &dyn Store,
        groups: Vec<AssignGroup>,
    ) -> AssignReply {
        store.assign(Arc::new(self.request(groups))).await.expect("an answer")
    }

    /// The call names a witness. Returns the result for each message; `None` if the store lacks the witness.
    pub(in crate::conformance) async fn assign_after(
        &self,
        store: &dyn Store,
        witness: &Witness,
        items: &[Arc<Event>],
    ) -> Option<Vec<AssignItemReply>> {
        let request = self.request(vec![self.group(vec![chunk(0, 0, items)])]);
        let request = AssignRequest { witness: Some(witness.clone()), ..request };
        match store.assign(Arc::new(request)).await {
            Err(StoreError::RolledBack) => None,
            reply => Some(results(reply.expect("an answer"))),
        }
    }

    pub(in crate::conformance) async fn send(
        &self,
        store: &dyn Store,
        chunks: Vec<OutboxChunk>,
    ) -> AssignReply {
        self.send_groups(store, vec![self.group(chunks)]).await
    }

    /// The chunk contains these messages of a commit.
    pub(in crate::conformance) async fn send_chunk(
        &self,
        store: &dyn Store,
        commit: u64,
        items: &[Arc<Event>],
    ) -> AssignReply {
        self.send(store, vec![chunk(commit, 0, items)]).await
    }

    /// The store must accept the chunk. Returns the result for each message.
    pub(in crate::conformance) async fn assign(
        &self,
        store: &dyn Store,
        commit: u64,
        items: &[Arc<Event>],
    ) -> Vec<AssignItemReply> {
        results(self.send_chunk(store, commit, items).await)
    }

    /// The store has lost the commit. Each message has its earlier number, or 0 if the caller does not know it. The
    /// store must accept the call. Returns the result for each message.
    pub(in crate::conformance) async fn assign_lost(
        &self,
        store: &dyn Store,
        commit: u64,
        lost: &[(Arc<Event>, u64)],
    ) -> Vec<AssignItemReply> {
        let items: Vec<_> = lost.iter().map(|(event, _)| Arc::clone(event)).collect();
        let mut chunk = chunk(commit, 0, &items);
        for (item, (_, number)) in chunk.items.iter_mut().zip(lost) {
            item.number = *number;
        }
        results(self.send(store, vec![chunk]).await)
    }

    pub(in crate::conformance) async fn read_retained(
        &self,
        store: &dyn Store,
        key: &str,
        wanted: &[RangeInclusive<u64>],
        bytes: usize,
    ) -> FoundEvents {
        let read = store.retained_messages(&self.destination, &key.into(), wanted, bytes).await;
        read.expect("a read")
    }

    /// Returns the numbers from `from` to `to` with the data.
    pub(in crate::conformance) async fn retained(
        &self,
        store: &dyn Store,
        key: &str,
        from: u64,
        to: u64,
    ) -> Vec<(u64, String)> {
        let retained = self.read_retained(store, key, &[from..=to], 1 << 20).await;
        let messages = retained.events.iter();
        messages
            .map(|(sequence, event)| {
                assert_eq!(event.sequence(), Some(*sequence));
                (*sequence, data(event))
            })
            .collect()
    }

    pub(in crate::conformance) fn with(mut self, change: impl FnOnce(&mut OriginOutbox)) -> Self {
        self.origin.as_mut().map(change);
        self
    }

    pub(in crate::conformance) fn of_shard(self, shard: u32) -> Self {
        self.with(|origin| origin.shard = shard)
    }

    /// The owner has the store's confirmation for this outbox position.
    pub(in crate::conformance) fn confirmed(self, commit: u64, chunk: u32) -> Self {
        self.with(|origin| origin.last_confirmed = Some(OutboxPosition { commit, chunk }))
    }
}

/// Makes the chunk `number` of the messages of a commit.
pub(in crate::conformance) fn chunk(commit: u64, number: u32, items: &[Arc<Event>]) -> OutboxChunk {
    let item =
        |event: &Arc<Event>| AssignItem { event: Arc::clone(event), partition: 0, number: 0 };
    OutboxChunk {
        position: OutboxPosition { commit, chunk: number },
        items: items.iter().map(item).collect(),
    }
}

/// The reply must accept the only group of the call. Returns the result for each message.
pub(in crate::conformance) fn results(reply: AssignReply) -> Vec<AssignItemReply> {
    let AssignReply::Groups(mut replies, _) = reply else {
        panic!("the messages are not assigned: {reply:?}")
    };
    match replies.pop() {
        Some(AssignGroupReply::Done(assigned)) if replies.is_empty() => assigned,
        other => panic!("the messages are not assigned: {other:?}"),
    }
}

pub(in crate::conformance) fn refused(reply: AssignGroupReply) -> AssignReply {
    AssignReply::Groups(vec![reply], Vec::new())
}

/// The result has the form of [`Sender::retained`].
pub(in crate::conformance) fn numbered_from_one(data: &[&str]) -> Vec<(u64, String)> {
    (1..).zip(data.iter().map(|data| (*data).to_owned())).collect()
}

pub(in crate::conformance) fn data(event: &Event) -> String {
    String::from_utf8_lossy(event.data()).into_owned()
}

/// The id consists of the key and the data.
pub(in crate::conformance) fn message(key: &str, data: &str) -> Arc<Event> {
    event(key, data, None, &format!("{key}/{data}"), false)
}

pub(in crate::conformance) fn last_message(key: &str, data: &str) -> Arc<Event> {
    event(key, data, None, &format!("{key}/{data}"), true)
}

pub(in crate::conformance) fn event(
    key: &str,
    data: &str,
    sequence: Option<u64>,
    id: &str,
    end: bool,
) -> Arc<Event> {
    Arc::new(Event::new(&EventParts {
        key,
        sequence,
        id,
        kind: "test",
        source: "/ordain/first",
        headers: &[("a", "b")],
        data: data.as_bytes(),
        end,
        ..EventParts::default()
    }))
}

/// All cases of numbering use these keys of one shard.
pub(in crate::conformance) fn keys(store: &dyn Store) -> [Key; 2] {
    let shard = shard_of("key-0", store.shards());
    let names = (0..).map(|number| format!("key-{number}"));
    let mut found = names.filter(|name| shard_of(name, store.shards()) == shard).map(Key::from);
    [found.next().expect("a key"), found.next().expect("a key")]
}
