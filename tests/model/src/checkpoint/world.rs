//! The shards, the checkpoint in the first one, and the owner that reads the file.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use super::{CheckpointFault, CheckpointStep, SHARDS};

/// The counts of rare events in a run. Two states that differ only in these counts are the same state.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckpointSeen {
    /// Times that shards went back.
    pub rewinds: u64,
    /// Times that an owner read the file from its beginning, because shards lacked commits.
    pub again: u64,
    /// Commits that were repeated.
    pub repeated: u64,
    /// Times that another owner claimed the partition.
    pub restarts: u64,
}

/// A rule that a run breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckpointBroken {
    /// An event of the file has no effect.
    Missing,
    /// An event of the file has two effects.
    Twice,
    /// The owner never finishes.
    Stuck,
}

impl CheckpointBroken {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "an event that was read takes effect",
            Self::Twice => "an event takes effect once",
            Self::Stuck => "the owner reads the whole file",
        }
    }
}

/// A position in the file, and the last commit of each shard that the position depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Checkpoint {
    position: u8,
    commits: Vec<usize>,
    /// How often an owner had replaced the checkpoint by one at the beginning of the file when this checkpoint was
    /// written.
    beginnings: u64,
}

/// A shard: the epoch of its claim, and the events of each commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Shard {
    epoch: u8,
    commits: Vec<Vec<u8>>,
}

/// The shards, and the checkpoint in the first of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Store {
    shards: Vec<Shard>,
    checkpoint: Option<Checkpoint>,
}

/// The owner that reads the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    epoch: u8,
    /// The last commit of each shard that the claim found.
    found: Vec<usize>,
    /// The commits of each shard that the owner found or made.
    commits: Vec<Vec<Vec<u8>>>,
    /// The next event to read; `None` before the start.
    next: Option<u8>,
    /// Events that are read and not committed.
    open: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    fault: Option<CheckpointFault>,
    file: u8,
    store: Store,
    past: Vec<Store>,
    owner: Owner,
    /// How often an owner has replaced the checkpoint by a checkpoint at the beginning of the file.
    beginnings: u64,
    /// True if the store lost a checkpoint at the beginning of the file, so that an older checkpoint counts again.
    lost_beginning: bool,
    rewinds: u64,
    restarts: u64,
    broken: Option<CheckpointBroken>,
}

/// A moment of a run.
#[derive(Debug, Clone)]
pub struct CheckpointWorld {
    state: State,
    seen: CheckpointSeen,
    /// The rule that breaks if the world comes to rest (finishes all work without further losses) from this moment on;
    /// unset until the run has computed it.
    at_rest: OnceLock<Option<CheckpointBroken>>,
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
    fn claim(epoch: u8, store: &mut Store) -> Self {
        for shard in &mut store.shards {
            shard.epoch = epoch;
        }
        Self {
            epoch,
            found: store.shards.iter().map(|shard| shard.commits.len()).collect(),
            commits: store.shards.iter().map(|shard| shard.commits.clone()).collect(),
            next: None,
            open: Vec::new(),
        }
    }

    fn knows(&self, event: u8) -> bool {
        self.commits[usize::from(event % SHARDS)].iter().flatten().any(|other| *other == event)
    }
}

impl CheckpointWorld {
    /// Returns the beginning of a run with a file of this number of events.
    pub fn new(file: u8, fault: Option<CheckpointFault>) -> Self {
        let shards = vec![Shard::default(); usize::from(SHARDS)];
        let mut store = Store { shards, checkpoint: None };
        let past = vec![store.clone()];
        let owner = Owner::claim(1, &mut store);
        let state = State {
            fault,
            file,
            store,
            past,
            owner,
            beginnings: 0,
            lost_beginning: false,
            rewinds: 0,
            restarts: 0,
            broken: None,
        };
        Self { state, seen: CheckpointSeen::default(), at_rest: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: CheckpointStep) {
        self.at_rest = OnceLock::new();
        match step {
            CheckpointStep::Start => self.start(),
            CheckpointStep::Read(count) => self.read(count),
            CheckpointStep::Commit(shard) => self.commit(shard),
            CheckpointStep::Save => self.save(),
            CheckpointStep::Repeat => self.repeat(),
            CheckpointStep::Remember => self.remember(),
            CheckpointStep::GoBack(shard, to) => self.go_back(shard, to),
            CheckpointStep::Restart => self.restart(),
        }
    }

    /// Returns the rule that a step broke, if any.
    pub fn broken(&self) -> Option<CheckpointBroken> {
        self.state.broken
    }

    /// Returns the rule that is broken after the world has come to rest from here, if any.
    pub fn broken_at_rest(&self) -> Option<CheckpointBroken> {
        *self.at_rest.get_or_init(|| {
            let mut world = self.clone();
            world.come_to_rest();
            world.broken()
        })
    }

    /// Returns the counts of rare events up to now.
    pub fn seen(&self) -> CheckpointSeen {
        let State { rewinds, restarts, .. } = self.state;
        CheckpointSeen { rewinds, restarts, ..self.seen }
    }

    /// Returns how often shards went back.
    pub fn rewinds(&self) -> u64 {
        self.state.rewinds
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

    /// Reads the checkpoint, and opens the file there.
    fn start(&mut self) {
        let leaves_old = self.is(CheckpointFault::OldCheckpointStays);
        let State { store, owner, beginnings, .. } = &mut self.state;
        if owner.next.is_some() {
            return;
        }
        let Some(checkpoint) = &store.checkpoint else {
            owner.next = Some(0);
            return;
        };
        let mut commits = checkpoint.commits.iter().zip(&owner.found);
        if commits.all(|(named, found)| found >= named) {
            owner.next = Some(checkpoint.position);
            return;
        }
        self.seen.again += 1;
        owner.next = Some(0);
        if leaves_old {
            return;
        }
        // Later commits with the numbers of the lost ones must not make the old checkpoint look valid.
        if store.shards[0].epoch == owner.epoch {
            *beginnings += 1;
            let commits = owner.found.clone();
            store.checkpoint = Some(Checkpoint { position: 0, commits, beginnings: *beginnings });
        } else {
            self.restart();
        }
    }

    fn read(&mut self, count: u8) {
        let State { owner, file, .. } = &mut self.state;
        let Some(next) = owner.next else { return };
        let end = next.saturating_add(count).min(*file);
        let new = (next..end).filter(|event| !owner.knows(*event)).collect::<Vec<_>>();
        owner.open.extend(new);
        owner.next = Some(end);
    }

    /// Repeats the lost commits of a shard, and then commits its open events.
    fn commit(&mut self, shard: u8) {
        let events = self.state.owner.open.iter().copied();
        let events: Vec<u8> = events.filter(|event| event % SHARDS == shard).collect();
        if events.is_empty() || !self.repeat_in(usize::from(shard)) {
            return;
        }
        let State { store, owner, .. } = &mut self.state;
        owner.open.retain(|event| event % SHARDS != shard);
        let at = usize::from(shard);
        store.shards[at].commits.push(events.clone());
        owner.commits[at].push(events);
    }

    /// Repeats the lost commits of a shard. If the claim is lost too, returns false, and the owner ends.
    fn repeat_in(&mut self, shard: usize) -> bool {
        let drops = self.is(CheckpointFault::LostCommitsAreDropped);
        let State { store, owner, .. } = &mut self.state;
        let of_store = &mut store.shards[shard];
        if of_store.epoch != owner.epoch {
            self.restart();
            return false;
        }
        let known = &owner.commits[shard];
        if of_store.commits.len() < known.len() && !drops {
            let lost = known[of_store.commits.len()..].iter();
            self.seen.repeated += lost.len() as u64;
            of_store.commits.extend(lost.cloned());
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

    /// Writes a checkpoint that covers all events before the first uncommitted one.
    fn save(&mut self) {
        let covers_open = self.is(CheckpointFault::OpenEventsAreCovered);
        let State { store, owner, fault, beginnings, .. } = &mut self.state;
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
        store.checkpoint = Some(Checkpoint { position, commits, beginnings: *beginnings });
    }

    fn remember(&mut self) {
        if self.state.past.last() != Some(&self.state.store) {
            self.state.past.push(self.state.store.clone());
        }
    }

    fn go_back(&mut self, only: Option<u8>, to: usize) {
        let State { store, past, rewinds, beginnings, lost_beginning, .. } = &mut self.state;
        let old = past[to].clone();
        for shard in (0..SHARDS).filter(|shard| only.is_none_or(|only| only == *shard)) {
            let at = usize::from(shard);
            // A shard that went back never goes forward again, so the later remembered states change, too.
            for state in past[to..].iter_mut().chain([&mut *store]) {
                state.shards[at].clone_from(&old.shards[at]);
                if at == 0 {
                    state.checkpoint.clone_from(&old.checkpoint);
                }
            }
        }
        past.dedup();
        let kept = store.checkpoint.as_ref().map(|checkpoint| checkpoint.beginnings);
        *lost_beginning |= kept.is_some_and(|kept| kept < *beginnings);
        *rewinds += 1;
    }

    fn restart(&mut self) {
        let State { owner, store, restarts, .. } = &mut self.state;
        *owner = Owner::claim(owner.epoch + 1, store);
        *restarts += 1;
    }

    /// Reads the whole file, commits all events, and checks the result.
    pub fn come_to_rest(&mut self) {
        for _ in 0..4 {
            self.repeat();
            self.start();
            self.read(self.state.file);
            for shard in 0..SHARDS {
                self.commit(shard);
            }
            self.save();
        }
        let State { store, owner, file, lost_beginning, .. } = &self.state;
        let count = |event: u8| {
            let commits = &store.shards[usize::from(event % SHARDS)].commits;
            commits.iter().flatten().filter(|other| **other == event).count()
        };
        let broken = if owner.next != Some(*file) || !owner.open.is_empty() {
            Some(CheckpointBroken::Stuck)
        } else if !lost_beginning && (0..*file).any(|event| count(event) == 0) {
            Some(CheckpointBroken::Missing)
        } else if (0..*file).any(|event| count(event) > 1) {
            Some(CheckpointBroken::Twice)
        } else {
            None
        };
        self.state.broken = broken;
    }
}
