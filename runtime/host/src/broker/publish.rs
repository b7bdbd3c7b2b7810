//! The sink of an exchange: messages are published in order, pipelined, and each is confirmed by
//! the broker before it counts. One that the broker does not take is kept and published again, until
//! it is taken; it holds up those of its key, and no others.
//!
//! Each exchange is a task with a connection of its own, so that one that stands holds up nothing
//! else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Event as ConnectionEvent, ExchangeKind};
use ordain_core::DeadLetter;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::connect::{Broker, BrokerError, is_of_a_message};
use super::encode::{self, Outgoing};
use super::flight::{Fate, Flight, Item};
use super::held::Held;
use crate::config::{AmqpSink as Config, RoutingKey};
use crate::store::OutboxMessage;
use crate::text::clean;

/// Between two connections that fail, from and to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// For the next confirmation: more than a broker needs that syncs to a slow disk. After it the
/// connection is given up.
const CONFIRM: Duration = Duration::from_secs(20);
/// Messages that are not confirmed, at most: enough for the way to the broker and back while it
/// writes those before.
const WINDOW: usize = 1_024;
/// Bytes of them, about: they are copied.
const WINDOW_BYTES: usize = 8 << 20;
/// Messages that go out together while others are unconfirmed, unless those are confirmed before so many
/// wait: each write, and each answer to it, is work for both sides.
const GROUP: usize = 256;
/// Between two looks at what waits.
const LOOK: Duration = Duration::from_millis(200);
/// Between two warnings of one kind.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// So many messages of a run are published.
pub type Published = (u64, usize);

/// Messages with the runs that they belong to.
type Batch = Vec<(u64, Outgoing)>;

/// Takes messages for an exchange.
#[derive(Debug)]
pub struct AmqpSink {
    routing_key: RoutingKey,
    batch: Batch,
    /// What waits here is of the outbox, which has a limit.
    input: UnboundedSender<Batch>,
    start: Option<(Exchange, Link, UnboundedReceiver<Batch>)>,
}

impl AmqpSink {
    /// Connects, and looks for the exchange.
    pub async fn open(
        name: &str,
        config: &Config,
        broker: &Arc<Broker>,
    ) -> Result<Self, BrokerError> {
        let exchange = Exchange {
            sink: name.to_owned(),
            broker: Arc::clone(broker),
            name: config.exchange.0.clone(),
            waiting: VecDeque::new(),
            held: Held::default(),
            order: 0,
            window: WINDOW,
            wait: BACKOFF.0,
            refused: false,
            away_told: None,
            returned_told: None,
            refused_told: None,
        };
        exchange.look_for_it().await?;
        let link = exchange.connect(None).await?;
        let (input, taken) = mpsc::unbounded_channel();
        let routing_key = config.routing_key.clone();
        Ok(Self { routing_key, batch: Vec::new(), input, start: Some((exchange, link, taken)) })
    }

    /// Publishes what is sent, and tells what is published, until this is dropped. `None` the second
    /// time.
    pub fn start(
        &mut self,
        published: UnboundedSender<Published>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (exchange, link, taken) = self.start.take()?;
        Some(exchange.run(link, taken, published))
    }

    /// Takes a message.
    pub fn put(&mut self, run: u64, stream: &str, message: &OutboxMessage) {
        self.batch.push((run, encode::message(stream, message, &self.routing_key)));
    }

    /// Takes a dead letter.
    pub fn put_letter(&mut self, run: u64, stream: &str, letter: &DeadLetter) {
        self.batch.push((run, encode::letter(stream, letter, &self.routing_key)));
    }

    /// Lets what was taken go.
    pub fn send(&mut self) {
        if !self.batch.is_empty() {
            // A task that has ended has panicked, and is noticed where it was started.
            let _ = self.input.send(std::mem::take(&mut self.batch));
        }
    }
}

/// An exchange, and what is to be published there.
#[derive(Debug)]
struct Exchange {
    sink: String,
    broker: Arc<Broker>,
    name: String,
    /// What is not handed over, in order.
    waiting: VecDeque<Item>,
    held: Held,
    /// Of the next message.
    order: u64,
    /// Messages that may be unconfirmed now. After the broker has closed the channel because of one
    /// of many it is 1, which finds out which, and doubles with each success.
    window: usize,
    /// Before the next try.
    wait: Duration,
    /// The last message that was tried alone was refused.
    refused: bool,
    away_told: Option<Instant>,
    returned_told: Option<Instant>,
    refused_told: Option<Instant>,
}

#[derive(Debug)]
struct Link {
    connection: Connection,
    channel: Channel,
}

/// Why a channel is published to no more.
enum Ended {
    /// Nobody gives messages any more.
    Done,
    /// The broker or the library says so.
    Failed(lapin::Error),
    /// It cannot be relied on.
    Useless(String),
}

impl Exchange {
    async fn look_for_it(&self) -> Result<(), BrokerError> {
        if self.name.is_empty() {
            // The default one is always there.
            return Ok(());
        }
        let failed = |error| self.broker.error(&error);
        let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
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
        let _ = connection.close(200, "done".into()).await;
        Ok(())
    }

    /// A channel, on the connection of the one before if that is still there.
    async fn connect(&self, before: Option<Connection>) -> Result<Link, BrokerError> {
        let failed = |error| self.broker.error(&error);
        let connection = match before {
            Some(connection) if connection.status().connected() => connection,
            _ => {
                let connection = self.broker.connect(&format!("ordain sink {}", self.sink)).await?;
                let events = Box::pin(connection.events_listener());
                tokio::spawn(tell_of_blocks(self.sink.clone(), events));
                connection
            }
        };
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        Ok(Link { connection, channel })
    }

    async fn run(
        mut self,
        link: Link,
        mut input: UnboundedReceiver<Batch>,
        published: UnboundedSender<Published>,
    ) {
        let (mut link, mut connection) = (Some(link), None);
        loop {
            let link = match link.take() {
                Some(link) => link,
                None => match timeout(CONFIRM, self.connect(connection.take())).await {
                    Ok(Ok(link)) => link,
                    Ok(Err(error)) => {
                        self.pause(&error.to_string()).await;
                        continue;
                    }
                    Err(_) => {
                        self.pause(&format!("{} does not answer", self.broker)).await;
                        continue;
                    }
                },
            };
            let mut flight = Flight::default();
            let ended = self.publish(&link, &mut flight, &mut input, &published).await;
            let left = flight.len();
            for item in flight.into_items().rev() {
                self.waiting.push_front(item);
            }
            match ended {
                Ended::Done => return,
                Ended::Failed(error) => {
                    let reason = self.broker.error(&error).to_string();
                    connection = Some(link.connection);
                    if is_of_a_message(&error) {
                        self.refused(left, &reason).await;
                    } else {
                        self.pause(&reason).await;
                    }
                }
                // The connection is closed with this.
                Ended::Useless(reason) => self.pause(&reason).await,
            }
        }
    }

    /// Publishes on a channel.
    async fn publish<'a>(
        &mut self,
        Link { connection, channel }: &'a Link,
        flight: &mut Flight<'a>,
        input: &mut UnboundedReceiver<Batch>,
        published: &UnboundedSender<Published>,
    ) -> Ended {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut confirmed_at = Instant::now();
        loop {
            if flight.is_empty() {
                confirmed_at = Instant::now();
            }
            self.hand_over(channel, flight);
            tokio::select! {
                confirmed = flight.confirmed(), if !flight.is_empty() => {
                    if let Err(error) = confirmed {
                        return Ended::Failed(error);
                    }
                    confirmed_at = Instant::now();
                    let settled = flight.settled();
                    if flight.is_strange() {
                        return Ended::Useless(format!(
                            "{} has given back a message that it was not given", self.broker
                        ));
                    }
                    self.settle(settled, published);
                }
                batch = input.recv() => match batch {
                    Some(batch) => self.take(batch),
                    None => return Ended::Done,
                },
                _ = look.tick(), if !flight.is_empty() || !self.held.is_empty() => {
                    if connection.status().blocked() {
                        confirmed_at = Instant::now();
                    }
                    if confirmed_at.elapsed() > CONFIRM {
                        return Ended::Useless(format!(
                            "{}: no confirmation within {CONFIRM:?}", self.broker
                        ));
                    }
                    self.try_again();
                }
            }
        }
    }

    fn take(&mut self, batch: Batch) {
        for (run, outgoing) in batch {
            self.waiting.push_back(Item { run, order: self.order, outgoing });
            self.order += 1;
        }
    }

    /// Hands as much over as may be unconfirmed.
    fn hand_over<'a>(&mut self, channel: &'a Channel, flight: &mut Flight<'a>) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        if !flight.is_empty() && self.waiting.len() < GROUP {
            return;
        }
        while flight.len() < self.window && flight.bytes() < WINDOW_BYTES {
            let Some(item) = self.waiting.pop_front() else { break };
            let Some(item) = self.held.pass(item) else { continue };
            let Outgoing { routing_key, properties, body } = &item.outgoing;
            let (exchange, key) = (self.name.as_str().into(), routing_key.clone());
            let (properties, body) = (properties.clone(), body.clone());
            let confirm = async move {
                let body = body.bytes();
                channel.basic_publish(exchange, key, options, body, properties).await?.await
            };
            flight.send(item, Box::pin(confirm));
        }
    }

    /// Notes what became of messages.
    fn settle(&mut self, settled: Vec<(Item, Fate)>, published: &UnboundedSender<Published>) {
        let mut done: Vec<Published> = Vec::new();
        for (item, fate) in settled {
            if fate != Fate::Taken {
                self.tell_of_returned(&item.outgoing, fate);
                self.held.hold(item, false);
                continue;
            }
            (self.refused, self.wait) = (false, BACKOFF.0);
            self.window = (2 * self.window).min(WINDOW);
            for next in self.held.release(&item).rev() {
                self.waiting.push_front(next);
            }
            match done.last_mut() {
                Some((run, count)) if *run == item.run => *count += 1,
                _ => done.push((item.run, 1)),
            }
        }
        for done in done {
            // Whoever hears of it may be gone; then it does not matter.
            let _ = published.send(done);
        }
    }

    fn try_again(&mut self) {
        let (due, has_refused) = self.held.due();
        for item in due.into_iter().rev() {
            self.waiting.push_front(item);
        }
        if has_refused {
            // Should it be refused again, no other comes a second time for it.
            self.window = 1;
        }
    }

    /// The broker has closed the channel, because of one of the first `left` messages. Of one alone
    /// it is known which, and the others go on.
    async fn refused(&mut self, left: usize, reason: &str) {
        self.window = 1;
        if left != 1 {
            return;
        }
        let Some(item) = self.waiting.pop_front() else { return };
        self.tell_of_refused(&item.outgoing, reason);
        self.held.hold(item, true);
        if std::mem::replace(&mut self.refused, true) {
            // Perhaps all of them are.
            tokio::time::sleep(self.wait).await;
            self.wait = (2 * self.wait).min(BACKOFF.1);
        }
    }

    async fn pause(&mut self, reason: &str) {
        if is_due(&mut self.away_told) {
            tracing::error!(
                sink = self.sink,
                messages = self.waiting.len() + self.held.len(),
                "messages are not published; they are kept and tried again: {reason}"
            );
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (2 * self.wait).min(BACKOFF.1);
    }

    fn tell_of_returned(&mut self, outgoing: &Outgoing, fate: Fate) {
        if !is_due(&mut self.returned_told) {
            return;
        }
        let (exchange, key) = (&self.name, outgoing.routing_key.as_str());
        let reason = match fate {
            Fate::Returned => format!(
                "no queue takes messages of the exchange {exchange:?} with the routing key \
                 {key:?}: bind one"
            ),
            _ => format!(
                "the broker has refused messages of the exchange {exchange:?} with the routing key \
                 {key:?} for now: is a queue full, or without a leader?"
            ),
        };
        tracing::error!(
            sink = self.sink,
            held = self.held.len() + 1,
            "messages are not published; they are kept and tried again, and those of other keys go \
             on: {reason}"
        );
    }

    fn tell_of_refused(&mut self, outgoing: &Outgoing, reason: &str) {
        if !is_due(&mut self.refused_told) {
            return;
        }
        let id = String::from_utf8_lossy(outgoing.id()).into_owned();
        tracing::error!(
            sink = self.sink,
            held = self.held.len() + 1,
            id = &*clean(&id),
            bytes = outgoing.body.bytes().len(),
            "the broker refuses a message; it is kept and tried again, and those of other keys go \
             on: {reason}"
        );
    }
}

/// Whether it is time to tell again.
fn is_due(told: &mut Option<Instant>) -> bool {
    let is_due = told.is_none_or(|at| at.elapsed() >= TELL_EVERY);
    if is_due {
        *told = Some(Instant::now());
    }
    is_due
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
