//! The driver of an owner. It passes inputs to the owner's sequencer in batches, performs the sequencer's effects, and
//! sleeps until an input arrives or the sequencer's timeout passes. The real driver does the same with tasks and
//! sockets.

use ordain_core::{DeadLetter, Effect, Input, Key, LetterContent, LetterId, OrderingMode};

use super::{Action, Owner, World};
use crate::producer::SourceItem;

/// Maximum number of effects that a sequencer may request in one round of its driver. The simulated worlds are so small
/// that a correct sequencer never requests more.
const EFFECT_LIMIT: usize = 20_000;

/// Maximum number of consecutive driver rounds in which a timeout passes and the owner requests nothing. Each key may
/// cause some such rounds.
const IDLE_ROUND_LIMIT: u32 = 2_000;

impl World {
    pub(super) fn perform_action(&mut self, action: Action) {
        match action {
            Action::Input(id, input) => self.step(id, Some(input)),
            Action::Wake(id) => {
                if let Some(owner) = self.owners.get_mut(&id)
                    && owner.wakes_at == Some(self.now)
                {
                    owner.wakes_at = None;
                }
                self.step(id, None);
            }
            Action::Commit { owner, claim, batch, reply } => {
                self.store_commits(owner, claim, &batch, reply);
            }
            Action::Serve(owner, effect) if self.waits(owner, &effect) => {
                self.serve_later(owner, effect);
            }
            Action::Serve(owner, effect) => self.serve(owner, &effect),
            Action::Publish { owner, shard, number, posts } => {
                self.publishes(owner, shard, number, &posts);
            }
            other => self.disturbance(other),
        }
    }

    /// Retries an effect later: after 1 ms, or after 100 ms if the owner has no handler version.
    fn serve_later(&mut self, owner: u64, effect: Effect) {
        let has = self.owners.get(&owner).is_none_or(|owner| owner.version.is_some());
        self.schedule(if has { 1 } else { 100 }, Action::Serve(owner, effect));
    }

    /// Returns whether an effect must wait, because memory is full or the owner lacks the handler version.
    fn waits(&self, id: u64, effect: &Effect) -> bool {
        let Some(Owner { sequencer, version, .. }) = self.owners.get(&id) else { return false };
        match effect {
            Effect::Run(_) => !sequencer.may_run() || version.is_none(),
            Effect::Load { .. } | Effect::ReadSpill { .. } => !sequencer.may_read(),
            _ => false,
        }
    }

    pub(super) fn step(&mut self, id: u64, input: Option<Input>) {
        let Some(mut owner) = self.owners.remove(&id) else { return };
        let now = owner.clock + self.now;
        for input in input.into_iter().chain(self.more_inputs(id)) {
            self.pass_input(id, &mut owner, now, input);
        }
        self.deliveries(id, &mut owner, now);
        if owner.sequencer.poll_timeout().is_some_and(|at| at <= now) {
            owner.sequencer.handle_timeout(now);
            owner.idle_rounds += 1;
        }
        if !self.drain(id, &mut owner) {
            self.remove_owner(id, owner.partition);
            return;
        }
        if owner.sequencer.quiescent() {
            owner.quiescent_at = self.now;
        }
        if owner.connection.outstanding() > self.plan.settings.prefetch {
            self.checker
                .broke("I7", "the owner accepted more deliveries than its prefetch allows".into());
        }
        if owner.idle_rounds > IDLE_ROUND_LIMIT {
            self.checker.broke(
                "livelock",
                format!("the timeout before {now} passes again and again without an effect"),
            );
        }
        let stats = owner.sequencer.stats();
        let credit = owner.sequencer.credit();
        self.checker.drained(id, owner.partition, &stats, credit, &self.store);
        if owner.has_drained(self.now) {
            self.remove_owner(id, owner.partition);
            return;
        }
        self.sleep(id, &mut owner, now);
        self.owners.insert(id, owner);
    }

    /// Returns the further inputs that the driver passes in the same batch: none, some or all of the inputs that arrive
    /// at the same time.
    fn more_inputs(&mut self, id: u64) -> Vec<Input> {
        let limit = self.rng.pick(&[0, 1, 100]);
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(entry) = self.agenda.first_entry()
            && entry.key().0 == self.now
            && matches!(entry.get(), Action::Input(other, _) if *other == id)
        {
            if let Action::Input(_, input) = entry.remove() {
                taken.push(input);
            }
        }
        taken
    }

    fn pass_input(&mut self, id: u64, owner: &mut Owner, now: u64, input: Input) {
        self.trace.input(self.now, id, &input);
        self.checker.input_received(id, &input);
        if let Input::Replayed { found, .. } = &input {
            for (_, event) in found {
                self.checker.event_received(event);
            }
        }
        owner.sequencer.handle(now, input);
    }

    /// Passes offers and deliveries of the source to the owner while the owner accepts events. A random number limits
    /// the deliveries. A draining owner gets none.
    fn deliveries(&mut self, id: u64, owner: &mut Owner, now: u64) {
        let partition = owner.partition as usize;
        let away = self.plan.disturb.offers.is_some()
            && self.sources[partition].is_away(&owner.connection, self.now);
        if away != owner.connection.away {
            owner.connection.away = away;
            self.pass_input(id, owner, now, Input::SourceUnavailable(away));
        }
        let most = if owner.drains_until.is_some() { 0 } else { self.rng.pick(&[1, 7, 1_000]) };
        while most > 0 && self.plan.disturb.offers.is_some() && owner.sequencer.credit() > 0 {
            let source = &self.sources[partition];
            let Some(item) = source.offer(&mut owner.connection, self.now) else { break };
            if let SourceItem::Event(event) = item {
                self.checker.event_received(&event);
                self.pass_input(id, owner, now, Input::ArrivedEarly(event));
            }
        }
        for _ in 0..most {
            if owner.sequencer.credit() == 0 || self.is_prefetch_full(owner) {
                break;
            }
            let source = &self.sources[partition];
            let Some((delivery, item)) = source.deliver(&mut owner.connection, self.now) else {
                break;
            };
            let input = match item {
                SourceItem::Event(event) => {
                    self.checker.event_received(&event);
                    Input::Arrived { delivery, event }
                }
                SourceItem::Unreadable(bytes) => {
                    self.checker.delivered_raw(&bytes);
                    Input::Unreadable { delivery, letter: Box::new(unreadable(bytes)) }
                }
            };
            self.pass_input(id, owner, now, input);
        }
        let at_end = self.sources[partition].at_end(&owner.connection);
        if self.plan.once && at_end && !owner.connection.ended {
            owner.connection.ended = true;
            self.pass_input(id, owner, now, Input::SourceEnded);
        }
    }

    /// Returns whether the owner has `prefetch` unacknowledged deliveries, in a `fifo` stream that remembers at most
    /// `prefetch` ids. A broker then delivers nothing until an acknowledgement arrives, although the sequencer may
    /// accept further deliveries.
    fn is_prefetch_full(&self, owner: &Owner) -> bool {
        let settings = &self.plan.settings;
        settings.ordering == OrderingMode::Fifo
            && settings.id_floor <= settings.prefetch
            && owner.connection.outstanding() >= settings.prefetch
    }

    /// Returns false if the owner ended meanwhile.
    fn drain(&mut self, id: u64, owner: &mut Owner) -> bool {
        let mut effects = 0;
        while let Some(effect) = owner.sequencer.poll_effect() {
            effects += 1;
            owner.idle_rounds = 0;
            if effects > EFFECT_LIMIT {
                self.checker.broke(
                    "livelock",
                    format!("more than {EFFECT_LIMIT} effects in one round of the driver"),
                );
                return false;
            }
            self.trace.effect(self.now, id, &effect);
            self.checker.effect_requested(id, &effect);
            let stopped = self.perform(id, owner, effect);
            if let Some(left) = &mut owner.dies_after {
                *left = left.saturating_sub(1);
            }
            if stopped || owner.dies_after == Some(0) {
                self.after_stop(id, owner, stopped);
                return false;
            }
        }
        true
    }

    /// A stopped owner must request nothing more.
    fn after_stop(&mut self, id: u64, owner: &mut Owner, stopped: bool) {
        while stopped && let Some(effect) = owner.sequencer.poll_effect() {
            self.checker.effect_requested(id, &effect);
        }
    }

    /// The next round follows at the next arrival, timeout or change of the connection, or at the end of a drain.
    fn sleep(&mut self, id: u64, owner: &mut Owner, now: u64) {
        let source = &self.sources[owner.partition as usize];
        let takes = owner.drains_until.is_none() && owner.sequencer.credit() > 0;
        let offer = self.plan.disturb.offers.and_then(|_| source.next_offer_at(&owner.connection));
        let arrival = offer.or_else(|| source.next_at(&owner.connection)).filter(|_| takes);
        let timeout = owner.sequencer.poll_timeout().map(|at| at.max(now) - owner.clock);
        let drained = owner.drains_until;
        let back = owner.connection.away.then_some(owner.connection.open_at);
        let Some(at) = arrival.into_iter().chain(timeout).chain(drained).chain(back).min() else {
            return;
        };
        let at = at.max(self.now);
        if owner.wakes_at.is_none_or(|other| at < other) {
            owner.wakes_at = Some(at);
            self.schedule(at - self.now, Action::Wake(id));
        }
    }
}

/// A decoder creates this letter for bytes that are not an event.
fn unreadable(bytes: bytes::Bytes) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: Key::from(""), sequence: 0, tag: ordain_core::digest(&bytes) | 1 },
        cause: ordain_core::Cause::Unreadable,
        error: "simulated: not an event".into(),
        origin: None,
        version: None,
        content: LetterContent::Raw(bytes),
    }
}
