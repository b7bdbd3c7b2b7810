//! Logs messages that are not published. Throttles limit the number of frequent warnings.

use std::time::Duration;

use super::confirm_tracker::ConfirmResult;
use super::encode::AmqpMessage;
use super::exchange::Exchange;
use super::retry_queue::KeyRetryQueue;
use ordain_util::failure_timer::FailureTimer;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::text::escape_invisible;

const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// The duration from which a failure is logged as an error. A lost connection is usually replaced sooner.
const ERROR_DELAY: Duration = Duration::from_secs(5);

/// The warnings about the messages of an exchange, with a throttle for each frequent kind of warning.
#[derive(Debug)]
pub(super) struct PublishWarnings {
    exchange: Exchange,
    unavailable: LogThrottle,
    not_accepted: LogThrottle,
    dropped: LogThrottle,
    retry_refused: LogThrottle,
    no_confirm: LogThrottle,
    /// The time of the first failure since the previous recovery.
    failures: FailureTimer,
}

impl PublishWarnings {
    pub(super) fn new(exchange: Exchange) -> Self {
        let throttle = || LogThrottle::new(WARN_INTERVAL);
        Self {
            exchange,
            unavailable: throttle(),
            not_accepted: throttle(),
            dropped: throttle(),
            retry_refused: throttle(),
            no_confirm: throttle(),
            failures: FailureTimer::default(),
        }
    }

    /// Logs that the broker accepts all messages again. Logs nothing if publishing has not failed since the previous
    /// recovery.
    pub(super) fn report_recovery(&mut self) {
        if let Some(seconds) = self.failures.recover() {
            tracing::info!(
                sink = self.exchange.sink,
                seconds,
                "publishing of messages works again: the broker accepts all messages of the sink"
            );
        }
    }

    /// Warns that `messages` messages are not published, because the broker is unavailable, or because an isolated
    /// retry failed for a reason other than its message. If the failure has lasted for [`ERROR_DELAY`], logs an error
    /// instead.
    pub(super) fn unavailable(&mut self, messages: usize, reason: &str) {
        self.failures.record_failure();
        if !self.unavailable.allow() {
            return;
        }
        let sink = &self.exchange.sink;
        let words = format!("messages not published: {reason}; Ordain keeps them and tries again");
        if self.failures.has_lasted(ERROR_DELAY) {
            tracing::error!(sink, messages, "{words}");
        } else {
            tracing::warn!(sink, messages, "{words}");
        }
    }

    pub(super) fn not_accepted(
        &mut self,
        outgoing: &AmqpMessage,
        result: ConfirmResult,
        retry_queue: &KeyRetryQueue,
    ) {
        self.failures.record_failure();
        if !self.not_accepted.allow() {
            return;
        }
        let exchange = &self.exchange.name;
        let key = outgoing.routing_key.as_str();
        let reason = match result {
            ConfirmResult::Returned if exchange.is_empty() => {
                format!("{}: declare the queue", self.unroutable_reason(key))
            }
            ConfirmResult::Returned => format!("{}: bind a queue", self.unroutable_reason(key)),
            _ => format!(
                "the broker temporarily refuses messages of the exchange {exchange:?} with the routing key {key:?}: \
                 check whether a bound queue is full or has no leader"
            ),
        };
        tracing::error!(
            sink = self.exchange.sink,
            held = retry_queue.len() + 1,
            "messages not published: {reason}; Ordain keeps them and tries again. Messages of other event keys are \
             still published"
        );
    }

    /// Warns that the sink has dropped a message, because no queue accepted the message. The field `others` is the
    /// number of dropped messages whose warnings the throttle has suppressed since the previous warning.
    pub(super) fn dropped(&mut self, outgoing: &AmqpMessage) {
        if !self.dropped.allow() {
            return;
        }
        let others = self.dropped.take_suppressed();
        let id = String::from_utf8_lossy(outgoing.id()).into_owned();
        let reason = self.unroutable_reason(outgoing.routing_key.as_str());
        tracing::warn!(
            sink = self.exchange.sink,
            id = &*escape_invisible(&id),
            others,
            "message dropped: {reason}. The sink drops such messages; if they must wait for a queue, set \
             `unroutable = \"keep\"`"
        );
    }

    fn unroutable_reason(&self, key: &str) -> String {
        let exchange = &self.exchange.name;
        match (exchange.is_empty(), key.is_empty()) {
            (true, true) => "the routing key is empty, so it names no queue; the handler names the queue for a reply \
                             in the header `property:reply_to`"
                .to_owned(),
            (true, false) => format!("the queue {key:?} does not exist"),
            (false, _) => {
                format!("no queue takes messages of the exchange {exchange:?} with the routing key {key:?}")
            }
        }
    }

    pub(super) fn retry_refused(
        &mut self,
        outgoing: &AmqpMessage,
        reason: &str,
        retry_queue: &KeyRetryQueue,
    ) {
        self.failures.record_failure();
        if self.retry_refused.allow() {
            self.refused(outgoing, reason, retry_queue);
        }
    }

    /// Warns that the broker refused the original form of a dead letter, and that the sink publishes the second form.
    pub(super) fn letter_refused(&mut self, outgoing: &AmqpMessage, reason: &str) {
        self.failures.record_failure();
        let id = String::from_utf8_lossy(outgoing.id()).into_owned();
        tracing::warn!(
            sink = self.exchange.sink,
            exchange = self.exchange.name,
            id = &*escape_invisible(&id),
            "dead letter in its original form refused by the broker: {reason}; Ordain publishes a JSON document \
             instead, which contains the message. Unlike the original form, this document cannot be moved back to the \
             stream"
        );
    }

    /// Warns that the broker closed the channel because of a new message. This warning needs no throttle. Each such
    /// refusal ends a channel, and if the broker refuses several messages in a row, the sink opens the next channel
    /// only after a delay.
    pub(super) fn refused(
        &mut self,
        outgoing: &AmqpMessage,
        reason: &str,
        retry_queue: &KeyRetryQueue,
    ) {
        self.failures.record_failure();
        let id = String::from_utf8_lossy(outgoing.id()).into_owned();
        tracing::error!(
            sink = self.exchange.sink,
            held = retry_queue.len() + 1,
            id = &*escape_invisible(&id),
            bytes = outgoing.body.bytes().len(),
            "message refused by the broker: {reason}; Ordain keeps the message and tries again. Messages of other \
             event keys are still published"
        );
    }

    pub(super) fn no_confirm(&mut self, outgoing: &AmqpMessage, retry_queue: &KeyRetryQueue) {
        self.failures.record_failure();
        if self.no_confirm.allow() {
            tracing::error!(
                sink = self.exchange.sink,
                held = retry_queue.len() + 1,
                "messages not confirmed: the broker has neither accepted nor refused messages of the exchange {:?} \
                 with the routing key {:?}; check that each bound queue has a leader. Ordain keeps them and tries \
                 again. Messages of other event keys are still published",
                self.exchange.name,
                outgoing.routing_key.as_str()
            );
        }
    }
}
