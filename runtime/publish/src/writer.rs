//! Numbers the calls with which a writer adds entries to the queues of a stream. The store keeps the numbers with the
//! entries, so that it knows which calls of the writer it has lost.

use std::sync::atomic::{AtomicU64, Ordering};

use ordain_store::WriterCall;

/// A writer of queue entries: a publisher, or the intake of a stream in a process. No writer outlives its process.
#[derive(Debug)]
pub struct QueueWriter {
    id: u64,
    /// The number of the next call to each shard (slice of the store). The calls to a shard have consecutive numbers,
    /// so that the store can keep them as few ranges.
    next_calls: Box<[AtomicU64]>,
}

impl QueueWriter {
    /// Creates a writer to one stream, with a random id.
    pub fn new(shards: u32) -> Self {
        Self { id: rand::random(), next_calls: (0..shards).map(|_| AtomicU64::new(1)).collect() }
    }

    /// Returns the id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the shards to which the writer has made a call.
    pub fn called_shards(&self) -> impl Iterator<Item = u32> + '_ {
        let called = |next: &AtomicU64| next.load(Ordering::Relaxed) > 1;
        (0..).zip(&self.next_calls).filter(move |(_, next)| called(next)).map(|(shard, _)| shard)
    }

    /// Returns a new call to a shard.
    pub fn next_call(&self, shard: u32) -> WriterCall {
        let call = self.next_calls[shard as usize].fetch_add(1, Ordering::Relaxed);
        WriterCall { writer: self.id, call }
    }
}
