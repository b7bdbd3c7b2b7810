//! Simulates the faults between a producer and a consumer: loss, duplication and reordering of lines (one line is one
//! event).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::options::LoadOptions;
use super::random::{RandomPurpose, SeededRandom};

/// Maximum distance, in events, between a line and its copy: about the number of events that a broker redelivers after
/// a lost connection. If the reorder distance is larger, the reorder distance is the limit instead.
const COPY_DISTANCE_LIMIT: u64 = 100;

/// A line in transit: sent, but not written yet.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransitLine {
    /// Index of the event after which the line is to be written.
    due: u64,
    /// Index of the line's own event.
    index: u64,
    /// True if the line is a copy: it repeats the first line of its event.
    pub(super) copy: bool,
    /// Index of the event's key in the population.
    pub(super) key: usize,
    pub(super) sequence: u64,
    pub(super) line: Vec<u8>,
}

/// The faults that the channel adds to an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransitFaults {
    pub(super) lost: bool,
    pub(super) repeated: bool,
    delay: u64,
    copy_delay: u64,
}

/// A channel that delays and repeats lines. Only events that follow within the reorder distance can overtake an event.
/// The reorder distance and the distance of copies therefore limit the number of lines in transit.
pub(super) struct FaultyChannel {
    random: SeededRandom,
    loss: f64,
    duplicates: f64,
    reorder: u64,
    in_transit: BinaryHeap<Reverse<TransitLine>>,
    /// Buffers of written lines, for reuse.
    spare_buffers: Vec<Vec<u8>>,
}

impl FaultyChannel {
    pub(super) fn new(load: &LoadOptions) -> Self {
        Self {
            random: SeededRandom::new(load.seed, RandomPurpose::Faults),
            loss: load.loss.0,
            duplicates: load.duplicates.0,
            reorder: load.reorder,
            in_transit: BinaryHeap::new(),
            spare_buffers: Vec::new(),
        }
    }

    /// Draws the faults of the next event at random. This function draws the same number of random numbers for each
    /// event, so that the faults of one event do not change the faults of later events.
    pub(super) fn draw_faults(&mut self) -> TransitFaults {
        let lost = self.random.chance(self.loss);
        let repeated = self.random.chance(self.duplicates) && !lost;
        let delay = self.random.below(self.reorder + 1);
        let copy_delay = delay + 1 + self.random.below(self.reorder.max(COPY_DISTANCE_LIMIT));
        TransitFaults { lost, repeated, delay, copy_delay }
    }

    /// Returns an empty buffer for a line.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare_buffers.pop().unwrap_or_default()
    }

    /// Sends a line that is not lost. If the line is to be repeated, also sends its copy.
    pub(super) fn send(
        &mut self,
        index: u64,
        fate: TransitFaults,
        key: usize,
        sequence: u64,
        line: Vec<u8>,
    ) {
        if fate.repeated {
            let mut again = self.take_buffer();
            again.extend_from_slice(&line);
            let due = index + fate.copy_delay;
            self.in_transit.push(Reverse(TransitLine {
                due,
                index,
                copy: true,
                key,
                sequence,
                line: again,
            }));
        }
        let due = index + fate.delay;
        self.in_transit.push(Reverse(TransitLine { due, index, copy: false, key, sequence, line }));
    }

    /// Removes and returns the next line that is due after the event with this index; `None` if no line is due.
    pub(super) fn receive(&mut self, index: u64) -> Option<TransitLine> {
        let due = self.in_transit.peek().is_some_and(|Reverse(sent)| sent.due <= index);
        if due { self.in_transit.pop().map(|Reverse(sent)| sent) } else { None }
    }

    /// Takes back the buffer of a line, for reuse.
    pub(super) fn reuse(&mut self, mut line: Vec<u8>) {
        line.clear();
        self.spare_buffers.push(line);
    }
}
