//! Monitors a consumer's queue on another channel: the number of ready messages, and whether they are delivered.
//! After a crash, a broker may accept a subscription and then deliver nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{sleep, timeout};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use ordain_util::wait::shortened;

/// Interval between two checks. A quorum queue updates its message count every five seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of consecutive checks without progress after which the queue counts as silent.
const SILENT_CHECK_LIMIT: u32 = 3;

/// The consumer's progress, as the monitor needs it.
#[derive(Debug, Default)]
pub(super) struct ConsumerProgress {
    received: AtomicU64,
    has_room: AtomicBool,
}

impl ConsumerProgress {
    /// Records how many deliveries have arrived, and whether the broker may send more.
    pub(super) fn set(&self, taken: u64, has_room: bool) {
        self.received.store(taken, Relaxed);
        self.has_room.store(has_room, Relaxed);
    }

    /// Returns how many deliveries have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

/// Monitors the queue until it disappears, does not respond, or delivers nothing. Returns the reason.
pub(super) async fn monitor_queue(
    options: &ConsumerOptions,
    connection: &Connection,
    queue: &str,
    flow: &ConsumerProgress,
) -> BrokerError {
    let ConsumerOptions { broker, lag, .. } = options;
    let channel = match connection.create_channel().await {
        Ok(channel) => channel,
        Err(error) => return broker.error(&error),
    };
    let mut before = None;
    let mut silent_checks = 0;
    loop {
        let ready = match timeout(shortened(CHECK_TIMEOUT), ready_messages(&channel, queue)).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => return broker.error(&error),
            Err(_) => {
                return BrokerError::Unavailable(format!("the queue {queue:?} does not answer"));
            }
        };
        lag.set(Some(ready.into()));
        let taken = flow.received();
        let is_stalled = before == Some(taken) && flow.has_room.load(Relaxed) && ready > 0;
        before = Some(taken);
        silent_checks = if is_stalled { silent_checks + 1 } else { 0 };
        if silent_checks == SILENT_CHECK_LIMIT {
            return BrokerError::Unavailable(format!(
                "the queue {queue:?} has {ready} messages and delivers none; subscribing again. If that \
                 does not help, another consumer may have the queue"
            ));
        }
        sleep(shortened(CHECK_INTERVAL)).await;
    }
}

/// Returns the number of messages that wait in the queue for delivery.
async fn ready_messages(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(found.message_count())
}
