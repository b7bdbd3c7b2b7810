//! The sink of an exchange. The sink publishes messages in order, without waiting for earlier confirms, and counts a
//! message as published only after the broker's confirm. If the broker does not accept a message, the sink keeps the
//! message, and repeats its publishing until the broker accepts it. Meanwhile, later messages of the same key wait;
//! other keys continue. With `unroutable = "drop"`, the sink drops a message that no queue accepts, and counts it as
//! published.
//!
//! Each sink has a task and a connection of its own, so that a blocked exchange does not delay the other sinks. If a
//! message made the broker close the channel, or if the broker neither confirmed nor refused a message, the sink
//! retries the message in isolation on another connection.

use std::collections::{BTreeSet, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lapin::Channel;
use ordain_core::DeadLetter;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::confirm_tracker::{ConfirmResult, ConfirmTracker, PendingPublish, UnmatchedReturn};
use super::connect::{BrokerEndpoint, BrokerError, is_caused_by_message, is_state_error};
use super::encode::{self, AmqpMessage};
use super::exchange::{ConfirmChannel, Exchange, IsolatedAnswer, SinkConnection};
use super::publish_warnings::PublishWarnings;
use super::refusal_probe::RefusalProbe;
use super::retry_queue::{KeyRetryQueue, RetryMode};
use ordain_config::{AmqpSinkConfig as Config, RoutingKeyTemplate, UnroutablePolicy};
use ordain_store::OutboxMessage;
use ordain_store::Ownership;
use ordain_util::backoff::Backoff;
use ordain_util::sink_health::SinkHealth;
use ordain_util::wait::shortened;

const CONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Time limit for the next confirm: longer than a broker with a slow disk needs. When this time has passed, the task
/// holds a message back for a retry. If the broker has confirmed later messages, the task holds back only the overdue
/// message. Otherwise, the task closes the connection, and holds back the oldest unconfirmed message.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the next confirm after `CONFIRM_TIMEOUT` has passed without a confirm. This limit applies until the
/// broker accepts an isolated retry, or until `confirm_limit` has returned to [`CONFIRM_LIMIT`]. The limit is short,
/// because a queue without a leader blocks its channel for a minute, and each key with messages for that queue causes
/// one more wait for this limit.
const SUSPECT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of unconfirmed messages. This number keeps the connection busy for the time of a round trip and of
/// the broker's write to disk.
const CONFIRM_LIMIT: usize = 1_024;
/// Approximate limit of the unconfirmed messages, of which the task keeps copies.
const CONFIRM_LIMIT_BYTES: usize = 8 << 20;
/// The number of messages that the task collects before it sends them, while earlier messages are unconfirmed. Larger
/// groups need fewer writes and confirms, and each write and each confirm costs work in this process and in the broker.
/// The task sends a smaller group when all earlier messages are confirmed, or at the next check.
const SEND_GROUP_SIZE: usize = 256;
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of messages that are retried in isolation at the same time, each on its own connection.
const ISOLATED_RETRY_LIMIT: usize = 8;

/// The id of a run (messages that are marked as published together), and the number of messages of this run that have
/// been published since the previous report.
pub type PublishedCount = (u64, usize);

/// Messages of a run, with the ownership under which the task may publish them.
#[derive(Debug)]
struct ExchangeBatch {
    run: u64,
    ownership: Arc<Ownership>,
    messages: Vec<AmqpMessage>,
}

/// The input side of an exchange's sink. The task of the exchange publishes the messages.
#[derive(Debug)]
pub struct ExchangeSink {
    routing_key: RoutingKeyTemplate,
    collected: Vec<AmqpMessage>,
    /// The in-memory channel to the task. This channel needs no limit of its own, because its messages come from the
    /// outbox (committed messages that are not published yet), and the outbox has a limit.
    input: UnboundedSender<ExchangeBatch>,
    health: Arc<SinkHealth>,
    /// A copy of the names in `health` that needs no lock.
    streams: BTreeSet<Arc<str>>,
    unstarted: Option<(ExchangePublisher, SinkConnection, UnboundedReceiver<ExchangeBatch>)>,
}

impl ExchangeSink {
    /// Connects to the broker and checks that the exchange exists. If the broker refuses the exchange, for example
    /// because the exchange is missing, the task of the sink checks the exchange repeatedly, and publishes nothing
    /// meanwhile. With `requires_exchange`, such a refusal is an error instead.
    pub async fn open(
        name: &str,
        config: &Config,
        broker: &Arc<BrokerEndpoint>,
        requires_exchange: bool,
    ) -> Result<Self, BrokerError> {
        let exchange = Exchange {
            sink: name.to_owned(),
            broker: Arc::clone(broker),
            name: config.exchange.0.clone(),
            has_replies: config.routing_key.names_reply_queue(),
        };
        let connection = exchange.link(None).await?;
        let is_exchange_refused = match exchange.check(&connection).await {
            Err(BrokerError::Refused { .. }) if !requires_exchange => true,
            checked => {
                checked?;
                false
            }
        };
        let health = Arc::<SinkHealth>::default();
        health.set_refused(is_exchange_refused);
        let publisher = ExchangePublisher {
            warnings: PublishWarnings::new(exchange.clone()),
            exchange,
            unsent: VecDeque::new(),
            retry_queue: KeyRetryQueue::default(),
            isolated_retries: JoinSet::new(),
            next_order: 0,
            confirm_limit: CONFIRM_LIMIT,
            backoff: CONNECT_BACKOFF,
            was_last_refused: false,
            unroutable_policy: config.unroutable_policy(),
            is_exchange_refused,
            is_write_refused: false,
            health: Arc::clone(&health),
            confirm_timeout: shortened(CONFIRM_TIMEOUT),
            refusal_probe: RefusalProbe::default(),
        };
        // The limit of the outbox also limits this channel, because all messages of the channel are also in the outbox.
        let (input, receiver) = mpsc::unbounded_channel();
        let routing_key = config.routing_key.clone();
        Ok(Self {
            routing_key,
            collected: Vec::new(),
            input,
            health,
            streams: BTreeSet::new(),
            unstarted: Some((publisher, connection, receiver)),
        })
    }

    /// Returns the state of the sink.
    pub fn health(&self) -> Arc<SinkHealth> {
        Arc::clone(&self.health)
    }

    /// Returns the future of the exchange's task. Until this sink is dropped, the task publishes the messages and
    /// reports the published messages. Returns `None` on a second call.
    pub fn start(
        &mut self,
        reports: UnboundedSender<PublishedCount>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (publisher, connection, receiver) = self.unstarted.take()?;
        Some(publisher.run(connection, receiver, reports))
    }

    /// Adds a message of `stream` to the run that is being collected. `sequence` is the number that the store has given
    /// to the message; `None` if the messages of the sink have no numbers.
    pub fn add_message(&mut self, stream: &str, message: &OutboxMessage, sequence: Option<u64>) {
        let template = &self.routing_key;
        self.collected.push(encode::message(stream, message, sequence, template, now_seconds()));
    }

    /// Adds a dead letter of `stream` to the run that is being collected. `sequence` is the number that the store has
    /// given to the letter; `None` if the messages of the sink have no numbers.
    pub fn add_letter(&mut self, stream: &str, letter: &DeadLetter, sequence: Option<u64>) {
        let template = &self.routing_key;
        self.collected.push(encode::letter(stream, letter, sequence, template, now_seconds()));
    }

    /// Sends the added messages of `stream` to the task as the messages of the run `run`. The task may publish them
    /// under `ownership`.
    pub fn send(&mut self, run: u64, stream: &Arc<str>, ownership: &Arc<Ownership>) {
        if !self.collected.is_empty() {
            if !self.streams.contains(stream) {
                self.streams.insert(Arc::clone(stream));
                self.health.add_stream(stream);
            }
            let ownership = Arc::clone(ownership);
            let messages = std::mem::take(&mut self.collected);
            // The send fails only if the task has panicked, which the task's owner notices.
            let _ = self.input.send(ExchangeBatch { run, ownership, messages });
        }
    }
}

/// Returns the time in seconds since the Unix epoch; 0 for a time before 1970.
fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Debug)]
struct ExchangePublisher {
    exchange: Exchange,
    warnings: PublishWarnings,
    /// Messages that are not sent yet, in order.
    unsent: VecDeque<PendingPublish>,
    retry_queue: KeyRetryQueue,
    isolated_retries: JoinSet<(PendingPublish, IsolatedAnswer)>,
    /// The position of the next message in the order of the sink.
    next_order: u64,
    /// The present limit of unconfirmed messages. The limit becomes 1 when the broker has closed the channel because of
    /// a message, or has sent no confirm in time. With this limit, the next failure identifies the message. Each
    /// accepted message raises the limit by one.
    confirm_limit: usize,
    /// The delay before the next connection.
    backoff: Backoff,
    /// True if the broker has closed a channel because of one message, and has accepted no message since then. Messages
    /// that the broker accepts in isolated retries do not count.
    was_last_refused: bool,
    /// The treatment of a message that no queue accepts.
    unroutable_policy: UnroutablePolicy,
    /// True if the broker has refused the exchange, for example because the exchange is missing, and no later check has
    /// found the exchange.
    is_exchange_refused: bool,
    /// True if, at the newest retry of a refused message, the user lacked the right to write to the exchange, or the
    /// broker did not support the type of the exchange. Becomes false when the broker accepts a message.
    is_write_refused: bool,
    health: Arc<SinkHealth>,
    confirm_timeout: Duration,
    /// The broker's refusals of messages on the present channel.
    refusal_probe: RefusalProbe,
}

/// The reason why the task no longer uses a channel.
enum ChannelEnd {
    Failed(lapin::Error),
    /// No confirm arrived within the time limit.
    TimedOut,
    /// The broker returned a message that the tracker does not contain.
    UnmatchedReturn,
    /// Too many messages of the channel have neither been confirmed nor refused.
    TooManyLateConfirms,
    /// The broker refused a message on this channel, and accepted it on another channel.
    Outdated,
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
        connection: SinkConnection,
        mut input: UnboundedReceiver<ExchangeBatch>,
        published: UnboundedSender<PublishedCount>,
    ) {
        let mut connection = Some(connection);
        loop {
            while let Ok(batch) = input.try_recv() {
                self.enqueue(batch);
            }
            self.drop_disowned(&published);
            let limit = shortened(CONFIRM_TIMEOUT);
            if self.is_exchange_refused {
                let broker = Arc::clone(&self.exchange.broker);
                let checked = self.check_refused_exchange(&mut connection);
                if let Err(error) = broker.within(limit, checked).await {
                    self.wait_before_reconnect(&error.to_string()).await;
                    continue;
                }
            }
            let connected = self.exchange.connect(connection.take());
            let link = match self.exchange.broker.within(limit, connected).await {
                Ok(link) => link,
                Err(error) => {
                    self.wait_before_reconnect(&error.to_string()).await;
                    continue;
                }
            };
            if self.is_empty() {
                self.report_recovery();
            }
            self.refusal_probe = RefusalProbe::default();
            let mut tracker = ConfirmTracker::new();
            let ended = self.publish(&link, &mut tracker, &mut input, &published).await;
            let unconfirmed_count = tracker.unconfirmed_count();
            let (first, items) = tracker.into_items();
            for item in items.rev() {
                self.unsent.push_front(item);
            }
            match ended {
                Ok(()) => return,
                Err(ChannelEnd::Failed(error)) => {
                    let described = self.exchange.broker.error(&error);
                    if described.is_not_found() {
                        self.set_exchange_refused(true);
                    }
                    let mut reason = described.to_string();
                    if is_state_error(&error)
                        && let Some(end) = link.link.end().await
                    {
                        reason = end;
                    }
                    connection = Some(link.link);
                    if is_caused_by_message(&error) {
                        self.handle_closed_channel(
                            first.filter(|_| unconfirmed_count == 1),
                            &reason,
                        )
                        .await;
                    } else {
                        self.wait_before_reconnect(&reason).await;
                    }
                }
                // Dropping the link closes the connection in the remaining cases.
                Err(ChannelEnd::TimedOut) => self.handle_confirm_timeout(first),
                Err(ChannelEnd::TooManyLateConfirms | ChannelEnd::Outdated) => {}
                Err(ChannelEnd::UnmatchedReturn) => {
                    let broker = &self.exchange.broker;
                    let reason =
                        format!("{broker} returned a message for which this process does not wait");
                    self.wait_before_reconnect(&reason).await;
                }
            }
        }
    }

    /// Repeats the check of the exchange after the broker has refused the exchange.
    async fn check_refused_exchange(
        &mut self,
        connection: &mut Option<SinkConnection>,
    ) -> Result<(), BrokerError> {
        let link = self.exchange.link(connection.take()).await?;
        let checked = self.exchange.check(&link).await;
        *connection = Some(link);
        checked?;
        self.set_exchange_refused(false);
        self.backoff.reset();
        Ok(())
    }

    fn set_exchange_refused(&mut self, is_refused: bool) {
        self.is_exchange_refused = is_refused;
        self.update_health();
    }

    fn set_write_refused(&mut self, is_refused: bool) {
        if std::mem::replace(&mut self.is_write_refused, is_refused) != is_refused {
            self.update_health();
        }
    }

    fn update_health(&self) {
        self.health.set_refused(self.is_exchange_refused || self.is_write_refused);
    }

    async fn publish<'a>(
        &mut self,
        link: &'a ConfirmChannel,
        tracker: &mut ConfirmTracker<'a>,
        input: &mut UnboundedReceiver<ExchangeBatch>,
        published: &UnboundedSender<PublishedCount>,
    ) -> Result<(), ChannelEnd> {
        let mut check_timer = interval(CHECK_INTERVAL);
        check_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The task replaces the channel when all its messages are confirmed, so that no message is sent twice.
            let is_outdated = self.refusal_probe.is_channel_outdated();
            if is_outdated && tracker.is_empty() {
                return Err(ChannelEnd::Outdated);
            }
            if !is_outdated && (tracker.is_empty() || self.unsent.len() >= SEND_GROUP_SIZE) {
                self.send_unsent(&link.channel, tracker, published);
            }
            tokio::select! {
                confirmed = tracker.confirmed(), if !tracker.is_empty() => {
                    confirmed?;
                    self.apply_confirms(tracker.take_resolved()?, published);
                }
                batch = input.recv() => match batch {
                    Some(batch) => self.enqueue(batch),
                    None => return Ok(()),
                },
                Some(answered) = self.isolated_retries.join_next() => match answered {
                    Ok((item, answer)) => self.handle_isolated_answer(item, answer, published),
                    Err(panic) => resume_unwind(panic.into_panic()),
                },
                _ = check_timer.tick(), if !self.is_empty() || !tracker.is_empty() => {
                    self.check_overdue(link, tracker, published)?;
                    if !is_outdated {
                        self.send_unsent(&link.channel, tracker, published);
                    }
                }
            }
        }
    }

    fn check_overdue(
        &mut self,
        link: &ConfirmChannel,
        tracker: &mut ConfirmTracker<'_>,
        published: &UnboundedSender<PublishedCount>,
    ) -> Result<(), ChannelEnd> {
        let is_blocked = link.link.connection.status().blocked();
        if is_blocked {
            tracker.reset_timers();
        }
        let confirms = tracker.resolve(shortened(CONFIRM_TIMEOUT))?;
        self.apply_confirms(confirms.resolved, published);
        // The overdue messages may be for a queue without a leader, which neither accepts nor refuses messages.
        self.hold_overdue(confirms.overdue);
        if tracker.timed_out(self.confirm_timeout) {
            return Err(ChannelEnd::TimedOut);
        }
        if tracker.has_too_many_late() {
            return Err(ChannelEnd::TooManyLateConfirms);
        }
        self.start_due_retries(is_blocked);
        Ok(())
    }

    fn enqueue(&mut self, ExchangeBatch { run, ownership, messages }: ExchangeBatch) {
        for outgoing in messages {
            let ownership = Arc::clone(&ownership);
            self.unsent.push_back(PendingPublish {
                run,
                order: self.next_order,
                outgoing,
                ownership,
            });
            self.next_order += 1;
        }
    }

    /// Drops the waiting messages of partitions that this process no longer owns, and counts these messages as
    /// published. The new owners publish these messages.
    fn drop_disowned(&mut self, published: &UnboundedSender<PublishedCount>) {
        let mut disowned = self.retry_queue.remove_disowned();
        let (lost, waiting): (Vec<PendingPublish>, _) =
            self.unsent.drain(..).partition(|item| item.ownership.is_lost());
        self.unsent = VecDeque::from_iter::<Vec<PendingPublish>>(waiting);
        disowned.extend(lost);
        self.apply_results(
            disowned.into_iter().map(|item| (item, ConfirmResult::Acked)).collect(),
            published,
        );
    }

    fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.retry_queue.is_empty()
    }

    /// Sends waiting messages until the limit of unconfirmed messages is reached.
    fn send_unsent<'a>(
        &mut self,
        channel: &'a Channel,
        tracker: &mut ConfirmTracker<'a>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let mut active_ownership = None;
        while tracker.len() < self.confirm_limit && tracker.bytes() < CONFIRM_LIMIT_BYTES {
            let Some(item) = self.unsent.pop_front() else { break };
            if active_ownership.as_ref().is_some_and(|active| Arc::ptr_eq(active, &item.ownership))
            {
                // The previous message has the same ownership, which was active a moment ago.
            } else if item.ownership.is_active() {
                active_ownership = Some(Arc::clone(&item.ownership));
            } else {
                if item.ownership.is_lost() {
                    // The partition's new owner publishes this message, so this task counts it as published.
                    self.apply_results(vec![(item, ConfirmResult::Acked)], published);
                    continue;
                }
                // A process suspends all its ownerships together, so the process must not publish the other messages
                // either.
                self.unsent.push_front(item);
                break;
            }
            let Some(item) = self.retry_queue.admit(item) else { continue };
            let confirm = self.exchange.publish(channel, &item.outgoing);
            tracker.send(item, confirm);
        }
    }

    /// Returns whether the result of a message is final, so that the task does not retry the message.
    fn is_final(&self, result: ConfirmResult) -> bool {
        match result {
            ConfirmResult::Acked => true,
            ConfirmResult::Returned => self.unroutable_policy == UnroutablePolicy::Drop,
            ConfirmResult::Nacked => false,
        }
    }

    /// Applies the results of confirmed messages. Each accepted or dropped message raises the limit of unconfirmed
    /// messages.
    fn apply_confirms(
        &mut self,
        resolved: Vec<(PendingPublish, ConfirmResult)>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let accepted_count = resolved.iter().filter(|(_, result)| self.is_final(*result)).count();
        if accepted_count > 0 {
            self.was_last_refused = false;
            self.backoff.reset();
            self.confirm_limit = (self.confirm_limit + accepted_count).min(CONFIRM_LIMIT);
        }
        if self.confirm_limit == CONFIRM_LIMIT {
            self.confirm_timeout = shortened(CONFIRM_TIMEOUT);
        }
        self.apply_results(resolved, published);
        if accepted_count > 0 {
            self.report_recovery();
        }
    }

    /// Reports that the broker now accepts all messages, if the sink holds no message and no isolated retry is running.
    fn report_recovery(&mut self) {
        if self.retry_queue.is_empty() && self.isolated_retries.is_empty() {
            self.warnings.report_recovery();
        }
    }

    /// Reports accepted and dropped messages, and holds all other messages for a retry. The messages of partitions that
    /// this process no longer owns also count as accepted. Each accepted message makes the task forget that a right was
    /// missing. A message of a lost partition has the same effect: if no other message follows, the task cannot detect
    /// in another way that an operator has granted the right.
    fn apply_results(
        &mut self,
        resolved: Vec<(PendingPublish, ConfirmResult)>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let mut published_counts: Vec<PublishedCount> = Vec::new();
        for (item, result) in resolved {
            if !self.is_final(result) {
                self.warnings.not_accepted(&item.outgoing, result, &self.retry_queue);
                let now = Instant::now();
                let mode = self.refusal_probe.retry_mode(item.order, result, now);
                self.retry_queue.hold(item, mode, now);
                continue;
            }
            if result == ConfirmResult::Returned {
                self.health.add_dropped();
                self.warnings.dropped(&item.outgoing);
            }
            self.set_write_refused(false);
            for next in self.retry_queue.release(&item).rev() {
                self.unsent.push_front(next);
            }
            match published_counts.last_mut() {
                Some((run, count)) if *run == item.run => *count += 1,
                _ => published_counts.push((item.run, 1)),
            }
        }
        for published_count in published_counts {
            // The receiver may be dropped when the process is ending.
            let _ = published.send(published_count);
        }
    }

    fn start_due_retries(&mut self, is_blocked: bool) {
        let isolated_limit =
            if is_blocked { 0 } else { ISOLATED_RETRY_LIMIT - self.isolated_retries.len() };
        let (due, due_isolated) = self.retry_queue.due(isolated_limit, Instant::now());
        for item in due.into_iter().rev() {
            self.unsent.push_front(item);
        }
        for item in due_isolated {
            if item.ownership.is_lost() {
                self.unsent.push_front(item);
                continue;
            }
            if !item.ownership.is_active() {
                self.retry_queue.hold(item, RetryMode::Isolated, Instant::now());
                continue;
            }
            self.isolated_retries
                .spawn(self.exchange.clone().publish_isolated(item, shortened(CONFIRM_TIMEOUT)));
        }
    }

    fn handle_isolated_answer(
        &mut self,
        mut item: PendingPublish,
        answer: IsolatedAnswer,
        published: &UnboundedSender<PublishedCount>,
    ) {
        match answer {
            IsolatedAnswer::Confirm(result) => {
                let is_final = self.is_final(result);
                if result == ConfirmResult::Acked {
                    self.refusal_probe.accept_isolated(item.order);
                }
                if is_final {
                    self.retry_queue.retry_isolated_now(Instant::now());
                    // The broker was only slow, or has recovered, so return to the normal time limit.
                    self.confirm_timeout = shortened(CONFIRM_TIMEOUT);
                }
                self.apply_results(vec![(item, result)], published);
                if is_final {
                    self.report_recovery();
                }
                return;
            }
            IsolatedAnswer::Refused { reason, concerns_exchange } => {
                if concerns_exchange {
                    self.set_write_refused(true);
                }
                if !concerns_exchange && item.outgoing.use_fallback() {
                    self.warnings.letter_refused(&item.outgoing, &reason);
                } else {
                    self.warnings.retry_refused(&item.outgoing, &reason, &self.retry_queue);
                }
            }
            IsolatedAnswer::TimedOut => self.warnings.no_confirm(&item.outgoing, &self.retry_queue),
            IsolatedAnswer::Unavailable(reason) => {
                self.warnings.unavailable(self.retry_queue.len() + 1, &reason);
            }
            IsolatedAnswer::NotOwner => {}
        }
        self.retry_queue.hold(item, RetryMode::Isolated, Instant::now());
    }

    fn hold_overdue(&mut self, overdue: Vec<PendingPublish>) {
        for item in overdue {
            self.warnings.no_confirm(&item.outgoing, &self.retry_queue);
            self.retry_queue.hold(item, RetryMode::Isolated, Instant::now());
        }
    }

    /// Handles a channel on which no confirm arrived in time. The first unconfirmed message may be the cause: a queue
    /// without a leader blocks the channel when the queue gets its first message, and later messages wait.
    fn handle_confirm_timeout(&mut self, first: Option<usize>) {
        self.confirm_limit = 1;
        self.confirm_timeout = SUSPECT_CONFIRM_TIMEOUT;
        let first = first.and_then(|first| self.unsent.remove(first));
        self.hold_overdue(first.into_iter().collect());
    }

    /// Handles a channel that the broker closed because of one of the unconfirmed messages. `suspect_index` is the
    /// index in `unsent` of the unconfirmed message, if there was exactly one. The task then holds that message for an
    /// isolated retry, and the other messages continue. If several messages were unconfirmed, the task sends them one
    /// at a time on the next channel, to find the cause.
    async fn handle_closed_channel(&mut self, suspect_index: Option<usize>, reason: &str) {
        self.confirm_limit = 1;
        let Some(item) = suspect_index.and_then(|index| self.unsent.remove(index)) else { return };
        self.warnings.refused(&item.outgoing, reason, &self.retry_queue);
        self.retry_queue.hold(item, RetryMode::Isolated, Instant::now());
        if std::mem::replace(&mut self.was_last_refused, true) {
            // The broker has refused two messages in a row and may refuse all waiting messages. The delay limits the
            // number of channels that are opened.
            tokio::time::sleep(self.backoff.next_delay()).await;
        }
    }

    async fn wait_before_reconnect(&mut self, reason: &str) {
        let messages = self.unsent.len() + self.retry_queue.len() + self.isolated_retries.len();
        self.warnings.unavailable(messages, reason);
        tokio::time::sleep(self.backoff.next_delay()).await;
    }
}
