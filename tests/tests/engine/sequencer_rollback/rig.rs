//! A sequencer, and a store that can lose its newest commits.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use ordain_config::PartitionParams;
use ordain_core::{
    AppliedCommit, AttemptToken, Batch, CommitReply, Effect, Event, EventParts, FileDigest,
    HandlerOutcome, Input, KeyRecord, KeySnapshot, KeyWrite, Rollout, Sequencer, SequencerSettings,
    StateUpdate, StopReason, TurnResult, WriteCondition, WriteRefusal, shard_of,
};

/// A sequencer and its store, for tests of the key `a` and the shard of this key. The store answers commits of other
/// shards, but does not keep them.
#[allow(clippy::struct_excessive_bools, reason = "tests set each of them independently")]
pub(crate) struct Rig {
    pub(crate) sequencer: Sequencer,
    shard: u32,
    /// Every batch that the sequencer sent for the shard, in order.
    pub(crate) sent: Vec<Arc<Batch>>,
    /// The batches that the store has applied in the shard, each with the store's answer.
    pub(crate) stored: Vec<(Arc<Batch>, AppliedCommit)>,
    /// The commits of the shard that wait for an answer. If this field is `None`, the rig answers each commit
    /// immediately.
    pub(crate) commits: Option<VecDeque<Arc<Batch>>>,
    pub(crate) published: Vec<String>,
    /// The number of commits from now on that the store neither applies nor answers.
    pub(crate) ignored_commits: u32,
    /// True if the store applies commits but does not answer them.
    pub(crate) loses_replies: bool,
    /// The reads of spilled events that wait for an answer. If this field is `None`, the rig answers each read
    /// immediately.
    pub(crate) reads: Option<Vec<(AttemptToken, u64)>>,
    /// True if the store's clock does not advance.
    pub(crate) is_clock_stopped: bool,
    /// True if each record has a state, and each read of spilled events returns at most one event.
    pub(crate) with_state: bool,
    /// True if the store refuses the writes of the next commit.
    pub(crate) refuses: bool,
    pub(crate) now: u64,
    pub(crate) delivered: u64,
    pub(crate) acked: u64,
    pub(crate) stopped: Option<StopReason>,
}

pub(crate) type SpilledEvents = BTreeMap<u64, Arc<Event>>;

pub(crate) fn settings(keep_bytes: usize) -> SequencerSettings {
    let text = "[store]\nkind = \"redis\"\nurl = \"redis://unused\"\nshards = 1\n\
                [streams.s]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"-\" }\n";
    let loaded = ordain_config::LoadedConfig::parse(Path::new("ordain.toml"), text, &|_| None)
        .expect("a valid configuration");
    let stream = loaded.config.streams.values().next().expect("a stream");
    let share = PartitionParams {
        partition: 0,
        stream_partitions: 1,
        process_partitions: 1,
        workers: 1,
        version: Some(version()),
        seed: 1,
    };
    let settings = loaded.config.sequencer_settings(stream, &share);
    assert!(
        settings.commit_history_bytes > 1 << 20,
        "a store in Redis may lose commits, so the sequencer must keep them in memory"
    );
    SequencerSettings { commit_history_bytes: keep_bytes, ..settings }
}

impl Rig {
    pub(crate) fn new(keep_bytes: usize) -> Self {
        Self::with(settings(keep_bytes))
    }

    pub(crate) fn with(settings: SequencerSettings) -> Self {
        let commits = vec![0; settings.shards as usize];
        Self {
            shard: shard_of("a", settings.shards),
            sequencer: Sequencer::new(settings, &commits, 0),
            sent: Vec::new(),
            stored: Vec::new(),
            commits: None,
            published: Vec::new(),
            ignored_commits: 0,
            loses_replies: false,
            reads: None,
            is_clock_stopped: false,
            with_state: false,
            refuses: false,
            now: 0,
            delivered: 0,
            acked: 0,
            stopped: None,
        }
    }

    /// Delivers an event of the key `a`. An event that can be executed causes a commit.
    pub(crate) fn deliver(&mut self, sequence: u64) {
        self.deliver_to("a", sequence);
    }

    pub(crate) fn deliver_to(&mut self, key: &str, sequence: u64) {
        let event = Event::new(&EventParts {
            key,
            sequence: Some(sequence),
            data: &sequence.to_le_bytes(),
            ..EventParts::default()
        });
        self.delivered += 1;
        self.handle(Input::Arrived { delivery: self.delivered, event: Arc::new(event) });
    }

    /// Passes an input to the sequencer, performs the effects, and then lets time pass without another input.
    pub(crate) fn handle(&mut self, input: Input) {
        self.now += 1;
        self.sequencer.handle(self.now, input);
        self.perform();
        self.wait();
    }

    /// Advances the time by one second, and handles the timeouts in this second. The sequencer sends an unanswered
    /// batch again if the delay before the next attempt ends within this second.
    pub(crate) fn wait(&mut self) {
        let until = self.now + 1_000;
        while let Some(at) = self.sequencer.poll_timeout().filter(|at| *at < until) {
            self.now = at.max(self.now + 1);
            self.sequencer.handle_timeout(self.now);
            self.perform();
        }
        self.now = until;
    }

    pub(crate) fn arrive(&mut self, sequence: u64) {
        let event = Event::new(&EventParts {
            key: "a",
            sequence: Some(sequence),
            data: &sequence.to_le_bytes(),
            ..EventParts::default()
        });
        self.delivered += 1;
        let input = Input::Arrived { delivery: self.delivered, event: Arc::new(event) };
        self.sequencer.handle(self.now, input);
    }

    fn perform(&mut self) {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => Input::TurnDone(TurnResult {
                    token: turn.token,
                    rollout: version(),
                    outcomes: vec![HandlerOutcome::Effect {
                        messages: Vec::new(),
                        complete: false,
                    }],
                    state: StateUpdate::Put(vec![0; 100].into()),
                    failure: None,
                }),
                Effect::Commit(batch) => {
                    let shard = batch.shard;
                    let number = batch.number;
                    let reply = if shard == self.shard {
                        self.sent.push(Arc::clone(&batch));
                        if let Some(commits) = &mut self.commits {
                            commits.push_back(batch);
                            continue;
                        }
                        self.commit(batch)
                    } else {
                        CommitReply::Applied(AppliedCommit {
                            time: self.now,
                            ..AppliedCommit::default()
                        })
                    };
                    Input::Committed { shard, number, reply }
                }
                Effect::Load { token, key } => {
                    let stored = self.record().filter(|_| &*key == "a");
                    let loaded = stored.map(|(record, _)| KeySnapshot {
                        record,
                        state: self.with_state.then(|| vec![0; 100].into()),
                        ids: Vec::new(),
                        now: self.now,
                        due_in: None,
                        expire_in: None,
                        moved_from: None,
                    });
                    Input::Loaded { token, loaded: Ok(loaded.map(Box::new)) }
                }
                Effect::ReadSpill { token, from, .. } => {
                    if let Some(reads) = &mut self.reads {
                        reads.push((token, from));
                        continue;
                    }
                    self.spilled(token, from)
                }
                Effect::Replay { token, .. } => {
                    Input::Replayed { token, found: Vec::new(), until: u64::MAX, failed: None }
                }
                Effect::ReadEarlyLetters { token, sequences, .. } => Input::EarlyLettersRead {
                    token,
                    letters: Vec::new(),
                    until: sequences.end() + 1,
                },
                Effect::ReadDue { .. } => Input::DueRead { entries: Vec::new(), next_in: None },
                Effect::Ack { through } => {
                    self.acked = through;
                    continue;
                }
                Effect::Stop(stop) => {
                    self.stopped = Some(stop);
                    continue;
                }
                Effect::Publish { batch, applied } => {
                    let letters = batch.forwarded(&applied);
                    self.published.extend(letters.map(|letter| letter.error.clone()));
                    continue;
                }
            };
            self.sequencer.handle(self.now, answer);
        }
    }

    /// Answers the waiting reads with the current data of the store.
    pub(crate) fn answer_reads(&mut self) {
        for (token, from) in self.reads.take().unwrap_or_default() {
            let read = self.spilled(token, from);
            self.handle(read);
        }
    }

    pub(crate) fn answer_commit(&mut self) {
        let batch = self.commits.as_mut().and_then(VecDeque::pop_front).expect("a commit");
        let shard = batch.shard;
        let number = batch.number;
        let reply = self.commit(batch);
        self.handle(Input::Committed { shard, number, reply });
    }

    fn spilled(&self, token: AttemptToken, from: u64) -> Input {
        let (_, spilled) = self.record().expect("spilled events have a record");
        let mut events: Vec<_> =
            spilled.into_iter().filter(|(sequence, _)| *sequence >= from).collect();
        let end = events.len() <= 1 || !self.with_state;
        if !end {
            events.truncate(1);
        }
        Input::SpillRead { token, read: Ok((events, end)) }
    }

    /// Processes a commit as the store does. Returns the store's reply.
    pub(crate) fn commit(&mut self, batch: Arc<Batch>) -> CommitReply {
        let last = self.stored.len() as u64;
        let number = batch.number;
        if self.ignored_commits > 0 {
            self.ignored_commits -= 1;
            return CommitReply::Unknown;
        }
        if number == last && !self.loses_replies {
            return CommitReply::Applied(self.stored[last as usize - 1].1.clone());
        }
        if number == last {
            return CommitReply::Unknown;
        }
        if number != last + 1 {
            return CommitReply::RolledBack { found: "less".to_owned(), last: Some(last) };
        }
        let time = if self.is_clock_stopped { 1_000 } else { 1_000 + self.now };
        let mut applied = AppliedCommit { time, ..AppliedCommit::default() };
        let next = self.record().map(|(record, _)| record.next);
        let holds = |write: &KeyWrite| {
            write.condition == next.map_or(WriteCondition::Absent, WriteCondition::Next)
        };
        let refuses = std::mem::take(&mut self.refuses);
        for (at, write) in batch.writes.iter().enumerate() {
            if refuses || !holds(write) {
                applied.refused.push((at, WriteRefusal::Next(next)));
            }
        }
        let spilled = self.record().map(|(_, spilled)| spilled).unwrap_or_default();
        for (at, write) in batch.writes.iter().enumerate() {
            for (sequence, event) in &write.spill {
                if let Some(existing) = spilled.get(sequence).filter(|_| holds(write)) {
                    let same = event.repeats(existing);
                    applied.existing_spills.push(ordain_core::ExistingSpill {
                        write: at,
                        sequence: *sequence,
                        same,
                    });
                }
            }
        }
        let stored_letters = || self.stored.iter().flat_map(|(stored, _)| &stored.letters);
        applied.existing_letters = (0..batch.letters.len())
            .filter(|at| stored_letters().any(|letter| letter.id == batch.letters[*at].id))
            .collect();
        self.stored.push((batch, applied.clone()));
        if self.loses_replies {
            return CommitReply::Unknown;
        }
        CommitReply::Applied(applied)
    }

    /// Returns the record of the key `a` in the store, and the spilled events of the key.
    pub(crate) fn record(&self) -> Option<(KeyRecord, SpilledEvents)> {
        let mut record: Option<(KeyRecord, SpilledEvents)> = None;
        let applied = self.stored.iter().filter(|(_, applied)| applied.refused.is_empty());
        for write in applied.flat_map(|(batch, _)| &batch.writes) {
            let mut spilled = record.take().map(|(_, spilled)| spilled).unwrap_or_default();
            spilled.extend(write.spill.iter().cloned());
            spilled.retain(|sequence, _| *sequence >= write.record.next);
            if write.record.spilled.count == 0 {
                spilled.clear();
            }
            record = Some((write.record.clone(), spilled));
        }
        record
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.record().map(|(record, _)| record.next)
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.sent.iter().map(|batch| batch.number).collect()
    }
}

fn version() -> Arc<Rollout> {
    Rollout::first("h@1.0.0", FileDigest([0; 32]))
}
