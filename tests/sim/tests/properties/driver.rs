//! A driver that sends arbitrary answers to the sequencer, and checks that the requests of the sequencer stay within
//! its limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_core::{
    AttemptToken, Batch, CommitReply, Effect, HandlerOutcome, Input, Sequencer, SequencerSettings,
    TurnResult,
};
use proptest::prelude::prop;

use crate::generate::Step;

/// Sends arbitrary answers to the sequencer, and tracks the open requests.
pub(crate) struct Driver {
    settings: SequencerSettings,
    sequencer: Sequencer,
    now: u64,
    delivered: u64,
    loads: BTreeSet<AttemptToken>,
    /// The number of events of each unanswered turn.
    turns: BTreeMap<AttemptToken, usize>,
    reads: BTreeSet<AttemptToken>,
    replays: BTreeSet<AttemptToken>,
    letter_reads: BTreeSet<AttemptToken>,
    commits: Vec<Arc<Batch>>,
    past: Vec<AttemptToken>,
}

impl Driver {
    pub(crate) fn new(settings: SequencerSettings) -> Self {
        let commits = vec![0; settings.shards as usize];
        Self {
            sequencer: Sequencer::new(settings.clone(), &commits, 0),
            settings,
            now: 0,
            delivered: 0,
            loads: BTreeSet::new(),
            turns: BTreeMap::new(),
            reads: BTreeSet::new(),
            replays: BTreeSet::new(),
            letter_reads: BTreeSet::new(),
            commits: Vec::new(),
            past: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, step: Step) {
        self.now += step.wait;
        if let Some(input) = self.address(step.input, step.answers) {
            self.sequencer.handle(self.now, input);
        }
        if self.sequencer.poll_timeout().is_some_and(|at| at <= self.now) {
            self.sequencer.handle_timeout(self.now);
        }
        if step.drains {
            self.drain();
        }
    }

    /// Makes the input an answer, if the generated step has `answers` and such a request is open. Returns `None` if the
    /// input would break the contract of a driver.
    fn address(&mut self, input: Input, answers: Option<prop::sample::Index>) -> Option<Input> {
        let past = &mut self.past;
        // If the step has `answers` and a request is open, takes the token of an open request. In all other cases,
        // takes a token that was answered before, or a token that never existed.
        let mut take = |open: &mut BTreeSet<AttemptToken>, token: AttemptToken| {
            let index = answers.filter(|_| !open.is_empty()).map(|index| index.index(open.len()));
            if let Some(taken) = index.and_then(|index| open.iter().nth(index).copied()) {
                open.remove(&taken);
                past.push(taken);
                return taken;
            }
            let stale = past.get(token.lane as usize * 7);
            stale.copied().unwrap_or(token)
        };
        Some(match input {
            Input::Arrived { event, .. } => Input::Arrived { delivery: self.deliver()?, event },
            Input::Unreadable { letter, .. } => {
                Input::Unreadable { delivery: self.deliver()?, letter }
            }
            Input::Loaded { token, loaded } => {
                let token = take(&mut self.loads, token);
                Input::Loaded { token, loaded }
            }
            Input::TurnDone(done) => Input::TurnDone(self.valid_result(done, answers)?),
            Input::SpillRead { token, read } => {
                let token = take(&mut self.reads, token);
                Input::SpillRead { token, read }
            }
            Input::Replayed { token, found, until, failed } => {
                let token = take(&mut self.replays, token);
                Input::Replayed { token, found, until, failed }
            }
            Input::EarlyLettersRead { token, letters, until } => {
                let token = take(&mut self.letter_reads, token);
                Input::EarlyLettersRead { token, letters, until }
            }
            Input::Committed { shard, number, reply } => match answers {
                Some(index) if !self.commits.is_empty() => {
                    let batch = self.commits.remove(index.index(self.commits.len()));
                    let reply = possible_reply(reply, &batch);
                    Input::Committed { shard: batch.shard, number: batch.number, reply }
                }
                _ if self
                    .commits
                    .iter()
                    .any(|batch| (batch.shard, batch.number) == (shard, number)) =>
                {
                    return None;
                }
                _ => Input::Committed { shard, number, reply },
            },
            other => other,
        })
    }

    /// The contract requires no more outcomes than events, and at least one outcome or a failure.
    fn valid_result(
        &mut self,
        mut done: TurnResult,
        answers: Option<prop::sample::Index>,
    ) -> Option<TurnResult> {
        let index = answers.filter(|_| !self.turns.is_empty());
        let Some(index) = index.map(|index| index.index(self.turns.len())) else {
            // The token belongs to no open turn.
            return Some(done);
        };
        let (token, events) = self.turns.iter().nth(index).map(|(t, n)| (*t, *n))?;
        self.turns.remove(&token);
        done.token = token;
        done.outcomes.truncate(events);
        if done.outcomes.len() == events {
            done.failure = None;
        } else if done.outcomes.is_empty() && done.failure.is_none() {
            done.outcomes.push(HandlerOutcome::Rejected("nonsense".into()));
        }
        Some(done)
    }

    /// `None` if the sequencer accepts no more deliveries.
    fn deliver(&mut self) -> Option<u64> {
        if self.sequencer.credit() == 0 {
            return None;
        }
        self.delivered += 1;
        Some(self.delivered)
    }

    /// Checks the limits of the sequencer.
    pub(crate) fn drain(&mut self) {
        let mut effects = 0;
        while let Some(effect) = self.sequencer.poll_effect() {
            effects += 1;
            assert!(effects < 10_000, "the sequencer requests effects without end");
            self.take(effect);
        }
        let stats = self.sequencer.stats();
        let settings = &self.settings;
        assert!(stats.unacknowledged + self.sequencer.credit() <= settings.prefetch);
        assert!(stats.lanes <= settings.max_lanes, "{} lanes", stats.lanes);
        assert!(stats.ahead <= settings.run_ahead, "{} events ahead of durability", stats.ahead);
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Load { token, .. } => {
                self.loads.insert(token);
                assert!(self.loads.len() <= self.settings.max_loads, "too many loads");
            }
            Effect::Run(turn) => {
                assert!(!turn.events.is_empty() && turn.events.len() <= self.settings.quantum);
                self.turns.insert(turn.token, turn.events.len());
                assert!(self.turns.len() <= self.settings.max_turns, "too many turns");
            }
            Effect::Commit(batch) => {
                let letters = batch.writes.iter().map(|write| write.letters.len()).max();
                assert!(letters.unwrap_or(0) < 100, "{letters:?} dead letters in a write");
                self.commits.retain(|other| other.shard != batch.shard);
                self.commits.push(batch);
            }
            Effect::Ack { through } => assert!(through <= self.delivered),
            Effect::ReadSpill { token, .. } => {
                self.reads.insert(token);
            }
            Effect::Replay { token, source, missing, .. } => {
                assert!(source < self.settings.gap.sources.len());
                assert!(!missing.is_empty());
                self.replays.insert(token);
            }
            Effect::ReadEarlyLetters { token, sequences, .. } => {
                assert!(!sequences.is_empty());
                self.letter_reads.insert(token);
            }
            Effect::Publish { .. } | Effect::ReadDue { .. } | Effect::Stop(_) => {}
        }
    }
}

/// A store can name only the writes and spilled events of this batch.
fn possible_reply(reply: CommitReply, batch: &Batch) -> CommitReply {
    let CommitReply::Applied(mut applied) = reply else { return reply };
    let writes = batch.writes.len();
    applied.refused.retain(|(index, _)| *index < writes);
    applied.refused.sort_by_key(|(index, _)| *index);
    applied.refused.dedup_by_key(|(index, _)| *index);
    applied.existing_spills.retain(|present| {
        let write = batch.writes.get(present.write);
        write.is_some_and(|write| {
            write.spill.iter().any(|(sequence, _)| *sequence == present.sequence)
        })
    });
    CommitReply::Applied(applied)
}
