//! Counts the consecutive unreadable messages of a subscription. The subscription holds the newest of these messages
//! back. If a readable message follows, the held messages become dead letters. If no message follows for a while, they
//! become dead letters only if the stream has read a message before. When the number of consecutive unreadable messages
//! reaches a limit, the stream stops, and the messages remain in the queue. A producer that changes the form of its
//! messages therefore cannot turn a whole queue into dead letters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lapin::message::Delivery;
use ordain_core::Cause;

use super::decode::{DeliveryDecoder, describe_message, propose_settings};
use ordain_util::command::PrintedCommand;
use ordain_util::text::{escape_invisible, truncated};
use ordain_util::wait::shortened;

/// The subscription decides about the messages that it holds back after this time without another message.
const DECISION_DELAY: Duration = Duration::from_secs(1);
/// Interval between two decisions about held messages while the stream has never read a message. Another partition of
/// the stream may read a message meanwhile.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time for which a subscription holds messages back. If a delivery is not acknowledged for 30 minutes (the
/// default), RabbitMQ closes the channel and delivers the messages again. After several deliveries, a quorum queue with
/// a delivery limit would drop the messages.
const HOLD_LIMIT: Duration = Duration::from_mins(20);
const ERROR_BYTES: usize = 500;

/// The facts about a stream that its consumer keeps from one subscription to the next.
#[derive(Debug, Default)]
pub(super) struct ContactState {
    /// True if the stream has read a message, in this process or in an earlier one.
    pub(super) has_read: bool,
    /// True if the consumer has logged that it holds messages back. A readable message resets this value.
    pub(super) is_holding_logged: bool,
    /// True if the consumer has logged that the stream has stopped. A readable message resets this value.
    pub(super) is_stop_logged: bool,
}

#[derive(Debug)]
pub(super) struct UnreadableRun {
    /// The number of messages at which the stream stops; 0 if the stream never stops because of unreadable messages.
    limit: usize,
    length: usize,
    /// The number of held messages: the newest messages of the run, which the receiver of the deliveries does not get
    /// yet.
    held: usize,
    /// The number of events in the held messages: more than `held` if one of these messages is a batch.
    held_events: usize,
    causes: BTreeMap<&'static str, usize>,
    /// The first message of the run, and the reason why it cannot be read.
    first: Option<(Delivery, String)>,
    /// The time when the first message of the run arrived.
    since: Option<Instant>,
    /// The time of the next decision about the held messages; `None` if no message is held.
    decide_at: Option<Instant>,
}

impl UnreadableRun {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            length: 0,
            held: 0,
            held_events: 0,
            causes: BTreeMap::new(),
            first: None,
            since: None,
            decide_at: None,
        }
    }

    /// Adds an unreadable message and holds it back. `events` is the number of its events: 1 unless the message is a
    /// batch. Does nothing if `limit` is 0.
    pub(super) fn add(&mut self, cause: Cause, error: &str, events: usize, message: Delivery) {
        if self.limit == 0 {
            return;
        }
        self.length += 1;
        self.held += 1;
        self.held_events += events;
        *self.causes.entry(cause.name()).or_default() += 1;
        self.first.get_or_insert_with(|| (message, error.to_owned()));
        self.since.get_or_insert_with(Instant::now);
        self.postpone(DECISION_DELAY);
    }

    /// Ends the run, because a readable message has arrived.
    pub(super) fn end(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Releases the held messages, which become dead letters. The run still counts them.
    pub(super) fn release(&mut self) {
        self.held = 0;
        self.held_events = 0;
        self.decide_at = None;
    }

    /// Postpones the next decision about the held messages. The caller calls this method if the stream has never read a
    /// message, or if the store has not answered.
    pub(super) fn recheck(&mut self) {
        self.postpone(RECHECK_INTERVAL);
    }

    fn postpone(&mut self, delay: Duration) {
        self.decide_at = Some(Instant::now() + shortened(delay));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn is_at_limit(&self) -> bool {
        self.limit > 0 && self.length >= self.limit
    }

    /// Returns whether the subscription must no longer hold the messages back.
    pub(super) fn is_overdue(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= HOLD_LIMIT)
    }

    pub(super) fn held_events(&self) -> usize {
        self.held_events
    }

    /// Returns the time of the next decision about the held messages; `None` if no message is held.
    pub(super) fn decide_at(&self) -> Option<Instant> {
        self.decide_at
    }

    /// Describes for an operator why the stream holds all messages back: the stream has never read a message.
    pub(super) fn describe_holding(&self, queue: &str, decoder: &DeliveryDecoder) -> String {
        format!(
            "{} {}. The stream has not read any message yet, so it leaves these messages in the queue, without a dead \
             letter, and waits for more messages. {}",
            self.describe_messages(queue),
            self.describe_causes(),
            self.describe_first(decoder)
        )
    }

    /// Describes for an operator why the stream has stopped, and how to resume it.
    pub(super) fn describe_stop(
        &self,
        queue: &str,
        stream: &str,
        decoder: &DeliveryDecoder,
    ) -> String {
        let letters = match self.length - self.held {
            0 => String::new(),
            1 => ", except the first, which is a dead letter".to_owned(),
            letters => format!(", except the first {letters}, which are dead letters"),
        };
        format!(
            "{} {}. The stream has stopped, and leaves these messages in the queue{letters}. {}. To receive the \
             messages again with the same settings, for example after the messages above were removed: {}",
            self.describe_messages(queue),
            self.describe_causes(),
            self.describe_first(decoder),
            // Only this process can resume the stream.
            PrintedCommand::new("streams resume").argument(stream).for_this_process()
        )
    }

    fn describe_messages(&self, queue: &str) -> String {
        match self.length {
            1 => format!("1 message of the queue {queue:?} cannot be read"),
            length => {
                format!("{length} consecutive messages of the queue {queue:?} cannot be read")
            }
        }
    }

    fn describe_causes(&self) -> String {
        let causes: Vec<String> =
            self.causes.iter().map(|(cause, count)| format!("{cause}: {count}")).collect();
        format!("({})", causes.join(", "))
    }

    /// Describes the first message, and the possible next steps of an operator.
    fn describe_first(&self, decoder: &DeliveryDecoder) -> String {
        let Some((message, error)) = &self.first else { return String::new() };
        let error = truncated(escape_invisible(error).into_owned(), ERROR_BYTES);
        let advice = match propose_settings(decoder, message) {
            Some(settings) => format!(
                "With {settings}, the stream would read this message: if these settings name the right values, add \
                 them to the configuration"
            ),
            None => "Correct the settings of the source or the producer, or remove the messages"
                .to_owned(),
        };
        let has = describe_message(decoder, message);
        format!(
            "The first message has {has}; the reason is: {error}. {advice}, and start Ordain again. \
             {} shows how messages of the queue would be read. With `unreadable_limit = 0` in the source, such \
             messages become dead letters",
            PrintedCommand::new("check --connect").option("sample", "20")
        )
    }
}

#[cfg(test)]
mod tests {
    use ordain_config::EventLocations;
    use ordain_core::OrderingMode;

    use super::*;

    fn decoder() -> DeliveryDecoder {
        let locations = EventLocations::DEFAULT;
        DeliveryDecoder::new("/ordain/s".to_owned(), OrderingMode::Fifo, 1 << 20, locations, false)
    }

    fn add(run: &mut UnreadableRun, cause: Cause, events: usize) {
        let message = Delivery::mock(1, "".into(), "k".into(), false, b"{}".to_vec());
        run.add(cause, "there is no id", events, message);
    }

    #[test]
    fn released_messages_count_until_a_readable_message() {
        let mut run = UnreadableRun::new(3);
        add(&mut run, Cause::NoId, 1);
        add(&mut run, Cause::NoKey, 1);
        assert_eq!((run.held_events(), run.is_at_limit()), (2, false));
        run.release();
        assert_eq!((run.held_events(), run.decide_at(), run.is_empty()), (0, None, false));
        add(&mut run, Cause::NoId, 1);
        assert_eq!((run.held_events(), run.is_at_limit()), (1, true));
        let stop = run.describe_stop("q", "orders", &decoder());
        let start = "3 consecutive messages of the queue \"q\" cannot be read (no-id: 2, no-key: 1). The stream has \
                     stopped, and leaves these messages in the queue, except the first 2, which are dead letters. ";
        assert!(stop.starts_with(start), "{stop}");
        assert!(stop.contains("With `source = { …, id = \"content\" }`, "), "{stop}");
        assert!(stop.ends_with("`ordain streams resume orders`"), "{stop}");
        run.end();
        assert!(run.is_empty() && !run.is_at_limit() && run.held_events() == 0);
    }

    #[test]
    fn batch_counts_as_one_message_with_several_events() {
        let mut run = UnreadableRun::new(2);
        add(&mut run, Cause::NoId, 3);
        assert_eq!((run.held_events(), run.is_at_limit()), (3, false));
        run.release();
        add(&mut run, Cause::NoId, 5);
        assert_eq!((run.held_events(), run.is_at_limit()), (5, true));
        let stop = run.describe_stop("q", "orders", &decoder());
        let start = "2 consecutive messages of the queue \"q\" cannot be read (no-id: 2). The stream has stopped, and \
                     leaves these messages in the queue, except the first, which is a dead letter. ";
        assert!(stop.starts_with(start), "{stop}");
    }

    #[test]
    fn limit_of_zero_holds_no_message_back() {
        let mut run = UnreadableRun::new(0);
        add(&mut run, Cause::NoId, 1);
        assert!(run.is_empty() && !run.is_at_limit() && run.held_events() == 0);
    }
}
