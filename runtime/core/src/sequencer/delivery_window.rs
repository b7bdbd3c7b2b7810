//! The deliveries that are not yet acknowledged, in the order of delivery.
//!
//! The window records which deliveries are finished. An acknowledgement covers all earlier deliveries as well, so the
//! sequencer acknowledges a delivery only when all earlier deliveries are finished too. The window also records the
//! lane of each delivery. The sequencer can therefore spill the lane of the oldest delivery (move its events into the
//! store), so that one slow delivery does not block all later deliveries.

use std::collections::VecDeque;

use crate::event::DeliveryNumber;

/// The value of `lane` for a delivery that belongs to no lane: the delivery becomes an orphan dead letter.
pub(super) const NO_LANE: u32 = u32::MAX;

#[derive(Debug)]
struct DeliverySlot {
    lane: u32,
    is_finished: bool,
    at: u64,
}

#[derive(Debug)]
pub(super) struct DeliveryWindow {
    /// The number of the delivery in the first slot.
    base: DeliveryNumber,
    slots: VecDeque<DeliverySlot>,
    /// The number of finished deliveries after the oldest unfinished delivery.
    finished_behind: usize,
    acknowledged: DeliveryNumber,
}

/// The oldest unfinished delivery, which blocks the acknowledgement of all later deliveries.
#[derive(Debug, Clone, Copy)]
pub(super) struct OldestDelivery {
    pub(super) lane: u32,
    pub(super) at: u64,
    /// The number of finished deliveries after this delivery.
    pub(super) behind: usize,
}

impl DeliveryWindow {
    pub(super) fn new() -> Self {
        Self { base: 1, slots: VecDeque::new(), finished_behind: 0, acknowledged: 0 }
    }

    /// Adds the next delivery. Deliveries must be numbered without holes.
    pub(super) fn open(&mut self, delivery: DeliveryNumber, lane: u32, now: u64) {
        assert_eq!(
            delivery,
            self.base + self.slots.len() as u64,
            "deliveries must be numbered without holes"
        );
        self.slots.push_back(DeliverySlot { lane, is_finished: false, at: now });
    }

    /// Replaces the lane of a delivery. Ignores a delivery that is no longer in the window.
    pub(super) fn assign_lane(&mut self, delivery: DeliveryNumber, lane: u32) {
        let index = delivery.checked_sub(self.base);
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index as usize)) {
            slot.lane = lane;
        }
    }

    /// Marks a delivery as finished: its event is durably settled, spilled or dead-lettered. Ignores the number 0, and
    /// a delivery that is no longer in the window.
    pub(super) fn finish(&mut self, delivery: DeliveryNumber) {
        let Some(index) = delivery.checked_sub(self.base) else { return };
        let slot = &mut self.slots[index as usize];
        if slot.is_finished {
            return;
        }
        slot.is_finished = true;
        self.finished_behind += 1;
        while self.slots.front().is_some_and(|slot| slot.is_finished) {
            self.slots.pop_front();
            self.base += 1;
            self.finished_behind -= 1;
        }
    }

    /// Removes all deliveries, because the source delivers them again under new numbers.
    pub(super) fn reset(&mut self) {
        self.base += self.slots.len() as u64;
        self.slots.clear();
        self.finished_behind = 0;
        self.acknowledged = self.base - 1;
    }

    /// Returns the newest delivery to acknowledge, together with all earlier deliveries; `None` if no new delivery can
    /// be acknowledged.
    pub(super) fn acknowledge(&mut self) -> Option<DeliveryNumber> {
        let through = self.base - 1;
        (through > self.acknowledged).then(|| {
            self.acknowledged = through;
            through
        })
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn oldest(&self) -> Option<OldestDelivery> {
        let slot = self.slots.front()?;
        Some(OldestDelivery { lane: slot.lane, at: slot.at, behind: self.finished_behind })
    }
}
