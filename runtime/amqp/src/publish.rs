//! The sink of an exchange: publishes messages in order and pipelined, and counts a message as published only after
//! the broker's confirm. A message that the broker does not accept is kept and published again until it is accepted.
//! Meanwhile, later messages of its key wait; other keys continue.
//!
//! Each exchange has a task and a connection of its own, so that a blocked exchange delays no other. A message that
//! made the broker close the channel, or that the broker neither confirmed nor refused, is retried in isolation on
//! another connection.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::{Channel, Connection};
use ordain_core::DeadLetter;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::complaints::PublishWarnings;
use super::connect::{BrokerEndpoint, BrokerError, is_of_a_message};
use super::encode::{self, AmqpMessage};
use super::flight::{ConfirmResult, ConfirmTracker, PendingPublish, UnmatchedReturn};
use super::held::{KeyRetryQueue, RetryMode};
use super::link::{ConfirmChannel, Exchange, IsolatedAnswer};
use ordain_config::{AmqpSinkConfig as Config, RoutingKeyTemplate};
use ordain_store::OutboxMessage;
use ordain_store::Ownership;
use ordain_util::backoff::Backoff;
use ordain_util::wait::shortened;

/// Delays after connections that fail.
const CONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Time limit for the next confirm: longer than a broker with a slow disk needs. After this time, if later
/// messages are confirmed, only the overdue one is held; otherwise the connection is closed and the oldest
/// unconfirmed message is held.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the next confirm after such a silence, until the window has its full size again. A queue without a
/// leader blocks its channel for a minute, and another silence reveals each further key with messages for that
/// queue.
const SUSPECT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of unconfirmed messages: enough to keep the connection busy for a round trip while the broker
/// writes earlier messages to disk.
const CONFIRM_LIMIT: usize = 1_024;
/// Approximate limit for the size of unconfirmed messages, in bytes; they are copied.
const CONFIRM_LIMIT_BYTES: usize = 8 << 20;
/// Number of waiting messages that are sent together while earlier ones are unconfirmed. Fewer are sent when all
/// earlier ones are confirmed or at the next check, because each write and each confirm costs work on both sides.
const SEND_GROUP_SIZE: usize = 256;
/// Interval between two checks for overdue confirms and due retries.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of messages that are retried in isolation at the same time, each on its own connection.
const ISOLATED_RETRY_LIMIT: usize = 8;

/// The id of a run, and the number of its messages that are published.
pub type PublishedCount = (u64, usize);

/// Messages of a run, with the tenure in which they may be published.
#[derive(Debug)]
struct ExchangeBatch {
    run: u64,
    tenure: Arc<Ownership>,
    messages: Vec<AmqpMessage>,
}

/// The entrance of an exchange's sink.
#[derive(Debug)]
pub struct ExchangeSink {
    routing_key: RoutingKeyTemplate,
    /// Messages of the run that is being collected.
    gathered: Vec<AmqpMessage>,
    /// The channel to the task. It needs no limit of its own: its messages come from the outbox, which has one.
    input: UnboundedSender<ExchangeBatch>,
    start: Option<(ExchangePublisher, Connection, UnboundedReceiver<ExchangeBatch>)>,
}

impl ExchangeSink {
    /// Connects to the broker and checks that the exchange exists.
    pub async fn open(
        name: &str,
        config: &Config,
        broker: &Arc<BrokerEndpoint>,
    ) -> Result<Self, BrokerError> {
        let exchange = Exchange {
            sink: name.to_owned(),
            broker: Arc::clone(broker),
            name: config.exchange.0.clone(),
        };
        let connection = exchange.open().await?;
        let outlet = ExchangePublisher {
            complaints: PublishWarnings::new(exchange.clone()),
            exchange,
            waiting: VecDeque::new(),
            held: KeyRetryQueue::default(),
            alone: JoinSet::new(),
            order: 0,
            window: CONFIRM_LIMIT,
            backoff: CONNECT_BACKOFF,
            refused: false,
            patience: shortened(CONFIRM_TIMEOUT),
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

    /// Returns the task that publishes the sent messages and reports published ones, until this sink is dropped.
    /// Returns `None` on a second call.
    pub fn start(
        &mut self,
        published: UnboundedSender<PublishedCount>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (outlet, connection, taken) = self.start.take()?;
        Some(outlet.run(connection, taken, published))
    }

    /// Adds a message, with its sequence if it has one.
    pub fn put(&mut self, stream: &str, message: &OutboxMessage, sequence: Option<u64>) {
        self.gathered.push(encode::message(stream, message, sequence, &self.routing_key));
    }

    /// Adds a dead letter, with its sequence if it has one.
    pub fn put_letter(&mut self, stream: &str, letter: &DeadLetter, sequence: Option<u64>) {
        self.gathered.push(encode::letter(stream, letter, sequence, &self.routing_key));
    }

    /// Sends the added messages to the task, as the messages of a run.
    pub fn send(&mut self, run: u64, tenure: &Arc<Ownership>) {
        if !self.gathered.is_empty() {
            let tenure = Arc::clone(tenure);
            let messages = std::mem::take(&mut self.gathered);
            // The send fails only if the task has panicked, which the task's owner notices.
            let _ = self.input.send(ExchangeBatch { run, tenure, messages });
        }
    }
}

/// The state of an exchange's task.
#[derive(Debug)]
struct ExchangePublisher {
    exchange: Exchange,
    complaints: PublishWarnings,
    /// Messages that are not sent yet, in order.
    waiting: VecDeque<PendingPublish>,
    held: KeyRetryQueue,
    /// The isolated retries that are running.
    alone: JoinSet<(PendingPublish, IsolatedAnswer)>,
    /// The order of the next message.
    order: u64,
    /// Maximum number of unconfirmed messages now. After the broker has closed the channel because of one of several
    /// messages it is 1, which identifies the message; each accepted message raises it by one.
    window: usize,
    /// The delay before the next connection.
    backoff: Backoff,
    /// The last message that was sent alone was refused.
    refused: bool,
    /// Time limit for the next confirm.
    patience: Duration,
}

/// The reason why a channel is no longer used.
enum ChannelEnd {
    /// The broker or the library reported an error.
    Failed(lapin::Error),
    /// The broker sends no confirms.
    TimedOut,
    /// The broker returned a message that was not published on this channel.
    UnmatchedReturn,
    /// Too many messages of the channel have neither been confirmed nor refused.
    TooManyLateConfirms,
}

impl From<lapin::Error> for ChannelEnd {
    fn from(error: lapin::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<UnmatchedReturn> for ChannelEnd {
    fn from(UnmatchedReturn: UnmatchedReturn) -> Self {
        Self::UnmatchedReturn
    }
}

impl ExchangePublisher {
    async fn run(
        mut self,
        connection: Connection,
        mut input: UnboundedReceiver<ExchangeBatch>,
        published: UnboundedSender<PublishedCount>,
    ) {
        let mut connection = Some(connection);
        loop {
            while let Ok(batch) = input.try_recv() {
                self.take(batch);
            }
            self.drop_over(&published);
            let link =
                timeout(shortened(CONFIRM_TIMEOUT), self.exchange.connect(connection.take())).await;
            let silent = format!("{} does not answer", self.exchange.broker);
            let link = match link.unwrap_or(Err(BrokerError::Unavailable(silent))) {
                Ok(link) => link,
                Err(error) => {
                    self.pause(&error.to_string()).await;
                    continue;
                }
            };
            let mut flight = ConfirmTracker::new();
            let ended = self.publish(&link, &mut flight, &mut input, &published).await;
            let open = flight.open();
            let (first, items) = flight.into_items();
            for item in items.rev() {
                self.waiting.push_front(item);
            }
            match ended {
                Ok(()) => return,
                Err(ChannelEnd::Failed(error)) => {
                    let reason = self.exchange.broker.error(&error).to_string();
                    connection = Some(link.connection);
                    if is_of_a_message(&error) {
                        self.refused(first.filter(|_| open == 1), &reason).await;
                    } else {
                        self.pause(&reason).await;
                    }
                }
                // Dropping the link closes the connection in the remaining cases.
                Err(ChannelEnd::TimedOut) => self.silence(first),
                Err(ChannelEnd::TooManyLateConfirms) => {}
                Err(ChannelEnd::UnmatchedReturn) => {
                    let broker = &self.exchange.broker;
                    let reason = format!(
                        "{broker} returned a message that was not published on this channel"
                    );
                    self.pause(&reason).await;
                }
            }
        }
    }

    /// Publishes on a channel until the sink is dropped or the channel fails.
    async fn publish<'a>(
        &mut self,
        link: &'a ConfirmChannel,
        flight: &mut ConfirmTracker<'a>,
        input: &mut UnboundedReceiver<ExchangeBatch>,
        published: &UnboundedSender<PublishedCount>,
    ) -> Result<(), ChannelEnd> {
        let mut look = interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if flight.is_empty() || self.waiting.len() >= SEND_GROUP_SIZE {
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

    /// Handles overdue confirms, and starts due retries.
    fn look(
        &mut self,
        link: &ConfirmChannel,
        flight: &mut ConfirmTracker<'_>,
        published: &UnboundedSender<PublishedCount>,
    ) -> Result<(), ChannelEnd> {
        let is_blocked = link.connection.status().blocked();
        if is_blocked {
            flight.excuse();
        }
        let found = flight.look(shortened(CONFIRM_TIMEOUT))?;
        self.settle_sent(found.settled, published);
        // A queue without a leader neither accepts nor refuses messages.
        self.hold_silent(found.silent);
        if flight.is_silent(self.patience) {
            return Err(ChannelEnd::TimedOut);
        }
        if flight.is_worn() {
            return Err(ChannelEnd::TooManyLateConfirms);
        }
        self.try_again(is_blocked);
        Ok(())
    }

    fn take(&mut self, ExchangeBatch { run, tenure, messages }: ExchangeBatch) {
        for outgoing in messages {
            let tenure = Arc::clone(&tenure);
            self.waiting.push_back(PendingPublish { run, order: self.order, outgoing, tenure });
            self.order += 1;
        }
    }

    /// Drops the messages that the partition's new owner publishes.
    fn drop_over(&mut self, published: &UnboundedSender<PublishedCount>) {
        let mut over = self.held.take_over();
        let (gone, waiting): (Vec<PendingPublish>, _) =
            self.waiting.drain(..).partition(|item| item.tenure.is_over());
        self.waiting = VecDeque::from_iter::<Vec<PendingPublish>>(waiting);
        over.extend(gone);
        self.settle(over.into_iter().map(|item| (item, ConfirmResult::Acked)).collect(), published);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// Sends waiting messages until the limit of unconfirmed messages is reached.
    fn hand_over<'a>(
        &mut self,
        channel: &'a Channel,
        flight: &mut ConfirmTracker<'a>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let mut on = None;
        while flight.len() < self.window && flight.bytes() < CONFIRM_LIMIT_BYTES {
            let Some(item) = self.waiting.pop_front() else { break };
            if on.as_ref().is_some_and(|on| Arc::ptr_eq(on, &item.tenure)) {
                // The same tenure was active a moment ago.
            } else if item.tenure.is_on() {
                on = Some(Arc::clone(&item.tenure));
            } else {
                if item.tenure.is_over() {
                    // The partition's new owner publishes this message.
                    self.settle(vec![(item, ConfirmResult::Acked)], published);
                    continue;
                }
                // All tenures are suspended together.
                self.waiting.push_front(item);
                break;
            }
            let Some(item) = self.held.pass(item) else { continue };
            let confirm = self.exchange.publish(channel, &item.outgoing);
            flight.send(item, confirm);
        }
    }

    /// Settles sent messages. Each accepted message raises the number that may be unconfirmed.
    fn settle_sent(
        &mut self,
        settled: Vec<(PendingPublish, ConfirmResult)>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let taken = settled.iter().filter(|(_, fate)| *fate == ConfirmResult::Acked).count();
        if taken > 0 {
            self.refused = false;
            self.backoff.reset();
            self.window = (self.window + taken).min(CONFIRM_LIMIT);
        }
        if self.window == CONFIRM_LIMIT {
            self.patience = shortened(CONFIRM_TIMEOUT);
        }
        self.settle(settled, published);
    }

    /// Reports accepted messages, and holds the others for a retry.
    fn settle(
        &mut self,
        settled: Vec<(PendingPublish, ConfirmResult)>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let mut done: Vec<PublishedCount> = Vec::new();
        for (item, fate) in settled {
            if fate != ConfirmResult::Acked {
                self.complaints.not_taken(&item.outgoing, fate, &self.held);
                self.held.hold(item, RetryMode::Pipelined, Instant::now());
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
            // The receiver may be gone when the process is ending; the report does not matter then.
            let _ = published.send(done);
        }
    }

    fn try_again(&mut self, is_blocked: bool) {
        let alone = if is_blocked { 0 } else { ISOLATED_RETRY_LIMIT - self.alone.len() };
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
                self.held.hold(item, RetryMode::Isolated, Instant::now());
                continue;
            }
            self.alone.spawn(self.exchange.clone().publish_alone(item, shortened(CONFIRM_TIMEOUT)));
        }
    }

    /// Handles the result of an isolated retry.
    fn answered(
        &mut self,
        item: PendingPublish,
        answer: IsolatedAnswer,
        published: &UnboundedSender<PublishedCount>,
    ) {
        match answer {
            IsolatedAnswer::Confirm(fate) => {
                if fate == ConfirmResult::Acked {
                    self.held.hurry(Instant::now());
                    // The broker was slow, or it has recovered.
                    self.patience = shortened(CONFIRM_TIMEOUT);
                }
                return self.settle(vec![(item, fate)], published);
            }
            IsolatedAnswer::Refused(reason) => {
                self.complaints.refused_again(&item.outgoing, &reason, &self.held);
            }
            IsolatedAnswer::TimedOut => self.complaints.silence(&item.outgoing, &self.held),
            IsolatedAnswer::Unavailable(reason) => {
                self.complaints.away(self.held.len() + 1, &reason);
            }
            IsolatedAnswer::NotOwner => {}
        }
        self.held.hold(item, RetryMode::Isolated, Instant::now());
    }

    fn hold_silent(&mut self, silent: Vec<PendingPublish>) {
        for item in silent {
            self.complaints.silence(&item.outgoing, &self.held);
            self.held.hold(item, RetryMode::Isolated, Instant::now());
        }
    }

    /// Handles a channel without confirms. The first unconfirmed message may be the cause: a queue without a leader,
    /// when it gets its first message, blocks the channel for everything behind that message.
    fn silence(&mut self, first: Option<usize>) {
        self.window = 1;
        self.patience = SUSPECT_CONFIRM_TIMEOUT;
        let first = first.and_then(|first| self.waiting.remove(first));
        self.hold_silent(first.into_iter().collect());
    }

    /// Handles a channel that the broker closed because of one of the unconfirmed messages. If there was only one,
    /// that message is held and the others continue.
    async fn refused(&mut self, only: Option<usize>, reason: &str) {
        self.window = 1;
        let Some(item) = only.and_then(|only| self.waiting.remove(only)) else { return };
        self.complaints.refused(&item.outgoing, reason, &self.held);
        self.held.hold(item, RetryMode::Isolated, Instant::now());
        if std::mem::replace(&mut self.refused, true) {
            // All waiting messages may be refused.
            tokio::time::sleep(self.backoff.next_delay()).await;
        }
    }

    async fn pause(&mut self, reason: &str) {
        let messages = self.waiting.len() + self.held.len() + self.alone.len();
        self.complaints.away(messages, reason);
        tokio::time::sleep(self.backoff.next_delay()).await;
    }
}
