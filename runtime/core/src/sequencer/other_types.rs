//! Settles the events whose types the handler does not execute. No worker executes such an event, and the event changes
//! no state. If the stream has a sink for events of other types, a message passes the event on to this sink. In all
//! other respects, the event is like any other event. The event keeps its position in the order of its key, and a
//! commit settles the event exactly once.

use std::sync::Arc;

use super::Sequencer;
use super::letters::early_letter_ids;
use crate::event::Message;
use crate::key_record::EmittedMessage;
use crate::type_filter::TypeFilter;

impl Sequencer {
    /// Returns the types of events that the handler executes; `None` if it executes events of all types.
    pub(super) fn type_filter(&self) -> Option<Arc<TypeFilter>> {
        self.settings.types.clone().filter(|_| !fault!(self, ExecuteOtherTypes))
    }

    /// Settles the next events of a runnable lane up to the first event that the handler executes, as far as the limits
    /// of a turn permit. Returns whether the function settled an event.
    pub(super) fn settle_other_types(&mut self, index: u32, filter: &TypeFilter) -> bool {
        let limit = self.settings.quantum.min(self.settings.run_ahead - self.ahead);
        let mut settled = 0;
        while settled < limit
            && self.lanes[index].runnable(&self.settings)
            && self.settle_other_type(index, filter)
        {
            settled += 1;
        }
        settled > 0
    }

    /// Settles the next event of a lane if the handler does not execute events of its type. Returns whether the
    /// function settled the event.
    fn settle_other_type(&mut self, index: u32, filter: &TypeFilter) -> bool {
        let lane = &mut self.lanes[index];
        let next = lane.held.head().filter(|held| !filter.accepts(held.event.kind()));
        let Some(held) = next else { return false };
        let event = Arc::clone(&held.event);
        let sequence = held.sequence;
        let message = filter.sink.as_deref().map(|sink| EmittedMessage {
            sequence,
            index: 0,
            event_digest: event.identity_digest(),
            message: Message::forwarded(&event, sink),
        });
        let bytes = message.as_ref().map_or(0, |emitted| emitted.message.memory());
        let removed_letters = early_letter_ids(&lane.key, held, lane.record.ahead.as_deref());
        // No handler version executes the event, so the result belongs to no rollout.
        let chunk = lane.chunk(None, &self.settings);
        chunk.next = sequence + 1;
        chunk.events += 1;
        chunk.other_types += 1;
        chunk.messages.extend(message);
        chunk.removed_letters.extend(removed_letters);
        chunk.bytes += bytes;
        self.memory += bytes;
        self.ahead += 1;
        lane.done += 1;
        lane.held.mark_executed(1);
        lane.ended = event.end() && !fault!(self, ForgetTheEnd);
        self.clear_failure(index);
        true
    }
}
