//! The two shards, the owner between them, and another producer.

mod rest;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::OutboxPosition;

use super::destination::{Call, Destination, Message, Reply};
use super::outcome::{ChainBroken, ChainSeen};
use super::owner::{Owner, Source};
use super::{ChainFault, ChainPlaces, ChainStep};

/// A time in ms that is longer than the interval at which an owner checks the destination.
const CHECK_AFTER: u64 = 10_000;
/// The event number of the other producer's first message.
const OTHERS: u8 = 100;

/// A moment of a run.
#[derive(Debug, Clone)]
pub struct ChainWorld {
    state: State,
    seen: ChainSeen,
    /// The rule that breaks if, from this moment on, the run finishes all work without further losses. The value is
    /// computed at its first use.
    at_rest: OnceLock<Option<ChainBroken>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<ChainFault>,
    keys: u8,
    source: Source,
    destination: Destination,
    /// States that the shards may go back to, the beginning first.
    past: Vec<(Source, Destination)>,
    owner: Owner,
    now: u64,
    /// A call whose answer was lost. The call may arrive a second time.
    late: Option<Call>,
    /// The other producer's messages, with the numbers that the destination gave them.
    others: Vec<(Message, u64)>,
    /// Messages that were removed from the outbox before the present owner's claim. The owner does not have them in
    /// memory, so it cannot send them again if the destination loses them.
    only_there: BTreeSet<Message>,
    /// Messages that had been reported as done, but were in the outbox again when a new owner claimed the shard. The
    /// destination may have them twice.
    marked_again: BTreeSet<Message>,
    /// Messages that neither an owner nor the destination had any more, but that were in the outbox again at a later
    /// claim.
    came_back: BTreeSet<Message>,
    /// Messages that the destination first got from an owner that had lost its claim.
    unclaimed: BTreeSet<Message>,
    /// Messages that the destination mistook for messages of a lost commit.
    mistaken: BTreeSet<Message>,
    /// Messages of lost commits whose owner ended before it repeated them.
    orphans: BTreeSet<Message>,
    /// Messages that an owner has reported as done, so that the destination may forget them.
    reported: BTreeSet<Message>,
    rewinds: u64,
    /// Number of times that the shard with the outbox went back.
    source_rewinds: u64,
    restarts: u64,
    broken: Option<ChainBroken>,
}

impl PartialEq for ChainWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for ChainWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

impl ChainWorld {
    /// Returns the first state of a run with this number of keys.
    pub fn new(keys: u8, fault: Option<ChainFault>) -> Self {
        let mut source = Source::default();
        let owner = Owner::claim(1, &mut source);
        let destination = Destination::default();
        let state = State {
            fault,
            keys,
            past: vec![(source.clone(), destination.clone())],
            source,
            destination,
            owner,
            now: 0,
            late: None,
            others: Vec::new(),
            only_there: BTreeSet::new(),
            marked_again: BTreeSet::new(),
            came_back: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            mistaken: BTreeSet::new(),
            orphans: BTreeSet::new(),
            reported: BTreeSet::new(),
            rewinds: 0,
            source_rewinds: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, seen: ChainSeen::default(), at_rest: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: ChainStep) {
        self.at_rest = OnceLock::new();
        match step {
            ChainStep::Commit(messages) => self.commit(messages),
            ChainStep::Repeat => drop(self.repeat_commits()),
            ChainStep::Give(limit) => self.give(limit),
            ChainStep::GiveUnanswered => self.give_unanswered(),
            ChainStep::ArriveLate => self.arrive_late(),
            ChainStep::Check => self.check_destination(),
            ChainStep::Mark => self.state.owner.mark(&mut self.state.source, self.state.fault),
            ChainStep::Forget => drop(self.state.owner.history.forget_oldest()),
            ChainStep::Wait(ms) => self.state.now += ms,
            ChainStep::Other => self.put_other(),
            ChainStep::OtherAgain => self.put_others_again(),
            ChainStep::Remember => self.remember(),
            ChainStep::GoBack(places, to) => self.go_back(places, to),
            ChainStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<ChainBroken> {
        self.state.broken
    }

    /// Returns the rule that breaks if, from this moment on, the run finishes all work without further losses; `None`
    /// if no rule breaks.
    pub fn broken_at_rest(&self) -> Option<ChainBroken> {
        *self.at_rest.get_or_init(|| {
            let mut world = self.clone();
            world.come_to_rest();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn seen(&self) -> ChainSeen {
        let State { rewinds, restarts, .. } = self.state;
        ChainSeen { rewinds, restarts, ..self.seen }
    }

    /// Returns the number of commits.
    pub fn commits(&self) -> u64 {
        self.state.owner.last()
    }

    /// Returns the number of messages that the other producer has sent.
    pub fn others(&self) -> usize {
        self.state.others.len()
    }

    /// Returns how often a shard went back.
    pub fn rewinds(&self) -> u64 {
        self.state.rewinds
    }

    /// Returns how often the process ended.
    pub fn restarts(&self) -> u64 {
        self.state.restarts
    }

    /// Returns the number of states that the shards may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    /// Returns the number of messages that the owner has forgotten.
    pub fn forgotten(&self) -> usize {
        self.state.owner.forgotten().count()
    }

    fn is(&self, fault: ChainFault) -> bool {
        self.state.fault == Some(fault)
    }

    fn breaks(&mut self, broken: ChainBroken) {
        self.state.broken.get_or_insert(broken);
    }

    fn commit(&mut self, count: u8) {
        if !self.repeat_commits() {
            return;
        }
        let State { owner, source, keys, .. } = &mut self.state;
        // If commits were lost with a process, the source delivers their events again.
        let first =
            source.commits.iter().flatten().map(|message| message.event + 1).max().unwrap_or(0);
        let message = |event| Message { event, key: event % *keys, owner: owner.epoch };
        let messages = (first..first + count).map(message).collect();
        owner.commit(messages, source);
    }

    /// Repeats the commits that the store has lost. Returns false if the owner ended instead.
    fn repeat_commits(&mut self) -> bool {
        let State { owner, source, fault, .. } = &mut self.state;
        self.seen.commits += owner.last().saturating_sub(source.last());
        let has_claim = owner.recommit(source, *fault);
        if !has_claim {
            self.restart();
        }
        has_claim
    }

    fn give(&mut self, limit: usize) {
        let call = self.state.owner.call(limit, self.state.fault);
        if !call.parts.is_empty() {
            self.send(&call);
        }
    }

    fn give_unanswered(&mut self) {
        let State { owner, source, destination, fault, reported, unclaimed, .. } = &mut self.state;
        let call = owner.call(usize::MAX, *fault);
        if !call.parts.is_empty() {
            reported.extend(owner.done_messages());
            if source.epoch != owner.epoch {
                unclaimed.extend(call.parts.iter().map(|part| part.message));
            }
            destination.assign(&call, *fault);
            self.state.late = Some(call);
        }
    }

    fn arrive_late(&mut self) {
        if let Some(call) = self.state.late.take() {
            self.state.destination.assign(&call, self.state.fault);
        }
    }

    fn check_destination(&mut self) {
        let State { owner, rewinds, now, fault, .. } = &mut self.state;
        let is_in_doubt = owner.history.is_in_doubt(*rewinds, *now);
        if is_in_doubt && *fault != Some(ChainFault::NothingIsChecked) {
            let call = owner.call(usize::MAX, *fault);
            self.send(&call);
        }
    }

    fn send(&mut self, call: &Call) {
        let State { owner, destination, fault, rewinds, now, reported, .. } = &mut self.state;
        reported.extend(owner.done_messages());
        let before = destination.clone();
        match destination.assign(call, *fault) {
            Reply::Done(answers) => {
                owner.history.record_check(*rewinds, *now);
                self.take(call, &answers, &before);
            }
            // No newer owner exists, so the destination has no reason to fence this one.
            Reply::Fenced => self.breaks(ChainBroken::Stuck),
            Reply::WentBack(last) => {
                self.seen.refused += 1;
                self.give_again(last);
            }
        }
    }

    /// Records the numbers of a call's messages.
    fn take(&mut self, call: &Call, answers: &[(bool, u64)], before: &Destination) {
        let State { owner, now, fault, source, unclaimed, mistaken, .. } = &mut self.state;
        let has_claim = source.epoch == owner.epoch;
        let numbers: Vec<u64> = answers.iter().map(|(_, number)| *number).collect();
        let mut changed = 0;
        let mut broken = None;
        for (part, (is_known, number)) in call.parts.iter().zip(answers) {
            let message = part.message;
            self.seen.known += u64::from(*is_known);
            if *is_known && before.at(message.key, *number) != Some(message) {
                // The destination mistakes the message for a message of a lost commit. This may happen only if the
                // owner that committed the message ended before its first call, because only that call makes the
                // destination forget lost commits.
                mistaken.insert(message);
                if message.owner == owner.epoch {
                    broken = Some(ChainBroken::AnotherMessage);
                }
            }
            unclaimed.extend((!has_claim && !is_known).then_some(message));
            let given = owner.answered.insert(part.place, (message, *number));
            if let Some((_, earlier)) = given.filter(|_| owner.again.remove(&message))
                && earlier != *number
            {
                changed += 1;
                let others = owner.answered.range(..part.place).map(|(_, other)| other);
                let mut others = others.filter(|(other, _)| other.key == message.key);
                // A message that the destination still had keeps the number that it has there.
                if !is_known
                    && before.at(message.key, earlier).is_none()
                    && others.all(|other| other.1 < earlier)
                {
                    broken = Some(ChainBroken::NumberChanged);
                }
            }
        }
        let progress = owner.history.record_answer(&call.parts, &numbers, true, *now);
        owner.waiting.drain(..progress.new_chunks);
        self.seen.changed += changed as u64;
        if progress.changed != changed {
            broken = broken.or(Some(ChainBroken::WrongCount));
        }
        if *fault == Some(ChainFault::NewestIsForgotten) {
            owner.forget_newest(*now);
        }
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }

    /// Repeats the lost commits. Then prepares to send all messages after the outbox position `has` again, because the
    /// destination has lost them.
    fn give_again(&mut self, has: Option<OutboxPosition>) {
        let is_hasty = self.is(ChainFault::CommitsAreNotAwaited);
        if !is_hasty && !self.repeat_commits() {
            return;
        }
        let State { owner, source, destination, fault, mistaken, .. } = &mut self.state;
        let has_commits = owner.has_commits(source);
        let is_lost = |(message, _): &&(Message, u64)| {
            !destination.has(*message) && !mistaken.contains(message)
        };
        let lost: BTreeSet<Message> =
            owner.answered.values().filter(is_lost).map(|answered| answered.0).collect();
        let behind = owner.answered.iter().filter(|(place, _)| Some(**place) > has);
        let behind: BTreeSet<Message> = behind.map(|(_, (message, _))| *message).collect();
        let is_forgotten = owner.forgotten().any(|message| behind.contains(&message));
        // The destination may have messages of earlier owners after this position, because those owners sent them.
        let mut others = behind.difference(&lost).filter(|message| message.owner == owner.epoch);
        let is_exact = lost.is_subset(&behind) && others.next().is_none();
        let new = behind.difference(&owner.again).count();
        owner.again = behind;
        let count = owner.history.roll_back_to(has);
        if *fault == Some(ChainFault::LostPartsAreDropped) {
            owner.drop_lost();
        }
        match count {
            None if is_forgotten => self.restart(),
            Some(count) if is_exact && count == new => self.seen.again += count as u64,
            _ => self.breaks(ChainBroken::WrongCount),
        }
        if count.is_some() && !has_commits {
            self.breaks(ChainBroken::WithoutCommit);
        }
    }

    /// Sends a new message of the other producer.
    fn put_other(&mut self) {
        let State { others, destination, keys, .. } = &mut self.state;
        let at = others.len() as u8;
        let message = Message { event: OTHERS + at, key: at % *keys, owner: 0 };
        others.push((message, destination.put(message, 0, false)));
    }

    /// Sends the other producer's lost messages again, and requests their old numbers.
    fn put_others_again(&mut self) {
        let State { others, destination, .. } = &mut self.state;
        for (message, number) in others {
            if !destination.has(*message) {
                *number = destination.put(*message, *number, false);
            }
        }
    }

    fn remember(&mut self) {
        let now = (self.state.source.clone(), self.state.destination.clone());
        if self.state.past.last() != Some(&now) {
            self.state.past.push(now);
        }
    }

    fn go_back(&mut self, places: ChainPlaces, to: usize) {
        let State { source, destination, past, rewinds, source_rewinds, late, .. } =
            &mut self.state;
        let (old_source, old_destination) = past[to].clone();
        // A shard that went back never goes forward again, so the later remembered states change, too.
        if places != ChainPlaces::Destination {
            past[to..].iter_mut().for_each(|state| state.0.clone_from(&old_source));
            *source = old_source;
            *source_rewinds += 1;
        }
        if places != ChainPlaces::Source {
            past[to..].iter_mut().for_each(|state| state.1.clone_from(&old_destination));
            *destination = old_destination;
            // A call does not outlive the server that it was sent to.
            *late = None;
        }
        past.dedup();
        *rewinds += 1;
    }

    /// Ends the process. The owner in the next process claims the shard with its present content.
    fn restart(&mut self) {
        let State { owner, source, destination, reported, orphans, only_there, .. } =
            &mut self.state;
        let lost = owner.commits.iter().filter(|commit| !source.commits.contains(commit)).flatten();
        let lost: BTreeSet<Message> = lost.copied().collect();
        self.seen.orphans +=
            lost.iter().filter(|message| destination.has(**message)).count() as u64;
        orphans.extend(lost);
        let mut again = Vec::new();
        let mut back = Vec::new();
        let mut done = Vec::new();
        for (number, messages) in (1..).zip(&source.commits) {
            if source.outbox.contains(&number) {
                again.extend(messages.iter().filter(|message| reported.contains(message)).copied());
                let was_lost = |message: &&Message| {
                    only_there.contains(message) && !destination.has(**message)
                };
                back.extend(messages.iter().filter(was_lost).copied());
            } else {
                done.extend(messages.iter().copied());
            }
        }
        *owner = Owner::claim(owner.epoch + 1, source);
        self.state.marked_again.extend(again);
        self.state.came_back.extend(back);
        self.state.only_there.extend(done);
        self.state.restarts += 1;
    }
}
