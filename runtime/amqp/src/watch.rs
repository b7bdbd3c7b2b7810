//! Looks at a queue from beside its consumer: how many messages are ready there, and whether they
//! come. After a crash a broker may have answered a subscription and deliver nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{sleep, timeout};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use ordain_util::wait::shortened;

/// Between two looks. A quorum queue counts its messages anew every five seconds.
const EVERY: Duration = Duration::from_secs(5);
/// For one look.
const LOOK: Duration = Duration::from_secs(20);
/// So many looks in a row at messages that do not come are no accident.
const SILENT: u32 = 3;

/// What a consumer does, as far as the watch needs to know.
#[derive(Debug, Default)]
pub(super) struct Flow {
    taken: AtomicU64,
    has_room: AtomicBool,
}

impl Flow {
    /// Notes how many deliveries have come, and whether the broker may send more.
    pub(super) fn set(&self, taken: u64, has_room: bool) {
        self.taken.store(taken, Relaxed);
        self.has_room.store(has_room, Relaxed);
    }

    /// How many deliveries have come.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

/// Watches until the queue is not there any more, or does not answer, or is silent.
pub(super) async fn watch(
    options: &ConsumerOptions,
    connection: &Connection,
    queue: &str,
    flow: &Flow,
) -> BrokerError {
    let ConsumerOptions { broker, lag, .. } = options;
    let channel = match connection.create_channel().await {
        Ok(channel) => channel,
        Err(error) => return broker.error(&error),
    };
    let (mut before, mut silent) = (None, 0);
    loop {
        let ready = match timeout(shortened(LOOK), ready(&channel, queue)).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => return broker.error(&error),
            Err(_) => return BrokerError::Away(format!("the queue {queue:?} does not answer")),
        };
        lag.set(Some(ready.into()));
        let taken = flow.taken();
        let stands = before == Some(taken) && flow.has_room.load(Relaxed) && ready > 0;
        (before, silent) = (Some(taken), if stands { silent + 1 } else { 0 });
        if silent == SILENT {
            return BrokerError::Away(format!(
                "the queue {queue:?} has {ready} messages and delivers none: it is subscribed to \
                 anew. If that does not help, another consumer may have it"
            ));
        }
        sleep(shortened(EVERY)).await;
    }
}

/// Messages that wait in the queue to be delivered.
async fn ready(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(found.message_count())
}
