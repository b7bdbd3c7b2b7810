//! Consumers that receive deliveries, and acknowledge many of them with one acknowledgement. One of them does nothing
//! else, so its rate is the upper limit for the sides without messages. The other one also publishes a message for each
//! delivery.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, PublisherConfirm};
use ordain_amqp::BrokerEndpoint;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Partition;
use crate::amqp::case::OUT_NAME;

/// Maximum number of deliveries that a consumer takes from its channel in one step. Also the number of unacknowledged
/// deliveries at which [`consume`] acknowledges.
const BATCH_LIMIT: usize = 256;
/// Time without another delivery after which [`consume`] acknowledges an incomplete batch.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of batches that wait for the confirms of their messages. Eight batches have about as many messages as
/// a usual client publishes before it waits for confirms.
const UNCONFIRMED_BATCH_LIMIT: usize = 8;

const CUMULATIVE_ACK: BasicAckOptions = BasicAckOptions { multiple: true };

pub(super) async fn consume(partition: Partition) -> Result<()> {
    let Partition { channel, deliveries, progress } = partition;
    let mut batches = deliveries.ready_chunks(BATCH_LIMIT);
    let mut last = 0;
    let mut waiting = 0;
    loop {
        match timeout(IDLE_TIMEOUT, batches.next()).await {
            Ok(Some(batch)) => {
                for delivery in batch {
                    let delivery = delivery?;
                    progress.done([&*delivery.data]);
                    last = delivery.delivery_tag;
                    waiting += 1;
                }
                if waiting < BATCH_LIMIT as u64 {
                    continue;
                }
            }
            Ok(None) => return Ok(()),
            Err(_) if waiting == 0 => continue,
            Err(_) => {}
        }
        channel.basic_ack(last, CUMULATIVE_ACK).await?;
        progress.acknowledged(std::mem::take(&mut waiting));
    }
}

/// Publishes a message for each delivery. Acknowledges a batch of deliveries when the broker has confirmed all messages
/// of the batch.
pub(super) async fn consume_and_publish(
    partition: Partition,
    broker: &BrokerEndpoint,
) -> Result<()> {
    let Partition { channel, deliveries, progress } = partition;
    let publishing = broker.connect("publisher").await?.create_channel().await?;
    publishing.confirm_select(ConfirmSelectOptions::default()).await?;
    let (hand_on, mut published) =
        mpsc::channel::<(u64, Vec<(PublisherConfirm, Vec<u8>)>)>(UNCONFIRMED_BATCH_LIMIT);
    let acknowledging = tokio::spawn(async move {
        while let Some((last, confirms)) = published.recv().await {
            let count = confirms.len() as u64;
            for (confirm, data) in confirms {
                ensure!(confirm.await?.is_ack(), "the broker refused a message");
                progress.done([&*data]);
            }
            channel.basic_ack(last, CUMULATIVE_ACK).await?;
            progress.acknowledged(count);
        }
        Ok(())
    });
    let mut batches = deliveries.ready_chunks(BATCH_LIMIT);
    while let Some(batch) = batches.next().await {
        let batch: Vec<Delivery> = batch.into_iter().collect::<Result<_, _>>()?;
        let Some(last) = batch.last().map(|delivery| delivery.delivery_tag) else { continue };
        // The consumer sends all messages of a batch together, in the order of their deliveries. If the consumer sent
        // each message alone, each message would wait for the thread that writes to the connection.
        let sent = batch.iter().map(|delivery| {
            let id = delivery.properties.message_id().clone().unwrap_or_default();
            let properties = BasicProperties::default()
                .with_message_id(id)
                .with_type("emitted".into())
                .with_content_type("application/octet-stream".into())
                .with_delivery_mode(2);
            let key = delivery.routing_key.clone();
            let options = BasicPublishOptions::default();
            publishing.basic_publish(OUT_NAME.into(), key, options, &delivery.data, properties)
        });
        let confirms = try_join_all(sent).await?;
        let data = batch.into_iter().map(|delivery| delivery.data);
        let confirms = confirms.into_iter().zip(data).collect();
        if hand_on.send((last, confirms)).await.is_err() {
            break;
        }
    }
    drop(hand_on);
    acknowledging.await?
}
