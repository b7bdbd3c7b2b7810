//! A shard of a destination: it numbers messages, and recognises messages that an owner sends a second time. The module
//! is written from the protocol alone.

use std::collections::BTreeMap;

use ordain_core::{NumberedChunk, OutboxPosition};

use super::ChainFault;

/// A message. The number of the event that caused the message is the message's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) event: u8,
    pub(super) key: u8,
    /// The owner that executed the event. Two executions of one event may emit different messages.
    pub(super) owner: u8,
}

/// The message at one outbox position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChainPart {
    pub(super) place: OutboxPosition,
    pub(super) message: Message,
    /// The number that the message requests; 0 for a new number.
    pub(super) requested: u64,
}

impl NumberedChunk for ChainPart {
    type Key = u8;

    fn position(&self) -> OutboxPosition {
        self.place
    }

    fn keys(&self) -> impl Iterator<Item = &u8> {
        std::iter::once(&self.message.key)
    }

    fn bytes(&self) -> usize {
        1
    }

    fn request_numbers(&mut self, numbers: &[u64]) {
        self.requested = numbers.first().copied().unwrap_or_default();
    }
}

/// A call in which an owner sends messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) epoch: u8,
    pub(super) found: u64,
    pub(super) before: Option<OutboxPosition>,
    pub(super) done: u64,
    pub(super) parts: Vec<ChainPart>,
}

/// The answer to a call.
pub(super) enum Reply {
    /// For each message, true if the destination already had it, and the number of the message.
    Done(Vec<(bool, u64)>),
    Fenced,
    WentBack(Option<OutboxPosition>),
}

/// A message under its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) message: Message,
}

/// The position and number of a received message, by which the destination recognises a repeat of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    place: OutboxPosition,
    event: u8,
    number: u64,
}

/// The content of the destination.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    /// The epoch of the last owner that sent messages. The next field has the last outbox position under this epoch.
    epoch: u8,
    last: OutboxPosition,
    /// The highest outbox position of all received messages, or of the last commit that the outbox has not lost.
    highest: OutboxPosition,
    /// The messages that the destination can recognise, grouped by their call.
    blocks: Vec<Vec<Known>>,
    pub(super) entries: Vec<Entry>,
    next: BTreeMap<u8, u64>,
}

impl Destination {
    pub(super) fn has(&self, message: Message) -> bool {
        self.entries.iter().any(|entry| entry.message == message)
    }

    /// Returns the message that has a number.
    pub(super) fn at(&self, key: u8, number: u64) -> Option<Message> {
        let entry =
            self.entries.iter().find(|entry| entry.number == number && entry.message.key == key);
        entry.map(|entry| entry.message)
    }

    pub(super) fn assign(&mut self, call: &Call, fault: Option<ChainFault>) -> Reply {
        let is = |other| fault == Some(other);
        if call.epoch < self.epoch && !is(ChainFault::OlderOwnerIsAccepted) {
            return Reply::Fenced;
        }
        if !is(ChainFault::DestinationComparesNothing)
            && call.before.is_some_and(|before| (self.epoch, self.last) < (call.epoch, before))
        {
            return Reply::WentBack((self.epoch == call.epoch).then_some(self.last));
        }
        if call.epoch > self.epoch
            && self.highest.commit > call.found
            && !is(ChainFault::LostCommitsStayKnown)
        {
            self.forget_lost(call.found, is(ChainFault::LostCommitsStayInMixedBlocks));
        }
        let known = |part: &ChainPart| {
            let all = self.blocks.iter().flatten();
            let mut of = all.filter(|known| known.place.commit == part.place.commit);
            of.rfind(|known| known.event == part.message.event).map(|known| known.number)
        };
        let is_behind_all = call.parts.iter().all(|part| part.place > self.highest);
        let mut answers: Vec<Option<u64>> = Vec::new();
        for part in &call.parts {
            let answer = known(part).filter(|_| !is_behind_all);
            let is_late = call.epoch == self.epoch && part.place <= self.last;
            if is_late && answer.is_none() && !is(ChainFault::LateCallsAreNew) {
                return Reply::Fenced;
            }
            answers.push(answer);
        }
        let mut block = Vec::new();
        let mut numbers = Vec::new();
        // The number of the last message of each key in this call.
        let mut floors: BTreeMap<u8, u64> = BTreeMap::new();
        for (ChainPart { place, message, requested }, known) in call.parts.iter().zip(answers) {
            let floor = floors.get(&message.key).copied().unwrap_or_default();
            let is_above = *requested > floor || is(ChainFault::NumbersGoBack);
            let own = if is_above { *requested } else { 0 };
            let number = known
                .unwrap_or_else(|| self.put(*message, own, is(ChainFault::TakenNumbersAreGiven)));
            if known.is_none() {
                block.push(Known { place: *place, event: message.event, number });
            }
            floors.insert(message.key, number);
            numbers.push((known.is_some(), number));
            if call.epoch != self.epoch {
                (self.epoch, self.last) = (call.epoch, OutboxPosition::default());
            }
            self.last = self.last.max(*place);
            self.highest = self.highest.max(*place);
        }
        let is_open = |block: &Vec<Known>| block.iter().any(|known| known.place.commit > call.done);
        let kept = self.blocks.iter().position(is_open).unwrap_or(self.blocks.len());
        self.blocks.drain(..kept);
        if !block.is_empty() && !is(ChainFault::NothingIsKnown) {
            self.blocks.push(block);
        }
        Reply::Done(numbers)
    }

    /// Forgets the messages of commits that the outbox has lost.
    fn forget_lost(&mut self, found: u64, keeps_mixed: bool) {
        let is_kept = |known: &Known| known.place.commit <= found;
        if keeps_mixed {
            while self.blocks.last().is_some_and(|block| !block.first().is_some_and(is_kept)) {
                self.blocks.pop();
            }
        } else {
            self.blocks.iter_mut().for_each(|block| block.retain(is_kept));
            self.blocks.retain(|block| !block.is_empty());
        }
        self.highest = OutboxPosition { commit: found, chunk: u32::MAX };
    }

    /// Stores a message under the number `own` that it requests, if that number is free; otherwise under the next
    /// number.
    pub(super) fn put(&mut self, message: Message, own: u64, takes_any: bool) -> u64 {
        let is_free = own > 0 && (takes_any || self.at(message.key, own).is_none());
        let next = self.next.entry(message.key).or_insert(1);
        let number = if is_free { own } else { *next };
        *next = (*next).max(number + 1);
        self.entries.push(Entry { number, message });
        number
    }
}
