//! Numbers the calls with which a writer adds entries to the queues of a stream. The store keeps the numbers with the
//! entries, so that it knows which calls of the writer it has lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ordain_store::WriterCall;

/// A writer of queue entries: a publisher, or the intake of a stream in a process. A new writer begins with each
/// process.
#[derive(Debug)]
pub struct QueueWriter {
    id: u64,
    /// The numbers of the calls to each shard (slice of the store).
    calls: Box<[Mutex<CallNumbers>]>,
}

/// The numbers of the calls to a shard. They are consecutive, so that the store can keep them as few ranges.
#[derive(Debug, Default)]
struct CallNumbers {
    /// The highest number so far; 0 before the first call.
    last: u64,
    /// The numbers of refused calls, which later calls use.
    unused: Vec<u64>,
}

impl QueueWriter {
    /// Creates a writer to one stream, with a random id.
    pub fn new(shards: u32) -> Self {
        Self { id: rand::random(), calls: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// Returns the id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the shards to which the writer has made a call.
    pub fn called_shards(&self) -> impl Iterator<Item = u32> + '_ {
        let shards = 0..self.calls.len() as u32;
        shards.filter(|shard| self.numbers(*shard).last > 0)
    }

    /// Returns a new call to a shard.
    pub fn next_call(&self, shard: u32) -> WriterCall {
        let mut numbers = self.numbers(shard);
        let call = numbers.unused.pop().unwrap_or(numbers.last + 1);
        numbers.last = numbers.last.max(call);
        WriterCall { writer: self.id, call }
    }

    /// Takes back the number of a call that the store has refused because a queue is full. Without this, each refused
    /// call would leave a gap between the ranges in the store.
    pub fn take_back(&self, shard: u32, refused: WriterCall) {
        self.numbers(shard).unused.push(refused.call);
    }

    fn numbers(&self, shard: u32) -> MutexGuard<'_, CallNumbers> {
        self.calls[shard as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_refused_call_is_used_again() {
        let writer = QueueWriter::new(2);
        let [first, second] = [writer.next_call(1), writer.next_call(1)];
        writer.take_back(1, first);
        assert_eq!(writer.next_call(1), first);
        assert_eq!(writer.next_call(1).call, second.call + 1);
        assert_eq!(writer.called_shards().collect::<Vec<_>>(), [1]);
    }
}
