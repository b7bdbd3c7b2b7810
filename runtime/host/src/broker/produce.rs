//! A producer's way into an exchange: events are published in order, pipelined, and all of them are
//! confirmed before it goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Connection};
use ordain_core::Event;
use tokio::time::timeout;

use super::connect::{Broker, BrokerError};
use super::encode::{self, Outgoing};
use crate::config::{KeyFrom, RoutingKey};
use crate::told::Told;

/// For the next confirmation.
const CONFIRM: Duration = Duration::from_secs(20);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(500);
/// Between two warnings.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Publishes a producer's events.
#[derive(Debug)]
pub struct Producer {
    broker: Arc<Broker>,
    exchange: String,
    key: KeyFrom,
    /// Whether those of a key must not overtake each other: the broker may refuse one and take the
    /// next.
    in_order: bool,
    /// How long a broker is waited for that is away, or that takes nothing.
    patience: Duration,
    link: Option<(Connection, Channel)>,
}

impl Producer {
    /// Into an exchange of a broker, with the key where the stream looks for it.
    pub fn new(
        broker: &Arc<Broker>,
        exchange: &str,
        key: &KeyFrom,
        in_order: bool,
        patience: Duration,
    ) -> Self {
        let (broker, exchange, key) = (Arc::clone(broker), exchange.to_owned(), key.clone());
        Self { broker, exchange, key, in_order, patience, link: None }
    }

    /// Whether a key is too long for a routing key, where it is to be one.
    pub fn is_too_long(&self, key: &str) -> bool {
        self.key == KeyFrom::RoutingKey && key.len() > RoutingKey::LIMIT
    }

    /// Publishes events with their numbers, until the broker has confirmed them all. What it does not
    /// take is published again, as long as it is waited for.
    pub async fn publish(
        &mut self,
        events: &[(Arc<Event>, Option<u64>)],
    ) -> Result<(), BrokerError> {
        for wave in waves(events, self.in_order) {
            let encode = |(event, sequence): &(_, _)| encode::event(event, *sequence, &self.key);
            self.send(wave.into_iter().map(encode).collect()).await?;
        }
        Ok(())
    }

    async fn send(&mut self, mut left: Vec<Outgoing>) -> Result<(), BrokerError> {
        let (mut until, mut told) = (Instant::now() + self.patience, Told::every(TELL_EVERY));
        loop {
            let before = left.len();
            let reason = match self.try_send(&mut left).await {
                Ok(()) if left.is_empty() => return Ok(()),
                Ok(()) => format!("{} has refused {} messages", self.broker, left.len()),
                Err(BrokerError::Away(reason)) => {
                    self.link = None;
                    reason
                }
                Err(refused) => return Err(refused),
            };
            if left.len() < before {
                until = Instant::now() + self.patience;
            }
            if Instant::now() >= until {
                return Err(BrokerError::Away(reason));
            }
            if told.is_due() {
                tracing::warn!(
                    "the broker does not take what is published, and is tried again: {reason}"
                );
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Publishes what is left; what is confirmed is left no more.
    async fn try_send(&mut self, left: &mut Vec<Outgoing>) -> Result<(), BrokerError> {
        let broker = Arc::clone(&self.broker);
        let failed = |error| broker.error(&error);
        let exchange = self.exchange.clone();
        let channel = self.channel().await?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(left.len());
        for Outgoing { routing_key, properties, body } in left.iter() {
            let (to, key) = (exchange.as_str().into(), routing_key.clone());
            let sent =
                channel.basic_publish(to, key, options, body.bytes(), properties.clone()).await;
            confirms.push(sent.map_err(failed)?);
        }
        let (mut taken, mut ended) = (Vec::with_capacity(left.len()), None);
        for confirm in confirms {
            let confirmation = match timeout(CONFIRM, confirm).await {
                Ok(Ok(confirmation)) => confirmation,
                Ok(Err(error)) => {
                    ended = Some(failed(error));
                    break;
                }
                Err(_) => {
                    let words = format!("{broker} confirms nothing");
                    ended = Some(BrokerError::Away(words));
                    break;
                }
            };
            taken.push(confirmation.is_ack());
            if let Some(returned) = confirmation.take_message() {
                let key = &returned.delivery.routing_key;
                return Err(BrokerError::Refused(format!(
                    "no queue takes what is published to the exchange {exchange:?} with the routing \
                     key {:?}: bind one, or start the stream once, which makes its queues",
                    key.as_str()
                )));
            }
        }
        let mut taken = taken.into_iter();
        left.retain(|_| !taken.next().unwrap_or(false));
        ended.map_or(Ok(()), Err)
    }

    /// Whether the broker is there.
    pub async fn reach(&mut self) -> Result<(), BrokerError> {
        self.channel().await.map(drop)
    }

    async fn channel(&mut self) -> Result<&Channel, BrokerError> {
        let is_open = |(connection, channel): &(Connection, Channel)| {
            connection.status().connected() && channel.status().connected()
        };
        if !self.link.as_ref().is_some_and(is_open) {
            let failed = |error| self.broker.error(&error);
            let connection = self.broker.connect("ordain publish").await?;
            let channel = connection.create_channel().await.map_err(failed)?;
            channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
            self.link = Some((connection, channel));
        }
        Ok(&self.link.as_ref().expect("it was just made").1)
    }

    /// Ends in order.
    pub async fn close(self) {
        if let Some((connection, _)) = self.link {
            // Everything is confirmed, whatever becomes of it.
            let _ = connection.close(200, "done".into()).await;
        }
    }
}

/// All at once, or in waves of which none has two events of one key.
fn waves<T>(events: &[(Arc<Event>, T)], in_order: bool) -> Vec<Vec<&(Arc<Event>, T)>> {
    let mut waves: Vec<Vec<_>> = vec![Vec::new()];
    let mut seen = std::collections::HashMap::new();
    for event in events {
        let wave: &mut usize = seen.entry(if in_order { event.0.key() } else { "" }).or_default();
        if waves.len() <= *wave {
            waves.push(Vec::new());
        }
        waves[*wave].push(event);
        *wave += usize::from(in_order);
    }
    waves
}
