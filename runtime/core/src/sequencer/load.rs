//! Lanes come in, start again, and leave; and the due index, which brings quiet keys back.

use super::Sequencer;
use super::arrive::is_next;
use super::held::SpillCopy;
use super::lane::{Known, Lane, Mode};
use super::lanes::List;
use crate::effect::Effect;
use crate::event::{Key, shard_of};
use crate::job::{Job, Loaded, Status};
use crate::settings::Ordering;
use crate::turn::Token;

/// Time until the next pass over the due index, in ms, where there was no room for a key that is
/// due, or one that is due has left memory during the pass: lanes that come and go must not make
/// it spin.
const DUE_PAUSE: u64 = 1_000;
/// The same once the source is at its end, when somebody waits for everything to settle.
const DUE_PAUSE_AT_END: u64 = 20;
/// Entries in one read of the due index.
const DUE_PAGE: usize = 256;

/// The pass over the due index.
#[derive(Debug)]
pub(super) struct Due {
    /// When the next pass starts.
    at: u64,
    /// Where this pass goes on.
    after: Option<(u64, Key)>,
    reading: bool,
    in_pass: bool,
    /// Nothing has left memory with something to do since the last pass began.
    clean: bool,
}

impl Due {
    pub(super) fn new(now: u64) -> Self {
        Self { at: now, after: None, reading: false, in_pass: false, clean: false }
    }

    pub(super) fn at(&self) -> Option<u64> {
        (!self.reading).then_some(self.at)
    }

    pub(super) fn settled(&self) -> bool {
        self.clean && !self.reading && !self.in_pass
    }

    fn soon(&mut self, at: u64) {
        self.clean = false;
        self.at = self.at.min(at);
    }
}

impl Sequencer {
    /// A lane for a key that has none. Room is made by letting the one go that was used longest
    /// ago; whoever brings events or keys in has asked for room before.
    pub(super) fn make_lane(&mut self, key: Key, shard: u32) -> u32 {
        if self.lanes.len() >= self.settings.max_lanes
            && let Some(oldest) = self.lanes.first(List::Leaving)
        {
            self.leave(oldest);
        }
        let birth = self.next_serial();
        let lane = Lane::new(key, shard, birth, &self.settings);
        self.stats.lanes_by_state[lane.class as usize] += 1;
        let index = self.lanes.insert(lane);
        self.stats.lanes_peak = self.stats.lanes_peak.max(self.lanes.len());
        index
    }

    /// Lets a lane go of which the store knows all.
    pub(super) fn leave(&mut self, index: u32) {
        let lane = self.lanes.remove(index);
        debug_assert!(lane.durable(), "only what is durable may leave");
        self.memory -= lane.charged;
        self.memory -= lane.held.iter().map(|held| held.event.memory()).sum::<usize>();
        self.stats.lanes_by_state[lane.class as usize] -= 1;
        self.restless -= usize::from(lane.restless);
        if let Some(at) = lane.due(self.now) {
            self.due.soon(at);
        }
    }

    pub(super) fn start_loads(&mut self) {
        while self.loads_under_way.len() < self.settings.max_loads {
            let Some(index) = self.loads.pop_front() else { return };
            let serial = self.next_serial();
            let Some(lane) = self.lanes.get(index) else { continue };
            if !lane.wants_load() {
                continue;
            }
            if lane.live() {
                self.reload_for_gap(index, serial);
            } else {
                self.ask_for_load(index, serial);
            }
        }
    }

    pub(super) fn ask_for_load(&mut self, index: u32, serial: u64) {
        let lane = &mut self.lanes[index];
        lane.load = Some(serial);
        self.loads_under_way.ask(Token { lane: index, serial });
        let token = Token { lane: index, serial };
        self.effects.push_back(Effect::Load { token, key: lane.key.clone() });
    }

    pub(super) fn loaded(&mut self, token: Token, loaded: Result<Option<Box<Loaded>>, String>) {
        // Also one that nobody waits for any more was under way.
        self.loads_under_way.answer(token);
        let Some(index) = self.answered(token, |lane| &mut lane.load) else { return };
        if self.lanes[index].live() {
            self.reloaded_for_gap(index, &loaded);
        } else {
            match loaded {
                Err(error) => self.lanes[index].mode = Mode::Broken(error),
                Ok(None) => {
                    let lane = &mut self.lanes[index];
                    lane.mode = Mode::Live;
                    lane.absent = true;
                }
                Ok(Some(loaded)) => self.install(index, *loaded),
            }
            self.take_arrivals(index);
            if self.lanes[index].tail_at.is_some_and(|at| at <= self.now) {
                self.ask_for_tail(index);
            }
        }
        self.settle(index);
    }

    /// The lane that still waits for this completion. A stale one is dropped.
    pub(super) fn answered(
        &mut self,
        token: Token,
        waiting: impl Fn(&mut Lane) -> &mut Option<u64>,
    ) -> Option<u32> {
        let careless = fault!(self, ForgetTheTokenCheck);
        if self.lanes.get(token.lane).is_some() {
            let slot = waiting(&mut self.lanes[token.lane]);
            if *slot == Some(token.serial) || (careless && slot.is_some()) {
                *slot = None;
                return Some(token.lane);
            }
        }
        self.stats.stale += 1;
        None
    }

    fn install(&mut self, index: u32, loaded: Loaded) {
        let now = self.now;
        let settings = &self.settings;
        let lane = &mut self.lanes[index];
        lane.mode = Mode::Live;
        lane.absent = false;
        lane.known = Known::of(&loaded.job);
        lane.job = Job { partition: settings.partition, ..loaded.job };
        if !fault_keeps_state(lane) {
            lane.state = loaded.state;
        }
        lane.done = lane.job.next;
        lane.front = lane.job.next;
        lane.rest = lane.job.spilled;
        lane.ended = lane.job.status == Status::Completed;
        lane.forgotten_at = loaded.expire_in.map_or(u64::MAX, |wait| now.saturating_add(wait));
        if settings.ordering == Ordering::Fifo {
            if lane.job.ids_from == 0 {
                // The stream was `sequenced` before.
                lane.job.ids_from = lane.job.next;
            }
            lane.ids = Some(Box::new(super::ids::Ids::from_taken(&loaded.ids)));
        }
        let wait = loaded.due_in.unwrap_or(0);
        lane.gap_due = (lane.rest.count > 0).then(|| now + wait.min(settings.gap.timeout));
        match lane.job.status {
            Status::Retrying => {
                lane.retry_at = Some(now + wait.min(settings.retry.backoff.max));
                lane.job.status = Status::Active;
            }
            Status::Waiting => lane.job.status = Status::Active,
            Status::Active if loaded.due_in.is_some() && lane.rest.count == 0 => {
                let wait = if self.ended { 0 } else { wait };
                lane.tail_at = settings.gap.tail.map(|tail| now + wait.min(tail));
                // An entry that no setting asks for any more would come up again and again.
                lane.header |= lane.tail_at.is_none();
            }
            Status::Active | Status::Parked | Status::Completed => {}
        }
        if lane.retry_at.is_some_and(|at| at <= now) {
            self.retry_now(index);
        } else if lane.parked() {
            self.retry_under_new_version(index);
        }
    }

    /// Drops all that is not durable and starts again from the stored job. The events that are
    /// not durable wait for it as if they had just arrived.
    pub(super) fn load_again(&mut self, index: u32) {
        self.unwind(index);
        self.lanes[index].mode = Mode::Loading;
        self.loads.push_back(index);
        self.settle(index);
    }

    /// Another partition has taken the job over. It is taken back only when its next event is
    /// here, or, since its `next` moves on without this one knowing, after a while.
    pub(super) fn yield_lane(&mut self, index: u32, next: u64) {
        self.unwind(index);
        let lane = &self.lanes[index];
        if lane.arrivals.iter().any(|(_, event)| is_next(&self.settings, next, event)) {
            self.load_again(index);
            return;
        }
        let lane = &mut self.lanes[index];
        lane.mode = Mode::Foreign(next);
        lane.reload_at = Some(self.now + self.settings.gap.timeout.max(1));
        self.settle(index);
    }

    /// The lane's record cannot be read: its events are dead-lettered, and only they.
    pub(super) fn break_lane(&mut self, index: u32, error: String) {
        self.unwind(index);
        self.lanes[index].mode = Mode::Broken(error);
        self.take_arrivals(index);
        self.settle(index);
    }

    /// Turns what is not durable back into arrivals.
    fn unwind(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        debug_assert!(!lane.writing, "a lane starts again only when no write of it is in flight");
        let arrivals = std::mem::take(&mut lane.arrivals);
        for held in lane.held.take() {
            self.memory -= held.event.memory();
            if held.copy == SpillCopy::Stored {
                continue;
            }
            let repeats = lane.repeats.iter().filter(|(sequence, _)| *sequence == held.sequence);
            let deliveries = std::iter::once(held.delivery).chain(repeats.map(|(_, d)| *d));
            for delivery in deliveries {
                self.memory += held.event.memory();
                lane.arrivals.push_back((delivery, held.event.clone()));
            }
        }
        for chunk in std::mem::take(&mut lane.pending) {
            self.ahead -= chunk.events;
            self.memory -= chunk.bytes;
            for (delivery, event) in chunk.joined {
                self.memory += event.memory();
                lane.arrivals.push_back((delivery, event));
            }
        }
        // Their memory stays counted: a check becomes an arrival.
        let checks = std::mem::take(&mut lane.checks);
        lane.arrivals.extend(checks.into_iter().map(|check| (check.delivery, check.event)));
        lane.arrivals.extend(arrivals);

        let settings = &self.settings;
        let fresh = Lane::new(lane.key.clone(), lane.shard, lane.birth, settings);
        let old = std::mem::replace(lane, fresh);
        lane.arrivals = old.arrivals;
        lane.turn = old.turn.map(|turn| super::lane::InTurn { stale: true, ..turn });
        lane.again = old.again;
        lane.dirty = old.dirty;
        lane.ready = old.ready;
        lane.timer = old.timer;
        lane.class = old.class;
        lane.restless = old.restless;
        lane.charged = old.charged;
        lane.link = old.link;
        if fault!(self, KeepRefusedState) {
            self.lanes[index].state = old.state;
        }
    }

    // The due index.

    pub(super) fn read_due(&mut self) {
        if self.due.reading || self.draining || self.due.at > self.now {
            return;
        }
        if self.due.after.is_none() {
            self.due.clean = true;
            self.due.in_pass = true;
        }
        let limit = DUE_PAGE.min(self.room());
        if limit == 0 {
            self.due.at = self.now + DUE_PAUSE;
            return;
        }
        self.due.reading = true;
        let after = self.due.after.clone();
        self.effects.push_back(Effect::ReadDue { after, limit, all: self.ended });
    }

    pub(super) fn due_read(&mut self, entries: Vec<(u64, Key)>, next_in: Option<u64>) {
        if !std::mem::take(&mut self.due.reading) {
            self.stats.stale += 1;
            return;
        }
        let some = !entries.is_empty();
        for entry in entries {
            if !self.bring_in(&entry.1) {
                break;
            }
            self.due.after = Some(entry);
        }
        let more = next_in.is_some_and(|wait| wait == 0 || self.ended);
        if some && more {
            self.due.at = self.now;
            return;
        }
        self.due.after = None;
        self.due.in_pass = false;
        // Entries of lanes in memory may have passed: those look after themselves.
        let poll = self.settings.due_poll;
        self.due.at =
            self.now + next_in.filter(|wait| *wait > 0).map_or(poll, |wait| wait.min(poll));
        if !self.due.clean {
            let pause = if self.ended { DUE_PAUSE_AT_END } else { DUE_PAUSE };
            self.due.soon(self.now + pause);
        }
    }

    /// Brings in the keys that somebody wants looked at.
    pub(super) fn look(&mut self) {
        while let Some(key) = self.looks.pop_front() {
            if !self.bring_in(&key) {
                self.looks.push_front(key);
                return;
            }
        }
    }

    /// Loads a key that is not in memory; `false` if there is no room.
    fn bring_in(&mut self, key: &Key) -> bool {
        if self.lanes.find(key).is_some() {
            return true;
        }
        if self.room() == 0 {
            return false;
        }
        let index = self.make_lane(Key::clone(key), shard_of(key, self.settings.shards));
        self.loads.push_back(index);
        self.settle(index);
        true
    }

    /// Something of a key that is not in memory may be due earlier than was known.
    pub(super) fn due_soon(&mut self, at: u64) {
        self.due.soon(at);
    }
}

/// Only the fault `KeepRefusedState` leaves a state in a lane that waits for its job.
fn fault_keeps_state(lane: &Lane) -> bool {
    cfg!(feature = "faults") && lane.state.is_some()
}
