//! The names of the queues that a stream has in RabbitMQ.

/// Returns the name of a partition's queue. `queue` is the setting `source.queue`.
pub fn partition_queue(queue: &str, partitions: u32, partition: u32) -> String {
    if partitions == 1 { queue.to_owned() } else { format!("{queue}.{partition}") }
}

/// Returns the name of the queue that collects the messages that the broker drops from the queues of the stream.
pub fn dropped_queue(queue: &str) -> String {
    format!("{queue}.dropped")
}
