//! Short functions for the operations of a partition's owner, and for making writes.

use std::sync::Arc;
use std::time::Duration;

use ordain_core::{
    AppliedCommit, Batch, CommitReply, Event, EventParts, Key, KeyRecord, KeySnapshot, KeyWrite,
    StateUpdate, WriteCondition, shard_of,
};
use ordain_store::{
    Claim, ClaimedPartition, HeartbeatRequest, InstanceId, LeaseReply, Partition, Store, StoreError,
};

/// An owner of a partition of a stream.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The partition that the owner has claimed.
    pub partition: Partition,
    /// The claim under which the owner commits.
    pub claim: Claim,
    /// The number of the owner's last commit in each shard, in the order of the shards.
    pub numbers: Vec<u64>,
}

impl Owner {
    /// Claims a partition of a stream with a new lease.
    pub async fn claim(store: &dyn Store, stream: &str, number: u32) -> Self {
        let partition = Partition { stream: stream.into(), number };
        let claimed = claim(store, &partition).await.expect("a claim");
        assert_eq!(claimed.commits.len(), store.shards() as usize);
        Self { partition, claim: claimed.claim, numbers: claimed.commits }
    }

    /// Makes the next batch of a shard. All writes must be of keys of this shard.
    pub fn batch(&mut self, writes: Vec<KeyWrite>) -> Arc<Batch> {
        let shard = self.shard(&writes[0].key);
        assert!(writes.iter().all(|write| self.shard(&write.key) == shard), "keys of one shard");
        self.numbers[shard as usize] += 1;
        let number = self.numbers[shard as usize];
        Arc::new(Batch {
            shard,
            number,
            writes,
            letters: Vec::new(),
            forward: false,
            repeated: false,
        })
    }

    /// Sends a batch to the store, and returns the reply.
    pub async fn send(&self, store: &dyn Store, batch: &Arc<Batch>) -> CommitReply {
        store.commit(&self.partition, self.claim, batch.clone()).await
    }

    /// Commits the next batch, which must be applied.
    pub async fn commit(&mut self, store: &dyn Store, writes: Vec<KeyWrite>) -> AppliedCommit {
        let batch = self.batch(writes);
        match self.send(store, &batch).await {
            CommitReply::Applied(applied) => applied,
            other => panic!("the commit is not applied: {other:?}"),
        }
    }

    /// Commits one write, which must not be refused.
    pub async fn write(&mut self, store: &dyn Store, write: KeyWrite) -> AppliedCommit {
        let applied = self.commit(store, vec![write]).await;
        assert_eq!(applied.refused, []);
        applied
    }

    /// Loads the record and the state of a key. The key then belongs to the partition of the owner. Returns `None` if
    /// the key has no record.
    pub async fn load(&self, store: &dyn Store, key: &str) -> Option<Box<KeySnapshot>> {
        let mut loaded = store
            .load(&self.partition, &[key.into()], usize::MAX)
            .await
            .expect("the load succeeds");
        assert_eq!(loaded.len(), 1);
        loaded.remove(0).expect("a key record that can be read")
    }

    /// Returns at most `limit` keys that are due, and the time until the next key is due, in ms.
    pub async fn due(&self, store: &dyn Store, limit: usize) -> (Vec<String>, Option<u64>) {
        let read = store.due(&self.partition, None, limit, false).await;
        let (entries, next) = read.expect("the due index");
        (entries.iter().map(|(_, key)| key.to_string()).collect(), next)
    }

    /// Returns the sequences of a key's spilled events, from the sequence `from` on.
    pub async fn spilled(&self, store: &dyn Store, key: &str, from: u64) -> Vec<u64> {
        let read = store.read_spill(&self.partition, &key.into(), from, 1_000, 1 << 20).await;
        let (events, end) = read.expect("an answer").expect("spilled events");
        assert!(end);
        events.into_iter().map(|(sequence, _)| sequence).collect()
    }

    /// Returns the shard to which a key belongs in the store of the owner.
    pub fn shard(&self, key: &str) -> u32 {
        shard_of(key, self.numbers.len() as u32)
    }

    /// Returns `count` keys of one shard: the shard of the key `key-0`.
    pub fn keys(&self, count: usize) -> Vec<Key> {
        let names = (0..).map(|number| format!("key-{number}"));
        let shard = self.shard("key-0");
        names.filter(|name| self.shard(name) == shard).take(count).map(Into::into).collect()
    }
}

/// Leases a partition for a new instance, and removes the instance again, so that the next call can lease the partition
/// too. Returns the epoch of the lease.
pub async fn lease(store: &dyn Store, partition: &Partition) -> Result<u64, StoreError> {
    let id = InstanceId::random();
    let lease = Duration::from_mins(1);
    store
        .heartbeat(HeartbeatRequest { id, info: "a test", report: None, lease, known_version: 0 })
        .await?;
    let leased = store.lease(partition, id).await?;
    store.remove_instance(id).await?;
    match leased {
        LeaseReply::Granted(epoch) => Ok(epoch),
        other => panic!("the lease is not granted: {other:?}"),
    }
}

/// Leases a partition as [`lease`] does, and claims it.
pub async fn claim(
    store: &dyn Store,
    partition: &Partition,
) -> Result<ClaimedPartition, StoreError> {
    let epoch = lease(store, partition).await?;
    store.claim(partition, epoch).await
}

/// Returns the number of the last commit of a key's shard.
pub fn commit_number(owner: &Owner, key: &str) -> u64 {
    owner.numbers[owner.shard(key) as usize]
}

/// Makes a key record of partition 0.
pub fn key_record(next: u64) -> KeyRecord {
    KeyRecord::new(next, 0)
}

/// Makes a write of a key record, without any other data.
pub fn record_write(key: &str, condition: WriteCondition, record: KeyRecord) -> KeyWrite {
    KeyWrite {
        key: key.into(),
        condition,
        record,
        state: StateUpdate::Keep,
        messages: Vec::new(),
        letters: Vec::new(),
        removed_letters: Vec::new(),
        spill: Vec::new(),
        ids: std::iter::empty().collect(),
        due_in: None,
        expire_in: None,
    }
}

/// Makes the first write of a key of partition 0. The write settles the key's first event.
pub fn first_write(key: &str) -> KeyWrite {
    record_write(key, WriteCondition::Absent, key_record(2))
}

/// Makes the write that settles the event `next` of a key of partition 0.
pub fn next_write(key: &str, next: u64) -> KeyWrite {
    record_write(key, WriteCondition::Next(next), key_record(next + 1))
}

/// Makes an event whose id consists of its key and its sequence.
pub fn event(key: &str, sequence: u64, data: &str) -> Arc<Event> {
    Arc::new(Event::new(&EventParts {
        key,
        sequence: Some(sequence),
        id: &format!("{key}/{sequence}"),
        kind: "test",
        headers: &[("x-of", "a test")],
        data: data.as_bytes(),
        ..EventParts::default()
    }))
}
