//! Tests of queues in a store that goes back in time. The history of a queue consists of all writes to the queue, up to
//! a given entry. A queue position contains the number of an entry and a digest of this history. Therefore, if the
//! store loses an entry and gives the number of the entry to another entry, the queue positions of the two entries
//! differ.

use std::sync::Arc;

use ordain_core::{Event, QueuePosition, QueueRun, shard_of};
use ordain_store::{
    AssignReply, AssignRequest, Claim, DequeueResult, Destination, Partition, QueueEnds, Store,
    StoreError, Witness, WriterCall,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::numbering::{Sender, chunk, data, message};
use super::{Fixture, Owner, first_write, next_write};

const READ_LIMIT_BYTES: usize = 1 << 20;

/// A queue of one shard, with a producer and the owner of its partition.
struct Queue {
    sender: Sender,
    partition: Partition,
    claim: Claim,
}

impl Queue {
    async fn new(store: &dyn Store, stream: &str) -> Self {
        let destination = Destination::Stream(stream.into());
        let sender = Sender { destination, origin: None, ..Sender::stream(store, None, 1_000_000) };
        let owner = Owner::claim(store, stream, 0).await;
        Self { sender, partition: owner.partition, claim: owner.claim }
    }

    /// Returns the range of the queue positions of the events.
    async fn put(&self, store: &dyn Store, texts: &[&str]) -> QueueRun {
        let items: Vec<Arc<Event>> = texts.iter().map(|data| message("key-0", data)).collect();
        let reply = self.sender.send(store, vec![chunk(0, 0, &items)]).await;
        let AssignReply::Groups(_, runs) = reply else {
            panic!("the events are not added: {reply:?}")
        };
        let [(0, run)] = runs[..] else {
            panic!("the call must add one range of entries: {runs:?}")
        };
        assert_eq!(run.last + 1 - run.first, texts.len() as u64);
        run
    }

    /// The writer's call `call` names its call `witness` as the witness, unless `witness` is 0. Returns false if the
    /// shard lacks the witness.
    async fn put_by(
        &self,
        store: &dyn Store,
        writer: u64,
        call: u64,
        witness: u64,
        texts: &[&str],
    ) -> bool {
        let items: Vec<Arc<Event>> = texts.iter().map(|data| message("key-0", data)).collect();
        let Sender { destination, rules, shard, .. } = &self.sender;
        let numbered = |call| WriterCall { writer, call };
        let request = AssignRequest {
            destination: destination.clone(),
            shard: *shard,
            rules: *rules,
            witness: (witness > 0).then(|| Witness::Call(numbered(witness))),
            call: Some(numbered(call)),
            readers: Vec::new(),
            reuses_lost_numbers: false,
            groups: vec![self.sender.group(vec![chunk(0, 0, &items)])],
        };
        match store.assign(Arc::new(request)).await {
            Err(StoreError::RolledBack) => false,
            reply => {
                let reply = reply.expect("an answer");
                let AssignReply::Groups(_, runs) = reply else {
                    panic!("the events are not added: {reply:?}")
                };
                assert!(matches!(runs[..], [(0, run)] if run.call == call), "{runs:?}");
                true
            }
        }
    }

    /// Covers the calls 1 to 9 of a writer. Also returns the ends of the queue.
    async fn calls(&self, store: &dyn Store, writer: u64) -> (Vec<u64>, QueueEnds) {
        let answer = store.writer_calls(&self.partition, self.sender.shard, writer).await;
        let (calls, ends) = answer.expect("an answer");
        ((1..=9).filter(|call| calls.contains(*call)).collect(), ends)
    }

    /// Returns `None` if the queue position is not in the history of the queue in the store.
    async fn read(
        &self,
        store: &dyn Store,
        after: QueuePosition,
    ) -> Option<Vec<(QueuePosition, String)>> {
        let read = store
            .read_queue(&self.partition, self.sender.shard, after, 1_000, READ_LIMIT_BYTES)
            .await;
        match read {
            Err(StoreError::RolledBack) => None,
            page => {
                let entries = page.expect("a read").entries.into_iter();
                Some(
                    entries
                        .map(|(position, event)| (position, data(&event.expect("an event"))))
                        .collect(),
                )
            }
        }
    }

    /// Removes all entries up to and including a queue position. Returns false if the position is not in the history of
    /// the queue in the store.
    async fn remove(&self, store: &dyn Store, through: QueuePosition) -> bool {
        match self.remove_after(store, 0, through).await {
            Err(StoreError::RolledBack) => false,
            removal => {
                assert_eq!(removal.expect("an answer"), DequeueResult::Done);
                true
            }
        }
    }

    /// The store removes nothing if it lacks commit `commit`.
    async fn remove_after(
        &self,
        store: &dyn Store,
        commit: u64,
        through: QueuePosition,
    ) -> Result<DequeueResult, StoreError> {
        store.dequeue(&self.partition, self.claim, self.sender.shard, commit, through).await
    }
}

/// The store loses an entry, and another entry gets the number of the lost entry. The store then refuses the queue
/// position of the lost entry.
pub async fn lost_position_is_refused_after_its_number_is_reused(fixture: &mut impl Fixture) {
    let start = QueuePosition::default();
    let queue = Queue::new(fixture.store(), "next").await;
    assert_eq!(queue.read(fixture.store(), start).await, Some(Vec::new()));
    queue.put(fixture.store(), &["1", "2"]).await;
    let third = queue.put(fixture.store(), &["3"]).await.end();
    fixture.take_snapshot().await;
    let lost = queue.put(fixture.store(), &["lost 4", "lost 5"]).await;
    let all = queue.read(fixture.store(), start).await.expect("all");
    assert_eq!(all.iter().map(|row| row.0.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!((all[2].0, all[4].0), (third, lost.end()));
    let second = all[1].0;
    assert!(queue.remove(fixture.store(), second).await);

    fixture.go_back().await;
    let store = fixture.store();
    assert_eq!(queue.read(store, lost.end()).await, None);
    assert!(!queue.remove(store, lost.end()).await);
    assert_eq!(queue.read(store, start).await.expect("all"), all[..3]);
    assert_eq!(queue.read(store, third).await, Some(Vec::new()));
    // Other entries get the numbers of the lost entries.
    let new = queue.put(store, &["4", "5", "6"]).await;
    assert_eq!((new.first, new.last), (4, 6));
    assert_eq!(queue.read(store, lost.end()).await, None);
    assert!(!queue.remove(store, lost.end()).await);
    let after = queue.read(store, third).await.expect("the new entries");
    assert_eq!(after.iter().map(|row| &*row.1).collect::<Vec<_>>(), ["4", "5", "6"]);
    assert_eq!(store.queue_length(&queue.partition).await.expect("a number"), 6);

    // The store has also lost the removal of the first two entries. The reader removes them again.
    assert!(queue.remove(store, second).await);
    assert!(queue.remove(store, after[0].0).await);
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(queue.read(store, lost.end()).await, None);
    assert_eq!(queue.read(store, second).await.expect("the rest"), after[1..]);
    assert!(queue.remove(store, new.end()).await);
    // The queue is empty, but the store still accepts the queue position of the last entry, and refuses a position with
    // this number and another history.
    assert_eq!(queue.read(store, new.end()).await, Some(Vec::new()));
    let other = QueuePosition { history: new.history ^ 1, ..new.end() };
    assert_eq!(queue.read(store, other).await, None);
    let ends = store.queue_ends(&queue.partition).await.expect("the ends");
    let ends = ends[queue.sender.shard as usize];
    assert_eq!((ends.first, ends.last, ends.is_empty()), (7, new.end(), true));
}

/// A removal from a queue names a commit, by which the removed events are settled or spilled. If the store has lost
/// this commit, the store removes nothing, because the queue then has the only copy of the events.
pub async fn removal_is_refused_if_its_commit_is_lost(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let queue = Queue::new(store, "next").await;
    let through = queue.put(store, &["1", "2"]).await.end();
    let mut owner = Owner::claim(store, "next", 0).await;
    let queue = Queue { claim: owner.claim, ..queue };
    let shard = queue.sender.shard;
    assert_eq!(shard_of("key-0", store.shards()), shard);
    owner.write(store, first_write("key-0")).await;
    fixture.take_snapshot().await;
    owner.write(fixture.store(), next_write("key-0", 2)).await;
    let last = owner.numbers[shard as usize];
    fixture.go_back().await;
    let store = fixture.store();
    let removal = queue.remove_after(store, last, through).await;
    assert_eq!(removal.expect("an answer"), DequeueResult::MissingCommit);
    let other = QueuePosition { history: through.history ^ 1, ..through };
    let refused = queue.remove_after(store, last, other).await;
    assert!(matches!(refused, Err(StoreError::RolledBack)), "{refused:?}");
    assert_eq!(queue.read(store, QueuePosition::default()).await.expect("all").len(), 2);
    // The owner repeats the commit.
    owner.numbers[shard as usize] -= 1;
    owner.write(store, next_write("key-0", 2)).await;
    let removal = queue.remove_after(store, last, through).await;
    assert_eq!(removal.expect("an answer"), DequeueResult::Done);
    assert_eq!(queue.read(store, QueuePosition::default()).await, Some(Vec::new()));
}

/// If the store goes back in time, it loses the number of a writer's call together with the entries of the call. The
/// loss remains visible even after other entries got the numbers of the lost entries and were removed. A store that
/// cannot go back in time while it is open reports that it has all calls.
pub async fn lost_calls_of_a_writer_are_reported(fixture: &mut impl Fixture) {
    let queue = Queue::new(fixture.store(), "next").await;
    let may_lose = fixture.store().may_roll_back();
    let known = |calls: &[u64]| if may_lose { calls.to_vec() } else { (1..=9).collect() };
    let store = fixture.store();
    assert_eq!(queue.calls(store, 7).await.0, known(&[]));
    assert!(queue.put_by(store, 7, 1, 0, &["1"]).await);
    fixture.take_snapshot().await;
    let store = fixture.store();
    assert!(queue.put_by(store, 7, 2, 1, &["lost 2", "lost 3"]).await);
    assert!(queue.put_by(store, 7, 3, 2, &["lost 4"]).await);
    let (calls, ends) = queue.calls(store, 7).await;
    assert_eq!((calls, ends.first, ends.last.number), (known(&[1, 2, 3]), 1, 4));

    fixture.go_back().await;
    let store = fixture.store();
    let (calls, ends) = queue.calls(store, 7).await;
    assert_eq!((calls, ends.first, ends.last.number), (known(&[1]), 1, 1));
    // The entries of another writer get the numbers of the lost entries. A reader removes all entries, so that the
    // store no longer has their history digests.
    assert!(queue.put_by(store, 8, 1, 0, &["2", "3", "4"]).await);
    assert!(queue.put_by(store, 8, 2, 1, &["5", "6"]).await);
    let (_, ends) = queue.calls(store, 8).await;
    assert!(queue.remove(store, ends.last).await);
    assert_eq!(queue.calls(store, 7).await.0, known(&[1]));
    assert_eq!(
        queue.put_by(store, 7, 4, 3, &["7"]).await,
        !may_lose,
        "the store must refuse the witness if call 3 is lost"
    );
    if may_lose {
        let (calls, ends) = queue.calls(store, 7).await;
        assert_eq!((calls, ends.is_empty()), (vec![1], true), "a refused call must change nothing");
    }
    // A later call of the writer does not hide the loss.
    assert!(queue.put_by(store, 7, 5, 1, &["7"]).await);
    assert_eq!(queue.calls(store, 7).await.0, known(&[1, 5]));
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(queue.calls(store, 7).await.0, known(&[1, 5]));
    assert_eq!(queue.calls(store, 8).await.0, known(&[1, 2]));
    assert_eq!(
        queue.put_by(store, 7, 6, 2, &["8"]).await,
        !may_lose,
        "the store must refuse the witness if call 2 is lost"
    );
    assert!(queue.put_by(store, 7, 7, 5, &["8"]).await);
}

/// In random histories with many losses, the store accepts all queue positions of the present history. The store
/// refuses the queue positions of lost entries. It cannot refuse positions before the last removed entry, because it no
/// longer has their history digests.
pub async fn only_positions_of_the_present_history_are_accepted(fixture: &mut impl Fixture) {
    for seed in 0..3_u64 {
        let queue = Queue::new(fixture.store(), &format!("next-{seed}")).await;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // The expected content of the queue: the number of the first waiting entry, and all entries of the present
        // history (also the removed entries), with their queue positions. `snapshot` is the expected content at the
        // time of the last snapshot.
        let mut now = (1_u64, vec![(QueuePosition::default(), String::new())]);
        let mut snapshot = now.clone();
        fixture.take_snapshot().await;
        let mut positions = vec![QueuePosition::default()];
        for step in 0..60 {
            let position = positions[random.random_range(0..positions.len())];
            let (first, all) = &mut now;
            // The store accepts the positions of waiting entries, and the position of the entry before them, which was
            // removed last. The store also accepts all lower positions, because it has no history digests for them.
            let is_accepted = position.number == 0
                || position.number + 1 < *first
                || all.get(position.number as usize).is_some_and(|entry| entry.0 == position);
            let context = format!("seed {seed}, step {step}, {position:?} in {first} {all:?}");
            match random.random_range(0..12) {
                0..5 => {
                    let data: Vec<String> = (0..random.random_range(1..4))
                        .map(|index| format!("{seed}/{step}/{index}"))
                        .collect();
                    let texts: Vec<&str> = data.iter().map(String::as_str).collect();
                    let QueueRun { first, last, history, .. } =
                        queue.put(fixture.store(), &texts).await;
                    assert_eq!(first, all.len() as u64, "{context}");
                    let new = (first..=last).map(|number| QueuePosition { number, history });
                    all.extend(new.clone().zip(data));
                    positions.extend(new);
                }
                5..8 => {
                    let read = queue.read(fixture.store(), position).await;
                    let from = (position.number + 1).max(*first) as usize;
                    let expected = is_accepted.then(|| all[from.min(all.len())..].to_vec());
                    assert_eq!(read, expected, "{context}");
                }
                8..10 => {
                    let removed = queue.remove(fixture.store(), position).await;
                    assert_eq!(removed, is_accepted, "{context}");
                    if removed {
                        *first = (*first).max(position.number + 1);
                    }
                }
                10 => {
                    snapshot = now.clone();
                    fixture.take_snapshot().await;
                }
                _ => {
                    now = snapshot.clone();
                    fixture.go_back().await;
                }
            }
        }
        let last = now.1.last().expect("at least one position").0;
        assert!(queue.remove(fixture.store(), last).await);
        let end = queue.read(fixture.store(), last).await;
        assert_eq!(end, Some(Vec::new()), "seed {seed}");
    }
}
