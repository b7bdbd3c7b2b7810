//! Reports that the store lost events which the stream had not read, as far as this process can determine.

use std::sync::atomic::{AtomicU64, Ordering};

use ordain_core::QueueLoss;
use ordain_publish::incident::{EventsLost, IncidentSubject, record, time_text};
use ordain_store::Partition;

/// Logs that a shard (slice of the store) lost events of a partition, and adds the number of these events to `counter`.
/// `safe` is the value of [`EventsLost::safe`]. `words` describe the loss and the action that the producers must take.
pub(crate) fn report_lost_events(
    partition: &Partition,
    shard: u32,
    loss: QueueLoss,
    safe: Option<u64>,
    counter: &AtomicU64,
    words: &str,
) {
    let QueueLoss { entries, since } = loss;
    counter.fetch_add(entries, Ordering::Relaxed);
    let since = time_text(since);
    let incident = EventsLost { shard, events: entries, since: since.clone(), safe };
    tracing::error!(
        stream = &*partition.stream,
        partition = partition.number,
        shard,
        events = entries,
        %since,
        safe,
        cloudevent = record(&partition.stream, IncidentSubject::Partition(partition.number), &incident),
        "{words}"
    );
}
