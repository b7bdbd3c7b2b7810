//! A queue in a store that goes back in time, with its reader, writers and the owner whose commits settle what
//! was read. The reader's decisions are the product's own ([`QueueCursor`]); the rest is written from the
//! protocol alone.

use std::collections::{BTreeSet, VecDeque};

use ordain_core::{QueueCursor, QueuePlace, QueueRun};

use crate::Violation;
use crate::rng::{Rng, mix};

/// A rule that is broken on purpose, to prove that the checks bite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueFault {
    /// A read names a number, and not a place.
    ReadsByNumber,
    /// A removal names a number, and not a place.
    RemovesByNumber,
    /// A removal does not name the commit that it rests on.
    RemovesWithoutCommit,
    /// A reader that begins again has forgotten what it delivered.
    ForgetsWhatItDelivered,
    /// All calls give the same history.
    HistoriesAreAlike,
    /// A reader does not look for what writers of its process have put.
    ExpectsNothing,
}

impl QueueFault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ReadsByNumber,
        Self::RemovesByNumber,
        Self::RemovesWithoutCommit,
        Self::ForgetsWhatItDelivered,
        Self::HistoriesAreAlike,
        Self::ExpectsNothing,
    ];
}

/// What happened in a run, to see that seeds reach all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueSeen {
    /// Times that the store went back.
    pub rewinds: u64,
    /// Reads or removals that the store refused.
    pub refused: u64,
    /// Entries that the store lost before they were read, and that were counted.
    pub lost: u64,
    /// Entries that were read again and not delivered again.
    pub known: u64,
    /// Times that the process ended and another began.
    pub restarts: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    history: u64,
}

/// What the store holds.
#[derive(Debug, Clone, Default)]
struct Store {
    /// All entries that were ever put; the first has number 1.
    entries: Vec<Entry>,
    /// How many of them are removed.
    removed: u64,
    commits: u64,
    effects: BTreeSet<u64>,
}

impl Store {
    fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether the place is, or was, there; of what is removed only the last one is remembered.
    fn has(&self, place: QueuePlace) -> bool {
        let QueuePlace { number, history } = place;
        number == 0
            || number < self.removed
            || number <= self.last() && self.entries[number as usize - 1].history == history
    }
}

struct World {
    rng: Rng,
    fault: Option<QueueFault>,
    store: Store,
    /// What the store held after each change, up to now.
    past: Vec<Store>,
    cursor: QueueCursor,
    /// Delivered and not settled.
    open: VecDeque<(QueuePlace, u64)>,
    /// Settled and not finished: a driver acknowledges a little later.
    settled: VecDeque<(QueuePlace, u64)>,
    /// The commits and effects that the owner knows.
    commits: u64,
    effects: BTreeSet<u64>,
    /// Delivered by the process that runs now, and not finished.
    under_way: BTreeSet<u64>,
    /// All that was ever delivered.
    ever: BTreeSet<u64>,
    /// What this process put, and has not told its reader.
    untold: VecDeque<QueueRun>,
    /// What this process put and its reader is to miss if it gets lost.
    own: BTreeSet<u64>,
    calls: u64,
    seen: QueueSeen,
}

/// Plays the run of a seed.
pub fn run_queue(seed: u64, fault: Option<QueueFault>) -> Result<QueueSeen, Violation> {
    let mut world = World {
        rng: Rng::new(mix(&[seed, 0x71])),
        fault,
        store: Store::default(),
        past: vec![Store::default()],
        cursor: QueueCursor::default(),
        open: VecDeque::new(),
        settled: VecDeque::new(),
        commits: 0,
        effects: BTreeSet::new(),
        under_way: BTreeSet::new(),
        ever: BTreeSet::new(),
        untold: VecDeque::new(),
        own: BTreeSet::new(),
        calls: 0,
        seen: QueueSeen::default(),
    };
    let (restarts, foreign) = (world.rng.permille(300), world.rng.permille(500));
    for _ in 0..world.rng.between(10, 80) {
        match world.rng.below(20) {
            0..5 => world.put(foreign),
            5..9 => world.read()?,
            9..12 => world.settle(),
            12..14 => world.finish(),
            14..17 => world.remove()?,
            17 => world.tell(),
            18 if restarts => world.restart(),
            _ => world.go_back(),
        }
    }
    // At last all is read, settled and removed.
    for _ in 0..2 {
        world.make_again();
        world.tell();
        for reads in 0.. {
            if !world.has_news() {
                break;
            }
            world.read()?;
            if reads > 1_000 {
                return Err(violation("nothing gets stuck", "it is read for ever".to_owned()));
            }
        }
        world.read()?;
        while !world.open.is_empty() {
            world.settle();
        }
        world.finish();
        world.remove()?;
    }
    world.check()?;
    Ok(world.seen)
}

impl World {
    fn is(&self, fault: QueueFault) -> bool {
        self.fault == Some(fault)
    }

    fn changed(&mut self) {
        self.past.push(self.store.clone());
    }

    /// A call puts one to three entries.
    fn put(&mut self, may_be_foreign: bool) {
        self.calls += 1;
        let before = self.store.entries.last().map_or(0, |it| it.history);
        let nonce = if self.is(QueueFault::HistoriesAreAlike) { 0 } else { self.calls };
        let history = mix(&[before * u64::from(nonce > 0), nonce]);
        let first = self.store.last() + 1;
        let is_own = !(may_be_foreign && self.rng.permille(400));
        for at in 0..self.rng.between(1, 3) {
            let id = self.calls * 10 + at;
            self.store.entries.push(Entry { id, history });
            if is_own {
                self.own.insert(id);
            }
        }
        if is_own {
            self.untold.push_back(QueueRun { first, last: self.store.last(), history });
        }
        self.changed();
    }

    fn tell(&mut self) {
        while let Some(run) = self.untold.pop_front() {
            if !self.is(QueueFault::ExpectsNothing) {
                self.cursor.expect(run);
            }
        }
    }

    /// Whether a look at the ends of the queue finds something to read.
    fn has_news(&self) -> bool {
        let history = self.store.entries.last().map_or(0, |it| it.history);
        let last = QueuePlace { number: self.store.last(), history };
        let after = self.cursor.after();
        last != after && (after.number > 0 || self.store.last() > self.store.removed)
    }

    fn read(&mut self) -> Result<(), Violation> {
        let after = self.cursor.after();
        if !self.store.has(after) && !self.is(QueueFault::ReadsByNumber) {
            self.begin_again();
            return Ok(());
        }
        self.cursor.begins_at(self.store.removed + 1);
        let from = after.number.max(self.store.removed) as usize;
        let end = (from + self.rng.between(1, 4) as usize).min(self.store.entries.len());
        if from >= end {
            self.cursor.reached_end(self.store.removed + 1);
        }
        for at in from..end {
            let Entry { id, history } = self.store.entries[at];
            let place = QueuePlace { number: at as u64 + 1, history };
            if !self.cursor.take(place) {
                self.seen.known += 1;
                continue;
            }
            // What is finished may come again, as after a restart: it is known by its id then.
            if !self.under_way.insert(id) {
                return Err(violation("delivered once", format!("entry {id} at {place:?}")));
            }
            self.ever.insert(id);
            self.open.push_back((place, id));
        }
        self.seen.lost += self.cursor.take_lost();
        Ok(())
    }

    fn begin_again(&mut self) {
        self.seen.refused += 1;
        if self.is(QueueFault::ForgetsWhatItDelivered) {
            self.cursor = QueueCursor::default();
        }
        self.cursor.restart();
    }

    /// Commits the first entry that is open; before that, what the store has lost.
    fn settle(&mut self) {
        let Some((place, id)) = self.open.pop_front() else { return };
        self.commits += 1;
        self.effects.insert(id);
        self.settled.push_back((place, id));
        self.make_again();
    }

    fn make_again(&mut self) {
        self.store.commits = self.commits;
        self.store.effects.clone_from(&self.effects);
        self.changed();
    }

    fn finish(&mut self) {
        while let Some((place, id)) = self.settled.pop_front() {
            self.under_way.remove(&id);
            self.cursor.finish(place);
        }
    }

    fn remove(&mut self) -> Result<(), Violation> {
        let Some(through) = self.cursor.removable() else { return Ok(()) };
        if !self.is(QueueFault::RemovesByNumber) && !self.store.has(through) {
            self.begin_again();
            return Ok(());
        }
        if !self.is(QueueFault::RemovesWithoutCommit) && self.store.commits < self.commits {
            self.seen.refused += 1;
            if self.rng.permille(500) {
                self.make_again();
            }
            return Ok(());
        }
        let through_number = through.number.min(self.store.last());
        for at in self.store.removed..through_number {
            let Entry { id, .. } = self.store.entries[at as usize];
            if !self.store.effects.contains(&id) {
                let words = format!("entry {id}, number {}, through {through:?}", at + 1);
                return Err(violation("removed after its effect is durable", words));
            }
        }
        self.store.removed = self.store.removed.max(through_number);
        self.cursor.removed(through);
        self.changed();
        Ok(())
    }

    fn go_back(&mut self) {
        // Whoever was answered has told the reader.
        self.tell();
        let lost = self.rng.below(self.past.len().min(8) as u64) as usize;
        self.past.truncate(self.past.len() - lost);
        self.store.clone_from(self.past.last().expect("the beginning stays"));
        self.seen.rewinds += 1;
    }

    /// The process ends; another begins with what the store has.
    fn restart(&mut self) {
        self.cursor = QueueCursor::default();
        self.open.clear();
        self.settled.clear();
        self.untold.clear();
        self.under_way.clear();
        self.commits = self.store.commits;
        self.effects.clone_from(&self.store.effects);
        self.seen.restarts += 1;
    }

    fn check(&mut self) -> Result<(), Violation> {
        let Store { entries, removed, effects, .. } = &self.store;
        for Entry { id, .. } in entries {
            if !effects.contains(id) {
                return Err(violation(
                    "what the store accepted takes effect",
                    format!("entry {id}"),
                ));
            }
        }
        if *removed != entries.len() as u64 {
            let words = format!("{removed} of {} are removed", entries.len());
            return Err(violation("what is settled is removed", words));
        }
        if self.seen.restarts == 0 {
            let is_lost = |id: &&u64| {
                !self.ever.contains(id) && !entries.iter().any(|entry| entry.id == **id)
            };
            let lost = self.own.iter().filter(is_lost).count() as u64;
            if lost != self.seen.lost {
                let words = format!("{lost} are lost, and {} were counted", self.seen.lost);
                return Err(violation("what is lost is counted", words));
            }
        }
        Ok(())
    }
}

fn violation(invariant: &'static str, detail: String) -> Violation {
    Violation { invariant, detail }
}
