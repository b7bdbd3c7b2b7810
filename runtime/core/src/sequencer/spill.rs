//! Events between memory and the store's spill area, and what makes them go there.

use std::sync::Arc;

use super::held::{Held, SpillCopy};
use super::letters::{aside, settling};
use super::window::NO_LANE;
use super::{Sequencer, Shard};
use crate::effect::Effect;
use crate::event::Event;
use crate::input::SpillPage;
use crate::job::Spilled;
use crate::letter::Cause;
use crate::settings::{Ordering, Overflow};
use crate::turn::Token;

impl Sequencer {
    /// Reads spilled events back when the next one to run, or to bury after the key's end, is
    /// among them.
    pub(super) fn want_page(&mut self, index: u32) {
        let lane = &self.lanes[index];
        let asked = lane.rare.page.is_some() || lane.rare.unreadable.is_some();
        if asked || lane.rare.rest.count == 0 || lane.writing {
            return;
        }
        if lane.turn.is_some() {
            // Until it has ended, which may be long, others need the room.
            return;
        }
        let next = lane.done + lane.running() as u64;
        let from = if lane.over() {
            lane.rare.rest.first
        } else if lane.ended
            || lane.parked()
            || lane.rare.retry_at.is_some()
            || lane.lacks_version(&self.settings)
            || !lane.rare.rest.spans(next)
            || lane.held.find(next).is_ok()
        {
            return;
        } else {
            next
        };
        let serial = self.next_serial();
        let lane = &mut self.lanes[index];
        lane.rare.make().page = Some(serial);
        self.pages.ask(Token { lane: index, serial });
        self.effects.push_back(Effect::ReadSpill {
            token: Token { lane: index, serial },
            key: lane.key.clone(),
            from,
            limit: self.settings.lane_buffer.max(self.settings.quantum),
            bytes: self.settings.batch_bytes,
        });
    }

    pub(super) fn spill_read(&mut self, token: Token, read: Result<SpillPage, String>) {
        // Also one that nobody waits for any more was under way.
        self.pages.answer(token);
        let Some(index) = self.answered(token, |lane| Some(&mut lane.rare.there()?.page)) else {
            return;
        };
        let lane = &mut self.lanes[index];
        if lane.ended && !lane.over() {
            // They are buried once the end is durable, and read again for that.
            self.settle(index);
            return;
        }
        let (events, end) = match read {
            Ok(page) => page,
            Err(error) => {
                lane.rare.make().unreadable = Some(error);
                self.settle(index);
                return;
            }
        };
        // What is in memory as well was spilled meanwhile: it is not counted in `rest`.
        let read = events.iter().filter(|(sequence, _)| lane.held.find(*sequence).is_err()).count();
        let left = lane.rare.rest.count.saturating_sub(read as u64);
        match events.last() {
            Some(&(read, _)) if !end && left > 0 && read < lane.rare.rest.last => {
                let (first, last) = (read + 1, lane.rare.rest.last);
                lane.rare.make().rest = Spilled { count: left, first, last };
            }
            _ => lane.rare.make().rest = Spilled::default(),
        }
        for (sequence, event) in events {
            if self.lanes[index].over() {
                self.bury(index, sequence, &event);
            } else {
                self.unspill(index, sequence, event);
            }
        }
        // What may have been among the events read is known now, and what was taken for there too.
        self.lanes[index].front = self.lanes[index].done;
        for check in self.lanes[index].rare.take_checks() {
            self.memory -= check.event.memory();
            self.take(index, check.delivery, check.event);
        }
        let lane = &mut self.lanes[index];
        if lane.rare.rest.count == 0 && (lane.ended || lane.held.is_empty()) {
            // The record says that there is more than there is.
            lane.header |= lane.job.spilled.count > 0;
        }
        self.settle(index);
    }

    /// A spilled event is in memory again.
    fn unspill(&mut self, index: u32, sequence: u64, event: Arc<Event>) {
        let lane = &mut self.lanes[index];
        if sequence < lane.done {
            return;
        }
        match lane.held.find(sequence) {
            Err(_) => {
                let (copy, at) = (SpillCopy::Stored, self.now);
                let held = Held { sequence, at, event, delivery: 0, copy, replayed: false };
                self.insert(index, held);
            }
            Ok(position) if lane.held.same(position, &event) => {
                // One that is being written ends with the answer to that: before, the store may
                // still lose it, and nobody would make it again.
                let held = lane.held.get(position);
                if held.is_some_and(|held| held.copy != SpillCopy::Writing) {
                    self.stored(index, position);
                }
            }
            Ok(_) => {
                let error = "another event of the same sequence is being executed".into();
                let letter = aside(&lane.key, sequence, &event, Cause::Conflict, error);
                self.free_letter(letter, 0);
            }
        }
    }

    /// The spill area has a copy of a held event: its deliveries are finished.
    pub(super) fn stored(&mut self, index: u32, position: usize) {
        let lane = &mut self.lanes[index];
        let Some((sequence, delivery)) = lane.held.stored(position) else { return };
        self.window.finish(delivery);
        self.finish_repeats(index, sequence);
    }

    pub(super) fn finish_repeats(&mut self, index: u32, sequence: u64) {
        for delivery in self.lanes[index].take_repeats(sequence) {
            self.duplicate(delivery);
        }
    }

    /// An event that was spilled before its key ended.
    pub(super) fn bury(&mut self, index: u32, sequence: u64, event: &Arc<Event>) {
        let letter = self.after_end_letter(index, sequence, event);
        self.free_letter(letter, 0);
    }

    /// Forgets held events that the store has and that cannot run soon.
    pub(super) fn unload(&mut self, index: u32) {
        let slow = self.filling() && self.lanes[index].turn.is_some();
        let lane = &mut self.lanes[index];
        if !(slow || lane.blocked()) || lane.rare.page.is_some() || lane.ended {
            return;
        }
        let stopped = lane.parked() || lane.rare.retry_at.is_some() || lane.rare.newer.is_some();
        let from = if slow || stopped {
            lane.done + lane.running() as u64
        } else {
            let gap = lane.rare.gap.as_ref().map_or(u64::MAX, |gap| gap.at);
            let rest = if lane.rare.rest.count > 0 { lane.rare.rest.first } else { u64::MAX };
            gap.min(rest)
        };
        let stored = |held: &Held| held.sequence >= from && held.copy == SpillCopy::Stored;
        for held in lane.held.extract(lane.running(), stored) {
            lane.rare.make().rest.add(held.sequence);
            self.memory -= held.event.memory();
        }
        lane.front = lane.done;
    }

    /// When the oldest delivery has waited so long that its lane is to spill.
    pub(super) fn spill_timeout(&self) -> Option<u64> {
        let head = self.window.head()?;
        self.can_spill_head(head.lane).then(|| head.at.saturating_add(self.settings.spill_after))
    }

    /// Not where the handler version is missing: then all keys wait, and the source keeps what there is
    /// no room for.
    pub(super) fn can_spill_head(&self, lane: u32) -> bool {
        lane != NO_LANE
            && self.settings.version.is_some()
            && !fault!(self, NeverSpill)
            && self.lanes.get(lane).is_some_and(|lane| {
                lane.live() && !lane.spill_all && lane.can_spill(&self.settings)
            })
    }

    /// Where events beyond `spill_limit` are dead-lettered, so are those that were held before
    /// their key stopped.
    pub(super) fn overflow_held(&mut self, index: u32) {
        let lane = &self.lanes[index];
        // A lane with nothing but checks has nothing to spill. That does not mean that it is full.
        let room =
            lane.job.spilled.count < self.settings.spill_limit || lane.can_spill(&self.settings);
        if self.settings.overflow != Overflow::DeadLetter
            || (lane.held.loose() == 0 && lane.rare.checks.is_empty())
            || lane.ended
            || lane.turn.is_some()
            || lane.writing
            || !lane.pending.is_empty()
            || !lane.blocked()
            || lane.assumed
            || room
        {
            return;
        }
        let lane = &mut self.lanes[index];
        let done = lane.done;
        let beyond = |held: &Held| held.sequence > done && held.copy == SpillCopy::None;
        let over = lane.held.extract(0, beyond).into_iter();
        let mut over: Vec<_> =
            over.map(|held| (held.sequence, held.delivery, held.event)).collect();
        if lane.rare.page.is_none() && !lane.rare.rest.contiguous() {
            let checks = lane.rare.take_checks().into_iter();
            over.extend(checks.map(|check| (check.sequence, check.delivery, check.event)));
        }
        if over.is_empty() {
            return;
        }
        lane.spill_all = false;
        lane.front = lane.done;
        for (sequence, delivery, event) in over {
            self.memory -= event.memory();
            if delivery == 0 && self.settings.ordering == Ordering::Sequenced {
                // It was offered or found: it comes again, or can be found again.
                continue;
            }
            let lane = &mut self.lanes[index];
            if let Some(ids) = &mut lane.ids {
                ids.forget_from(sequence);
            }
            self.overflow(index, sequence, delivery, &event);
            for delivery in self.lanes[index].take_repeats(sequence) {
                self.overflow(index, sequence, delivery, &event);
            }
        }
    }

    /// A parked key that may not spill any more holds up the stream. Another partition's owner,
    /// where the event that it waits for went astray, may have ended that: it looks again.
    pub(super) fn watch_full(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if !lane.parked() || !lane.durable_but_full(&self.settings) {
            return;
        }
        // What replay found or was offered holds up nobody, and comes again. What has its place by when it
        // came would lose that.
        let is_numbered_here = lane.ids.is_some();
        let goes =
            |held: &Held| held.delivery == 0 && held.copy == SpillCopy::None && !is_numbered_here;
        for held in lane.held.extract(0, goes) {
            self.memory -= held.event.memory();
            lane.front = lane.done;
        }
        if lane.held.loose() > 0 && lane.rare.reload_at.is_none() {
            lane.rare.make().reload_at = Some(self.now.saturating_add(self.settings.due_poll));
        }
    }

    /// Whether intake has stopped and nothing that runs will start it again.
    pub(super) fn stalled(&self) -> bool {
        self.window.len() >= self.prefetch
            && self.turns == 0
            && self.loads_under_way.len() == 0
            && self.ready.is_empty()
            && self.shards.iter().all(Shard::is_quiet)
    }

    /// What is held of a key that has just ended becomes letters.
    pub(super) fn completed(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        lane.spill_all = false;
        if let Some(rare) = lane.rare.there() {
            rare.forget_gap();
            // A read under way knows nothing of what comes back among the spilled here.
            rare.page = None;
        }
        if let Some(ids) = &mut lane.ids {
            // They end without a number, so that a repeat of one must not pass for settled.
            ids.forget_from(lane.done);
        }
        for held in lane.held.take() {
            self.memory -= held.event.memory();
            if held.copy == SpillCopy::Stored {
                // It is buried with the others that the store has, as they are read.
                self.lanes[index].rare.make().rest.add(held.sequence);
                continue;
            }
            self.after_end(index, held.sequence, held.delivery, &held.event);
            for delivery in self.lanes[index].take_repeats(held.sequence) {
                self.after_end(index, held.sequence, delivery, &held.event);
            }
        }
        let lane = &mut self.lanes[index];
        if lane.rare.rest.count == 0 && lane.job.spilled.count > 0 {
            lane.header = true;
        }
    }

    /// Settles a sequence that never came.
    pub(super) fn skip_unseen(&mut self, index: u32, last: u64, error: &str) {
        let lane = &mut self.lanes[index];
        let first = lane.done;
        let mut bytes = 0;
        let mut letters = Vec::new();
        for sequence in first..=last {
            let letter = settling(&lane.key, sequence, None, Cause::Gap, error.to_owned(), None);
            bytes += letter.memory();
            letters.push(letter);
        }
        let chunk = lane.chunk(None, &self.settings);
        chunk.next = last + 1;
        chunk.skipped.push((first, last));
        chunk.letters.append(&mut letters);
        chunk.bytes += bytes;
        self.memory += bytes;
        lane.done = last + 1;
        lane.job.rounds = 0;
        lane.job.attempts = 0;
        lane.job.trouble = None;
    }
}
