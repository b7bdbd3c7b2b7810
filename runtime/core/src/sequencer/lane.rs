//! One active key: what is held of it in memory and how far it has come. Nothing here knows of
//! other lanes.
//!
//! ```text
//!        job.next          done            front
//! settled   | executed, not |  to run, known | first missing     held beyond the gap
//! durably   | yet durable   |  (or running)  |
//! ```
//!
//! `held` has every event from `job.next` on that is in memory, durable or not, since a refused
//! commit runs them again; `rare.rest` is what only the store's spill area has.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::chunk::Chunk;
use super::held::{HeldEvents, SpillCopy};
use super::ids::Ids;
use super::rare::Rare;
use crate::event::{Delivery, Event, Key};
use crate::job::{Job, Spilled, Status, Trouble};
use crate::settings::{Ordering, Settings};
use crate::stats::LaneState;

/// Each event touches all of it several times, and most lanes are in no cache: what few lanes have
/// belongs in [`Rare`].
const _: () = assert!(size_of::<Lane>() <= 400);

/// How soon the decision is heard of that a job was executed under, about, in ms.
const NEWS: u64 = 1_000;

/// An event that waits for its lane to decide about it.
#[derive(Debug)]
pub(super) struct Arrival {
    /// 0: it has not been delivered.
    pub(super) delivery: Delivery,
    pub(super) event: Arc<Event>,
    /// Replay had found it.
    pub(super) replayed: bool,
}

impl Arrival {
    pub(super) fn new(delivery: Delivery, event: Arc<Event>) -> Self {
        Self { delivery, event, replayed: false }
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent marks, not one state in disguise")]
pub(super) struct Lane {
    pub(super) key: Key,
    pub(super) shard: u32,
    /// Never used twice, while a lane's place is.
    pub(super) birth: u64,
    pub(super) mode: Mode,
    /// The record as it will be once the commit in flight is applied, except that what concerns
    /// the event at `done` (attempts, rounds, status, trouble) is ahead of the store.
    pub(super) job: Job,
    /// The store has no record, as far as is known.
    pub(super) absent: bool,
    /// That there is no record is only assumed: no commit has confirmed it. Nothing may be ended
    /// on the strength of it.
    pub(super) assumed: bool,
    /// After everything below `done`.
    pub(super) state: Option<Bytes>,
    pub(super) done: u64,
    pub(super) front: u64,
    pub(super) held: HeldEvents,
    /// What waits until the job is loaded, in order.
    pub(super) arrivals: Vec<Arrival>,
    /// Executed or settled, not yet in a commit.
    pub(super) pending: SmallVec<[Box<Chunk>; 2]>,
    pub(super) rare: Rare,
    pub(super) turn: Option<InTurn>,
    pub(super) load: Option<u64>,
    /// A commit with a write of this lane is in flight.
    pub(super) writing: bool,
    /// That commit settles a late original.
    pub(super) joining: bool,
    /// It stands in its shard's queue of lanes to write.
    pub(super) dirty: bool,
    /// It stands in the queue of lanes to run.
    pub(super) ready: bool,
    /// The record is to be written although nothing is pending.
    pub(super) header: bool,
    /// Everything held is to be spilled.
    pub(super) spill_all: bool,
    /// The key has ended with the last event below `done`.
    pub(super) ended: bool,
    /// When the store forgets the key, if nothing is written until then.
    pub(super) forgotten_at: u64,
    pub(super) ids: Option<Box<Ids>>,
    /// As counted.
    pub(super) class: LaneState,
    /// As counted: something will happen to it by itself.
    pub(super) restless: bool,
    /// As counted: memory apart from its events.
    pub(super) charged: usize,
}

/// The part of a stored record, beside its `next`, by which it shows that another owner has been
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    generation: u32,
    attempts: u32,
    rounds: u32,
    spilled: Spilled,
}

impl Known {
    /// Of a job that nothing has happened to.
    pub(super) const NEW: Self = Self {
        generation: 0,
        attempts: 0,
        rounds: 0,
        spilled: Spilled { count: 0, first: 0, last: 0 },
    };

    pub(super) fn of(job: &Job) -> Self {
        let Job { generation, attempts, rounds, spilled, .. } = *job;
        Self { generation, attempts, rounds, spilled }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// Waits for its job.
    Loading,
    /// Its job is known.
    Live,
    /// Another partition has the job, whose next event is this.
    Foreign(u64),
    /// Its job or its spilled events cannot be read.
    Broken(String),
}

#[derive(Debug)]
pub(super) struct Check {
    pub(super) sequence: u64,
    pub(super) event: Arc<Event>,
    pub(super) delivery: Delivery,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InTurn {
    pub(super) serial: u64,
    pub(super) events: u32,
    /// The lane started again meanwhile: the result is worth nothing, but until it comes no other
    /// turn may start.
    pub(super) stale: bool,
}

impl Lane {
    pub(super) fn new(key: Key, shard: u32, birth: u64, settings: &Settings) -> Self {
        let mut job = Job::new(settings.first, settings.partition);
        if settings.ordering == Ordering::Fifo {
            job.ids_from = settings.first;
        }
        Self {
            key,
            shard,
            birth,
            mode: Mode::Loading,
            absent: false,
            assumed: false,
            state: None,
            done: job.next,
            front: job.next,
            job,
            held: HeldEvents::default(),
            arrivals: Vec::new(),
            pending: SmallVec::new(),
            rare: Rare::default(),
            turn: None,
            load: None,
            writing: false,
            joining: false,
            dirty: false,
            ready: false,
            header: false,
            spill_all: false,
            ended: false,
            forgotten_at: u64::MAX,
            ids: None,
            class: LaneState::Loading,
            restless: false,
            charged: 0,
        }
    }

    pub(super) fn live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// Whether a late original is settled, but not yet durably: its repeats must wait.
    pub(super) fn joins(&self) -> bool {
        self.joining || self.pending.iter().any(|chunk| !chunk.joined.is_empty())
    }

    /// Whether the sequence was skipped unseen, durably or not.
    pub(super) fn skipped(&self, sequence: u64) -> bool {
        let within = |&(first, last): &(u64, u64)| (first..=last).contains(&sequence);
        self.job.holes.contains(sequence)
            || self.pending.iter().any(|chunk| chunk.skipped.iter().any(within))
    }

    /// Whether the store knows that the key has ended.
    pub(super) fn over(&self) -> bool {
        self.job.status == Status::Completed && !self.writing && self.pending.is_empty()
    }

    pub(super) fn wants_load(&self) -> bool {
        self.load.is_none() && (self.mode == Mode::Loading || self.reloads())
    }

    /// Whether a round of its gap begins with the job being loaded again.
    pub(super) fn reloads(&self) -> bool {
        self.live() && self.rare.gap.as_ref().is_some_and(super::gap::Gap::reloading)
    }

    /// Events being executed whose results will count.
    pub(super) fn running(&self) -> usize {
        self.turn.filter(|turn| !turn.stale).map_or(0, |turn| turn.events as usize)
    }

    pub(super) fn parked(&self) -> bool {
        self.job.status == Status::Parked
    }

    /// The highest sequence known to be held somewhere.
    pub(super) fn highest(&self) -> Option<u64> {
        let held = self.held.highest();
        let rest = (self.rare.rest.count > 0).then_some(self.rare.rest.last);
        held.max(rest)
    }

    /// Deliveries of repeats of an event, which end with it.
    pub(super) fn take_repeats(&mut self, sequence: u64) -> Vec<Delivery> {
        let Some(rare) = self.rare.there() else { return Vec::new() };
        let same = rare.repeats.extract_if(.., |repeat| repeat.0 == sequence);
        same.map(|(_, delivery)| delivery).collect()
    }

    /// Moves `front` over everything that is known to be there.
    pub(super) fn advance_front(&mut self) {
        self.front = self.front.max(self.done);
        if self.highest() < Some(self.front) {
            return;
        }
        loop {
            if self.rare.rest.spans(self.front) {
                if !self.rare.rest.contiguous() {
                    return;
                }
                self.front = self.rare.rest.last + 1;
            } else if let Ok(mut index) = self.held.find(self.front) {
                while self.held.get(index).is_some_and(|held| held.sequence == self.front) {
                    self.front += 1;
                    index += 1;
                }
            } else {
                return;
            }
        }
    }

    /// Whether event `front` is certainly missing while a later one is there.
    pub(super) fn has_gap(&self) -> bool {
        self.misses(self.front) && self.highest().is_some_and(|highest| highest > self.front)
    }

    /// Whether this is the first sequence that is missing, for certain: not while it may be among
    /// what only the store has.
    pub(super) fn misses(&self, sequence: u64) -> bool {
        sequence == self.front && !self.rare.rest.spans(sequence)
    }

    /// When the clock of its gap runs out, unless it stands still.
    pub(super) fn gap_clock(&self) -> Option<u64> {
        self.rare.gap.as_ref().filter(|gap| self.misses(gap.at))?.clock()
    }

    /// Whether what is held cannot all be run now.
    pub(super) fn blocked(&self) -> bool {
        self.live()
            && (self.parked()
                || self.rare.retry_at.is_some()
                || self.rare.newer.is_some()
                || self.rare.gap.is_some()
                || self.rare.rest.count > 0)
    }

    /// Notes whether its job was executed under a decision that is not known here yet.
    pub(super) fn compare_versions(&mut self, settings: &Settings) {
        let generation = self.job.version_generation();
        let known = settings.version.as_ref().map_or(0, |it| it.generation);
        if generation > known || self.rare.newer.is_some() {
            self.rare.make().newer = (generation > known).then_some(generation);
        }
    }

    /// Whether there is nothing here that may execute its events.
    pub(super) fn lacks_version(&self, settings: &Settings) -> bool {
        settings.version.is_none() || self.rare.newer.is_some()
    }

    pub(super) fn runnable(&self, settings: &Settings) -> bool {
        self.turn.is_none()
            && self.live()
            && !self.ended
            && !self.parked()
            && self.rare.retry_at.is_none()
            && !self.lacks_version(settings)
            && self.held.head().is_some_and(|held| held.sequence == self.done)
            && match self.pending.last() {
                None => true,
                Some(chunk) => {
                    self.pending.len() == 1
                        && chunk.events < settings.batch_events
                        && chunk.bytes < settings.batch_bytes
                }
            }
    }

    /// Whether there is anything to spill and room for it. The event that a key stopped at needs
    /// no room: it is what the others wait for.
    pub(super) fn can_spill(&self, settings: &Settings) -> bool {
        let head = || {
            let head = self.held.head();
            head.is_some_and(|held| held.sequence == self.done && held.copy == SpillCopy::None)
        };
        self.held.loose() > 0 && (self.job.spilled.count < settings.spill_limit || head())
    }

    /// Checks that can be made now: none while a page is being read, whose bounds they would
    /// change, and no more than the spill area takes if all of them turn out to be new.
    pub(super) fn check_room(&self, settings: &Settings) -> usize {
        if self.rare.page.is_some() {
            0
        } else if self.rare.rest.contiguous() {
            // None of them can be new.
            usize::MAX
        } else {
            settings.spill_limit.saturating_sub(self.job.spilled.count) as usize
        }
    }

    /// Nothing is written while the job is being loaded again: the load takes it over, so that a
    /// write that knows nothing of what another partition has done to it would be taken.
    pub(super) fn wants_write(&self, settings: &Settings) -> bool {
        self.live()
            && self.load.is_none()
            && (!self.pending.is_empty()
                || self.header
                || (!self.rare.checks.is_empty() && self.check_room(settings) > 0)
                || (self.spill_all && self.can_spill(settings)))
    }

    /// Why it breaks now: its spilled events cannot be read, and all that it has done is written.
    pub(super) fn breaks(&mut self) -> Option<String> {
        let written = self.pending.is_empty() && !self.header && !self.writing;
        self.rare.there()?.unreadable.take_if(|_| written)
    }

    /// Whether it only waits, with events that may not be spilled any more.
    pub(super) fn durable_but_full(&self, settings: &Settings) -> bool {
        self.held.loose() > 0
            && self.turn.is_none()
            && self.rare.page.is_none()
            && self.load.is_none()
            && !self.writing
            && !self.wants_write(settings)
            && !self.can_spill(settings)
    }

    /// Whether the store knows everything that this lane does, and it waits for nothing that it
    /// has asked for.
    pub(super) fn durable(&self) -> bool {
        self.held.loose() == 0
            && self.mode != Mode::Loading
            && self.turn.is_none()
            && self.load.is_none()
            && self.rare.page.is_none()
            && !self.ready
            && !self.writing
            && !self.dirty
            && self.arrivals.is_empty()
            && self.rare.checks.is_empty()
            && self.pending.is_empty()
            && !self.header
            && self.rare.gap.as_ref().is_none_or(|gap| !gap.asks())
    }

    /// The event to run next: its sequence and content.
    pub(super) fn at_done(&self) -> Option<(u64, u64)> {
        let held = self.held.head().filter(|held| held.sequence == self.done)?;
        Some((held.sequence, held.event.content()))
    }

    /// Whether that event is here, or may be among what only the store has.
    pub(super) fn has_next(&self) -> bool {
        self.at_done().is_some() || self.rare.rest.spans(self.done)
    }

    /// Whether that event has trapped once. Another one may stand under its number by now.
    pub(super) fn has_trapped(&self) -> bool {
        self.rare.again.is_some() && self.rare.again == self.at_done()
    }

    /// When its owner must look at it again, from what the store knows of it, or `None` if only
    /// an event or a person can change anything.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        if self.parked() || self.ended {
            return self.ended.then_some(now).filter(|_| self.job.spilled.count > 0);
        }
        if let Some(at) = self.rare.retry_at {
            return Some(at);
        }
        if self.job.spilled.count > 0 {
            return match &self.rare.gap {
                Some(gap) if gap.at == self.done => gap.until(now),
                // Lanes that come and go must not make the due index spin.
                _ if self.rare.newer.is_some() => Some(now.saturating_add(NEWS)),
                _ => Some(now),
            };
        }
        self.rare.tail_at
    }

    /// Whether a due entry of its key can only be one that it has not heard of.
    pub(super) fn knows_nothing_due(&self, now: u64) -> bool {
        self.live() && self.due(now).is_none()
    }

    /// What it costs in memory apart from its events.
    pub(super) fn own_memory(&self) -> usize {
        size_of::<Self>()
            + self.key.len()
            + self.state.as_ref().map_or(0, Bytes::len)
            + self.ids.as_ref().map_or(0, |ids| ids.memory())
            + self.job.trouble.as_deref().map_or(0, Trouble::memory)
            + self.job.gaps.memory()
            + self.job.id_times.memory()
            + self.rare.memory()
    }
}
