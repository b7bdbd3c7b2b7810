//! Tracks the messages that were sent to the broker, in the order of sending, until the result of each message is
//! known.
//!
//! If the broker cannot route a message, it first returns the message, and then confirms it. The client library holds a
//! returned message until a confirm arrives. The library then attaches the returned message to this confirm, which may
//! belong to another message. Each confirm takes at most one returned message out of the library. When every sent
//! message is confirmed, the library therefore holds no returned message. The tracker uses the following fact. Let M be
//! a confirmed message. When the broker has confirmed all messages that were sent before this process saw the confirm
//! of M, the result of M is known. A check may also find the result of M earlier: see [`ConfirmTracker::resolve`].

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lapin::Confirmation;
use lapin::message::Delivery;

use super::encode::AmqpMessage;
use ordain_store::Ownership;

/// A message with its position in the order of its sink.
#[derive(Debug)]
pub(super) struct PendingPublish {
    /// The id of the message's run. The messages of a run are marked as published together.
    pub(super) run: u64,
    /// The position of the message in the order of its sink.
    pub(super) order: u64,
    pub(super) outgoing: AmqpMessage,
    /// The ownership under which the message may be published.
    pub(super) ownership: Arc<Ownership>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfirmResult {
    Acked,
    /// The broker could not route the message to a queue.
    Returned,
    /// The broker could not accept the message, for example because a queue is full or has no leader.
    Nacked,
}

impl ConfirmResult {
    /// Returns the result that a confirm shows for its own message. The result is not final: the library may report
    /// later, with the confirm of another message, that the broker returned the message.
    pub(super) fn of(confirmation: &Confirmation) -> Self {
        if confirmation.is_ack() { Self::Acked } else { Self::Nacked }
    }
}

pub(super) type ConfirmFuture<'a> =
    Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send + 'a>>;

#[derive(Debug)]
pub(super) struct UnmatchedReturn;

/// The messages that a check has removed from the tracker.
#[derive(Debug, Default)]
pub(super) struct ResolvedConfirms {
    /// Messages whose result is known, in order.
    pub(super) resolved: Vec<(PendingPublish, ConfirmResult)>,
    /// Messages that the tracker has given up because their confirms are overdue, in order.
    pub(super) overdue: Vec<PendingPublish>,
}

struct UnconfirmedPublish<'a> {
    item: PendingPublish,
    /// `None` after the confirm has arrived.
    confirm: Option<ConfirmFuture<'a>>,
    result: ConfirmResult,
    /// True if the confirm had arrived before the end of the previous check.
    seen: bool,
    /// The time at which the tracker first noticed that the broker had confirmed a later message, but not this message.
    overtaken_at: Option<Instant>,
}

pub(super) struct ConfirmTracker<'a> {
    sent: VecDeque<UnconfirmedPublish<'a>>,
    /// Total size of the bodies of the messages in `sent`, in bytes.
    bytes: usize,
    /// Number of confirmed messages at the front of `sent`.
    confirmed: usize,
    /// The number of tracked messages at the previous check. The next check is due when this number of messages is
    /// confirmed.
    next_check_at: usize,
    /// The time at which the wait for the next confirm began. This is the time of the newest confirm, of the newest
    /// send while `sent` was empty, or of the newest call of [`ConfirmTracker::reset_timers`]: the latest of the three.
    last_confirm_at: Instant,
    /// Confirms of messages that the tracker has given up. A late confirm may still arrive, and may carry a returned
    /// message.
    late_confirms: Vec<ConfirmFuture<'a>>,
    /// True if the broker has returned a message that the tracker does not contain.
    has_unmatched_return: bool,
}

/// The maximum number of late confirms. Above this number, the sink replaces the channel. The limit keeps a check fast,
/// because every check polls all late confirms.
const LATE_CONFIRM_LIMIT: usize = 1_024;

impl<'a> ConfirmTracker<'a> {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            bytes: 0,
            confirmed: 0,
            next_check_at: 0,
            last_confirm_at: Instant::now(),
            late_confirms: Vec::new(),
            has_unmatched_return: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of messages whose confirm has not been seen, including messages that were given up.
    pub(super) fn unconfirmed_count(&self) -> usize {
        self.sent.iter().filter(|sent| sent.confirm.is_some()).count() + self.late_confirms.len()
    }

    /// Returns whether the tracker contains messages, and no confirm has arrived for longer than `confirm_timeout`.
    pub(super) fn timed_out(&self, confirm_timeout: Duration) -> bool {
        !self.sent.is_empty() && self.last_confirm_at.elapsed() > confirm_timeout
    }

    /// Returns whether the tracker has given up too many messages. In this case, the caller must replace the channel.
    pub(super) fn has_too_many_late(&self) -> bool {
        self.late_confirms.len() > LATE_CONFIRM_LIMIT
    }

    /// Restarts the time limits of all confirms. The caller calls this method while the broker blocks the connection.
    /// Confirms are then late because of the block, not because of a message.
    pub(super) fn reset_timers(&mut self) {
        self.last_confirm_at = Instant::now();
        self.sent.iter_mut().for_each(|sent| sent.overtaken_at = None);
    }

    /// Sends a message. `confirm` is the future that publishes the message and completes with its confirm. This method
    /// polls `confirm` once; the poll passes the message to the library. The method does not wait for the confirm, so
    /// one write to the socket can contain many messages. The messages are sent in the order of the calls.
    pub(super) fn send(&mut self, item: PendingPublish, mut confirm: ConfirmFuture<'a>) {
        self.bytes += item.outgoing.body.bytes().len();
        if self.sent.is_empty() {
            self.last_confirm_at = Instant::now();
        }
        let ready = confirm.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(ready) = ready {
            confirm = Box::pin(std::future::ready(ready));
        }
        self.sent.push_back(UnconfirmedPublish {
            item,
            confirm: Some(confirm),
            result: ConfirmResult::Acked,
            seen: false,
            overtaken_at: None,
        });
    }

    /// Waits for the confirm of the first unconfirmed message. If the channel has failed, returns the error that the
    /// channel reports for the first unconfirmed message.
    pub(super) async fn confirmed(&mut self) -> lapin::Result<()> {
        std::future::poll_fn(|cx| self.poll_confirmed(cx)).await
    }

    fn poll_confirmed(&mut self, cx: &mut Context<'_>) -> Poll<lapin::Result<()>> {
        let before = self.confirmed;
        while self.confirmed < self.sent.len() {
            match self.poll_one(self.confirmed, cx) {
                Poll::Ready(Ok(())) => self.confirmed += 1,
                // First report the confirms that have already arrived. The next call returns the error or waits.
                Poll::Ready(Err(_)) | Poll::Pending if self.confirmed > before => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_one(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<lapin::Result<()>> {
        let Some(confirm) = &mut self.sent[at].confirm else { return Poll::Ready(Ok(())) };
        let Poll::Ready(confirmation) = confirm.as_mut().poll(cx) else { return Poll::Pending };
        let confirmation = match confirmation {
            Ok(confirmation) => confirmation,
            Err(error) => {
                self.sent[at].confirm = Some(Box::pin(std::future::ready(Err(error.clone()))));
                return Poll::Ready(Err(error));
            }
        };
        self.sent[at].confirm = None;
        self.last_confirm_at = Instant::now();
        if self.sent[at].result != ConfirmResult::Returned {
            self.sent[at].result = ConfirmResult::of(&confirmation);
        }
        if let Some(returned) = confirmation.take_message() {
            self.record_return(&returned.delivery);
        }
        Poll::Ready(Ok(()))
    }

    fn record_return(&mut self, returned: &Delivery) {
        let mut sent = self.sent.iter_mut();
        match sent.find(|sent| {
            sent.result != ConfirmResult::Returned && sent.item.outgoing.matches_return(returned)
        }) {
            Some(sent) => sent.result = ConfirmResult::Returned,
            None => self.has_unmatched_return = true,
        }
    }

    /// Polls the confirms of all messages, including the messages that the tracker has given up. Fails if the broker
    /// returned a message that the tracker does not contain.
    fn poll_all(&mut self) -> Result<(), UnmatchedReturn> {
        let mut cx = Context::from_waker(Waker::noop());
        for at in self.confirmed..self.sent.len() {
            let _ = self.poll_one(at, &mut cx);
        }
        let mut returned_messages = Vec::new();
        self.late_confirms.retain_mut(|confirm| match confirm.as_mut().poll(&mut cx) {
            Poll::Ready(confirmation) => {
                returned_messages.extend(confirmation.ok().and_then(Confirmation::take_message));
                false
            }
            Poll::Pending => true,
        });
        for returned in returned_messages {
            self.record_return(&returned.delivery);
        }
        if self.has_unmatched_return { Err(UnmatchedReturn) } else { Ok(()) }
    }

    /// Makes a check if one is due: removes and returns the messages whose result is known. Gives up no message. Fails
    /// as [`resolve`](Self::resolve) does.
    pub(super) fn take_resolved(
        &mut self,
    ) -> Result<Vec<(PendingPublish, ConfirmResult)>, UnmatchedReturn> {
        if self.confirmed < self.next_check_at {
            return Ok(Vec::new());
        }
        Ok(self.resolve(Duration::MAX)?.resolved)
    }

    /// Removes and returns the messages whose result is known. Also gives up the overdue messages, except messages that
    /// the broker has returned. A message is overdue if it is still unconfirmed `confirm_timeout` after the tracker
    /// noticed the confirm of a later message.
    ///
    /// If all messages are now confirmed, all results are known. Otherwise, the result of a message is known if its
    /// confirm had arrived before the end of the previous check.
    ///
    /// There is one exception: a message R was unconfirmed at the previous check, and the library has reported since
    /// then that the broker returned R. In this case, this method returns no result while any message is unconfirmed,
    /// and a later check returns the results. The reason: each confirm carries at most one returned message, so the
    /// library may have attached R to the confirm of another returned message S. The library then reports the return of
    /// S only with a later confirm.
    ///
    /// Fails if the broker returned a message that the tracker does not contain. All results are then unreliable, and
    /// the method removes no message.
    pub(super) fn resolve(
        &mut self,
        confirm_timeout: Duration,
    ) -> Result<ResolvedConfirms, UnmatchedReturn> {
        self.poll_all()?;
        let last = self.sent.iter().rposition(|sent| sent.confirm.is_none()).unwrap_or(0);
        let is_all = self.sent.iter().all(|sent| sent.confirm.is_none());
        // Messages that were sent after the previous check do not affect the results of messages that were confirmed at
        // that check.
        let mut before = self.sent.iter().take(self.next_check_at);
        let is_known =
            is_all || !before.any(|sent| !sent.seen && sent.result == ConfirmResult::Returned);
        let mut confirms = ResolvedConfirms::default();
        let sent = std::mem::take(&mut self.sent);
        for (at, mut sent) in sent.into_iter().enumerate() {
            let is_open = sent.confirm.is_some();
            if is_open && at < last {
                sent.overtaken_at.get_or_insert_with(Instant::now);
            }
            let is_late =
                is_open && sent.overtaken_at.is_some_and(|at| at.elapsed() >= confirm_timeout);
            if (sent.seen || is_all) && is_known {
                self.bytes -= sent.item.outgoing.body.bytes().len();
                confirms.resolved.push((sent.item, sent.result));
            // The tracker does not give up a returned message, because its confirm may carry another returned message.
            } else if is_late && sent.result != ConfirmResult::Returned {
                self.bytes -= sent.item.outgoing.body.bytes().len();
                self.late_confirms.extend(sent.confirm);
                confirms.overdue.push(sent.item);
            } else {
                sent.seen = !is_open;
                self.sent.push_back(sent);
            }
        }
        self.confirmed = self.sent.iter().take_while(|sent| sent.confirm.is_none()).count();
        self.next_check_at = self.sent.len();
        Ok(confirms)
    }

    /// Removes and returns all messages, in order. Also returns the position of the first unconfirmed message.
    pub(super) fn into_items(
        self,
    ) -> (Option<usize>, impl DoubleEndedIterator<Item = PendingPublish>) {
        let first = self.sent.iter().position(|sent| sent.confirm.is_some());
        (first, self.sent.into_iter().map(|sent| sent.item))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use lapin::BasicProperties;
    use lapin::message::BasicReturnMessage;
    use rand::seq::SliceRandom as _;
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::super::encode::{LetterFallback, MessageBody};
    use super::*;

    fn item(order: u64) -> PendingPublish {
        let properties = BasicProperties::default().with_message_id(order.to_string().into());
        let outgoing = AmqpMessage {
            routing_key: "key".into(),
            properties,
            body: MessageBody::Nothing,
            fallback: LetterFallback::None,
        };
        PendingPublish { run: 0, order, outgoing, ownership: Arc::new(Ownership::permanent()) }
    }

    fn returned(item: &PendingPublish) -> BasicReturnMessage {
        let key = item.outgoing.routing_key.clone();
        let mut delivery = Delivery::mock(0, "out".into(), key, false, Vec::new());
        delivery.properties = item.outgoing.properties.clone();
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    struct SimulatedBroker {
        rng: ChaCha8Rng,
        /// The returned messages that the library has not attached to a confirm yet.
        waiting: VecDeque<BasicReturnMessage>,
        unconfirmed: Vec<u64>,
        confirmed: HashMap<u64, Confirmation>,
    }

    impl SimulatedBroker {
        fn confirm(&mut self) {
            self.unconfirmed.shuffle(&mut self.rng);
            if let Some(order) = self.unconfirmed.pop() {
                let returned_message = self.waiting.pop_front();
                self.confirmed.insert(order, Confirmation::Ack(returned_message));
            }
        }
    }

    /// In some polls, chosen at random, the simulated broker first confirms one of its unconfirmed messages.
    fn confirm(broker: &Arc<Mutex<SimulatedBroker>>, order: u64) -> ConfirmFuture<'static> {
        let broker = Arc::clone(broker);
        Box::pin(std::future::poll_fn(move |_| {
            let mut broker = broker.lock().expect("the lock is not poisoned");
            if broker.rng.random_bool(0.1) {
                broker.confirm();
            }
            broker
                .confirmed
                .remove(&order)
                .map_or(Poll::Pending, |confirmation| Poll::Ready(Ok(confirmation)))
        }))
    }

    /// Every reported result is correct. If every returned message matches a tracked message, the tracker reports or
    /// gives up every message. The broker confirms messages in any order, and some messages much later. The library
    /// attaches a returned message to the next confirm.
    #[test]
    fn every_reported_result_is_correct() {
        let mut given_up_total = 0;
        for seed in 0..4_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let broker = Arc::new(Mutex::new(SimulatedBroker {
                rng: ChaCha8Rng::seed_from_u64(seed + 1_000_000),
                waiting: VecDeque::new(),
                unconfirmed: Vec::new(),
                confirmed: HashMap::new(),
            }));
            let lock = || broker.lock().expect("the lock is not poisoned");
            let mut tracker = ConfirmTracker::new();
            let mut truth = Vec::new();
            let mut reported = Vec::new();
            let mut given_up = Vec::new();
            let mut unanswered = Vec::new();
            let return_rate = rng.random_range(0.0..0.9);
            let unanswered_rate = if seed % 2 == 0 { 0.0 } else { 0.1 };
            while reported.len() + given_up.len() < 60 {
                if truth.len() < 60 && rng.random_bool(0.5) {
                    let order = truth.len() as u64;
                    let item = item(order);
                    let is_unanswered = rng.random_bool(unanswered_rate);
                    let is_returned = !is_unanswered && rng.random_bool(return_rate);
                    if is_returned {
                        lock().waiting.push_back(returned(&item));
                    }
                    truth.push(if is_returned {
                        ConfirmResult::Returned
                    } else {
                        ConfirmResult::Acked
                    });
                    tracker.send(item, confirm(&broker, order));
                    if is_unanswered {
                        unanswered.push(order);
                    } else {
                        lock().unconfirmed.push(order);
                    }
                } else {
                    lock().confirm();
                }
                if rng.random_bool(0.3) && !tracker.is_empty() {
                    let polled = tracker.poll_confirmed(&mut Context::from_waker(Waker::noop()));
                    if polled.is_ready() {
                        let Ok(resolved) = tracker.take_resolved() else { break };
                        reported
                            .extend(resolved.iter().map(|(item, result)| (item.order, *result)));
                    }
                }
                if seed % 2 == 1 && (truth.len() == 60 || rng.random_bool(0.1)) {
                    let confirm_timeout =
                        Duration::from_secs(if rng.random_bool(0.3) { 0 } else { 9 });
                    let Ok(confirms) = tracker.resolve(confirm_timeout) else { break };
                    reported.extend(
                        confirms.resolved.iter().map(|(item, result)| (item.order, *result)),
                    );
                    given_up.extend(confirms.overdue.iter().map(|item| item.order));
                    // The broker now confirms the messages in `unanswered`, perhaps after the tracker has given them
                    // up.
                    if rng.random_bool(0.3) || truth.len() == 60 {
                        lock().unconfirmed.append(&mut unanswered);
                    }
                }
            }
            given_up_total += given_up.len();
            // If the broker returns a message that the tracker has given up, the returned message matches no tracked
            // message.
            let was_returned = |order: &u64| truth[*order as usize] == ConfirmResult::Returned;
            let may_be_unmatched = given_up.iter().any(was_returned);
            reported.sort_unstable_by_key(|(order, _)| *order);
            if tracker.has_unmatched_return {
                assert!(may_be_unmatched, "seed {seed}");
                assert!(
                    reported.iter().all(|(order, result)| truth[*order as usize] == *result),
                    "seed {seed}"
                );
            } else {
                let truth = (0..).zip(truth).filter(|(order, _)| !given_up.contains(order));
                assert_eq!(reported, truth.collect::<Vec<_>>(), "seed {seed}");
                assert!(tracker.is_empty() && tracker.bytes() == 0, "seed {seed}");
            }
        }
        assert!(given_up_total > 1_000, "{given_up_total}");
    }

    /// A message without an answer does not delay the results of earlier or later messages. The tracker gives up this
    /// message when the confirm of a later message was seen long ago, even if the later message is already removed.
    #[test]
    fn message_without_answer_is_given_up_and_delays_no_other() {
        let mut tracker = ConfirmTracker::new();
        let ready = |confirmation| Box::pin(std::future::ready(Ok(confirmation)));
        tracker.send(item(0), ready(Confirmation::Nack(None)));
        tracker.send(item(1), Box::pin(std::future::pending()));
        tracker.send(item(2), ready(Confirmation::Ack(None)));
        let polled = tracker.poll_confirmed(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
        let mut resolved = tracker.take_resolved().expect("no unmatched return");
        resolved.extend(tracker.resolve(Duration::MAX).expect("no unmatched return").resolved);
        let results: Vec<_> = resolved.iter().map(|(item, result)| (item.order, *result)).collect();
        assert_eq!(results, [(0, ConfirmResult::Nacked), (2, ConfirmResult::Acked)]);
        assert_eq!(tracker.unconfirmed_count(), 1);
        let confirms = tracker.resolve(Duration::ZERO).expect("no unmatched return");
        assert_eq!(confirms.overdue.iter().map(|item| item.order).collect::<Vec<_>>(), [1]);
        assert!(tracker.is_empty() && tracker.unconfirmed_count() == 1);

        let mut tracker = ConfirmTracker::new();
        tracker.send(item(0), ready(Confirmation::Ack(None)));
        tracker.send(item(1), Box::pin(std::future::pending()));
        assert!(tracker.resolve(Duration::MAX).expect("no unmatched return").resolved.is_empty());
        assert_eq!(tracker.into_items().0, Some(1));
    }
}
