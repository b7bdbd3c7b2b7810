//! A shard of a destination: it numbers messages, and recognises messages that an owner sends a second time. The module
//! implements the protocol independently of the product.

use std::collections::BTreeMap;

use ordain_core::{NumberedChunk, OutboxPosition};

use super::ChainFault;

/// The number of the event is the id of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) event: u8,
    pub(super) key: u8,
    /// The epoch of the owner that executed the event; 0 for a message of the other producer. Two executions of one
    /// event may emit different messages.
    pub(super) owner: u8,
}

/// The message at one outbox position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChainChunk {
    pub(super) position: OutboxPosition,
    pub(super) message: Message,
    /// The number that the message requests; 0 for a new number.
    pub(super) requested: u64,
}

impl NumberedChunk for ChainChunk {
    type Key = u8;

    fn position(&self) -> OutboxPosition {
        self.position
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) epoch: u8,
    /// The last commit in the shard of the outbox when the owner claimed it.
    pub(super) commit_at_claim: u64,
    /// The destination has confirmed this position to the owner.
    pub(super) before: Option<OutboxPosition>,
    /// The messages of all commits up to this number may be forgotten.
    pub(super) done: u64,
    pub(super) chunks: Vec<ChainChunk>,
}

pub(super) enum Reply {
    /// For each message, true if the destination already had it, and the number of the message.
    Done(Vec<(bool, u64)>),
    /// The destination does nothing: it has received a call of a newer owner, or the call is a late copy.
    Fenced,
    /// The value is the position of this owner's last message at the destination, if it has one.
    WentBack(Option<OutboxPosition>),
}

/// A message as the destination stores it, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) message: Message,
}

/// The commit and the event identify a repeat of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReceivedMessage {
    position: OutboxPosition,
    event: u8,
    number: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    /// The epoch of the last owner that sent messages.
    epoch: u8,
    /// The outbox position of the last message from the owner with this epoch.
    last: OutboxPosition,
    /// The highest outbox position of all received messages. If a new owner shows that the outbox has lost commits, the
    /// position becomes the end of the last commit that the outbox had at the owner's claim.
    highest: OutboxPosition,
    /// Recognisable messages, grouped by their call.
    blocks: Vec<Vec<ReceivedMessage>>,
    /// All messages that the destination has, in the order in which it numbered them.
    pub(super) entries: Vec<Entry>,
    next: BTreeMap<u8, u64>,
}

impl Destination {
    pub(super) fn has(&self, message: Message) -> bool {
        self.entries.iter().any(|entry| entry.message == message)
    }

    /// Numbers count for each key.
    pub(super) fn at(&self, key: u8, number: u64) -> Option<Message> {
        let entry =
            self.entries.iter().find(|entry| entry.number == number && entry.message.key == key);
        entry.map(|entry| entry.message)
    }

    /// Numbers the new messages, and finds the numbers of the known messages.
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
            && self.highest.commit > call.commit_at_claim
            && !is(ChainFault::LostCommitsAreRemembered)
        {
            self.forget_lost(call.commit_at_claim, is(ChainFault::LostCommitsStayInMixedBlocks));
        }
        let received = |chunk: &ChainChunk| {
            let all = self.blocks.iter().flatten();
            let mut same_commit =
                all.filter(|received| received.position.commit == chunk.position.commit);
            same_commit
                .rfind(|received| received.event == chunk.message.event)
                .map(|received| received.number)
        };
        let all_are_new = call.chunks.iter().all(|chunk| chunk.position > self.highest);
        let mut answers: Vec<Option<u64>> = Vec::new();
        for chunk in &call.chunks {
            let answer = received(chunk).filter(|_| !all_are_new);
            let is_late = call.epoch == self.epoch && chunk.position <= self.last;
            if is_late && answer.is_none() && !is(ChainFault::LateCallsAreNew) {
                return Reply::Fenced;
            }
            answers.push(answer);
        }
        let mut block = Vec::new();
        let mut numbers = Vec::new();
        // For each key, the number of the key's last message in this call.
        let mut floors: BTreeMap<u8, u64> = BTreeMap::new();
        for (ChainChunk { position, message, requested }, received) in
            call.chunks.iter().zip(answers)
        {
            let floor = floors.get(&message.key).copied().unwrap_or_default();
            let is_above = *requested > floor || is(ChainFault::NumbersGoBack);
            let requested_number = if is_above { *requested } else { 0 };
            let number = received.unwrap_or_else(|| {
                self.put(*message, requested_number, is(ChainFault::TakenNumbersAreAssigned))
            });
            if received.is_none() {
                block.push(ReceivedMessage { position: *position, event: message.event, number });
            }
            floors.insert(message.key, number);
            numbers.push((received.is_some(), number));
            if call.epoch != self.epoch {
                self.epoch = call.epoch;
                self.last = OutboxPosition::default();
            }
            self.last = self.last.max(*position);
            self.highest = self.highest.max(*position);
        }
        let is_open = |block: &Vec<ReceivedMessage>| {
            block.iter().any(|received| received.position.commit > call.done)
        };
        let kept = self.blocks.iter().position(is_open).unwrap_or(self.blocks.len());
        self.blocks.drain(..kept);
        if !block.is_empty() && !is(ChainFault::NothingIsRemembered) {
            self.blocks.push(block);
        }
        Reply::Done(numbers)
    }

    /// The outbox has lost all commits after `commit_at_claim`. With `keeps_mixed`, keeps their messages if an earlier
    /// message of their call belongs to a commit that the outbox has.
    fn forget_lost(&mut self, commit_at_claim: u64, keeps_mixed: bool) {
        let is_kept = |received: &ReceivedMessage| received.position.commit <= commit_at_claim;
        if keeps_mixed {
            while self.blocks.last().is_some_and(|block| !block.first().is_some_and(is_kept)) {
                self.blocks.pop();
            }
        } else {
            self.blocks.iter_mut().for_each(|block| block.retain(is_kept));
            self.blocks.retain(|block| !block.is_empty());
        }
        self.highest = OutboxPosition { commit: commit_at_claim, chunk: u32::MAX };
    }

    /// If the message requests no free number, it gets the next number. With `takes_any`, uses the requested number
    /// even if it is taken. Returns the number.
    pub(super) fn put(&mut self, message: Message, requested_number: u64, takes_any: bool) -> u64 {
        let is_free =
            requested_number > 0 && (takes_any || self.at(message.key, requested_number).is_none());
        let next = self.next.entry(message.key).or_insert(1);
        let number = if is_free { requested_number } else { *next };
        *next = (*next).max(number + 1);
        self.entries.push(Entry { number, message });
        number
    }
}
