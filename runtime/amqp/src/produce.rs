//! Publishes a producer's events to an exchange. Many events may be unconfirmed at a time. If the events of a key must
//! keep their order, at most one event of each key is unconfirmed. [`ExchangeProducer::publish`] returns successfully
//! only after the broker has confirmed every event.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lapin::message::Delivery;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, Connection};
use ordain_core::Event;
use tokio::time::timeout;

use super::connect::{BrokerEndpoint, BrokerError, RefusalCause};
use super::encode::{self, AmqpMessage, EventForm};
use ordain_config::EventLocations;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// Time limit for each of three steps: to receive the next confirm, to write one message, and to open a channel.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time after which the producer replaces a connection on which the broker has refused an event. Once a queue with
/// `reject-publish` is full, RabbitMQ refuses all later messages of the same channel to this queue, even after an
/// operator has removed the limit of the queue.
const REFUSED_LINK_LIFETIME: Duration = Duration::from_secs(5);
const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// A client of the broker that publishes a producer's events to an exchange.
#[derive(Debug)]
pub struct ExchangeProducer {
    broker: Arc<BrokerEndpoint>,
    exchange: String,
    form: EventForm,
    /// `true` if the stream reads the key from the routing key only.
    is_routed: bool,
    /// `true` if the events of a key must keep their order. If `false`, the broker may refuse an event and still accept
    /// a later event of the same key.
    keeps_key_order: bool,
    /// The time for which the producer retries while the broker is unavailable or accepts no event.
    retry_timeout: Duration,
    link: Option<ProducerLink>,
    /// The time when the broker first refused an event on `link`; `None` if it has refused no event.
    refused_since: Option<Instant>,
    /// The connection of the previous attempt, if the broker blocked it. The producer keeps this connection to notice
    /// the end of the block. A new connection would not show the block, because the broker blocks a connection only
    /// after a message on it.
    blocked: Option<ProducerLink>,
}

type ProducerLink = (Connection, Channel);

impl ExchangeProducer {
    /// Creates a producer for the exchange of `stream`. The stream reads the values of its events from `locations`. The
    /// producer writes each event so that the stream reads an equal event. With `in_order`, the events of a key keep
    /// their order. [`Self::publish`] returns an error when the broker has accepted no event for the time
    /// `retry_timeout`.
    pub fn new(
        broker: &Arc<BrokerEndpoint>,
        stream: &str,
        exchange: &str,
        locations: &EventLocations,
        in_order: bool,
        retry_timeout: Duration,
    ) -> Self {
        let broker = Arc::clone(broker);
        let exchange = exchange.to_owned();
        Self {
            broker,
            exchange,
            form: EventForm::new(stream, locations),
            is_routed: locations.key.is_none(),
            keeps_key_order: in_order,
            retry_timeout,
            link: None,
            refused_since: None,
            blocked: None,
        }
    }

    /// Returns whether the stream reads the key of an event from the routing key.
    pub fn is_routed(&self) -> bool {
        self.is_routed
    }

    /// Publishes events with their sequences, and retries each event that the broker does not accept, until the broker
    /// has confirmed all events. Returns an error when the broker has accepted no event for the time `retry_timeout` of
    /// [`Self::new`]. Does not retry after a [`BrokerError::Refused`], for example if the broker cannot route an event
    /// to a queue.
    pub async fn publish(&mut self, events: &[SequencedEvent]) -> Result<(), BrokerError> {
        let mut remaining = events.to_vec();
        let mut until = Instant::now() + self.retry_timeout;
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let before = remaining.len();
            let (accepted, failed) = self.try_publish(&remaining).await;
            let mut accepted = accepted.into_iter();
            remaining.retain(|_| !accepted.next().unwrap_or(false));
            let reason = match failed {
                None if remaining.is_empty() => return Ok(()),
                None => self.refusal_reason(remaining.len()),
                Some(BrokerError::Unavailable(reason)) => reason,
                Some(refused) => return Err(refused),
            };
            if remaining.len() < before {
                until = Instant::now() + self.retry_timeout;
            }
            if Instant::now() >= until {
                return Err(BrokerError::Unavailable(reason));
            }
            if throttle.allow() {
                tracing::warn!(
                    "events not accepted by the broker: {reason}; publishing them again"
                );
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Makes one attempt to publish events. Returns, for each event, whether the broker accepted it. If the attempt
    /// fails, also returns the error, for example because the broker is unavailable or cannot route an event to a
    /// queue. If events of a key must keep their order, and the broker did not accept an event, this method does not
    /// publish the later events of the key.
    pub async fn try_publish(
        &mut self,
        events: &[SequencedEvent],
    ) -> (Vec<bool>, Option<BrokerError>) {
        let mut accepted = vec![false; events.len()];
        let mut failed = None;
        let mut stopped = HashSet::new();
        for mut wave in waves(events, self.keeps_key_order) {
            wave.retain(|at| !stopped.contains(events[*at].0.key()));
            let encode = |at: &usize| encode::event(&events[*at].0, events[*at].1, &self.form);
            let messages: Vec<_> = wave.iter().map(encode).collect();
            let (confirmed, error) = self.send(&messages).await;
            for (at, confirmed) in wave.into_iter().zip(confirmed) {
                accepted[at] = confirmed;
                if !confirmed {
                    stopped.insert(events[at].0.key());
                }
            }
            failed = error.or(failed);
            if let Some(BrokerError::Unavailable(_)) = failed {
                self.blocked = self.link.take().filter(is_blocked);
                break;
            }
        }
        (accepted, failed)
    }

    /// Returns an error text which states that the broker has refused `messages` messages.
    pub fn refusal_reason(&self, messages: usize) -> String {
        format!("{} has refused {messages} messages", self.broker)
    }

    /// Returns the acceptance of each message, and the error if the attempt failed.
    async fn send(&mut self, messages: &[AmqpMessage]) -> (Vec<bool>, Option<BrokerError>) {
        let mut accepted = vec![false; messages.len()];
        let failed = self.try_send(messages, &mut accepted).await.err();
        (accepted, failed)
    }

    async fn try_send(
        &mut self,
        messages: &[AmqpMessage],
        accepted: &mut [bool],
    ) -> Result<(), BrokerError> {
        let broker = Arc::clone(&self.broker);
        let failed = |error| broker.error(&error);
        let exchange = self.exchange.clone();
        let limit = shortened(CONFIRM_TIMEOUT);
        let channel = self.channel().await?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::with_capacity(messages.len());
        for AmqpMessage { routing_key, properties, body, .. } in messages {
            let to = exchange.as_str().into();
            let key = routing_key.clone();
            let sent = channel.basic_publish(to, key, options, body.bytes(), properties.clone());
            // While the broker blocks publishers, the library waits without a time limit until it can write to the
            // socket.
            let sent = timeout(limit, sent).await.map_err(|_| broker.no_answer(limit))?;
            confirms.push(sent.map_err(failed)?);
        }
        let mut returned = Vec::new();
        let mut late = Vec::new();
        let mut ended = None;
        let mut wait = limit;
        let mut is_refused = false;
        for (accepted, confirm) in accepted.iter_mut().zip(confirms) {
            // After an error or a timeout, this loop continues, because the confirms of later messages may already have
            // arrived.
            let mut confirm = Box::pin(confirm);
            let confirmation = match timeout(wait, confirm.as_mut()).await {
                Ok(Ok(confirmation)) => confirmation,
                Ok(Err(error)) => {
                    ended.get_or_insert(failed(error));
                    continue;
                }
                Err(_) => {
                    let reason = format!("{broker} sends no confirms");
                    ended.get_or_insert(BrokerError::Unavailable(reason));
                    wait = Duration::ZERO;
                    late.push(confirm);
                    continue;
                }
            };
            *accepted = confirmation.is_ack();
            is_refused |= confirmation.is_nack();
            returned.extend(confirmation.take_message().map(|message| message.delivery));
        }
        if is_refused {
            self.refused_since.get_or_insert_with(Instant::now);
        }
        // A confirm that arrived after its time limit may also carry a returned message.
        for confirmation in late.into_iter().filter_map(FutureExt::now_or_never) {
            let message = confirmation.ok().and_then(Confirmation::take_message);
            returned.extend(message.map(|message| message.delivery));
        }
        exclude_returned(messages, accepted, &returned);
        let unroutable = returned.pop().map(|message| message.routing_key);
        if let Some(error) = ended {
            return Err(error);
        }
        unroutable.map_or(Ok(()), |key| {
            Err(BrokerError::Refused {
                cause: RefusalCause::NotFound,
                reason: format!(
                    "no queue takes messages of the exchange {exchange:?} with the routing key {:?}: bind a queue, or \
                     start the stream once, so that it declares its queues",
                    key.as_str()
                ),
            })
        })
    }

    /// Checks that the broker is reachable. Fails while the broker blocks the connection of the previous attempt.
    pub async fn check_connection(&mut self) -> Result<(), BrokerError> {
        if self.blocked.as_ref().is_some_and(|link| is_open(link) && is_blocked(link)) {
            let reason = format!("{} blocks publishing at present", self.broker);
            return Err(BrokerError::Unavailable(reason));
        }
        self.blocked = None;
        self.channel().await.map(drop)
    }

    async fn channel(&mut self) -> Result<&Channel, BrokerError> {
        let lifetime = shortened(REFUSED_LINK_LIFETIME);
        let is_outdated = self.refused_since.is_some_and(|since| since.elapsed() >= lifetime);
        if is_outdated || !self.link.as_ref().is_some_and(is_open) {
            let connection = self.broker.connect("ordain publish").await?;
            let limit = shortened(CONFIRM_TIMEOUT);
            let opened = async {
                let channel = connection.create_channel().await?;
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                Ok::<_, lapin::Error>(channel)
            };
            let opened = timeout(limit, opened).await;
            let opened = opened.map_err(|_| self.broker.no_answer(limit))?;
            let channel = opened.map_err(|error| self.broker.error(&error))?;
            self.link = Some((connection, channel));
            self.refused_since = None;
        }
        Ok(&self.link.as_ref().expect("the link exists").1)
    }

    /// Closes the connection.
    pub async fn close(self) {
        if let Some((connection, _)) = self.link {
            // The caller already knows the result of every event, so an error of the connection does not matter.
            let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "done".into())).await;
        }
    }
}

/// Marks each returned message as not accepted. The client library attaches a returned message to the next confirm that
/// it receives, which may be the confirm of another message. If a returned message matches none of the messages that
/// are marked as accepted, the function cannot determine which messages were returned, and marks all messages as not
/// accepted.
fn exclude_returned(messages: &[AmqpMessage], accepted: &mut [bool], returned: &[Delivery]) {
    for delivery in returned {
        let mut sent = messages.iter().zip(accepted.iter_mut());
        match sent.find(|(message, accepted)| **accepted && message.matches_return(delivery)) {
            Some((_, accepted)) => *accepted = false,
            None => accepted.fill(false),
        }
    }
}

fn is_open((connection, channel): &ProducerLink) -> bool {
    connection.status().connected() && channel.status().connected()
}

fn is_blocked((connection, _): &ProducerLink) -> bool {
    connection.status().blocked()
}

/// An event and its sequence, if it has one.
pub type SequencedEvent = (Arc<Event>, Option<u64>);

/// Divides events into waves, whose events may be sent together. Returns the positions of the events of each wave. With
/// `in_order`, each wave contains at most one event of a key. Otherwise, one wave contains all events.
fn waves(events: &[SequencedEvent], in_order: bool) -> Vec<Vec<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_core::EventParts;

    fn message(key: &str, id: &str) -> AmqpMessage {
        let event = Event::new(&EventParts { key, id, ..EventParts::default() });
        let form = EventForm::new("s", &EventLocations::DEFAULT);
        encode::event(&Arc::new(event), None, &form)
    }

    fn returned(message: &AmqpMessage) -> Delivery {
        let key = message.routing_key.clone();
        let mut delivery = Delivery::mock(0, "cases".into(), key, false, Vec::new());
        delivery.properties = message.properties.clone();
        delivery
    }

    #[test]
    fn returned_message_does_not_count_as_accepted() {
        let messages = [message("a", "1"), message("b", "2"), message("b", "3")];
        let mut accepted = [true, true, true];
        exclude_returned(
            &messages,
            &mut accepted,
            &[returned(&messages[2]), returned(&messages[0])],
        );
        assert_eq!(accepted, [false, true, false]);
    }

    #[test]
    fn no_message_counts_as_accepted_after_an_unknown_return() {
        let messages = [message("a", "1"), message("b", "2")];
        let mut accepted = [true, false];
        exclude_returned(&messages, &mut accepted, &[returned(&message("c", "1"))]);
        assert_eq!(accepted, [false, false]);
    }
}
