//! Numbers the calls with which a writer adds entries to the queues of a stream. The store records the number of each
//! call together with the entries of the call. A number that the store lacks therefore shows that the store has lost
//! the call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ordain_store::WriterCall;

/// A writer of queue entries: a publisher, or the part of a process that accepts events over HTTP for a stream. A
/// writer exists in one process only: each process creates its own writers, with other ids.
#[derive(Debug)]
pub struct QueueWriter {
    id: u64,
    /// The numbers of the calls to each shard (slice of the store).
    calls: Box<[Mutex<CallNumbers>]>,
}

/// The numbers of the calls to a shard. The numbers are consecutive, so that the store can keep them as a few ranges.
#[derive(Debug, Default)]
struct CallNumbers {
    /// The highest number that a call has had; 0 before the first call.
    last: u64,
    /// The numbers of refused calls. The next calls get these numbers: the number of the call that was refused last
    /// comes first.
    unused: Vec<u64>,
}

impl QueueWriter {
    /// Creates a writer to one stream, with a random id.
    pub fn new(shards: u32) -> Self {
        Self { id: rand::random(), calls: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// Returns the random id of the writer.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the shards to which the writer has created a call.
    pub fn called_shards(&self) -> impl Iterator<Item = u32> + '_ {
        let shards = 0..self.calls.len() as u32;
        shards.filter(|shard| self.numbers(*shard).last > 0)
    }

    /// Creates the next call to a shard: the id of the writer, and an unused number.
    pub fn next_call(&self, shard: u32) -> WriterCall {
        let mut numbers = self.numbers(shard);
        let call = numbers.unused.pop().unwrap_or(numbers.last + 1);
        numbers.last = numbers.last.max(call);
        WriterCall { writer: self.id, call }
    }

    /// Makes the number of a refused call available to a later call. The store refuses a call if a queue is full. If
    /// refused calls kept their numbers, each refused call would leave a gap between the ranges in the store.
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
