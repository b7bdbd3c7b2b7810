//! Records of the broker's queues that streams consume. The order of the messages in the queue of a `fifo` stream
//! determines the sequences of the events. If such a queue is lost with its messages, later events would get the
//! sequences of the lost events. A `fifo` stream whose queue is lost therefore stops until an operator resumes the
//! stream. A `sequenced` stream whose queue is lost continues, and never has the record of a lost queue.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{SharedRecord, Store, StoreError};

/// The record of the queue of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum QueueRecord {
    /// The stream has consumed the queue.
    Consumed {
        /// The name of the queue.
        queue: String,
        /// `true` if the broker has a marker: an exchange that the broker removes together with the queue.
        has_marker: bool,
    },
    /// The queue is lost. The stream does not consume the queue that has replaced the lost queue.
    Lost {
        /// The name of the queue.
        queue: String,
        /// The description of the loss for operators.
        reason: String,
    },
    /// An operator has resumed the stream, and the stream has not consumed the new queue yet.
    Resumed,
}

/// The queue records of a stream in the store.
#[derive(Clone)]
pub struct QueueRecords {
    store: Arc<dyn Store>,
    stream: Arc<str>,
}

impl QueueRecords {
    /// Creates the access to the records of a stream.
    pub fn new(store: &Arc<dyn Store>, stream: &Arc<str>) -> Self {
        Self { store: Arc::clone(store), stream: Arc::clone(stream) }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> &Arc<str> {
        &self.stream
    }

    fn mark_name(&self, partition: u32) -> String {
        format!("amqp-queue/{}/{partition}", self.stream)
    }

    /// Reads the record of a partition. Fails if the record is unreadable, for example because a later version of
    /// Ordain has written it.
    pub async fn get(&self, partition: u32) -> Result<SharedRecord<QueueRecord>, StoreError> {
        SharedRecord::read(&*self.store, self.mark_name(partition)).await
    }

    /// Records the loss of a queue durably. The caller must call this method before it declares the queue again,
    /// because the new queue does not show that the old queue was lost. Returns `false`, and writes nothing, if another
    /// process has changed the record since the caller read `before`.
    pub async fn put_loss(
        &self,
        before: &SharedRecord<QueueRecord>,
        queue: String,
        reason: String,
    ) -> Result<bool, StoreError> {
        let is_put = self.replace(before, &QueueRecord::Lost { queue, reason }).await?;
        self.store.flush().await?;
        Ok(is_put)
    }

    /// Replaces the record of a partition. Returns `false`, and writes nothing, if another process has changed the
    /// record since the caller read `before`. A process that was paused for a while can therefore not erase a loss that
    /// the next owner of the partition has recorded meanwhile.
    pub async fn replace(
        &self,
        before: &SharedRecord<QueueRecord>,
        record: &QueueRecord,
    ) -> Result<bool, StoreError> {
        before.replace(&*self.store, record).await
    }

    /// Returns each loss that stopped the stream: the partition, and the description of the loss.
    pub async fn losses(&self, partitions: u32) -> Result<Vec<(u32, String)>, StoreError> {
        let mut losses = Vec::new();
        for partition in 0..partitions {
            if let Some(QueueRecord::Lost { reason, .. }) = self.get(partition).await?.record {
                losses.push((partition, reason));
            }
        }
        Ok(losses)
    }

    /// Acknowledges the losses, so that the stream consumes the new queues. Returns the acknowledged losses. Does not
    /// acknowledge a loss that a process records after this method has read the record of the partition, because the
    /// operator has possibly not seen that loss.
    pub async fn resume(&self, partitions: u32) -> Result<Vec<(u32, String)>, StoreError> {
        let mut resumed = Vec::new();
        for partition in 0..partitions {
            let before = self.get(partition).await?;
            if let Some(QueueRecord::Lost { reason, .. }) = &before.record
                && self.replace(&before, &QueueRecord::Resumed).await?
            {
                resumed.push((partition, reason.clone()));
            }
        }
        self.store.flush().await?;
        Ok(resumed)
    }
}

impl fmt::Debug for QueueRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueRecords").field("stream", &self.stream).finish_non_exhaustive()
    }
}
