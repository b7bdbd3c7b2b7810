//! Checks the turns of an owner: I2 (each key has one turn at a time), the limits, and the results.

use ordain_core::{Turn, TurnResult};

use super::super::{Checker, at};
use super::Flight;
use crate::handler;

impl Checker {
    pub(super) fn runs(&mut self, owner: u64, turn: &Turn) {
        let settings = self.plan.settings.clone();
        let Some(&(first, _)) = turn.events.first() else {
            return self.broke("I1", format!("{:?}: an empty turn", turn.key));
        };
        let place = at(&turn.key, first);
        let consecutive = turn.events.iter().zip(first..).all(|((s, _), due)| *s == due);
        if !consecutive || turn.events.iter().any(|(_, e)| *e.key() != *turn.key) {
            self.broke("I1", format!("{place}: a turn of {:?}", turn.events));
        }
        if turn.events.len() > settings.quantum {
            self.broke("I7", format!("{place}: a turn of {} events", turn.events.len()));
        }
        let guess = first == settings.first && self.keys.get(&turn.key).is_some_and(|k| k.live);
        let watch = self.watch(owner);
        let has = watch.generation;
        let needs = watch.loaded.get(&turn.key).copied();
        // A guess is a turn that runs before its key record is loaded. A turn right after a guess is a guess, too.
        let ahead = watch.ahead.get(&turn.key).copied();
        let guessed = guess || ahead == Some((settings.first, first));
        if has.is_none_or(|has| !guessed && needs.is_some_and(|needs| has < needs)) {
            self.broke("I8", format!("{place}: runs with rollout {has:?}, but needs {needs:?}"));
        }
        let watch = self.watch(owner);
        let other = watch.turns.values().any(|flight| flight.key == turn.key);
        let fresh = watch.fresh.remove(&turn.key).is_none_or(|due| due != first || turn.fresh);
        let key = turn.key.clone();
        let events = turn.events.clone();
        let flight = Flight { key, events, stale: false, guess, fresh: turn.fresh };
        let reused = watch.turns.insert(turn.token, flight).is_some();
        let turns = watch.turns.len();
        let to = first + turn.events.len() as u64;
        let range = watch.ahead.entry(turn.key.clone()).or_insert((first, to));
        if range.1 != first {
            *range = (first, to);
        }
        range.1 = to;
        let ahead: u64 = watch.ahead.values().map(|(from, to)| to - from).sum();
        let draining = watch.draining;
        if draining {
            self.broke("drain", format!("{place}: a turn after the drain"));
        } else if other {
            self.broke("I2", format!("{place}: a second turn of its key"));
        } else if reused {
            self.broke("I2", format!("{place}: a token used twice"));
        } else if turns > settings.max_turns {
            self.broke("I7", format!("{place}: {turns} turns at a time"));
        } else if ahead > settings.run_ahead as u64 {
            self.broke("I7", format!("{place}: {ahead} events ahead of durability"));
        } else if !fresh {
            self.broke("retry", format!("{place}: not on a fresh instance"));
        }
    }

    pub(super) fn done(&mut self, owner: u64, done: &TurnResult) {
        let watch = self.watch(owner);
        let Some(flight) = watch.turns.remove(&done.token) else { return };
        let Flight { key, events, stale, guess, fresh } = flight;
        let first = events[0].0;
        let next = first + done.outcomes.len() as u64;
        if let Some(range) = watch.ahead.get_mut(&key)
            && range.1 == first + events.len() as u64
        {
            range.1 = next.max(range.0);
        }
        let Some(failure) = &done.failure else { return };
        let (_, event) = &events[done.outcomes.len()];
        let nature = handler::nature(&self.plan, event);
        let counts = !stale && !guess;
        self.failed(&key, event.content(), nature, counts);
        if !counts {
            return;
        }
        let on_new_version = self.plan.settings.retry.on_new_version;
        let watch = self.watch(owner);
        if on_new_version
            && watch.version.as_ref().is_none_or(|version| *version != done.rollout.build.version)
        {
            // While this turn ran, the owner switched to another version, or left its version and now waits for another
            // one. The count of tries begins again.
            watch.failures.remove(&key);
            watch.fresh.remove(&key);
            return;
        }
        if failure.kind.may_pass() {
            let count = watch.failures.entry(key.clone()).or_insert((next, 0));
            *count = (next, if count.0 == next { count.1 + 1 } else { 1 });
        } else if !fresh || next != first {
            watch.fresh.insert(key.clone(), next);
        }
    }
}
