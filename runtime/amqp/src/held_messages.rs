//! Decides about the unreadable messages that a subscription holds back. The messages become dead letters, or the
//! subscription continues to hold them, or the stream stops and leaves them in the queue. The counts of the messages
//! are in `unreadable_run`.

use std::time::Instant;

use lapin::message::Delivery;
use ordain_core::Cause;

use super::consumer_options::ConsumerOptions;
use super::store_timeout::with_store_timeout;
use super::unreadable_run::{ContactState, UnreadableRun};
use ordain_store::StoreError;
use ordain_util::source_health::SourceState;

pub(super) struct HeldMessages<'a> {
    options: &'a ConsumerOptions,
    queue: &'a str,
    contact: &'a mut ContactState,
    run: UnreadableRun,
}

impl<'a> HeldMessages<'a> {
    pub(super) fn new(
        options: &'a ConsumerOptions,
        queue: &'a str,
        contact: &'a mut ContactState,
    ) -> Self {
        Self { options, queue, contact, run: UnreadableRun::new(options.unreadable_limit) }
    }

    /// Holds back an unreadable message that contains `events` events, as [`UnreadableRun::add`] describes.
    pub(super) fn add(&mut self, cause: Cause, error: &str, events: usize, message: Delivery) {
        self.run.add(cause, error, events, message);
    }

    pub(super) fn events(&self) -> usize {
        self.run.held_events()
    }

    /// Returns the time of the next decision about the held messages; `None` if no message is held.
    pub(super) fn decide_at(&self) -> Option<Instant> {
        self.run.decide_at()
    }

    /// Returns whether the number of consecutive unreadable messages has reached the limit at which the stream stops.
    pub(super) fn is_at_limit(&self) -> bool {
        self.run.is_at_limit()
    }

    /// Ends the run of unreadable messages, because a readable message has arrived. The held messages become dead
    /// letters.
    pub(super) fn end_run(&mut self) {
        self.contact.has_read = true;
        self.contact.is_stop_logged = false;
        if !self.run.is_empty() || self.contact.is_holding_logged {
            self.release();
            self.run.end();
        }
    }

    /// Decides about the held messages. The caller calls this method when no message has arrived for a while, or when
    /// no more messages can arrive. There are four cases:
    ///
    /// - The stream has read a message before: the held messages become dead letters.
    /// - The stream has read no message, and one of two conditions holds: the held messages use up the prefetch
    ///   (`is_prefetch_held`), or the subscription has held them for too long. The stream stops, and this method
    ///   returns the reason, as [`Self::report_stop`] does.
    /// - The stream has read no message, and neither of these conditions holds: this method reports the held messages.
    ///   The subscription continues to hold them, so that they remain in the queue.
    /// - The store does not answer: this method postpones the decision.
    pub(super) async fn decide(&mut self, is_prefetch_held: bool) -> Option<String> {
        match self.has_read_before().await {
            Ok(true) => self.release(),
            Ok(false) if is_prefetch_held || self.run.is_overdue() => {
                return Some(self.report_stop());
            }
            Ok(false) => self.report_holding(),
            // The next decision repeats the request to the store.
            Err(_) => self.run.recheck(),
        }
        None
    }

    /// Returns a description of the messages, and the next step for an operator.
    pub(super) fn report_stop(&mut self) -> String {
        let options = self.options;
        let reason = self.run.describe_stop(self.queue, &options.stream, &options.decoder);
        if !std::mem::replace(&mut self.contact.is_stop_logged, true) {
            tracing::error!(
                stream = &*options.stream,
                queue = self.queue,
                "stream stopped: {reason}"
            );
        }
        let state = SourceState::Unreadable { reason: reason.clone(), is_stopped: true };
        options.health.set(state);
        reason
    }

    /// Returns whether the stream has read a message, in this process or in an earlier one. The store shows this,
    /// because each event leaves data of the stream in the store.
    async fn has_read_before(&mut self) -> Result<bool, StoreError> {
        if !self.contact.has_read {
            let ConsumerOptions { records, stream, .. } = self.options;
            let streams = with_store_timeout(records.store().streams()).await?;
            self.contact.has_read = streams.iter().any(|known| known == stream);
        }
        Ok(self.contact.has_read)
    }

    /// Releases the held messages, so that they become dead letters.
    fn release(&mut self) {
        if std::mem::take(&mut self.contact.is_holding_logged) {
            tracing::info!(
                stream = &*self.options.stream,
                queue = self.queue,
                "the stream has read a message; the unreadable messages before it become dead letters"
            );
            self.options.health.set(SourceState::Consuming);
        }
        self.run.release();
    }

    /// Reports that the stream has not read any message yet, and leaves all messages in the queue.
    fn report_holding(&mut self) {
        let reason = self.run.describe_holding(self.queue, &self.options.decoder);
        if !std::mem::replace(&mut self.contact.is_holding_logged, true) {
            let stream = &*self.options.stream;
            tracing::error!(stream, queue = self.queue, "stream waits: {reason}");
        }
        self.options.health.set(SourceState::Unreadable { reason, is_stopped: false });
        self.run.recheck();
    }
}
