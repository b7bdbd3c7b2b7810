//! The sink of an exchange: messages are published in order, pipelined, and each is confirmed by
//! the broker before it counts. One that no queue takes is kept and published again, until there is
//! a queue.

use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::Either;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{
    Channel, Confirmation, Connection, Event as ConnectionEvent, ExchangeKind, PublisherConfirm,
};
use ordain_core::DeadLetter;
use tokio::time::timeout;

use super::connect::{Broker, BrokerError};
use super::encode::{self, Outgoing};
use crate::config::{AmqpSink as Config, RoutingKey};
use crate::store::OutboxMessage;

/// Between two connections that fail, from and to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// For the next confirmation: more than a broker needs that syncs to a slow disk. After it the
/// connection is given up.
const CONFIRM: Duration = Duration::from_secs(20);
/// Messages that are handed over before it is looked whether they are written.
const GROUP: usize = 256;
/// Between two warnings.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Publishes to an exchange.
#[derive(Debug)]
pub struct AmqpSink {
    name: String,
    broker: Arc<Broker>,
    exchange: String,
    routing_key: RoutingKey,
    link: Option<Link>,
    /// What is not confirmed, with the run that each belongs to.
    outgoing: Vec<(u64, Outgoing)>,
    retry: Option<Instant>,
    wait: Duration,
    told_at: Option<Instant>,
}

#[derive(Debug)]
struct Link {
    _connection: Connection,
    channel: Channel,
}

impl AmqpSink {
    /// Connects, and looks for the exchange.
    pub async fn open(
        name: &str,
        config: &Config,
        broker: &Arc<Broker>,
    ) -> Result<Self, BrokerError> {
        let mut sink = Self {
            name: name.to_owned(),
            broker: Arc::clone(broker),
            exchange: config.exchange.0.clone(),
            routing_key: config.routing_key.clone(),
            link: None,
            outgoing: Vec::new(),
            retry: None,
            wait: BACKOFF.0,
            told_at: None,
        };
        sink.look_for_exchange().await?;
        sink.link = Some(sink.connect().await?);
        Ok(sink)
    }

    async fn look_for_exchange(&self) -> Result<(), BrokerError> {
        if self.exchange.is_empty() {
            // The default one is always there.
            return Ok(());
        }
        let failed = |error| self.broker.error(&error);
        let connection = self.broker.connect(&format!("ordain sink {}", self.name)).await?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = self.exchange.as_str().into();
        let found =
            channel.exchange_declare(name, ExchangeKind::Topic, options, FieldTable::default());
        found.await.map_err(|error| match failed(error) {
            BrokerError::Refused(words) => BrokerError::Refused(format!(
                "the exchange {:?} of the sink {} cannot be used: {words}. Declare it first, with \
                 the queues that its messages go to",
                self.exchange, self.name
            )),
            away @ BrokerError::Away(_) => away,
        })?;
        let _ = connection.close(200, "done".into()).await;
        Ok(())
    }

    async fn connect(&self) -> Result<Link, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let connection = self.broker.connect(&format!("ordain sink {}", self.name)).await?;
        let events = Box::pin(connection.events_listener());
        tokio::spawn(tell_of_blocks(self.name.clone(), events));
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(Link { _connection: connection, channel })
    }

    /// Takes a message, to be published with the next [`Self::flush`].
    pub fn put(&mut self, run: u64, stream: &str, message: &OutboxMessage) {
        let outgoing = encode::message(stream, message, &self.routing_key);
        self.outgoing.push((run, outgoing));
    }

    /// Takes a dead letter.
    pub fn put_letter(&mut self, run: u64, stream: &str, letter: &DeadLetter) {
        let outgoing = encode::letter(stream, letter, &self.routing_key);
        self.outgoing.push((run, outgoing));
    }

    /// Publishes what is not confirmed. What cannot be is kept for the next time.
    pub async fn flush(&mut self) {
        if self.outgoing.is_empty() || self.retry.is_some_and(|at| at > Instant::now()) {
            return;
        }
        match self.try_flush().await {
            Ok(()) => (self.retry, self.wait) = (None, BACKOFF.0),
            Err(reason) => {
                self.retry = Some(Instant::now() + self.wait);
                self.wait = (2 * self.wait).min(BACKOFF.1);
                self.tell(&reason);
            }
        }
    }

    async fn try_flush(&mut self) -> Result<(), String> {
        let link = match self.link.take().filter(|link| link.channel.status().connected()) {
            Some(link) => link,
            None => self.connect().await.map_err(|error| error.to_string())?,
        };
        let (confirms, mut failed) = self.publish(&link.channel).await;
        let mut returned = Vec::new();
        for confirm in confirms {
            let confirmed = match failed {
                None => timeout(CONFIRM, confirm).await,
                Some(_) => break,
            };
            match confirmed {
                Ok(Ok(Confirmation::Ack(None))) => {}
                Ok(Ok(Confirmation::Ack(Some(message)))) => returned.push(message.delivery),
                Ok(Ok(Confirmation::NotRequested | Confirmation::Nack(_))) => {
                    failed = Some("the broker has refused messages".to_owned());
                }
                Ok(Err(error)) => failed = Some(self.broker.error(&error).to_string()),
                Err(_) => {
                    failed = Some(format!("{}: no confirmation within {CONFIRM:?}", self.broker));
                }
            }
        }
        if let Some(failed) = failed {
            // What was returned may not be known, so that all of it is published again.
            return Err(failed);
        }
        // A confirmation brings the return of any message, not of its own.
        self.outgoing.retain(|(_, it)| returned.iter().any(|message| it.is(message)));
        self.link = Some(link);
        match self.outgoing.first() {
            None => Ok(()),
            Some((_, Outgoing { routing_key, .. })) => Err(format!(
                "no queue takes messages of the exchange {:?} with the routing key {:?}: bind one",
                self.exchange,
                routing_key.as_str()
            )),
        }
    }

    /// Publishes all in order, without waiting for one to be written before the next: so many
    /// messages go into one write. Those that went, and why the next one did not.
    async fn publish(&self, channel: &Channel) -> (Vec<PublisherConfirm>, Option<String>) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(self.outgoing.len());
        for group in self.outgoing.chunks(GROUP) {
            let mut published = Vec::with_capacity(group.len());
            for (_, Outgoing { routing_key, properties, body }) in group {
                let (exchange, key) = (self.exchange.as_str().into(), routing_key.clone());
                let body = body.bytes();
                let publish =
                    channel.basic_publish(exchange, key, options, body, properties.clone());
                let mut publish = Box::pin(publish);
                // The message is handed over here and now, behind those before it.
                match publish.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(done) => published.push(Either::Left(ready(done))),
                    Poll::Pending => published.push(Either::Right(publish)),
                }
            }
            for published in published {
                match published.await {
                    Ok(confirm) => confirms.push(confirm),
                    Err(error) => return (confirms, Some(self.broker.error(&error).to_string())),
                }
            }
        }
        (confirms, None)
    }

    /// The runs that have something here that is not published.
    pub fn unpublished(&self) -> BTreeSet<u64> {
        self.outgoing.iter().map(|(run, _)| *run).collect()
    }

    fn tell(&mut self, reason: &str) {
        if self.told_at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        self.told_at = Some(Instant::now());
        tracing::error!(
            sink = self.name,
            messages = self.outgoing.len(),
            "messages are not published; they are kept and tried again: {reason}"
        );
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
