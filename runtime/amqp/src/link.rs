//! The exchange of a sink, and the connection to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Event as ConnectionEvent, ExchangeKind};
use tokio::time::timeout;

use super::connect::{Broker, BrokerError, is_of_a_message};
use super::encode::Outgoing;
use super::flight::{Confirm, Fate, Item};

/// Where messages go.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) sink: String,
    pub(super) broker: Arc<Broker>,
    pub(super) name: String,
}

/// A channel that confirms, with its connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
}

/// What the broker did with a message that it was given alone.
#[derive(Debug)]
pub(super) enum Answer {
    /// It settled it.
    Fate(Fate),
    /// It closed the channel because of it, with these words.
    Refused(String),
    /// It said nothing.
    Silence,
    /// It could not be asked, for this reason.
    Away(String),
    /// It was not asked: this process may not act for the partition, at the moment or any more.
    NotOurs,
}

impl Exchange {
    /// A connection to publish on. Fails where the exchange is not there.
    pub(super) async fn open(&self) -> Result<Connection, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let connection = self.connection().await?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = self.name.as_str().into();
        let found =
            channel.exchange_declare(name, ExchangeKind::Topic, options, FieldTable::default());
        found.await.map_err(|error| match failed(error) {
            BrokerError::Refused(words) => BrokerError::Refused(format!(
                "the exchange {:?} of the sink {} cannot be used: {words}. Declare it first, with \
                 the queues that its messages go to",
                self.name, self.sink
            )),
            away @ BrokerError::Away(_) => away,
        })?;
        let _ = channel.close(200, "done".into()).await;
        Ok(connection)
    }

    async fn connection(&self) -> Result<Connection, BrokerError> {
        let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
        let events = Box::pin(connection.events_listener());
        tokio::spawn(tell_of_blocks(self.sink.clone(), events));
        Ok(connection)
    }

    /// A channel, on the connection of the one before if that is still there.
    pub(super) async fn connect(&self, before: Option<Connection>) -> Result<Link, BrokerError> {
        let connection = match before {
            Some(connection) if connection.status().connected() => connection,
            _ => self.connection().await?,
        };
        self.channel(connection).await
    }

    async fn channel(&self, connection: Connection) -> Result<Link, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(Link { connection, channel })
    }

    /// Publishes a message.
    pub(super) fn publish<'a>(&self, channel: &'a Channel, outgoing: &Outgoing) -> Confirm<'a> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let Outgoing { routing_key, properties, body } = outgoing;
        let (exchange, key) = (self.name.as_str().into(), routing_key.clone());
        let (properties, body) = (properties.clone(), body.clone());
        Box::pin(async move {
            channel.basic_publish(exchange, key, options, body.bytes(), properties).await?.await
        })
    }

    /// Publishes a message on a connection of its own, and waits so long for what becomes of it.
    pub(super) async fn publish_alone(self, item: Item, patience: Duration) -> (Item, Answer) {
        let away = |reason: String| Answer::Away(reason);
        let link = async {
            let name = format!("ordain sink {}, one message", self.sink);
            self.channel(self.broker.connect(&name).await?).await
        };
        let link = match timeout(patience, link).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return (item, away(error.to_string())),
            Err(_) => return (item, away(format!("{} does not answer", self.broker))),
        };
        if !item.tenure.is_on() {
            // Connecting may have taken longer than the lease.
            return (item, Answer::NotOurs);
        }
        let confirmed = timeout(patience, self.publish(&link.channel, &item.outgoing)).await;
        let answer = match confirmed {
            Err(_) if link.connection.status().blocked() => {
                away(format!("{} takes no messages for now", self.broker))
            }
            Err(_) => Answer::Silence,
            Ok(Err(error)) => {
                let reason = self.broker.error(&error).to_string();
                if is_of_a_message(&error) { Answer::Refused(reason) } else { away(reason) }
            }
            Ok(Ok(confirmation)) => {
                let fate = Fate::of(&confirmation);
                let came_back = confirmation.take_message().is_some();
                Answer::Fate(if came_back { Fate::Returned } else { fate })
            }
        };
        let _ = timeout(patience, link.connection.close(200, "done".into())).await;
        (item, answer)
    }
}

/// Says that the broker takes no messages for now, and that it does again.
async fn tell_of_blocks(
    sink: String,
    mut events: impl futures_util::Stream<Item = ConnectionEvent> + Unpin,
) {
    while let Some(event) = events.next().await {
        match event {
            ConnectionEvent::ConnectionBlocked(reason) => tracing::warn!(
                sink,
                reason,
                "the broker takes no messages for now; they wait in the outbox"
            ),
            ConnectionEvent::ConnectionUnblocked => {
                tracing::info!(sink, "the broker takes messages again");
            }
            _ => {}
        }
    }
}
