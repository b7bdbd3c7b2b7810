//! The exchange of a sink, and the connection to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Event as ConnectionEvent, ExchangeKind};
use tokio::time::timeout;

use super::confirm_tracker::{ConfirmFuture, ConfirmResult, PendingPublish};
use super::connect::{BrokerEndpoint, BrokerError, is_caused_by_message};
use super::encode::AmqpMessage;

/// The exchange of a sink.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) sink: String,
    pub(super) broker: Arc<BrokerEndpoint>,
    pub(super) name: String,
}

/// A channel with publisher confirms, and its connection.
#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
}

/// The broker's answer to a message that was published in isolation.
#[derive(Debug)]
pub(super) enum IsolatedAnswer {
    /// The broker confirmed, returned or refused the message.
    Confirm(ConfirmResult),
    /// The broker closed the channel because of the message, for this reason.
    Refused(String),
    /// The broker did not answer in time.
    TimedOut,
    /// The broker could not be reached, for this reason.
    Unavailable(String),
    /// The message was not published. This process may not act for the partition now, or no longer owns it.
    NotOwner,
}

impl Exchange {
    /// Opens a connection for publishing. Fails if the exchange does not exist.
    pub(super) async fn open(&self) -> Result<Connection, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let connection = self.connection().await?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = self.name.as_str().into();
        let declared =
            channel.exchange_declare(name, ExchangeKind::Topic, options, FieldTable::default());
        declared.await.map_err(|error| match failed(error) {
            BrokerError::Refused(words) => BrokerError::Refused(format!(
                "the exchange {:?} of the sink {} cannot be used: {words}. Declare it first, with \
                 the queues that its messages go to",
                self.name, self.sink
            )),
            unavailable @ BrokerError::Unavailable(_) => unavailable,
        })?;
        let _ = channel.close(200, "done".into()).await;
        Ok(connection)
    }

    async fn connection(&self) -> Result<Connection, BrokerError> {
        let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
        let events = Box::pin(connection.events_listener());
        tokio::spawn(log_blocked_connection(self.sink.clone(), events));
        Ok(connection)
    }

    /// Opens a channel. Uses the previous connection if it is still open.
    pub(super) async fn connect(
        &self,
        previous: Option<Connection>,
    ) -> Result<ConfirmChannel, BrokerError> {
        let connection = match previous {
            Some(connection) if connection.status().connected() => connection,
            _ => self.connection().await?,
        };
        self.channel(connection).await
    }

    async fn channel(&self, connection: Connection) -> Result<ConfirmChannel, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(ConfirmChannel { connection, channel })
    }

    /// Publishes a message.
    pub(super) fn publish<'a>(
        &self,
        channel: &'a Channel,
        outgoing: &AmqpMessage,
    ) -> ConfirmFuture<'a> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let AmqpMessage { routing_key, properties, body } = outgoing;
        let exchange = self.name.as_str().into();
        let key = routing_key.clone();
        let properties = properties.clone();
        let body = body.clone();
        Box::pin(async move {
            channel.basic_publish(exchange, key, options, body.bytes(), properties).await?.await
        })
    }

    /// Publishes a message on a connection of its own. Waits up to `answer_timeout` for the broker's answer.
    pub(super) async fn publish_isolated(
        self,
        item: PendingPublish,
        answer_timeout: Duration,
    ) -> (PendingPublish, IsolatedAnswer) {
        let unavailable = |reason: String| IsolatedAnswer::Unavailable(reason);
        let link = async {
            let name = format!("ordain sink {}, one message", self.sink);
            self.channel(self.broker.connect(&name).await?).await
        };
        let link = match timeout(answer_timeout, link).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return (item, unavailable(error.to_string())),
            Err(_) => return (item, unavailable(format!("{} does not answer", self.broker))),
        };
        if !item.ownership.is_active() {
            // Connecting may have taken longer than the lease.
            return (item, IsolatedAnswer::NotOwner);
        }
        let confirmed = timeout(answer_timeout, self.publish(&link.channel, &item.outgoing)).await;
        let answer = match confirmed {
            Err(_) if link.connection.status().blocked() => {
                unavailable(format!("{} accepts no messages for now", self.broker))
            }
            Err(_) => IsolatedAnswer::TimedOut,
            Ok(Err(error)) => {
                let reason = self.broker.error(&error).to_string();
                if is_caused_by_message(&error) {
                    IsolatedAnswer::Refused(reason)
                } else {
                    unavailable(reason)
                }
            }
            Ok(Ok(confirmation)) => {
                let result = ConfirmResult::of(&confirmation);
                let is_returned = confirmation.take_message().is_some();
                IsolatedAnswer::Confirm(if is_returned { ConfirmResult::Returned } else { result })
            }
        };
        let _ = timeout(answer_timeout, link.connection.close(200, "done".into())).await;
        (item, answer)
    }
}

/// Logs when the broker blocks the connection, and when it unblocks it.
async fn log_blocked_connection(
    sink: String,
    mut events: impl futures_util::Stream<Item = ConnectionEvent> + Unpin,
) {
    while let Some(event) = events.next().await {
        match event {
            ConnectionEvent::ConnectionBlocked(reason) => tracing::warn!(
                sink,
                reason,
                "publishing blocked by the broker; messages wait in the outbox"
            ),
            ConnectionEvent::ConnectionUnblocked => {
                tracing::info!(sink, "publishing unblocked by the broker");
            }
            _ => {}
        }
    }
}
