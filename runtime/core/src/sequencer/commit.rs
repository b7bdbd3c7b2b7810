//! Commits: what a lane has to write, batches of a shard, and the answers. A shard has one batch
//! in flight; the next one closes when it returns, so that batches grow with the load.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Sequencer;
use super::held::SpillCopy;
use super::lane::{Check, Chunk, Known, Lane};
use super::letters::FreeLetter;
use crate::effect::{Effect, Stop};
use crate::event::{Delivery, Event};
use crate::job::{
    Applied, Batch, CommitReply, Digests, Expect, Job, JobWrite, Refusal, Spilled, Status, TakenId,
};
use crate::settings::{Backoff, Ordering, Settings};

/// Between two sendings of a batch that got no answer: soon enough for a lost reply, rare enough
/// for a store that is down.
const RESEND: Backoff = Backoff { min: 50, max: 5_000 };
/// Ids beyond `id_window` before the oldest are forgotten: forgetting is done in lots.
const ID_SLACK: usize = 256;

#[derive(Debug)]
pub(super) struct Shard {
    /// Number of the last batch formed.
    number: u64,
    in_flight: Option<InFlight>,
    /// Lanes with something to write.
    pub(super) dirty: VecDeque<u32>,
    pub(super) letters: VecDeque<FreeLetter>,
    /// Committed batches that are not published: number, messages and letters, bytes.
    outbox: VecDeque<(u64, usize, usize)>,
}

#[derive(Debug)]
struct InFlight {
    batch: Arc<Batch>,
    /// What each write needs when it is answered.
    lanes: Vec<InWrite>,
    /// Deliveries of the free letters.
    letters: Vec<Delivery>,
    /// Bytes of messages and letters.
    bytes: usize,
    resend_at: Option<u64>,
    tries: u32,
}

#[derive(Debug)]
struct InWrite {
    lane: u32,
    events: usize,
    effects: usize,
    joined: Vec<(Delivery, Arc<Event>)>,
    checks: Vec<Check>,
}

impl Shard {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            in_flight: None,
            dirty: VecDeque::new(),
            letters: VecDeque::new(),
            outbox: VecDeque::new(),
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.is_none() && self.dirty.is_empty() && self.letters.is_empty()
    }

    pub(super) fn resend_at(&self) -> Option<u64> {
        self.in_flight.as_ref()?.resend_at
    }
}

impl Sequencer {
    /// Forms a batch for each shard that has something to write and none in flight.
    pub(super) fn close_batches(&mut self) {
        // Messages are bounded where turns start. Letters come from everywhere.
        if self.settings.forward_letters && self.outbox >= self.settings.max_outbox {
            return;
        }
        for shard in 0..self.shards.len() {
            if self.shards[shard].in_flight.is_none() && !self.shards[shard].is_quiet() {
                self.close_batch(shard);
            }
        }
    }

    fn close_batch(&mut self, shard: usize) {
        let mut batch = Batch {
            shard: shard as u32,
            number: self.shards[shard].number + 1,
            writes: Vec::new(),
            letters: Vec::new(),
            forward: self.settings.forward_letters,
        };
        let mut flight = InFlight {
            batch: Arc::new(Batch { writes: Vec::new(), letters: Vec::new(), ..batch }),
            lanes: Vec::new(),
            letters: Vec::new(),
            bytes: 0,
            resend_at: None,
            tries: 0,
        };
        let (max_events, max_bytes) = (self.settings.batch_events, self.settings.batch_bytes);
        let (mut events, mut bytes) = (0, 0);
        let full = |events: usize, bytes: usize| events >= max_events || bytes >= max_bytes;
        // Letters first: a key's end is written only after the letters of what lay beyond it.
        while !full(events, bytes)
            && let Some(free) = self.shards[shard].letters.pop_front()
        {
            events += 1;
            bytes += free.letter.memory();
            flight.bytes += free.letter.memory();
            flight.letters.push(free.delivery);
            batch.letters.push(free.letter);
        }
        while self.shards[shard].letters.is_empty()
            && !full(events, bytes)
            && let Some(index) = self.shards[shard].dirty.pop_front()
        {
            self.lanes[index].dirty = false;
            if self.lanes[index].wants_write(&self.settings) {
                let room = (max_events - events, max_bytes - bytes);
                let (write, in_write, cost) = self.write_of(index, room);
                events += cost.events.max(1);
                bytes += cost.bytes;
                flight.bytes += cost.kept;
                batch.writes.push(write);
                flight.lanes.push(in_write);
            }
            self.settle(index);
        }
        if batch.writes.is_empty() && batch.letters.is_empty() {
            return;
        }
        self.shards[shard].number += 1;
        flight.batch = Arc::new(batch);
        self.effects.push_back(Effect::Commit(Arc::clone(&flight.batch)));
        self.shards[shard].in_flight = Some(flight);
    }

    /// What the lane has to write, with room for so many spilled events and bytes.
    fn write_of(&mut self, index: u32, room: (usize, usize)) -> (JobWrite, InWrite, Cost) {
        let settings = &self.settings;
        let lane = &mut self.lanes[index];
        let expect = if lane.absent { Expect::Absent } else { Expect::Next(lane.job.next) };
        let mut ids = SmallVec::new();
        let mut chunk = match lane.pending.pop_front() {
            Some(chunk) => {
                advance_job(lane, &chunk, settings, &mut ids);
                chunk
            }
            None => Chunk::new(lane.job.next, None),
        };
        // The end goes with the last event, even where late originals are still to be settled.
        let completed = lane.ended && lane.job.next == lane.done;
        let more = !lane.pending.is_empty() && !completed;
        let (mut spill, spilled_bytes) = spill_of(lane, settings, room, &mut ids);
        let checks = checks_of(lane, settings, room.0.saturating_sub(spill.len()).max(1));
        spill.extend(checks.iter().map(|check| (check.sequence, Arc::clone(&check.event))));
        self.stats.spilled += spill.len() as u64;

        lane.job.spilled = spilled(lane, &checks);
        let due = if more { Some(self.now) } else { lane.due(self.now) };
        let due_in = due.map(|at| at.saturating_sub(self.now));
        if completed {
            lane.job.status = Status::Completed;
            lane.forgotten_at = self.now.saturating_add(settings.complete_ttl);
        }
        let quiet = due_in.is_none() && lane.job.spilled.count == 0 && !lane.parked();
        let ttl = if completed { Some(settings.complete_ttl) } else { settings.key_ttl };
        let mut job = job_to_write(lane, more);
        lane.absent = false;
        lane.known = Known::of(&job);
        lane.header = false;
        lane.writing = true;
        lane.joining = !chunk.joined.is_empty();

        let cost = Cost {
            events: chunk.events + spill.len(),
            bytes: chunk.bytes + spilled_bytes,
            kept: chunk.bytes,
        };
        if fault!(self, LoseTheRetryCount) {
            job.attempts = 0;
        }
        if fault!(self, ForgetTheVersion) {
            job.version = None;
        }
        if fault!(self, ForgetTheId) {
            ids.pop();
        }
        if fault!(self, SwapMessages) {
            chunk.messages.reverse();
        }
        if fault!(self, LoseAMessage) && chunk.messages.len() > 1 {
            chunk.messages.pop();
        }
        if fault!(self, DropASpilledEvent) && !spill.is_empty() {
            spill.remove(0);
        }
        let write = JobWrite {
            key: lane.key.clone(),
            expect,
            job,
            state: chunk.state,
            messages: chunk.messages,
            letters: chunk.letters,
            consumed: chunk.consumed,
            spill,
            ids,
            due_in: due_in.filter(|_| !fault!(self, ForgetTheDueTime)),
            expire_in: ttl.filter(|_| quiet),
        };
        let (events, effects, joined) = (chunk.events, chunk.effects, chunk.joined);
        let in_write = InWrite { lane: index, events, effects, joined, checks };
        if fault!(self, AckBeforeSpill) {
            let deliveries: Vec<_> = self.lanes[index].held.iter().map(|h| h.delivery).collect();
            let spilled = !write.spill.is_empty();
            deliveries.into_iter().filter(|_| spilled).for_each(|d| self.window.finish(d));
        }
        (write, in_write, cost)
    }

    /// Sends batches again that got no answer.
    pub(super) fn resend(&mut self) {
        for shard in &mut self.shards {
            if let Some(flight) = &mut shard.in_flight
                && flight.resend_at.is_some_and(|at| at <= self.now)
            {
                flight.resend_at = None;
                self.effects.push_back(Effect::Commit(Arc::clone(&flight.batch)));
            }
        }
    }

    pub(super) fn committed(&mut self, shard: u32, number: u64, reply: CommitReply) {
        let answered = self.shards.get_mut(shard as usize).and_then(|shard| {
            let asked = shard.in_flight.as_ref()?;
            (asked.batch.number == number && asked.resend_at.is_none())
                .then(|| shard.in_flight.take())?
        });
        let Some(mut flight) = answered else {
            self.stats.stale += 1;
            return;
        };
        match reply {
            CommitReply::Applied(applied) => self.applied(flight, applied),
            CommitReply::Unknown if fault!(self, TakeUnknownForApplied) => {
                self.applied(flight, Applied { time: 1, ..Applied::default() });
            }
            CommitReply::Unknown => {
                flight.resend_at = Some(self.now + self.jitter.delay(RESEND, flight.tries));
                flight.tries = flight.tries.saturating_add(1);
                if fault!(self, NewNumberAfterUnknown) {
                    let number = number + 1;
                    flight.batch = Arc::new(Batch { number, ..(*flight.batch).clone() });
                    self.shards[shard as usize].number = number;
                }
                self.shards[shard as usize].in_flight = Some(flight);
            }
            CommitReply::Fenced => self.stop(Stop::Fenced),
            CommitReply::Rewound { found } => {
                let detail = format!("commit {number} was to follow {}, but {found}", number - 1);
                self.stop(Stop::Rewound { shard, detail });
            }
        }
    }

    fn stop(&mut self, stop: Stop) {
        self.stopped = true;
        self.effects.clear();
        self.effects.push_back(Effect::Stop(stop));
    }

    fn applied(&mut self, flight: InFlight, mut applied: Applied) {
        let InFlight { batch, lanes, letters, bytes, .. } = flight;
        self.stats.commits += 1;
        self.memory -= bytes;
        for (letter, delivery) in batch.letters.iter().zip(letters) {
            self.stats.dead[letter.cause as usize] += 1;
            self.window.finish(delivery);
        }
        if fault!(self, KeepRefusedResults) {
            applied.refused.clear();
        }
        let mut refused = applied.refused.iter().peekable();
        let mut messages = (0, 0);
        for (position, (in_write, write)) in lanes.into_iter().zip(&batch.writes).enumerate() {
            let index = in_write.lane;
            self.lanes[index].writing = false;
            self.lanes[index].joining = false;
            self.ahead -= in_write.events;
            if let Some((_, refusal)) = refused.next_if(|(refused, _)| *refused == position) {
                self.refused(in_write, refusal.clone());
                continue;
            }
            messages.0 += write.messages.len();
            messages.1 +=
                write.messages.iter().map(|emitted| emitted.message.memory()).sum::<usize>();
            self.write_applied(position, in_write, write, &applied);
            self.settle(index);
        }
        self.stats.messages += messages.0 as u64;
        for letter in batch.forwarded(&applied) {
            messages.0 += 1;
            messages.1 += letter.memory();
        }
        if messages.0 > 0 {
            self.outbox += messages.0;
            self.memory += messages.1;
            let entry = (batch.number, messages.0, messages.1);
            self.shards[batch.shard as usize].outbox.push_back(entry);
            if fault!(self, PublishRefused) {
                applied.refused.clear();
            }
            self.effects.push_back(Effect::Publish { batch, applied });
        }
    }

    fn write_applied(
        &mut self,
        position: usize,
        in_write: InWrite,
        write: &JobWrite,
        applied: &Applied,
    ) {
        let index = in_write.lane;
        self.stats.settled += in_write.effects as u64;
        for letter in &write.letters {
            self.stats.dead[letter.cause as usize] += 1;
        }
        self.lanes[index].job.fill_times(applied.time);
        self.forget_settled(index, write.job.next);
        for (delivery, event) in in_write.joined {
            drop(event);
            self.window.finish(delivery);
        }
        for (sequence, _) in &write.spill {
            if let Ok(at) = self.lanes[index].held.find(*sequence) {
                self.stored(index, at);
            }
        }
        for check in in_write.checks {
            self.memory -= check.event.memory();
            let present = applied
                .present
                .iter()
                .find(|present| present.write == position && present.sequence == check.sequence);
            match present {
                Some(present) if present.same || fault!(self, IgnoreConflicts) => {
                    self.duplicate(check.delivery);
                }
                Some(_) => self.conflict(index, check.sequence, check.delivery, &check.event),
                None => {
                    self.lanes[index].rest.add(check.sequence);
                    self.window.finish(check.delivery);
                }
            }
        }
        self.trim_ids(index);
        let exact = spilled(&self.lanes[index], &[]);
        let tail = self.tail_from_now();
        let lane = &mut self.lanes[index];
        // Checks were counted as if they were new. The record must not keep that: it would seem
        // to be at its limit too early, more so with each repeat after a restart.
        lane.header |= lane.job.spilled.count > exact.count;
        lane.job.spilled = exact;
        if in_write.events > 0 {
            lane.tail_at = tail;
        }
        lane.assumed = false;
        if lane.over() {
            self.completed(index);
        } else {
            self.unload(index);
        }
        self.take_arrivals(index);
    }

    /// Forgets the held events that are durably settled.
    fn forget_settled(&mut self, index: u32, next: u64) {
        while let Some(held) = self.lanes[index].held.pop_below(next) {
            self.memory -= held.event.memory();
            self.window.finish(held.delivery);
            self.finish_repeats(index, held.sequence);
        }
    }

    fn trim_ids(&mut self, index: u32) {
        let window = self.settings.id_window;
        let lane = &mut self.lanes[index];
        let keep = lane.job.next;
        if let Some(ids) = &mut lane.ids
            && ids.len() > window + ID_SLACK
        {
            lane.job.ids_from = ids.trim(window, keep);
        }
    }

    fn refused(&mut self, in_write: InWrite, refusal: Refusal) {
        let index = in_write.lane;
        self.stats.refused += 1;
        for (delivery, event) in in_write.joined {
            self.wait(index, delivery, event);
        }
        // Their memory stays counted.
        self.lanes[index].checks.extend(in_write.checks);
        match refusal {
            Refusal::Next(_) => self.load_again(index),
            Refusal::Partition(next) => self.yield_lane(index, next),
            Refusal::Corrupt(error) => self.break_lane(index, error),
        }
    }

    pub(super) fn published(&mut self, shard: u32, through: u64) {
        let Some(shard) = self.shards.get_mut(shard as usize) else { return };
        while let Some((_, messages, bytes)) =
            shard.outbox.pop_front_if(|(number, ..)| *number <= through)
        {
            self.outbox -= messages;
            self.memory -= bytes;
        }
    }
}

/// What a write costs: events and bytes towards the batch's limits, bytes kept until the answer.
struct Cost {
    events: usize,
    bytes: usize,
    kept: usize,
}

/// Moves the job over the events of a chunk.
fn advance_job(
    lane: &mut Lane,
    chunk: &Chunk,
    settings: &Settings,
    ids: &mut SmallVec<[TakenId; 2]>,
) {
    let mut next = lane.job.next;
    let unseen = |digests: &mut Digests, from: u64, to: u64| {
        for _ in from.max(to.saturating_sub(settings.digests as u64))..to {
            digests.push_unseen(settings.digests);
        }
    };
    for held in lane.held.iter() {
        if held.sequence >= chunk.next {
            break;
        }
        unseen(&mut lane.job.digests, next, held.sequence);
        lane.job.digests.push(held.event.content(), settings.digests);
        next = held.sequence + 1;
        if settings.ordering == Ordering::Fifo && held.copy == SpillCopy::None {
            ids.push(taken(held.sequence, &held.event));
        }
    }
    unseen(&mut lane.job.digests, next, chunk.next);
    lane.job.next = chunk.next;
    for (_, late) in &chunk.joined {
        if let Some(sequence) = late.sequence() {
            lane.job.digests.set(chunk.next, sequence, late.content());
        }
    }
    if chunk.version.is_some() {
        lane.job.version.clone_from(&chunk.version);
    }
}

fn taken(sequence: u64, event: &Event) -> TakenId {
    let content = Digests::short(event.content());
    TakenId { sequence, id: event.id_digest(), content }
}

/// Held events to be spilled by this write: from the first on, so that in a `fifo` stream no
/// number becomes durable before an earlier one.
fn spill_of(
    lane: &mut Lane,
    settings: &Settings,
    (mut events, bytes): (usize, usize),
    ids: &mut SmallVec<[TakenId; 2]>,
) -> (Vec<(u64, Arc<Event>)>, usize) {
    let (mut spill, mut spilled) = (Vec::new(), 0);
    // What lies beyond the key's end gets letters, not a place in the store.
    lane.spill_all &= !lane.ended;
    if !lane.spill_all {
        return (spill, spilled);
    }
    let limit = settings.spill_limit.saturating_sub(lane.rest.count) as usize;
    events = events.max(1).min(limit.saturating_sub(lane.held.copies()));
    let (next, done) = (lane.job.next, lane.done);
    let all = lane.held.write_copies(next, |held| {
        // The event that the key stopped at is what the others wait for: it needs no room.
        let head = held.sequence == done;
        if !head && (spill.len() >= events || spilled >= bytes.max(1)) {
            return false;
        }
        spilled += held.event.memory();
        if settings.ordering == Ordering::Fifo {
            ids.push(taken(held.sequence, &held.event));
        }
        spill.push((held.sequence, Arc::clone(&held.event)));
        true
    });
    lane.spill_all = !all;
    (spill, spilled)
}

/// Checks that can be made now, one for each sequence.
fn checks_of(lane: &mut Lane, settings: &Settings, room: usize) -> Vec<Check> {
    if lane.checks.is_empty() {
        return Vec::new();
    }
    let room = lane.check_room(settings).min(room);
    let (mut now, mut later): (Vec<Check>, Vec<Check>) = (Vec::new(), Vec::new());
    for check in std::mem::take(&mut lane.checks) {
        if now.len() >= room || now.iter().any(|other| other.sequence == check.sequence) {
            later.push(check);
        } else {
            now.push(check);
        }
    }
    lane.checks = later;
    now
}

/// What the spill area will hold after the write.
fn spilled(lane: &Lane, checks: &[Check]) -> Spilled {
    let mut spilled = lane.rest;
    if lane.held.copies() > 0 {
        for held in lane.held.iter() {
            if held.copy != SpillCopy::None && held.sequence >= lane.job.next {
                spilled.add(held.sequence);
            }
        }
    }
    if !lane.rest.contiguous() {
        for check in checks {
            spilled.add(check.sequence);
        }
    }
    spilled
}

/// The record as it is written: what concerns the event at `done` is left out while results
/// before it are still to be written.
fn job_to_write(lane: &Lane, more: bool) -> Job {
    let mut job = lane.job.clone();
    if more {
        job.attempts = 0;
        job.rounds = 0;
        job.trouble = None;
        job.status = Status::Active;
    } else if job.status == Status::Active {
        if lane.retry_at.is_some() {
            job.status = Status::Retrying;
        } else if lane.gap.as_ref().is_some_and(|gap| gap.at == job.next) {
            job.status = Status::Waiting;
        }
    }
    job
}
