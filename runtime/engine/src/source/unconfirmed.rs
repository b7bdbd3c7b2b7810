//! What is read from a queue and published: until the broker has confirmed an event and all before it, it
//! stays in the queue.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use ordain_core::Event;

use ordain_amqp::Numbered;

/// Events that are not confirmed, and their bytes: what is behind them waits in the store.
const ROOM: usize = 1_024;
const ROOM_BYTES: usize = 16 << 20;

/// Events in the order in which they were read.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    /// Those that are confirmed stand empty, behind the first that is not.
    events: VecDeque<Option<Pending>>,
    /// How many were before them.
    through: u64,
    /// How many are not confirmed, and their memory.
    count: usize,
    bytes: usize,
    /// How many there may be from the first that is not confirmed on, confirmed or not: so many are published
    /// again at most.
    most: usize,
}

#[derive(Debug)]
struct Pending {
    event: Arc<Event>,
    refused: bool,
    offered: bool,
}

impl Unconfirmed {
    /// Of which so many may be published again.
    pub(super) fn new(most: usize) -> Self {
        Self { events: VecDeque::new(), through: 0, count: 0, bytes: 0, most }
    }

    /// Whether nothing is left that is not confirmed.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// So many, from the first, are confirmed.
    pub(super) fn through(&self) -> u64 {
        self.through
    }

    /// Whether more may be read.
    pub(super) fn has_room(&self) -> bool {
        self.count < ROOM && self.bytes < ROOM_BYTES && self.events.len() < self.most
    }

    /// Whether some are to be tried again.
    pub(super) fn has_refused(&self) -> bool {
        self.events.iter().flatten().any(|it| it.refused)
    }

    /// Behind all others.
    pub(super) fn extend(&mut self, events: impl Iterator<Item = Event>) {
        for event in events {
            self.count += 1;
            self.bytes += event.memory();
            let event = Arc::new(event);
            self.events.push_back(Some(Pending { event, refused: false, offered: false }));
        }
    }

    /// What is to be published now, and its places: with what was refused, or without it and what comes
    /// after it in its key.
    pub(super) fn to_publish(&self, retry: bool) -> (Vec<usize>, Vec<Numbered>) {
        let mut refused = HashSet::new();
        let pending = self.events.iter().enumerate();
        let pending = pending.filter_map(|(place, it)| Some((place, it.as_ref()?)));
        let now = pending.filter(|(_, it)| {
            retry || {
                if it.refused {
                    refused.insert(it.event.key());
                }
                !refused.contains(it.event.key())
            }
        });
        now.map(|(place, it)| (place, (Arc::clone(&it.event), it.event.sequence()))).unzip()
    }

    /// Which of them the broker has taken. How many are confirmed now, from the first.
    pub(super) fn confirm(&mut self, places: &[usize], taken: &[bool]) -> u64 {
        for (place, taken) in places.iter().zip(taken) {
            let slot = &mut self.events[*place];
            if *taken {
                if let Some(pending) = slot.take() {
                    self.count -= 1;
                    self.bytes -= pending.event.memory();
                }
            } else if let Some(pending) = slot {
                pending.refused = true;
            }
        }
        while self.events.pop_front_if(|it| it.is_none()).is_some() {
            self.through += 1;
        }
        self.through
    }

    /// What was refused and not offered yet, so many at most.
    pub(super) fn take_offers(&mut self, most: &mut usize) -> Vec<Arc<Event>> {
        let pending = self.events.iter_mut().flatten();
        let refused = pending.filter(|it| it.refused && !it.offered);
        let offered: Vec<_> = refused
            .take(*most)
            .map(|it| {
                it.offered = true;
                Arc::clone(&it.event)
            })
            .collect();
        *most -= offered.len();
        offered
    }
}

#[cfg(test)]
mod tests {
    use ordain_core::EventParts;

    use super::*;

    fn event(key: &str, sequence: u64) -> Event {
        Event::new(&EventParts { key, id: "1", sequence: Some(sequence), ..EventParts::default() })
    }

    #[test]
    fn what_is_refused_holds_back_its_key_alone() {
        let mut unconfirmed = Unconfirmed::new(usize::MAX);
        unconfirmed.extend([event("a", 1), event("b", 1), event("c", 1)].into_iter());
        let (places, events) = unconfirmed.to_publish(false);
        assert_eq!((places.as_slice(), events.len()), (&[0, 1, 2][..], 3));
        assert_eq!(unconfirmed.confirm(&places, &[true, false, true]), 1);
        unconfirmed.extend([event("b", 2), event("a", 2)].into_iter());
        let (places, _) = unconfirmed.to_publish(false);
        assert_eq!(places, [3]);
        assert_eq!(unconfirmed.confirm(&places, &[true]), 1);
        let mut most = 5;
        assert_eq!(unconfirmed.take_offers(&mut most).len(), 1);
        assert_eq!((unconfirmed.take_offers(&mut most).len(), most), (0, 4));
        let (places, events) = unconfirmed.to_publish(true);
        assert_eq!(places, [0, 2]);
        assert_eq!(events[1].1, Some(2));
        assert_eq!(unconfirmed.confirm(&places, &[true, true]), 5);
        assert!(!unconfirmed.has_refused());
    }

    #[test]
    fn what_may_come_again_is_bounded() {
        let mut unconfirmed = Unconfirmed::new(3);
        unconfirmed.extend([event("a", 1), event("b", 1), event("c", 1)].into_iter());
        unconfirmed.confirm(&[0, 1, 2], &[false, true, true]);
        assert!(!unconfirmed.has_room());
        unconfirmed.confirm(&[0], &[true]);
        assert!(unconfirmed.has_room() && unconfirmed.is_empty());
        // Of others what is confirmed takes no room.
        let mut unconfirmed = Unconfirmed::new(usize::MAX);
        for _ in 0..3 {
            unconfirmed.extend((1..ROOM as u64).map(|it| event(&it.to_string(), 1)));
            let (places, _) = unconfirmed.to_publish(false);
            let taken: Vec<bool> = places.iter().map(|at| *at > 0).collect();
            unconfirmed.confirm(&places, &taken);
            assert!(unconfirmed.has_room());
        }
        assert_eq!(unconfirmed.through(), 0);
    }
}
