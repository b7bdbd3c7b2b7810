//! Origins that assign messages, and messages to assign.

use std::sync::Arc;

use ordain_core::{Event, EventParts, Key, shard_of};
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignItemReply, AssignReply, AssignRequest,
    Destination, DestinationRules, NumberingSettings, OriginOutbox, OutboxChunk, OutboxPosition,
    Partition, Store,
};

/// The retention time of messages and the time for which an ended key is remembered, in ms. Both are much longer than a
/// case takes.
pub(in crate::conformance) const RETAIN: u64 = 100_000;
pub(in crate::conformance) const COMPLETE: u64 = 400_000;

pub(in crate::conformance) const NUMBERS: NumberingSettings =
    NumberingSettings { first: 1, retain: RETAIN, retain_events: 1_000, complete_ttl: COMPLETE };

/// A caller that assigns messages for keys of one shard: an owner with an outbox (`origin`), or a producer.
pub(in crate::conformance) struct Giver {
    pub(in crate::conformance) to: Destination,
    pub(in crate::conformance) rules: DestinationRules,
    pub(in crate::conformance) origin: Option<OriginOutbox>,
    pub(in crate::conformance) shard: u32,
}

impl Giver {
    /// Makes an owner with this epoch that assigns messages to an exchange.
    pub(in crate::conformance) fn exchange(store: &dyn Store, epoch: u64) -> Self {
        Self {
            to: Destination::Exchange("next".into()),
            rules: DestinationRules { numbering: Some(NUMBERS), queue_limit: None },
            origin: Some(OriginOutbox {
                partition: Partition { stream: "first".into(), number: 3 },
                shard: 0,
                epoch,
                claimed_commit: u64::MAX >> 12,
                last_confirmed: None,
                published_commit: 0,
            }),
            shard: shard_of("key-0", store.shards()),
        }
    }

    /// Makes an owner that assigns messages to a stream whose queue has a limit.
    pub(in crate::conformance) fn stream(
        store: &dyn Store,
        numbers: Option<NumberingSettings>,
        limit: u64,
    ) -> Self {
        let rules = DestinationRules { numbering: numbers, queue_limit: Some(limit) };
        Self { to: Destination::Stream("next".into()), rules, ..Self::exchange(store, 1) }
    }

    /// Makes a producer that assigns messages to an exchange.
    pub(in crate::conformance) fn producer(store: &dyn Store) -> Self {
        Self { origin: None, ..Self::exchange(store, 1) }
    }

    pub(in crate::conformance) fn lot(&self, parts: Vec<OutboxChunk>) -> AssignGroup {
        AssignGroup { origin: self.origin.clone(), chunks: parts }
    }

    pub(in crate::conformance) async fn send_lots(
        &self,
        store: &dyn Store,
        lots: Vec<AssignGroup>,
    ) -> AssignReply {
        let Self { to, rules, shard, .. } = self;
        let assign = AssignRequest {
            destination: to.clone(),
            shard: *shard,
            rules: *rules,
            witness: None,
            call: None,
            groups: lots,
        };
        store.assign(Arc::new(assign)).await.expect("an answer")
    }

    pub(in crate::conformance) async fn send(
        &self,
        store: &dyn Store,
        parts: Vec<OutboxChunk>,
    ) -> AssignReply {
        self.send_lots(store, vec![self.lot(parts)]).await
    }

    /// Assigns one chunk of messages.
    pub(in crate::conformance) async fn give(
        &self,
        store: &dyn Store,
        commit: u64,
        items: &[Arc<Event>],
    ) -> AssignReply {
        self.send(store, vec![part(commit, 0, items)]).await
    }

    /// Assigns one chunk of messages, which the store must accept. Returns the result for each message.
    pub(in crate::conformance) async fn done(
        &self,
        store: &dyn Store,
        commit: u64,
        items: &[Arc<Event>],
    ) -> Vec<AssignItemReply> {
        done(self.give(store, commit, items).await)
    }

    pub(in crate::conformance) async fn kept(
        &self,
        store: &dyn Store,
        key: &str,
        from: u64,
        to: u64,
    ) -> Vec<(u64, String)> {
        let wanted = [from..=to];
        let kept =
            store.retained_messages(&self.to, &key.into(), &wanted, 1 << 20).await.expect("a read");
        kept.iter().map(|event| (event.sequence().expect("a number"), data(event))).collect()
    }

    pub(in crate::conformance) fn with(mut self, change: impl FnOnce(&mut OriginOutbox)) -> Self {
        self.origin.as_mut().map(change);
        self
    }
}

pub(in crate::conformance) fn part(commit: u64, part: u32, items: &[Arc<Event>]) -> OutboxChunk {
    let item =
        |event: &Arc<Event>| AssignItem { event: Arc::clone(event), partition: 0, number: 0 };
    OutboxChunk {
        position: OutboxPosition { commit, chunk: part },
        items: items.iter().map(item).collect(),
    }
}

pub(in crate::conformance) fn done(reply: AssignReply) -> Vec<AssignItemReply> {
    let AssignReply::Groups(mut replies, _) = reply else { panic!("not done: {reply:?}") };
    match replies.pop() {
        Some(AssignGroupReply::Done(assigned)) if replies.is_empty() => assigned,
        other => panic!("not done: {other:?}"),
    }
}

/// Returns the reply to a call with one group, which the store refuses with `reply`.
pub(in crate::conformance) fn refused(reply: AssignGroupReply) -> AssignReply {
    AssignReply::Groups(vec![reply], Vec::new())
}

pub(in crate::conformance) fn data(event: &Event) -> String {
    String::from_utf8_lossy(event.data()).into_owned()
}

/// Makes a message whose id consists of its key and its data.
pub(in crate::conformance) fn message(key: &str, data: &str) -> Arc<Event> {
    event(key, data, None, &format!("{key}/{data}"), false)
}

pub(in crate::conformance) fn last(key: &str, data: &str) -> Arc<Event> {
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

/// Returns two keys of the shard that all cases use.
pub(in crate::conformance) fn keys(store: &dyn Store) -> [Key; 2] {
    let shard = shard_of("key-0", store.shards());
    let names = (0..).map(|at| format!("key-{at}"));
    let mut found = names.filter(|name| shard_of(name, store.shards()) == shard).map(Key::from);
    [found.next().expect("a key"), found.next().expect("a key")]
}
