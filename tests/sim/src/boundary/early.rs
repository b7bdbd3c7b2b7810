//! Faults that acknowledge deliveries too early. Acknowledgements stay cumulative and ascending: only their time is
//! wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_core::{AttemptToken, DeliveryNumber, Effect, Event, Input};

use super::BoundaryFault;

/// The unacknowledged deliveries, each marked as finished or not.
#[derive(Debug, Default)]
pub(super) struct EarlyAcks {
    /// The number of the last acknowledged delivery.
    acknowledged: DeliveryNumber,
    open: VecDeque<OpenDelivery>,
    /// By turn, the events that the workers execute.
    turns: BTreeMap<AttemptToken, Vec<(u64, Arc<Event>)>>,
}

#[derive(Debug)]
struct OpenDelivery {
    /// The event of the delivery; `None` if the delivery was not an event.
    event: Option<Arc<Event>>,
    is_finished: bool,
}

impl EarlyAcks {
    /// Records an input. Returns the acknowledgement, if any, that the input causes under this fault.
    pub(super) fn take_input(&mut self, fault: BoundaryFault, input: &Input) -> Option<Effect> {
        match input {
            Input::Arrived { event, .. } => {
                let is_finished = fault == BoundaryFault::AckPastHeld;
                self.open.push_back(OpenDelivery { event: Some(Arc::clone(event)), is_finished });
            }
            Input::Unreadable { .. } => {
                self.open.push_back(OpenDelivery { event: None, is_finished: false });
            }
            Input::SourceReset => {
                self.acknowledged += self.open.len() as u64;
                self.open.clear();
            }
            Input::TurnDone(done) => {
                let events = self.turns.remove(&done.token).unwrap_or_default();
                self.finish(events.iter().take(done.outcomes.len()));
            }
            _ => {}
        }
        self.acknowledge()
    }

    /// Records an effect. Returns the effects that the world receives instead of it.
    pub(super) fn take_effect(&mut self, fault: BoundaryFault, effect: Effect) -> Vec<Effect> {
        match &effect {
            Effect::Ack { through } if *through <= self.acknowledged => return Vec::new(),
            Effect::Ack { through } => {
                self.open.drain(..(*through - self.acknowledged) as usize);
                self.acknowledged = *through;
            }
            Effect::Run(turn) if fault == BoundaryFault::AckBeforeCommit => {
                self.turns.insert(turn.token, turn.events.clone());
            }
            Effect::Commit(batch) if fault == BoundaryFault::AckBeforeSpill => {
                self.finish(batch.writes.iter().flat_map(|write| &write.spill));
            }
            _ => {}
        }
        [effect].into_iter().chain(self.acknowledge()).collect()
    }

    fn finish<'a>(&mut self, events: impl Iterator<Item = &'a (u64, Arc<Event>)>) {
        for (_, event) in events {
            let deliveries = self.open.iter_mut();
            for delivery in deliveries.filter(|delivery| delivery.event.as_ref() == Some(event)) {
                delivery.is_finished = true;
            }
        }
    }

    /// Acknowledges all finished deliveries before the first unfinished delivery, if there are any.
    fn acknowledge(&mut self) -> Option<Effect> {
        let before = self.acknowledged;
        while self.open.pop_front_if(|delivery| delivery.is_finished).is_some() {
            self.acknowledged += 1;
        }
        let through = self.acknowledged;
        (through > before).then_some(Effect::Ack { through })
    }
}
