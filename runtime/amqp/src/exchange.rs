//! The exchange of a sink, and the connection to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Connection, Event as ConnectionEvent};
use tokio::sync::watch;
use tokio::time::timeout;

use super::confirm_tracker::{ConfirmFuture, ConfirmResult, PendingPublish};
use super::connect::{
    BrokerEndpoint, BrokerError, RefusalCause, is_caused_by_message, is_state_error,
};
use super::encode::{AmqpMessage, DIRECT_REPLY_ADDRESS};
use super::topology::check_exchange;

/// The library reports the error that ended a connection within this time.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) sink: String,
    pub(super) broker: Arc<BrokerEndpoint>,
    pub(super) name: String,
    /// True if the routing key of the sink names the queue for a reply.
    pub(super) has_replies: bool,
}

#[derive(Debug)]
pub(super) struct SinkConnection {
    pub(super) connection: Connection,
    /// The error that ended the connection; empty until the library reports it.
    end: watch::Receiver<String>,
}

#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) link: SinkConnection,
    pub(super) channel: Channel,
}

impl SinkConnection {
    /// Returns the error that ended the connection; `None` if the connection is open. The library reports the error a
    /// moment after the end, so this method waits for the report. Returns `None` if no report arrives within a time
    /// limit.
    pub(super) async fn end(&self) -> Option<String> {
        if self.connection.status().connected() {
            return None;
        }
        let mut end = self.end.clone();
        let reported = timeout(END_REPORT_TIMEOUT, end.wait_for(|end| !end.is_empty())).await;
        let reason = reported.ok()?.ok()?.clone();
        Some(reason)
    }
}

/// The broker's answer to a message that was published in isolation (on a connection of its own).
#[derive(Debug)]
pub(super) enum IsolatedAnswer {
    /// The broker accepted, returned or rejected the message.
    Confirm(ConfirmResult),
    /// The broker closed the channel or connection, probably because of the message.
    Refused {
        reason: String,
        /// True if the user of the broker lacks a right, or if the broker does not support the type of the exchange.
        /// The broker would then refuse any other form of the message too.
        concerns_exchange: bool,
    },
    /// The broker did not answer in time.
    TimedOut,
    /// The broker was unreachable, blocked publishers, or failed for a reason other than the message. The text states
    /// the reason.
    Unavailable(String),
    /// This process has lost the ownership of the partition, or the ownership is suspended.
    NotOwner,
}

/// Checks that the exchange of a sink exists. Skips the check for the default exchange, which always exists, and for
/// which the broker refuses this check.
pub(super) async fn check_sink_exchange(
    broker: &BrokerEndpoint,
    connection: &Connection,
    sink: &str,
    exchange: &str,
) -> Result<(), BrokerError> {
    if exchange.is_empty() {
        return Ok(());
    }
    check_exchange(broker, connection, exchange).await.map_err(|error| {
        error.into_foreign().map_refusal(|_, reason| {
            format!(
                "the exchange {exchange:?} of the sink {sink} cannot be used: {reason}. Declare it first, with the \
                 queues that receive its messages"
            )
        })
    })
}

impl Exchange {
    pub(super) async fn check(&self, link: &SinkConnection) -> Result<(), BrokerError> {
        check_sink_exchange(&self.broker, &link.connection, &self.sink, &self.name).await
    }

    /// Returns the previous connection if it is open, and otherwise opens a new connection.
    pub(super) async fn link(
        &self,
        previous: Option<SinkConnection>,
    ) -> Result<SinkConnection, BrokerError> {
        match previous {
            Some(link) if link.connection.status().connected() => Ok(link),
            _ => self.connection().await,
        }
    }

    async fn connection(&self) -> Result<SinkConnection, BrokerError> {
        let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
        let (end_sender, end) = watch::channel(String::new());
        let events = Box::pin(connection.events_listener());
        tokio::spawn(watch_connection(self.clone(), end_sender, events));
        Ok(SinkConnection { connection, end })
    }

    /// Opens a channel for publishing on the previous connection, or on a new connection if the previous connection is
    /// closed.
    pub(super) async fn connect(
        &self,
        previous: Option<SinkConnection>,
    ) -> Result<ConfirmChannel, BrokerError> {
        let link = self.link(previous).await?;
        match self.channel(&link.connection).await {
            Ok(channel) => Ok(ConfirmChannel { link, channel }),
            // If the connection has ended, the error that ended the connection states the cause.
            Err(error) => Err(link.end().await.map_or(error, BrokerError::Unavailable)),
        }
    }

    async fn channel(&self, connection: &Connection) -> Result<Channel, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(channel)
    }

    /// Returns whether a message is a direct reply, which the broker passes to the channel of the client instead of a
    /// queue. With the flag `mandatory`, RabbitMQ would return such a message as unroutable, although the client
    /// receives it.
    fn is_direct_reply(&self, routing_key: &str) -> bool {
        let channel = routing_key.strip_prefix(DIRECT_REPLY_ADDRESS);
        self.has_replies && channel.is_some_and(|channel| channel.starts_with('.'))
    }

    /// Returns a future that publishes a message, and completes with the broker's confirm.
    pub(super) fn publish<'a>(
        &self,
        channel: &'a Channel,
        outgoing: &AmqpMessage,
    ) -> ConfirmFuture<'a> {
        let AmqpMessage { routing_key, properties, body, .. } = outgoing;
        let mandatory = !self.is_direct_reply(routing_key.as_str());
        let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
        let exchange = self.name.as_str().into();
        let key = routing_key.clone();
        let properties = properties.clone();
        let body = body.clone();
        Box::pin(async move {
            channel.basic_publish(exchange, key, options, body.bytes(), properties).await?.await
        })
    }

    /// Publishes a message on a connection of its own. The opening of the connection, the wait for the broker's answer,
    /// and the close may each take up to `answer_timeout`.
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
            // While this method opened the connection, the ownership may have ended or may have been suspended.
            return (item, IsolatedAnswer::NotOwner);
        }
        let confirmed = timeout(answer_timeout, self.publish(&channel, &item.outgoing)).await;
        let answer = match confirmed {
            Err(_) if connection.status().blocked() => {
                unavailable(format!("{} blocks publishing at present", self.broker))
            }
            Err(_) => IsolatedAnswer::TimedOut,
            Ok(Err(error)) => {
                use RefusalCause::{Access, Unsupported};
                let described = self.broker.error(&error);
                let concerns_exchange =
                    matches!(described, BrokerError::Refused { cause: Access | Unsupported, .. });
                let reason = described.to_string();
                if is_caused_by_message(&error) {
                    IsolatedAnswer::Refused { reason, concerns_exchange }
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

/// Logs when the broker blocks or unblocks the connection. Sends to `end` the error that ends the connection.
async fn watch_connection(
    exchange: Exchange,
    end: watch::Sender<String>,
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
            // A soft error ends only a channel: the connection stays open.
            ConnectionEvent::Error(error)
                if !is_state_error(&error) && !error.is_amqp_soft_error() =>
            {
                // Keep only the first error, because a later error is a consequence of the first.
                end.send_if_modified(|end| {
                    let is_first = end.is_empty();
                    if is_first {
                        *end = exchange.broker.error(&error).to_string();
                    }
                    is_first
                });
            }
            _ => {}
        }
    }
}
