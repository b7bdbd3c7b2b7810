//! The sink of an exchange: messages are published in order, pipelined, and each is confirmed by
//! the broker before it counts. One that the broker does not take is kept and published again, until
//! it is taken; it holds up those of its key, and no others.
//!
//! Each exchange is a task with a connection of its own, so that one that stands holds up nothing
//! else. A message that costs the channel, or that the broker leaves without an answer, is tried again
//! on another connection, alone.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::{Channel, Connection};
use ordain_core::DeadLetter;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::complaints::Complaints;
use super::connect::{Broker, BrokerError, is_of_a_message};
use super::encode::{self, Outgoing};
use super::flight::{Fate, Flight, Item, Strange};
use super::held::{Again, Held};
use super::link::{Answer, Exchange, Link};
use ordain_config::{AmqpSink as Config, RoutingKey};
use ordain_store::OutboxMessage;
use ordain_store::Tenure;
use ordain_util::backoff::Backoff;
use ordain_util::wait::shortened;

/// Delays after connections that fail.
const CONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// For the next confirmation: more than a broker needs that syncs to a slow disk. After it the
/// connection is given up, and the oldest message is held; where later ones are confirmed, only that.
const CONFIRM: Duration = Duration::from_secs(20);
/// The same after that has happened, until much is confirmed again: a queue without a leader lets nothing
/// through for a minute, and each key that has messages for it is found by that.
const SUSPICION: Duration = Duration::from_secs(2);
/// Messages that are not confirmed, at most: enough for the way to the broker and back while it
/// writes those before.
const WINDOW: usize = 1_024;
/// Bytes of them, about: they are copied.
const WINDOW_BYTES: usize = 8 << 20;
/// Messages that go out together while others are unconfirmed, unless those are confirmed before so many
/// wait, or take longer than a look: each write, and each answer to it, is work for both sides.
const GROUP: usize = 256;
/// Between two looks at what waits.
const LOOK: Duration = Duration::from_millis(200);
/// Messages that are tried alone at the same time, each on a connection.
const ALONE: usize = 8;

/// So many messages of a run are published.
pub type Published = (u64, usize);

/// Messages of a run, with the tenure in which they may be published.
#[derive(Debug)]
struct Batch {
    run: u64,
    tenure: Arc<Tenure>,
    messages: Vec<Outgoing>,
}

/// Takes messages for an exchange.
#[derive(Debug)]
pub struct AmqpSink {
    routing_key: RoutingKey,
    /// Of the run that is being gathered.
    gathered: Vec<Outgoing>,
    /// What waits here is of the outbox, which has a limit.
    input: UnboundedSender<Batch>,
    start: Option<(Outlet, Connection, UnboundedReceiver<Batch>)>,
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
        };
        let connection = exchange.open().await?;
        let outlet = Outlet {
            complaints: Complaints::new(exchange.clone()),
            exchange,
            waiting: VecDeque::new(),
            held: Held::default(),
            alone: JoinSet::new(),
            order: 0,
            window: WINDOW,
            backoff: CONNECT_BACKOFF,
            refused: false,
            patience: shortened(CONFIRM),
        };
        let (input, taken) = mpsc::unbounded_channel();
        let routing_key = config.routing_key.clone();
        Ok(Self {
            routing_key,
            gathered: Vec::new(),
            input,
            start: Some((outlet, connection, taken)),
        })
    }

    /// Publishes what is sent, and tells what is published, until this is dropped. `None` the second
    /// time.
    pub fn start(
        &mut self,
        published: UnboundedSender<Published>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (outlet, connection, taken) = self.start.take()?;
        Some(outlet.run(connection, taken, published))
    }

    /// Takes a message, with its number if it has one.
    pub fn put(&mut self, stream: &str, message: &OutboxMessage, sequence: Option<u64>) {
        self.gathered.push(encode::message(stream, message, sequence, &self.routing_key));
    }

    /// Takes a dead letter, with its number if it has got one.
    pub fn put_letter(&mut self, stream: &str, letter: &DeadLetter, sequence: Option<u64>) {
        self.gathered.push(encode::letter(stream, letter, sequence, &self.routing_key));
    }

    /// Lets what was taken go, as the messages of a run.
    pub fn send(&mut self, run: u64, tenure: &Arc<Tenure>) {
        if !self.gathered.is_empty() {
            let (tenure, messages) = (Arc::clone(tenure), std::mem::take(&mut self.gathered));
            // A task that has ended has panicked, and is noticed where it was started.
            let _ = self.input.send(Batch { run, tenure, messages });
        }
    }
}

/// What is to be published to an exchange.
#[derive(Debug)]
struct Outlet {
    exchange: Exchange,
    complaints: Complaints,
    /// What is not handed over, in order.
    waiting: VecDeque<Item>,
    held: Held,
    /// Those that are tried alone now.
    alone: JoinSet<(Item, Answer)>,
    /// Of the next message.
    order: u64,
    /// Messages that may be unconfirmed now. After the broker has closed the channel because of one
    /// of many it is 1, which finds out which, and one more with each that is taken.
    window: usize,
    /// The delay before the next connection.
    backoff: Backoff,
    /// The last message that was alone in its window was refused.
    refused: bool,
    /// For the next confirmation.
    patience: Duration,
}

/// Why a channel is published to no more.
enum Ended {
    /// The broker or the library says so.
    Failed(lapin::Error),
    /// The broker says nothing any more.
    Silence,
    /// It has given back a message that it was not given.
    Strange,
    /// Too many messages on it have no answer.
    Worn,
}

impl From<lapin::Error> for Ended {
    fn from(error: lapin::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Strange> for Ended {
    fn from(Strange: Strange) -> Self {
        Self::Strange
    }
}

impl Outlet {
    async fn run(
        mut self,
        connection: Connection,
        mut input: UnboundedReceiver<Batch>,
        published: UnboundedSender<Published>,
    ) {
        let mut connection = Some(connection);
        loop {
            while let Ok(batch) = input.try_recv() {
                self.take(batch);
            }
            self.drop_over(&published);
            let link = timeout(shortened(CONFIRM), self.exchange.connect(connection.take())).await;
            let silent = format!("{} does not answer", self.exchange.broker);
            let link = match link.unwrap_or(Err(BrokerError::Away(silent))) {
                Ok(link) => link,
                Err(error) => {
                    self.pause(&error.to_string()).await;
                    continue;
                }
            };
            let mut flight = Flight::new();
            let ended = self.publish(&link, &mut flight, &mut input, &published).await;
            let open = flight.open();
            let (first, items) = flight.into_items();
            for item in items.rev() {
                self.waiting.push_front(item);
            }
            match ended {
                Ok(()) => return,
                Err(Ended::Failed(error)) => {
                    let reason = self.exchange.broker.error(&error).to_string();
                    connection = Some(link.connection);
                    if is_of_a_message(&error) {
                        self.refused(first.filter(|_| open == 1), &reason).await;
                    } else {
                        self.pause(&reason).await;
                    }
                }
                // The connection is closed with these.
                Err(Ended::Silence) => self.silence(first),
                Err(Ended::Worn) => {}
                Err(Ended::Strange) => {
                    let broker = &self.exchange.broker;
                    let reason = format!("{broker} has given back what it was not given");
                    self.pause(&reason).await;
                }
            }
        }
    }

    /// Publishes on a channel, until nobody gives messages any more.
    async fn publish<'a>(
        &mut self,
        link: &'a Link,
        flight: &mut Flight<'a>,
        input: &mut UnboundedReceiver<Batch>,
        published: &UnboundedSender<Published>,
    ) -> Result<(), Ended> {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if flight.is_empty() || self.waiting.len() >= GROUP {
                self.hand_over(&link.channel, flight, published);
            }
            tokio::select! {
                confirmed = flight.confirmed(), if !flight.is_empty() => {
                    confirmed?;
                    self.settle_sent(flight.settled()?, published);
                }
                batch = input.recv() => match batch {
                    Some(batch) => self.take(batch),
                    None => return Ok(()),
                },
                Some(answered) = self.alone.join_next() => match answered {
                    Ok((item, answer)) => self.answered(item, answer, published),
                    Err(panic) => resume_unwind(panic.into_panic()),
                },
                _ = look.tick(), if !self.is_empty() || !flight.is_empty() => {
                    self.look(link, flight, published)?;
                    self.hand_over(&link.channel, flight, published);
                }
            }
        }
    }

    /// Looks for what the broker leaves without an answer, and for what is to be tried again.
    fn look(
        &mut self,
        link: &Link,
        flight: &mut Flight<'_>,
        published: &UnboundedSender<Published>,
    ) -> Result<(), Ended> {
        let is_blocked = link.connection.status().blocked();
        if is_blocked {
            flight.excuse();
        }
        let found = flight.look(shortened(CONFIRM))?;
        self.settle_sent(found.settled, published);
        // A queue without a leader neither takes nor refuses.
        self.hold_silent(found.silent);
        if flight.is_silent(self.patience) {
            return Err(Ended::Silence);
        }
        if flight.is_worn() {
            return Err(Ended::Worn);
        }
        self.try_again(is_blocked);
        Ok(())
    }

    fn take(&mut self, Batch { run, tenure, messages }: Batch) {
        for outgoing in messages {
            let tenure = Arc::clone(&tenure);
            self.waiting.push_back(Item { run, order: self.order, outgoing, tenure });
            self.order += 1;
        }
    }

    /// Lets go of what whoever has the partition now publishes.
    fn drop_over(&mut self, published: &UnboundedSender<Published>) {
        let mut over = self.held.take_over();
        let (gone, waiting): (Vec<Item>, _) =
            self.waiting.drain(..).partition(|item| item.tenure.is_over());
        self.waiting = VecDeque::from_iter::<Vec<Item>>(waiting);
        over.extend(gone);
        self.settle(over.into_iter().map(|item| (item, Fate::Taken)).collect(), published);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// Hands as much over as may be unconfirmed.
    fn hand_over<'a>(
        &mut self,
        channel: &'a Channel,
        flight: &mut Flight<'a>,
        published: &UnboundedSender<Published>,
    ) {
        let mut on = None;
        while flight.len() < self.window && flight.bytes() < WINDOW_BYTES {
            let Some(item) = self.waiting.pop_front() else { break };
            if on.as_ref().is_some_and(|on| Arc::ptr_eq(on, &item.tenure)) {
                // It was looked at a moment ago.
            } else if item.tenure.is_on() {
                on = Some(Arc::clone(&item.tenure));
            } else {
                if item.tenure.is_over() {
                    // Whoever has the partition now publishes it.
                    self.settle(vec![(item, Fate::Taken)], published);
                    continue;
                }
                // All are suspended together.
                self.waiting.push_front(item);
                break;
            }
            let Some(item) = self.held.pass(item) else { continue };
            let confirm = self.exchange.publish(channel, &item.outgoing);
            flight.send(item, confirm);
        }
    }

    /// Settles messages of the flight, of which more may be unconfirmed the more the broker takes.
    fn settle_sent(&mut self, settled: Vec<(Item, Fate)>, published: &UnboundedSender<Published>) {
        let taken = settled.iter().filter(|it| it.1 == Fate::Taken).count();
        if taken > 0 {
            self.refused = false;
            self.backoff.reset();
            self.window = (self.window + taken).min(WINDOW);
        }
        if self.window == WINDOW {
            self.patience = shortened(CONFIRM);
        }
        self.settle(settled, published);
    }

    /// Notes what became of messages.
    fn settle(&mut self, settled: Vec<(Item, Fate)>, published: &UnboundedSender<Published>) {
        let mut done: Vec<Published> = Vec::new();
        for (item, fate) in settled {
            if fate != Fate::Taken {
                self.complaints.not_taken(&item.outgoing, fate, &self.held);
                self.held.hold(item, Again::Among, Instant::now());
                continue;
            }
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

    fn try_again(&mut self, is_blocked: bool) {
        let alone = if is_blocked { 0 } else { ALONE - self.alone.len() };
        let (due, due_alone) = self.held.due(alone, Instant::now());
        for item in due.into_iter().rev() {
            self.waiting.push_front(item);
        }
        for item in due_alone {
            if item.tenure.is_over() {
                self.waiting.push_front(item);
                continue;
            }
            if !item.tenure.is_on() {
                self.held.hold(item, Again::Alone, Instant::now());
                continue;
            }
            self.alone.spawn(self.exchange.clone().publish_alone(item, shortened(CONFIRM)));
        }
    }

    /// Notes what became of a message that was tried alone.
    fn answered(&mut self, item: Item, answer: Answer, published: &UnboundedSender<Published>) {
        match answer {
            Answer::Fate(fate) => {
                if fate == Fate::Taken {
                    self.held.hurry(Instant::now());
                    // The broker was slow, or is no more what it was.
                    self.patience = shortened(CONFIRM);
                }
                return self.settle(vec![(item, fate)], published);
            }
            Answer::Refused(reason) => {
                self.complaints.refused_again(&item.outgoing, &reason, &self.held);
            }
            Answer::Silence => self.complaints.silence(&item.outgoing, &self.held),
            Answer::Away(reason) => self.complaints.away(self.held.len() + 1, &reason),
            Answer::NotOurs => {}
        }
        self.held.hold(item, Again::Alone, Instant::now());
    }

    fn hold_silent(&mut self, silent: Vec<Item>) {
        for item in silent {
            self.complaints.silence(&item.outgoing, &self.held);
            self.held.hold(item, Again::Alone, Instant::now());
        }
    }

    /// Nothing is confirmed any more: perhaps because of the first one that is not. A queue without a
    /// leader, when it is given its first message, keeps the channel from all that is behind it.
    fn silence(&mut self, first: Option<usize>) {
        (self.window, self.patience) = (1, SUSPICION);
        let first = first.and_then(|first| self.waiting.remove(first));
        self.hold_silent(first.into_iter().collect());
    }

    /// The broker has closed the channel, because of the only message that was not confirmed, or of one
    /// of several. Of the only one it is known, and the others go on.
    async fn refused(&mut self, only: Option<usize>, reason: &str) {
        self.window = 1;
        let Some(item) = only.and_then(|only| self.waiting.remove(only)) else { return };
        self.complaints.refused(&item.outgoing, reason, &self.held);
        self.held.hold(item, Again::Alone, Instant::now());
        if std::mem::replace(&mut self.refused, true) {
            // Perhaps all of them are.
            tokio::time::sleep(self.backoff.next_delay()).await;
        }
    }

    async fn pause(&mut self, reason: &str) {
        let messages = self.waiting.len() + self.held.len() + self.alone.len();
        self.complaints.away(messages, reason);
        tokio::time::sleep(self.backoff.next_delay()).await;
    }
}
