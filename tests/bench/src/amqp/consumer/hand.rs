//! Consumers in the usual handwritten form. For each event, a consumer writes a Redis key (the *mark* of the event),
//! which shows that a consumer has executed the event. It then computes the state of the event's key, writes the state
//! into Redis, and acknowledges the event. A Rust function computes the state in place of the WebAssembly handler. If
//! the mark already exists, the event is a repeat, and the consumer only acknowledges the event.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use redis::aio::MultiplexedConnection;

use super::{Partition, Progress};

/// Maximum number of events of a partition that a consumer without order executes at a time.
const TASK_LIMIT: usize = 64;
/// Maximum number of unacknowledged deliveries. The number is so high that the next delivery has always arrived before
/// the consumer needs it.
pub(super) const PREFETCH: u16 = 256;
/// Prefix of the keys of marks.
pub(in crate::amqp) const MARK: &str = "seen:";
/// Prefix of the keys of states.
pub(in crate::amqp) const STATE: &str = "state:";

/// Executes up to [`TASK_LIMIT`] events at a time, in no order.
pub(super) async fn tasks(partition: Partition, redis: &str) -> Result<()> {
    let Partition { deliveries, progress, .. } = partition;
    let connection = connect(redis).await?;
    let each = |delivery| {
        let connection = connection.clone();
        let progress = Arc::clone(&progress);
        async move { tokio::spawn(take(delivery, connection, progress)).await? }
    };
    deliveries.map_err(anyhow::Error::from).try_for_each_concurrent(TASK_LIMIT, each).await
}

/// Executes one event after the other, in the order of the queue.
pub(super) async fn serial(partition: Partition, redis: &str) -> Result<()> {
    let Partition { mut deliveries, progress, .. } = partition;
    let connection = connect(redis).await?;
    while let Some(delivery) = deliveries.next().await {
        take(delivery?, connection.clone(), Arc::clone(&progress)).await?;
    }
    Ok(())
}

async fn connect(redis: &str) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(redis)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn take(
    delivery: Delivery,
    mut redis: MultiplexedConnection,
    progress: Arc<Progress>,
) -> Result<()> {
    let id = delivery.properties.message_id().as_ref().context("an event has no id")?;
    let mut mark = redis::cmd("SET");
    mark.arg(format!("{MARK}{id}")).arg(1).arg("NX");
    let is_new: Option<String> = mark.query_async(&mut redis).await?;
    if is_new.is_some() {
        let mut put = redis::cmd("HSET");
        put.arg(format!("{STATE}{}", delivery.routing_key)).arg("data").arg(handle(&delivery.data));
        let () = put.query_async(&mut redis).await?;
    }
    progress.done([&*delivery.data]);
    delivery.ack(BasicAckOptions::default()).await?;
    progress.acknowledged(1);
    Ok(())
}

/// Returns the state that the handler `probe` returns for an event of the type `put`.
fn handle(data: &[u8]) -> &[u8] {
    data
}
