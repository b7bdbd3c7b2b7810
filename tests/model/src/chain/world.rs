//! The two shards, the owner between them, and another producer.

mod finish;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ordain_core::OutboxPosition;

use super::destination::{Call, Destination, Message, Reply};
use super::outcome::{ChainCounts, ChainViolation};
use super::owner::{Owner, Source};
use super::{ChainFault, ChainShards, ChainStep};

/// Longer than the interval at which an owner checks the destination.
const BEYOND_CHECK_INTERVAL_MS: u64 = 10_000;
/// The event number of the other producer's first message.
const FIRST_OTHER_EVENT: u8 = 100;

/// The state of a run at one moment, and the counts of rare events up to this moment.
#[derive(Debug, Clone)]
pub struct ChainWorld {
    state: State,
    counts: ChainCounts,
    /// The violation that the final check would find if the run now finished all work without further losses. The first
    /// use computes this value.
    end_check: OnceLock<Option<ChainViolation>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<ChainFault>,
    keys: u8,
    source: Source,
    destination: Destination,
    /// The first of these states is the first state of the run.
    past: Vec<(Source, Destination)>,
    owner: Owner,
    /// The time in ms since the beginning of the run.
    now: u64,
    /// A call without an answer may arrive a second time.
    late: Option<Call>,
    /// The other producer's messages, with the numbers that the destination gave them.
    other_messages: Vec<(Message, u64)>,
    /// Removed from the outbox before the present owner's claim. The owner does not have these messages in memory, so
    /// it cannot send them again.
    removed_before_claim: BTreeSet<Message>,
    /// An owner had reported these messages as done, but they were in the outbox again when a later owner claimed the
    /// shard. The destination may have them twice.
    done_but_in_outbox: BTreeSet<Message>,
    /// Neither an owner nor the destination had these messages any more, but they were in the outbox again at a later
    /// claim.
    back_in_outbox: BTreeSet<Message>,
    /// Messages that the destination got from an owner whose claim the store had lost.
    from_owner_without_claim: BTreeSet<Message>,
    /// The destination mistook these messages for messages of a lost commit.
    mistaken: BTreeSet<Message>,
    /// The owner of these lost commits ended before it had repeated them.
    orphans: BTreeSet<Message>,
    /// An owner has reported these messages as done, so the destination may forget them.
    reported: BTreeSet<Message>,
    rollbacks: u64,
    /// Counts the rollbacks of the shard with the outbox.
    source_rollbacks: u64,
    restarts: u64,
    broken: Option<ChainViolation>,
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
            other_messages: Vec::new(),
            removed_before_claim: BTreeSet::new(),
            done_but_in_outbox: BTreeSet::new(),
            back_in_outbox: BTreeSet::new(),
            from_owner_without_claim: BTreeSet::new(),
            mistaken: BTreeSet::new(),
            orphans: BTreeSet::new(),
            reported: BTreeSet::new(),
            rollbacks: 0,
            source_rollbacks: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, counts: ChainCounts::default(), end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: ChainStep) {
        self.end_check = OnceLock::new();
        match step {
            ChainStep::Commit(messages) => self.commit(messages),
            ChainStep::Repeat => drop(self.repeat_commits()),
            ChainStep::Send(limit) => self.send_next(limit),
            ChainStep::SendUnanswered => self.send_unanswered(),
            ChainStep::ArriveLate => self.arrive_late(),
            ChainStep::Check => self.check_destination(),
            ChainStep::RemoveSent => {
                self.state.owner.remove_sent(&mut self.state.source, self.state.fault);
            }
            ChainStep::Forget => drop(self.state.owner.history.forget_oldest()),
            ChainStep::Wait(ms) => self.state.now += ms,
            ChainStep::Other => self.put_other(),
            ChainStep::OtherResend => self.resend_others(),
            ChainStep::Remember => self.remember(),
            ChainStep::GoBack(shards, to) => self.go_back(shards, to),
            ChainStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<ChainViolation> {
        self.state.broken
    }

    /// Returns the broken rule, if any, that the final check would find if the run now finished all work without
    /// further losses.
    pub fn broken_at_end(&self) -> Option<ChainViolation> {
        *self.end_check.get_or_init(|| {
            let mut world = self.clone();
            world.finish_and_check();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn counts(&self) -> ChainCounts {
        let State { rollbacks, restarts, .. } = self.state;
        ChainCounts { rollbacks, restarts, ..self.counts }
    }

    /// Returns the number of commits that the owner knows.
    pub fn commits(&self) -> u64 {
        self.state.owner.last()
    }

    /// Returns the number of messages that the other producer has sent.
    pub fn other_messages(&self) -> usize {
        self.state.other_messages.len()
    }

    /// Returns how often shards went back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    /// Returns how often the process ended and another process started.
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

    fn record_violation(&mut self, broken: ChainViolation) {
        self.state.broken.get_or_insert(broken);
    }

    fn commit(&mut self, count: u8) {
        if !self.repeat_commits() {
            return;
        }
        let State { owner, source, keys, .. } = &mut self.state;
        // If a process ended before it had repeated lost commits, the source delivers the events of these commits
        // again.
        let first =
            source.commits.iter().flatten().map(|message| message.event + 1).max().unwrap_or(0);
        let message = |event| Message { event, key: event % *keys, owner: owner.epoch };
        let messages = (first..first + count).map(message).collect();
        owner.commit(messages, source);
    }

    /// If the store has lost the owner's claim, ends the process instead, and returns false.
    fn repeat_commits(&mut self) -> bool {
        let State { owner, source, fault, .. } = &mut self.state;
        let lost = owner.last().saturating_sub(source.last());
        let has_claim = owner.recommit(source, *fault);
        if has_claim {
            self.counts.commits += lost;
        } else {
            self.restart();
        }
        has_claim
    }

    fn send_next(&mut self, limit: usize) {
        let call = self.state.owner.call(limit, self.state.fault);
        if !call.chunks.is_empty() {
            self.send(&call);
        }
    }

    fn send_unanswered(&mut self) {
        let State { owner, source, destination, fault, reported, from_owner_without_claim, .. } =
            &mut self.state;
        let call = owner.call(usize::MAX, *fault);
        if !call.chunks.is_empty() {
            reported.extend(owner.done_messages());
            if source.epoch != owner.epoch {
                from_owner_without_claim.extend(call.chunks.iter().map(|chunk| chunk.message));
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
        let State { owner, rollbacks, now, fault, .. } = &mut self.state;
        let is_in_doubt = owner.history.is_in_doubt(*rollbacks, *now);
        if is_in_doubt && *fault != Some(ChainFault::NothingIsChecked) {
            let call = owner.call(usize::MAX, *fault);
            self.send(&call);
        }
    }

    fn send(&mut self, call: &Call) {
        let State { owner, destination, fault, rollbacks, now, reported, .. } = &mut self.state;
        reported.extend(owner.done_messages());
        let before = destination.clone();
        match destination.assign(call, *fault) {
            Reply::Done(answers) => {
                owner.history.record_check(*rollbacks, *now);
                self.record_numbers(call, &answers, &before);
            }
            // No newer owner exists, so the destination has no reason to fence this owner.
            Reply::Fenced => self.record_violation(ChainViolation::Stuck),
            Reply::WentBack(last) => {
                self.counts.refused += 1;
                self.prepare_resend(last);
            }
        }
    }

    /// Records the numbers of a call's messages, and checks them. `before` is the destination before the call.
    fn record_numbers(&mut self, call: &Call, answers: &[(bool, u64)], before: &Destination) {
        let State { owner, now, fault, source, from_owner_without_claim, mistaken, .. } =
            &mut self.state;
        let has_claim = source.epoch == owner.epoch;
        let numbers: Vec<u64> = answers.iter().map(|(_, number)| *number).collect();
        let mut changed = 0;
        let mut broken = None;
        for (chunk, (is_known, number)) in call.chunks.iter().zip(answers) {
            let message = chunk.message;
            self.counts.recognized += u64::from(*is_known);
            if *is_known && before.at(message.key, *number) != Some(message) {
                // The destination mistakes the message for a message of a lost commit. The rules allow this only if the
                // owner that committed the message ended before its first call. The first call of an owner makes the
                // destination forget the commits that were lost before the owner's claim.
                mistaken.insert(message);
                if message.owner == owner.epoch {
                    broken = Some(ChainViolation::MessageMistaken);
                }
            }
            from_owner_without_claim.extend((!has_claim && !is_known).then_some(message));
            let previous = owner.answered.insert(chunk.position, (message, *number));
            if let Some((_, earlier)) = previous.filter(|_| owner.to_resend.remove(&message))
                && earlier != *number
            {
                changed += 1;
                let earlier_messages =
                    owner.answered.range(..chunk.position).map(|(_, other)| other);
                let mut earlier_messages =
                    earlier_messages.filter(|(other, _)| other.key == message.key);
                // The message must keep its number if the destination had lost the message, the number was free, and
                // all earlier messages of the key have lower numbers.
                if !is_known
                    && before.at(message.key, earlier).is_none()
                    && earlier_messages.all(|other| other.1 < earlier)
                {
                    broken = Some(ChainViolation::NumberChanged);
                }
            }
        }
        let progress = owner.history.record_answer(&call.chunks, &numbers, true, *now);
        owner.waiting.drain(..progress.new_chunks);
        self.counts.changed += changed as u64;
        if progress.changed != changed {
            broken = broken.or(Some(ChainViolation::WrongResendCount));
        }
        if *fault == Some(ChainFault::NewestIsForgotten) {
            owner.forget_newest(*now);
        }
        if let Some(broken) = broken {
            self.record_violation(broken);
        }
    }

    /// First repeats the lost commits. The owner sends again all messages after the outbox position `confirmed`: the
    /// destination has no later message of this owner. If the owner has forgotten such a message, the process ends
    /// instead.
    fn prepare_resend(&mut self, confirmed: Option<OutboxPosition>) {
        let skips_commits = self.is(ChainFault::CommitsAreNotAwaited);
        if !skips_commits && !self.repeat_commits() {
            return;
        }
        let State { owner, source, destination, fault, mistaken, .. } = &mut self.state;
        let has_commits = owner.has_commits(source);
        let is_lost = |(message, _): &&(Message, u64)| {
            !destination.has(*message) && !mistaken.contains(message)
        };
        let lost: BTreeSet<Message> =
            owner.answered.values().filter(is_lost).map(|answered| answered.0).collect();
        let unconfirmed =
            owner.answered.iter().filter(|(position, _)| Some(**position) > confirmed);
        let unconfirmed: BTreeSet<Message> =
            unconfirmed.map(|(_, (message, _))| *message).collect();
        let is_forgotten = owner.forgotten().any(|message| unconfirmed.contains(&message));
        // After the position `confirmed`, the destination may have messages that earlier owners sent, but none that
        // this owner sent.
        let mut present_messages =
            unconfirmed.difference(&lost).filter(|message| message.owner == owner.epoch);
        let is_exact = lost.is_subset(&unconfirmed) && present_messages.next().is_none();
        let new = unconfirmed.difference(&owner.to_resend).count();
        owner.to_resend = unconfirmed;
        let count = owner.history.roll_back_to(confirmed);
        if *fault == Some(ChainFault::LostMessagesAreDropped) {
            owner.drop_lost();
        }
        match count {
            None if is_forgotten => self.restart(),
            Some(count) if is_exact && count == new => self.counts.resent += count as u64,
            _ => self.record_violation(ChainViolation::WrongResendCount),
        }
        if count.is_some() && !has_commits {
            self.record_violation(ChainViolation::SentWithoutCommit);
        }
    }

    fn put_other(&mut self) {
        let State { other_messages, destination, keys, .. } = &mut self.state;
        let at = other_messages.len() as u8;
        let message = Message { event: FIRST_OTHER_EVENT + at, key: at % *keys, owner: 0 };
        other_messages.push((message, destination.put(message, 0, false)));
    }

    /// Requests the old numbers of the messages.
    fn resend_others(&mut self) {
        let State { other_messages, destination, .. } = &mut self.state;
        for (message, number) in other_messages {
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

    fn go_back(&mut self, shards: ChainShards, to: usize) {
        let State { source, destination, past, rollbacks, source_rollbacks, late, .. } =
            &mut self.state;
        let (old_source, old_destination) = past[to].clone();
        // A shard that went back cannot return to a later state, so the later remembered states get the shard's old
        // state, too.
        if shards != ChainShards::Destination {
            past[to..].iter_mut().for_each(|state| state.0.clone_from(&old_source));
            *source = old_source;
            *source_rollbacks += 1;
        }
        if shards != ChainShards::Source {
            past[to..].iter_mut().for_each(|state| state.1.clone_from(&old_destination));
            *destination = old_destination;
            // The late call cannot arrive any more: the server to which the owner sent the call is gone.
            *late = None;
        }
        past.dedup();
        *rollbacks += 1;
    }

    /// The owner in the next process claims the shard, and reads its present content.
    fn restart(&mut self) {
        let State { owner, source, destination, reported, orphans, removed_before_claim, .. } =
            &mut self.state;
        let lost = owner.commits.iter().filter(|commit| !source.commits.contains(commit)).flatten();
        let lost: BTreeSet<Message> = lost.copied().collect();
        self.counts.orphans +=
            lost.iter().filter(|message| destination.has(**message)).count() as u64;
        orphans.extend(lost);
        let mut done_again = Vec::new();
        let mut back = Vec::new();
        let mut done = Vec::new();
        for (number, messages) in (1..).zip(&source.commits) {
            if source.outbox.contains(&number) {
                done_again
                    .extend(messages.iter().filter(|message| reported.contains(message)).copied());
                let was_lost = |message: &&Message| {
                    removed_before_claim.contains(message) && !destination.has(**message)
                };
                back.extend(messages.iter().filter(was_lost).copied());
            } else {
                done.extend(messages.iter().copied());
            }
        }
        *owner = Owner::claim(owner.epoch + 1, source);
        self.state.done_but_in_outbox.extend(done_again);
        self.state.back_in_outbox.extend(back);
        self.state.removed_before_claim.extend(done);
        self.state.restarts += 1;
    }
}
