//! Checks the turns of an owner: I2 (each key has one turn at a time), the limits, and the results.

use ordain_core::{Turn, TurnResult};

use super::super::{Checker, at};
use super::RunningTurn;
use crate::handler;

impl Checker {
    pub(super) fn runs(&mut self, owner: u64, turn: &Turn) {
        let settings = self.plan.settings.clone();
        let Some(&(first, _)) = turn.events.first() else {
            return self.broke("I1", format!("{:?}: a turn has no event", turn.key));
        };
        let label = at(&turn.key, first);
        let consecutive =
            turn.events.iter().zip(first..).all(|((sequence, _), due)| *sequence == due);
        if !consecutive || turn.events.iter().any(|(_, event)| *event.key() != *turn.key) {
            self.broke("I1", format!("{label}: a turn has the events {:?}", turn.events));
        }
        if turn.events.iter().any(|(_, event)| handler::has_other_type(&self.plan, event)) {
            self.broke("types", format!("{label}: a turn has an event of another type"));
        }
        if turn.events.len() > settings.quantum {
            self.broke("I7", format!("{label}: a turn has {} events", turn.events.len()));
        }
        let stored = self.keys.get(&turn.key).filter(|model| model.live);
        let stored_next = stored.map(|model| model.next);
        let begins = first == settings.first && stored_next.is_some();
        let owner_model = self.owner_model(owner);
        if begins {
            // The lane of a guess does not know the rounds that the stored key record counts.
            owner_model.requests.retain(|(key, ..), _| *key != turn.key);
        }
        if begins && stored_next > Some(first) {
            owner_model.guesses.insert(turn.key.clone());
        }
        let guess = begins || owner_model.guesses.contains(&turn.key);
        let has = owner_model.rollout_number;
        let needs = owner_model.loaded.get(&turn.key).copied();
        // A guess is a turn that runs before its key record is loaded. A turn right after a guess is a guess, too.
        let ahead = owner_model.ahead.get(&turn.key).copied();
        let guessed = guess || ahead == Some((settings.first, first));
        if has.is_none_or(|has| !guessed && needs.is_some_and(|needs| has < needs)) {
            self.broke("I8", format!("{label}: runs with rollout {has:?}, but needs {needs:?}"));
        }
        let owner_model = self.owner_model(owner);
        let other = owner_model.turns.values().any(|running_turn| running_turn.key == turn.key);
        let fresh =
            owner_model.fresh.remove(&turn.key).is_none_or(|due| due != first || turn.fresh);
        let key = turn.key.clone();
        let events = turn.events.clone();
        let running_turn = RunningTurn { key, events, stale: false, guess, fresh: turn.fresh };
        let reused = owner_model.turns.insert(turn.token, running_turn).is_some();
        let turns = owner_model.turns.len();
        let to = first + turn.events.len() as u64;
        let range = owner_model.ahead.entry(turn.key.clone()).or_insert((first, to));
        if range.1 != first {
            *range = (first, to);
        }
        range.1 = to;
        let ahead: u64 = owner_model.ahead.values().map(|(from, to)| to - from).sum();
        let draining = owner_model.draining;
        if draining {
            self.broke("drain", format!("{label}: a turn starts after the drain"));
        } else if other {
            self.broke("I2", format!("{label}: a second turn of its key starts"));
        } else if reused {
            self.broke("I2", format!("{label}: its turn has the token of another turn"));
        } else if turns > settings.max_turns {
            self.broke("I7", format!("{label}: {turns} turns at a time"));
        } else if ahead > settings.run_ahead as u64 {
            self.broke("I7", format!("{label}: {ahead} events ahead of durability"));
        } else if !fresh {
            self.broke("retry", format!("{label}: its turn does not run on a fresh instance"));
        }
    }

    /// Records the result of a turn, which its owner is about to receive.
    pub(super) fn done(&mut self, owner: u64, done: &TurnResult) {
        let owner_model = self.owner_model(owner);
        let Some(running_turn) = owner_model.turns.remove(&done.token) else { return };
        let RunningTurn { key, events, stale, guess, fresh } = running_turn;
        let first = events[0].0;
        let next = first + done.outcomes.len() as u64;
        if let Some(range) = owner_model.ahead.get_mut(&key)
            && range.1 == first + events.len() as u64
        {
            range.1 = next.max(range.0);
        }
        let Some(failure) = &done.failure else { return };
        let (_, event) = &events[done.outcomes.len()];
        let behavior = handler::behavior(&self.plan, event);
        let counts = !stale && !guess;
        self.failed(&key, event.content(), behavior, counts);
        if !counts {
            return;
        }
        let on_new_version = self.plan.settings.retry.on_new_version;
        let owner_model = self.owner_model(owner);
        if on_new_version
            && owner_model
                .version
                .as_ref()
                .is_none_or(|version| *version != done.rollout.build.version)
        {
            // While this turn ran, the owner changed to another version, or lost its version and now waits for another
            // version. The count of attempts begins again.
            owner_model.failures.remove(&key);
            owner_model.fresh.remove(&key);
            return;
        }
        if failure.kind.may_pass() {
            let count = owner_model.failures.entry(key.clone()).or_insert((next, 0));
            *count = (next, if count.0 == next { count.1 + 1 } else { 1 });
        } else if !fresh || next != first {
            owner_model.fresh.insert(key.clone(), next);
        }
    }
}
