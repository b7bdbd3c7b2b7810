//! Reports events that a store lost before the stream read them.

use std::sync::atomic::{AtomicU64, Ordering};

use ordain_core::QueueLoss;
use ordain_publish::incident::{EventsLost, IncidentSubject, record, time_text};
use ordain_store::Partition;

/// Counts and logs events that a shard (slice of the store) lost before the stream read them. `safe` is the value of
/// [`EventsLost::safe`]. `words` describe the loss and the action that the producers must take.
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
