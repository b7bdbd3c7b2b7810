//! Commits: what a lane has to write, batches of a shard, and the answers. A shard has one batch
//! in flight; the next one closes when it returns, so that batches grow with the load.

mod again;
mod applied;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use super::Sequencer;
use super::lane::Check;
use super::letters::FreeLetter;
use crate::effect::{Effect, Stop};
use crate::event::{Delivery, Event};
use crate::job::{Applied, Batch, CommitReply};
use crate::settings::Backoff;
use again::{Again, Kept};

/// Between two sendings of a batch that got no answer: soon enough for a lost reply, rare enough
/// for a store that is down.
const RESEND: Backoff = Backoff { min: 50, max: 5_000 };

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
    kept: Kept,
    /// What comes before the batch in flight: the store has lost it.
    again: Option<Again>,
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
            kept: Kept::default(),
            again: None,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.is_none() && self.dirty.is_empty() && self.letters.is_empty()
    }

    pub(super) fn resend_at(&self) -> Option<u64> {
        match &self.again {
            Some(again) => again.resend_at,
            None => self.in_flight.as_ref()?.resend_at,
        }
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
        let most = self.shards[shard].dirty.len().min(max_events);
        batch.writes.reserve_exact(most);
        flight.lanes.reserve_exact(most);
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

    /// Sends batches again that got no answer.
    pub(super) fn resend(&mut self) {
        self.resend_again();
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
        if self.committed_again(shard, number, &reply) {
            return;
        }
        let answered = self.shards.get_mut(shard as usize).and_then(|shard| {
            let asked = shard.in_flight.as_ref()?;
            let awaited = asked.resend_at.is_none() && shard.again.is_none();
            (asked.batch.number == number && awaited).then(|| shard.in_flight.take())?
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
            CommitReply::Rewound { found, last } => {
                self.shards[shard as usize].in_flight = Some(flight);
                self.rewound(shard, number, &found, last);
            }
        }
    }

    fn stop(&mut self, stop: Stop) {
        self.stopped = true;
        self.effects.clear();
        self.effects.push_back(Effect::Stop(stop));
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
