//! The shards, the checkpoint in the first shard, and the owner that reads the file.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use super::{CheckpointFault, CheckpointStep, SHARDS};

/// The counts of rare events. A comparison of two states ignores them, except `rollbacks` and `restarts`, which are
/// also a part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckpointCounts {
    /// Number of times that shards went back.
    pub rollbacks: u64,
    /// Number of times that an owner read the file from its beginning, because a shard lacked the commit that the
    /// checkpoint named.
    pub reread: u64,
    /// Number of lost commits that an owner repeated.
    pub repeated: u64,
    /// Number of dead letters that repeated commits wrote or removed.
    pub letters: u64,
    /// Number of times that another owner claimed the partition.
    pub restarts: u64,
}

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckpointViolation {
    /// The file has an event that no commit in the store has settled.
    Missing,
    /// A commit has settled an event of the file as a dead letter, but the event has neither an effect nor a dead
    /// letter.
    NoLetter,
    /// An event of the file has two effects, two dead letters, or an effect and a dead letter.
    Duplicated,
    /// The owner never finishes.
    Stuck,
}

impl CheckpointViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "an event that was read is settled",
            Self::NoLetter => "a settled event has its effect or its dead letter",
            Self::Duplicated => "an event has one effect or one dead letter",
            Self::Stuck => "the owner reads the whole file",
        }
    }
}

/// Valid only if all shards still have the last commit that the checkpoint names for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Checkpoint {
    position: u8,
    commits: Vec<usize>,
    /// Counts the resets of the checkpoint to the beginning of the file, including this write.
    resets: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Commit {
    /// Events that take effect.
    effects: Vec<u8>,
    /// Events that become dead letters.
    letters: Vec<u8>,
    /// Events whose dead letters the commit removes.
    removed: Vec<u8>,
}

/// The epoch of the owner's claim, the commits, and the events that have a dead letter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Shard {
    epoch: u8,
    commits: Vec<Commit>,
    letters: Vec<u8>,
}

impl Shard {
    /// The commit changes dead letters only if `with_letters` is true.
    fn apply(&mut self, commit: &Commit, with_letters: bool) {
        if with_letters {
            self.letters.retain(|event| !commit.removed.contains(event));
            self.letters.extend(&commit.letters);
        }
        self.commits.push(commit.clone());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Store {
    shards: Vec<Shard>,
    checkpoint: Option<Checkpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    epoch: u8,
    /// For each shard, the number of its last commit at the time of the owner's claim.
    commits_at_claim: Vec<usize>,
    /// For each shard, the commits that the owner found when it claimed the shard, and the owner's own commits.
    commits: Vec<Vec<Commit>>,
    /// `None` until the owner has read the checkpoint.
    next: Option<u8>,
    /// Read but not committed.
    open: Vec<u8>,
    /// Taken from their dead letters but not committed.
    from_letters: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<CheckpointFault>,
    file: u8,
    /// Number of events that become dead letters.
    dead: u8,
    store: Store,
    /// The first of these states is the first state of the run.
    past: Vec<Store>,
    owner: Owner,
    /// Counts the resets of the checkpoint to the beginning of the file.
    resets: u64,
    /// The store has an older checkpoint again, because it lost a reset to the beginning of the file.
    lost_reset: bool,
    rollbacks: u64,
    restarts: u64,
    broken: Option<CheckpointViolation>,
}

/// The state of a run at one moment, and the counts of rare events up to this moment.
#[derive(Debug, Clone)]
pub struct CheckpointWorld {
    state: State,
    counts: CheckpointCounts,
    /// The violation that the final check would find if the run now finished all work without further losses. The first
    /// use computes this value.
    end_check: OnceLock<Option<CheckpointViolation>>,
}

impl PartialEq for CheckpointWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for CheckpointWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

impl Owner {
    /// The new owner knows the commits that the shards have.
    fn claim(epoch: u8, store: &mut Store) -> Self {
        for shard in &mut store.shards {
            shard.epoch = epoch;
        }
        Self {
            epoch,
            commits_at_claim: store.shards.iter().map(|shard| shard.commits.len()).collect(),
            commits: store.shards.iter().map(|shard| shard.commits.clone()).collect(),
            next: None,
            open: Vec::new(),
            from_letters: Vec::new(),
        }
    }

    /// Returns whether the owner knows a commit that settles the event.
    fn knows(&self, event: u8) -> bool {
        let mut commits = self.commits[usize::from(event % SHARDS)].iter();
        commits.any(|commit| commit.effects.contains(&event) || commit.letters.contains(&event))
    }

    /// Returns whether the owner knows of an effect of the event, or is about to execute the event.
    fn executes(&self, event: u8) -> bool {
        let mut commits = self.commits[usize::from(event % SHARDS)].iter();
        self.from_letters.contains(&event) || commits.any(|commit| commit.effects.contains(&event))
    }
}

impl CheckpointWorld {
    /// The file has `file` events; the first `dead` of them become dead letters.
    pub fn new(file: u8, dead: u8, fault: Option<CheckpointFault>) -> Self {
        let shards = vec![Shard::default(); usize::from(SHARDS)];
        let mut store = Store { shards, checkpoint: None };
        let past = vec![store.clone()];
        let owner = Owner::claim(1, &mut store);
        let state = State {
            fault,
            file,
            dead,
            store,
            past,
            owner,
            resets: 0,
            lost_reset: false,
            rollbacks: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, counts: CheckpointCounts::default(), end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: CheckpointStep) {
        self.end_check = OnceLock::new();
        match step {
            CheckpointStep::Start => self.start(),
            CheckpointStep::Read(count) => self.read(count),
            CheckpointStep::Commit(shard) => self.commit(shard),
            CheckpointStep::TakeLetter => self.take_letter(),
            CheckpointStep::Save => self.save(),
            CheckpointStep::Repeat => self.repeat(),
            CheckpointStep::Remember => self.remember(),
            CheckpointStep::GoBack(shard, to) => self.go_back(shard, to),
            CheckpointStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<CheckpointViolation> {
        self.state.broken
    }

    /// Returns the broken rule, if any, that the final check would find if the run now finished all work without
    /// further losses.
    pub fn broken_at_end(&self) -> Option<CheckpointViolation> {
        *self.end_check.get_or_init(|| {
            let mut world = self.clone();
            world.finish_and_check();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn counts(&self) -> CheckpointCounts {
        let State { rollbacks, restarts, .. } = self.state;
        CheckpointCounts { rollbacks, restarts, ..self.counts }
    }

    /// Returns how often shards went back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    /// Returns how often another owner claimed the partition.
    pub fn restarts(&self) -> u64 {
        self.state.restarts
    }

    /// Returns the number of states that the shards may go back to.
    pub fn past(&self) -> usize {
        self.state.past.len()
    }

    fn is(&self, fault: CheckpointFault) -> bool {
        self.state.fault == Some(fault)
    }

    /// Opens the file at the position of the checkpoint. If a shard lacks the commit that the checkpoint names, sets
    /// the checkpoint back to the beginning. If the shard of the checkpoint has lost the owner's claim, ends the owner
    /// instead.
    fn start(&mut self) {
        let leaves_old = self.is(CheckpointFault::OldCheckpointStays);
        let State { store, owner, resets, .. } = &mut self.state;
        if owner.next.is_some() {
            return;
        }
        let Some(checkpoint) = &store.checkpoint else {
            owner.next = Some(0);
            return;
        };
        let mut commits = checkpoint.commits.iter().zip(&owner.commits_at_claim);
        if commits.all(|(named, at_claim)| at_claim >= named) {
            owner.next = Some(checkpoint.position);
            return;
        }
        self.counts.reread += 1;
        owner.next = Some(0);
        if leaves_old {
            return;
        }
        // New commits will get the numbers of the lost commits. With these commits, the old checkpoint would seem
        // valid.
        if store.shards[0].epoch == owner.epoch {
            *resets += 1;
            let commits = owner.commits_at_claim.clone();
            store.checkpoint = Some(Checkpoint { position: 0, commits, resets: *resets });
        } else {
            self.restart();
        }
    }

    fn read(&mut self, count: u8) {
        let executes_settled = self.is(CheckpointFault::SettledEventsAreExecuted);
        let State { owner, file, .. } = &mut self.state;
        let Some(next) = owner.next else { return };
        let end = next.saturating_add(count).min(*file);
        let is_new = |event: &u8| executes_settled || !owner.knows(*event);
        let new = (next..end).filter(is_new).collect::<Vec<_>>();
        owner.open.extend(new);
        owner.next = Some(end);
    }

    /// Repeats the lost commits of a shard. Then commits the open events of the shard, and the events of the shard that
    /// the owner has taken from dead letters.
    fn commit(&mut self, shard: u8) {
        let State { owner, dead, .. } = &self.state;
        let of_shard = |event: &u8| event % SHARDS == shard;
        let removed: Vec<u8> = owner.from_letters.iter().copied().filter(of_shard).collect();
        let open = owner.open.iter().copied().filter(of_shard);
        let (letters, mut effects): (Vec<u8>, Vec<u8>) = open.partition(|event| event < dead);
        effects.extend(&removed);
        let commit = Commit { effects, letters, removed };
        if commit == Commit::default() || !self.repeat_in(usize::from(shard)) {
            return;
        }
        let State { store, owner, .. } = &mut self.state;
        owner.open.retain(|event| !of_shard(event));
        owner.from_letters.retain(|event| !of_shard(event));
        let at = usize::from(shard);
        store.shards[at].apply(&commit, true);
        owner.commits[at].push(commit);
    }

    /// An owner that has not read the checkpoint yet takes nothing, because it must not commit yet.
    fn take_letter(&mut self) {
        let is_removed_early = self.is(CheckpointFault::LettersAreRemovedEarly);
        let State { store, owner, .. } = &mut self.state;
        if owner.next.is_none() {
            return;
        }
        let mut letters = store.shards.iter().flat_map(|shard| &shard.letters).copied();
        let Some(event) = letters.find(|event| owner.knows(*event) && !owner.executes(*event))
        else {
            return;
        };
        owner.from_letters.push(event);
        if is_removed_early {
            let shard = &mut store.shards[usize::from(event % SHARDS)];
            shard.letters.retain(|other| *other != event);
        }
    }

    /// If the shard has also lost the owner's claim, ends the owner and returns false.
    fn repeat_in(&mut self, shard: usize) -> bool {
        let drops = self.is(CheckpointFault::LostCommitsAreDropped);
        let with_letters = !self.is(CheckpointFault::LettersAreNotRepeated);
        let keeps_claim = self.is(CheckpointFault::LostClaimIsKept);
        let State { store, owner, .. } = &mut self.state;
        let store_shard = &mut store.shards[shard];
        if store_shard.epoch != owner.epoch {
            if !keeps_claim {
                self.restart();
            }
            return false;
        }
        let known = &owner.commits[shard];
        if store_shard.commits.len() < known.len() && !drops {
            let lost = &known[store_shard.commits.len()..];
            self.counts.repeated += lost.len() as u64;
            for commit in lost {
                self.counts.letters += (commit.letters.len() + commit.removed.len()) as u64;
                store_shard.apply(commit, with_letters);
            }
        }
        true
    }

    fn repeat(&mut self) {
        for shard in 0..usize::from(SHARDS) {
            if !self.repeat_in(shard) {
                return;
            }
        }
    }

    /// The checkpoint covers all events before the first uncommitted event. Does nothing if the shard of the checkpoint
    /// has lost the owner's claim.
    fn save(&mut self) {
        let covers_open = self.is(CheckpointFault::OpenEventsAreCovered);
        let State { store, owner, fault, resets, .. } = &mut self.state;
        let Some(next) = owner.next.filter(|_| store.shards[0].epoch == owner.epoch) else {
            return;
        };
        let open = owner.open.iter().min().filter(|_| !covers_open);
        let named = owner.commits.iter().map(Vec::len);
        let commits = match fault {
            Some(CheckpointFault::NoCommitIsNamed) => Vec::new(),
            Some(CheckpointFault::OneCommitIsNamed) => named.take(1).collect(),
            _ => named.collect(),
        };
        let position = open.copied().unwrap_or(next);
        store.checkpoint = Some(Checkpoint { position, commits, resets: *resets });
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.store) {
            self.state.past.push(self.state.store.clone());
        }
    }

    fn go_back(&mut self, only: Option<u8>, to: usize) {
        let State { store, past, rollbacks, resets, lost_reset, .. } = &mut self.state;
        let old = past[to].clone();
        for shard in (0..SHARDS).filter(|shard| only.is_none_or(|only| only == *shard)) {
            let at = usize::from(shard);
            // A shard that went back cannot return to a later state, so the later remembered states get the shard's old
            // state, too.
            for state in past[to..].iter_mut().chain([&mut *store]) {
                state.shards[at].clone_from(&old.shards[at]);
                if at == 0 {
                    state.checkpoint.clone_from(&old.checkpoint);
                }
            }
        }
        past.dedup();
        let kept = store.checkpoint.as_ref().map(|checkpoint| checkpoint.resets);
        *lost_reset |= kept.is_some_and(|kept| kept < *resets);
        *rollbacks += 1;
    }

    fn restart(&mut self) {
        let State { owner, store, restarts, .. } = &mut self.state;
        *owner = Owner::claim(owner.epoch + 1, store);
        *restarts += 1;
    }

    /// Reads the whole file, commits all events, and checks the result.
    pub fn finish_and_check(&mut self) {
        for _ in 0..4 {
            self.repeat();
            self.start();
            self.read(self.state.file);
            for shard in 0..SHARDS {
                self.commit(shard);
            }
            self.save();
        }
        let State { store, owner, file, lost_reset, .. } = &self.state;
        let shard_of = |event: u8| &store.shards[usize::from(event % SHARDS)];
        let is_settled = |event: u8| {
            let mut commits = shard_of(event).commits.iter();
            commits.any(|commit| commit.effects.contains(&event) || commit.letters.contains(&event))
        };
        let count = |event: u8| {
            let Shard { commits, letters, .. } = shard_of(event);
            let effects = commits.iter().flat_map(|commit| &commit.effects);
            effects.chain(letters).filter(|other| **other == event).count()
        };
        let is_done = owner.open.is_empty() && owner.from_letters.is_empty();
        let broken = if owner.next != Some(*file) || !is_done {
            Some(CheckpointViolation::Stuck)
        } else if !lost_reset && !(0..*file).all(is_settled) {
            Some(CheckpointViolation::Missing)
        } else if (0..*file).any(|event| is_settled(event) && count(event) == 0) {
            Some(CheckpointViolation::NoLetter)
        } else if (0..*file).any(|event| count(event) > 1) {
            Some(CheckpointViolation::Duplicated)
        } else {
            None
        };
        self.state.broken = broken;
    }
}
