//! The exchange of a sink, and the connection to it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Connection, Event as ConnectionEvent};
use tokio::time::timeout;

use super::confirm_tracker::{ConfirmFuture, ConfirmResult, PendingPublish};
use super::connect::{BrokerEndpoint, BrokerError, is_caused_by_message, is_state_error};
use super::encode::AmqpMessage;
use super::topology::check_exchange;

/// Time that the library may need to report the error that ended a connection.
const END_REPORT_DELAY: Duration = Duration::from_millis(100);

/// The exchange of a sink.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) sink: String,
    pub(super) broker: Arc<BrokerEndpoint>,
    pub(super) name: String,
}

/// A connection of a sink.
#[derive(Debug)]
pub(super) struct SinkConnection {
    pub(super) connection: Connection,
    /// The error that ended the connection.
    end: Arc<OnceLock<String>>,
}

/// A channel with publisher confirms, and its connection.
#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) link: SinkConnection,
    pub(super) channel: Channel,
}

impl SinkConnection {
    /// Returns the error that ended the connection, if it has ended. This method waits for the error, because the
    /// library reports it a moment after the end of the connection.
    pub(super) async fn end(&self) -> Option<&str> {
        if self.connection.status().connected() {
            return None;
        }
        if self.end.get().is_none() {
            tokio::time::sleep(END_REPORT_DELAY).await;
        }
        self.end.get().map(String::as_str)
    }
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
    /// The message was not published, because this process has lost the ownership of the partition, or the ownership is
    /// suspended.
    NotOwner,
}

/// Checks that the exchange of a sink exists.
pub(super) async fn check_sink_exchange(
    broker: &BrokerEndpoint,
    connection: &Connection,
    sink: &str,
    exchange: &str,
) -> Result<(), BrokerError> {
    check_exchange(broker, connection, exchange).await.map_err(|error| {
        error.into_foreign().map_refusal(|_, reason| {
            format!(
                "the exchange {exchange:?} of the sink {sink} cannot be used: {reason}. Declare it first, with the queues \
                 that its messages go to"
            )
        })
    })
}

impl Exchange {
    /// Opens a connection for publishing. Fails if the exchange does not exist.
    pub(super) async fn open(&self) -> Result<SinkConnection, BrokerError> {
        let link = self.connection().await?;
        check_sink_exchange(&self.broker, &link.connection, &self.sink, &self.name).await?;
        Ok(link)
    }

    async fn connection(&self) -> Result<SinkConnection, BrokerError> {
        let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
        let end = Arc::default();
        let events = Box::pin(connection.events_listener());
        tokio::spawn(watch_connection(self.clone(), Arc::clone(&end), events));
        Ok(SinkConnection { connection, end })
    }

    /// Opens a channel. Uses the previous connection if it is still open.
    pub(super) async fn connect(
        &self,
        previous: Option<SinkConnection>,
    ) -> Result<ConfirmChannel, BrokerError> {
        let link = match previous {
            Some(link) if link.connection.status().connected() => link,
            _ => self.connection().await?,
        };
        let channel = self.channel(&link.connection).await?;
        Ok(ConfirmChannel { link, channel })
    }

    async fn channel(&self, connection: &Connection) -> Result<Channel, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(channel)
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
        let open = async {
            let name = format!("ordain sink {}, one message", self.sink);
            let connection = self.broker.connect(&name).await?;
            let channel = self.channel(&connection).await?;
            Ok::<_, BrokerError>((connection, channel))
        };
        let (connection, channel) = match self.broker.within(answer_timeout, open).await {
            Ok(opened) => opened,
            Err(error) => return (item, unavailable(error.to_string())),
        };
        if !item.ownership.is_active() {
            // Connecting may have taken longer than the lease.
            return (item, IsolatedAnswer::NotOwner);
        }
        let confirmed = timeout(answer_timeout, self.publish(&channel, &item.outgoing)).await;
        let answer = match confirmed {
            Err(_) if connection.status().blocked() => {
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
        let _ = timeout(answer_timeout, connection.close(200, "done".into())).await;
        (item, answer)
    }
}

/// Logs when the broker blocks or unblocks the connection. Keeps the error that ends the connection.
async fn watch_connection(
    exchange: Exchange,
    end: Arc<OnceLock<String>>,
    mut events: impl futures_util::Stream<Item = ConnectionEvent> + Unpin,
) {
    let sink = exchange.sink;
    while let Some(event) = events.next().await {
        match event {
            ConnectionEvent::ConnectionBlocked(reason) => tracing::warn!(
                sink,
                reason,
                "publishing blocked by the broker; messages wait in the outbox until the broker unblocks publishing"
            ),
            ConnectionEvent::ConnectionUnblocked => {
                tracing::info!(sink, "publishing unblocked by the broker");
            }
            ConnectionEvent::Error(error) if !is_state_error(&error) => {
                // Keep only the first error, because a later error is a consequence of the first.
                let _ = end.set(exchange.broker.error(&error).to_string());
            }
            _ => {}
        }
    }
}
