//! A producer's way into an exchange: events are published in order, pipelined, and all of them are
//! confirmed before it goes on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Connection};
use ordain_core::Event;
use tokio::time::timeout;

use super::connect::{Broker, BrokerError};
use super::encode::{self, Outgoing};
use ordain_config::KeyFrom;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// For the next confirmation.
const CONFIRM: Duration = Duration::from_secs(20);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(500);
/// Time between two warnings that the broker does not take what is published.
const WARN_INTERVAL: Duration = Duration::from_secs(5);

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

    /// Whether the key of an event is to be its routing key.
    pub fn is_routed(&self) -> bool {
        self.key == KeyFrom::RoutingKey
    }

    /// Publishes events with their numbers, until the broker has confirmed them all. What it does not
    /// take is published again, as long as it is waited for.
    pub async fn publish(&mut self, events: &[Numbered]) -> Result<(), BrokerError> {
        let mut left = events.to_vec();
        let mut until = Instant::now() + self.patience;
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let before = left.len();
            let (taken, failed) = self.try_publish(&left).await;
            let mut taken = taken.into_iter();
            left.retain(|_| !taken.next().unwrap_or(false));
            let reason = match failed {
                None if left.is_empty() => return Ok(()),
                None => self.refusal(left.len()),
                Some(BrokerError::Away(reason)) => reason,
                Some(refused) => return Err(refused),
            };
            if left.len() < before {
                until = Instant::now() + self.patience;
            }
            if Instant::now() >= until {
                return Err(BrokerError::Away(reason));
            }
            if throttle.allow() {
                tracing::warn!(
                    "the broker does not take what is published, and is tried again: {reason}"
                );
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Publishes events once. Tells of each whether the broker has taken it, and what failed: it is away,
    /// or no queue takes one of them. Where order matters, what comes after one of its key that was not
    /// taken is not published.
    pub async fn try_publish(&mut self, events: &[Numbered]) -> (Vec<bool>, Option<BrokerError>) {
        let mut taken = vec![false; events.len()];
        let (mut failed, mut stopped) = (None, HashSet::new());
        for mut wave in waves(events, self.in_order) {
            wave.retain(|at| !stopped.contains(events[*at].0.key()));
            let encode = |at: &usize| encode::event(&events[*at].0, events[*at].1, &self.key);
            let messages: Vec<_> = wave.iter().map(encode).collect();
            let (confirmed, error) = self.send(&messages).await;
            for (at, confirmed) in wave.into_iter().zip(confirmed) {
                taken[at] = confirmed;
                if !confirmed {
                    stopped.insert(events[at].0.key());
                }
            }
            failed = error.or(failed);
            if let Some(BrokerError::Away(_)) = failed {
                self.link = None;
                break;
            }
        }
        (taken, failed)
    }

    /// So many messages were not taken.
    pub fn refusal(&self, messages: usize) -> String {
        format!("{} has refused {messages} messages", self.broker)
    }

    /// Which of the messages are confirmed.
    async fn send(&mut self, messages: &[Outgoing]) -> (Vec<bool>, Option<BrokerError>) {
        let mut taken = vec![false; messages.len()];
        let failed = self.try_send(messages, &mut taken).await.err();
        (taken, failed)
    }

    async fn try_send(
        &mut self,
        messages: &[Outgoing],
        taken: &mut [bool],
    ) -> Result<(), BrokerError> {
        let broker = Arc::clone(&self.broker);
        let failed = |error| broker.error(&error);
        let exchange = self.exchange.clone();
        let channel = self.channel().await?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(messages.len());
        for Outgoing { routing_key, properties, body } in messages {
            let (to, key) = (exchange.as_str().into(), routing_key.clone());
            let sent =
                channel.basic_publish(to, key, options, body.bytes(), properties.clone()).await;
            confirms.push(sent.map_err(failed)?);
        }
        let (mut unroutable, mut ended) = (None, None);
        for (taken, confirm) in taken.iter_mut().zip(confirms) {
            // What came before a channel was closed is confirmed all the same.
            let confirmation = match timeout(shortened(CONFIRM), confirm).await {
                Ok(Ok(confirmation)) => confirmation,
                Ok(Err(error)) => {
                    ended.get_or_insert(failed(error));
                    continue;
                }
                Err(_) => return Err(BrokerError::Away(format!("{broker} confirms nothing"))),
            };
            *taken = confirmation.is_ack();
            if let Some(returned) = confirmation.take_message() {
                *taken = false;
                unroutable = Some(returned.delivery.routing_key);
            }
        }
        if let Some(error) = ended {
            return Err(error);
        }
        unroutable.map_or(Ok(()), |key| {
            Err(BrokerError::Refused(format!(
                "no queue takes what is published to the exchange {exchange:?} with the routing key \
                 {:?}: bind one, or start the stream once, which makes its queues",
                key.as_str()
            )))
        })
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

/// An event and its number, if it has one.
pub type Numbered = (Arc<Event>, Option<u64>);

/// All at once, or in waves of which none has two events of one key: their places.
fn waves(events: &[Numbered], in_order: bool) -> Vec<Vec<usize>> {
    let mut waves: Vec<Vec<_>> = vec![Vec::new()];
    let mut seen = HashMap::new();
    for (at, (event, _)) in events.iter().enumerate() {
        let wave: &mut usize = seen.entry(if in_order { event.key() } else { "" }).or_default();
        if waves.len() <= *wave {
            waves.push(Vec::new());
        }
        waves[*wave].push(at);
        *wave += usize::from(in_order);
    }
    waves
}
