//! A sequencer with one key, whose store and replay source answer in the way that a test needs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, Result};
use ordain_core::{
    AppliedCommit, Batch, CommitReply, DeadLetter, Effect, Event, EventParts, Input, KeyRecord,
    KeySnapshot, KeyWrite, LetterId, Sequencer,
};

use super::super::sequencer_support::{event_parts, settings, turn_without_messages};

/// Settings of a stream that skips the missing events of a gap after two rounds of replay.
pub(super) const SKIPPING_SETTINGS: &str = "gap = { timeout = \"1s\", attempts = 2, \
                        backoff = \"1s..1s\", on_exhausted = \"skip\" }\nspill_after = \"10m\"\n";

/// A sequencer, and the answers of its store and its replay source. The store keeps no record before the first call of
/// [`Rig::remember`], which stores a record. Later commits replace this record.
pub(super) struct Rig {
    pub(super) sequencer: Sequencer,
    pub(super) delivery: u64,
    pub(super) snapshot: Option<Box<KeySnapshot>>,
    pub(super) batches: Vec<Arc<Batch>>,
    pub(super) acked: u64,
    pub(super) loads: usize,
    /// The replay requests: the time of each request, and the requested ranges of sequences.
    pub(super) requests: Vec<(u64, Vec<RangeInclusive<u64>>)>,
    /// The sequences of the events that the replay source has. `page` is the maximum number of events in one answer.
    pub(super) kept: BTreeSet<u64>,
    pub(super) page: usize,
    /// `true` if only the second replay source, a server, has these events.
    pub(super) is_kept_by_server: bool,
    pub(super) letters: BTreeMap<LetterId, DeadLetter>,
    /// The sequences of the spilled events in the store.
    pub(super) spilled: BTreeSet<u64>,
    /// The number of requests from now on for which the replay source is too busy to search.
    pub(super) busy: usize,
    /// The entries that the next read of the due index returns.
    pub(super) due: Vec<(u64, ordain_core::Key)>,
}

impl Rig {
    pub(super) fn new(stream: &str) -> Result<Self> {
        Ok(Self {
            sequencer: Sequencer::new(settings(stream)?, &[0], 0),
            delivery: 0,
            snapshot: None,
            batches: Vec::new(),
            acked: 0,
            loads: 0,
            requests: Vec::new(),
            kept: BTreeSet::new(),
            page: usize::MAX,
            is_kept_by_server: false,
            letters: BTreeMap::new(),
            spilled: BTreeSet::new(),
            busy: 0,
            due: Vec::new(),
        })
    }

    /// Makes a rig whose key has settled event 1, and whose store has the record of the key.
    pub(super) fn begun(stream: &str) -> Result<Self> {
        let mut rig = Self::new(stream)?;
        rig.deliver(0, 1);
        rig.remember()?;
        Ok(rig)
    }

    pub(super) fn deliver(&mut self, now: u64, sequence: u64) {
        self.arrive(now, event(sequence));
        self.perform(now);
    }

    /// Delivers an event with these parts at the time 0.
    pub(super) fn deliver_parts(&mut self, parts: &EventParts<'_>) {
        self.arrive(0, Arc::new(Event::new(parts)));
        self.perform(0);
    }

    /// Passes an event to the sequencer, but does not perform the effects yet.
    pub(super) fn arrive(&mut self, now: u64, event: Arc<Event>) {
        self.delivery += 1;
        self.sequencer.handle(now, Input::Arrived { delivery: self.delivery, event });
    }

    pub(super) fn input(&mut self, now: u64, input: Input) {
        self.sequencer.handle(now, input);
        self.perform(now);
    }

    pub(super) fn perform(&mut self, now: u64) {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => turn_without_messages(&turn),
                Effect::Commit(batch) => {
                    let shard = batch.shard;
                    let number = batch.number;
                    if let (Some(stored), Some(write)) = (&mut self.snapshot, batch.writes.first())
                    {
                        stored.record = KeyRecord { incarnation: 1, ..write.record.clone() };
                    }
                    for write in &batch.writes {
                        write.removed_letters.iter().for_each(|id| drop(self.letters.remove(id)));
                    }
                    let written = batch.writes.iter().flat_map(|write| &write.letters);
                    let put = written.chain(&batch.letters).cloned();
                    self.letters.extend(put.map(|letter| (letter.id.clone(), letter)));
                    self.batches.push(batch);
                    let reply =
                        CommitReply::Applied(AppliedCommit { time: 1, ..AppliedCommit::default() });
                    Input::Committed { shard, number, reply }
                }
                Effect::Load { token, .. } => {
                    self.loads += 1;
                    Input::Loaded { token, loaded: Ok(self.snapshot.clone()) }
                }
                Effect::Replay { token, source, missing, .. } => {
                    let kept = missing.iter().flat_map(|range| self.kept.range(range.clone()));
                    let kept = kept.filter(|_| !self.is_kept_by_server || source == 1);
                    let mut found: Vec<_> =
                        kept.map(|sequence| (*sequence, event(*sequence))).collect();
                    let mut until = u64::MAX;
                    if self.busy > 0 {
                        self.busy -= 1;
                        until = missing.first().map_or(0, |range| *range.start());
                    }
                    if found.len() > self.page {
                        found.truncate(self.page);
                        until = found[self.page - 1].0 + 1;
                    }
                    self.requests.push((now, missing));
                    Input::Replayed { token, found, until, failed: None }
                }
                Effect::ReadEarlyLetters { token, sequences, .. } => {
                    let letters = self.letters.values();
                    let early = letters.filter(|letter| {
                        letter.cause.waits_for_earlier() && sequences.contains(&letter.id.sequence)
                    });
                    let letters = early.cloned().collect();
                    let until = sequences.end() + 1;
                    Input::EarlyLettersRead { token, letters, until }
                }
                Effect::ReadSpill { token, from, .. } => {
                    let spilled = self.spilled.range(from..);
                    let events = spilled.map(|sequence| (*sequence, event(*sequence))).collect();
                    Input::SpillRead { token, read: Ok((events, true)) }
                }
                Effect::ReadDue { .. } => {
                    Input::DueRead { entries: std::mem::take(&mut self.due), next_in: None }
                }
                Effect::Ack { through } => {
                    self.acked = through;
                    continue;
                }
                effect => panic!("these tests do not cause {effect:?}"),
            };
            self.sequencer.handle(now, answer);
        }
    }

    /// Puts the last committed record into the store, so that later loads return it.
    pub(super) fn remember(&mut self) -> Result<()> {
        let batch = self.batches.last().context("a commit")?;
        self.snapshot = Some(Box::new(snapshot(batch.writes[0].record.clone(), None)));
        Ok(())
    }

    /// Advances the time to `to`, and handles each timeout up to this time.
    pub(super) fn pass(&mut self, from: u64, to: u64) {
        let mut now = from;
        while let Some(at) = self.sequencer.poll_timeout().filter(|at| *at <= to) {
            now = at.max(now);
            self.sequencer.handle_timeout(now);
            self.perform(now);
            if at == now && self.sequencer.poll_timeout() == Some(at) {
                break;
            }
        }
    }

    pub(super) fn writes(&self) -> impl Iterator<Item = &KeyWrite> {
        self.batches.iter().flat_map(|batch| &batch.writes)
    }

    /// Returns the committed dead letters that belong to no write.
    pub(super) fn letters_without_write(&self) -> Vec<&DeadLetter> {
        self.batches.iter().flat_map(|batch| &batch.letters).collect()
    }

    pub(super) fn last_write(&self) -> Result<&KeyWrite> {
        self.writes().last().context("a write")
    }

    pub(super) fn last_record(&self) -> Result<&KeyRecord> {
        Ok(&self.last_write()?.record)
    }

    pub(super) fn stored_record(&mut self) -> Result<&mut KeyRecord> {
        Ok(&mut self.snapshot.as_mut().context("a record")?.record)
    }
}

pub(super) fn event(sequence: u64) -> Arc<Event> {
    Arc::new(Event::new(&EventParts { sequence: Some(sequence), ..event_parts() }))
}

/// Makes the answer to a load of a key: the record of the first incarnation of the key, without a state.
pub(super) fn snapshot(record: KeyRecord, due_in: Option<u64>) -> KeySnapshot {
    KeySnapshot {
        record: KeyRecord { incarnation: 1, ..record },
        state: None,
        ids: Vec::new(),
        now: 1,
        due_in,
        expire_in: None,
        moved_from: None,
    }
}
