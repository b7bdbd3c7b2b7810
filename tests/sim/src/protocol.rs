//! Plays random runs of the model of owners with a common store that goes back in time (loses its newest writes). The
//! model is [`ordain_model::Scope`]. A run may have more events, keys, owners and losses than the scopes for which a
//! checker walks through all runs.

use std::collections::BTreeSet;

use ordain_model::{Action, Event, Fault, Scope, StorePart, play};

use crate::Violation;
use crate::rng::{Rng, mix};

/// The model keeps positions in the queue, and sequences, in sets of numbers below 16, and needs one further number
/// after the last sequence.
const EVENT_LIMIT: u64 = 14;

/// The notable states and steps, or the broken property.
type ProtocolResult = Result<BTreeSet<&'static str>, Violation>;

/// Plays the random run that the seed determines. Returns the names of the notable states and steps of the run, so that
/// a test can check that its runs reach all of them.
pub fn run_protocol(seed: u64, fault: Option<Fault>) -> ProtocolResult {
    let mut rng = Rng::new(mix(&[seed, 0x6f]));
    let scope = Scope { fault, ..scope(&mut rng) };
    let pace = Pace::new(&mut rng);
    run(&scope, &pace, &mut rng)
}

/// Plays the random run that the seed determines, with owners that repeat their lost commits. The result is like that
/// of [`run_protocol`].
pub fn run_repetition(seed: u64, fault: Option<Fault>) -> ProtocolResult {
    let mut rng = Rng::new(mix(&[seed, 0x72]));
    let scope = Scope { fault, ..repeating_scope(&mut rng) };
    let pace = Pace::of_repetition(&mut rng);
    run(&scope, &pace, &mut rng)
}

fn run(scope: &Scope, pace: &Pace, rng: &mut Rng) -> ProtocolResult {
    let step_limit = rng.between(50, 300) as usize;
    let played = play(scope, step_limit, |actions| {
        rng.pick_weighted(actions, |action| pace.weight(*action))
    });
    if let Some(invariant) = played.broken {
        return Err(Violation { invariant, detail: format!("{scope:?}: {:?}", played.steps) });
    }
    let mut reached = played.reached;
    reached.extend(played.steps.into_iter().filter_map(special));
    Ok(reached)
}

/// Returns `None` for an ordinary step.
fn special(action: Action) -> Option<&'static str> {
    Some(match action {
        Action::GoBack(StorePart::All) => "the whole store goes back",
        Action::GoBack(StorePart::Leases) => "the leases go back",
        Action::GoBack(StorePart::Shard(_)) => "a shard goes back",
        Action::LateCommit(_) => "a commit arrives late",
        Action::LateLoad(..) => "a load arrives late",
        Action::Disconnect(_) => "a connection breaks",
        Action::Remove(..) => "an entry leaves an outbox",
        _ => return None,
    })
}

fn scope(rng: &mut Rng) -> Scope {
    let shards = rng.between(1, 3) as u8;
    let partitions = rng.between(1, 2);
    let moves = partitions > 1 && rng.permille(700);
    // If keys move, the run has only one key, so that many events of this key come to several partitions.
    let keys = rng.between(1, if moves { 1 } else { 4 }) as u8;
    let mut leases: Vec<u8> = (0..partitions as u8).collect();
    leases.extend((0..rng.between(1, 6)).map(|_| rng.below(partitions) as u8));
    // In some runs, the store loses nothing, or only leases. In such runs, more properties must hold.
    let parts: Vec<StorePart> = match rng.below(4) {
        0 => Vec::new(),
        1 => vec![StorePart::Leases],
        2 => (0..shards).map(StorePart::Shard).collect(),
        _ => (0..shards).map(StorePart::Shard).chain([StorePart::All, StorePart::Leases]).collect(),
    };
    let losses = if parts.is_empty() { 0 } else { rng.between(1, 5) };
    Scope {
        keys,
        shards,
        leases,
        queue: queue(rng, keys, partitions as u8, if moves { 500 } else { 0 }),
        run_ahead: rng.between(1, 3) as u8,
        take_overs: if moves { rng.between(3, 6) as u8 } else { 0 },
        late_loads: if moves { rng.below(4) as u8 } else { 0 },
        late_commits: rng.below(4) as u8,
        goes_back: (0..losses).map(|_| rng.pick(&parts)).collect(),
        spills: rng.permille(800),
        evicts_lanes: rng.permille(500),
        // Messages of a key that changes its partition may be published out of order.
        publishes: !moves && rng.permille(600),
        repeats_commits: false,
        fault: None,
    }
}

/// Each partition has one owner, and no key changes its partition.
fn repeating_scope(rng: &mut Rng) -> Scope {
    let shards = rng.between(1, 2) as u8;
    let partitions = rng.between(1, 2) as u8;
    let keys = rng.between(1, 2) as u8;
    let mut events = queue(rng, keys, partitions, 0);
    if rng.permille(500) {
        // The first events of some keys then arrive after later events.
        let first = rng.below(events.len() as u64) as usize;
        events.rotate_left(first);
    }
    let parts: Vec<StorePart> = (0..shards).map(StorePart::Shard).chain([StorePart::All]).collect();
    Scope {
        keys,
        shards,
        leases: (0..partitions).collect(),
        queue: events,
        run_ahead: rng.between(1, 3) as u8,
        goes_back: (0..rng.between(1, 5)).map(|_| rng.pick(&parts)).collect(),
        spills: true,
        evicts_lanes: true,
        repeats_commits: true,
        ..Scope::default()
    }
}

/// Some events change places with their neighbours. In thousandths, `strays` is the rate of events that come to a
/// random partition. All other events come to the partition of their key.
fn queue(rng: &mut Rng, keys: u8, partitions: u8, strays: u32) -> Vec<Event> {
    let mut next = vec![1; usize::from(keys)];
    let mut queue = Vec::new();
    for _ in 0..rng.between(2, EVENT_LIMIT) {
        let key = rng.below(u64::from(keys)) as u8;
        let sequence = next[usize::from(key)];
        next[usize::from(key)] += 1;
        let partition = if rng.permille(strays) {
            rng.below(u64::from(partitions)) as u8
        } else {
            key % partitions
        };
        queue.push(Event { key, sequence, partition });
    }
    for _ in 0..rng.below(8) {
        let position = rng.below(queue.len() as u64 - 1) as usize;
        queue.swap(position, position + 1);
    }
    queue
}

/// A kind of step with a higher weight happens more often in the run.
struct Pace {
    leases: u64,
    losses: u64,
    disturbances: u64,
    turns: u64,
    evictions: u64,
    /// With a low weight of checks, owners notice a loss late.
    checks: u64,
}

impl Pace {
    fn new(rng: &mut Rng) -> Self {
        let leases = 1 << rng.below(5);
        let losses = 1 << rng.below(6);
        let disturbances = 1 << rng.below(6);
        Self { leases, losses, disturbances, turns: 32, evictions: disturbances, checks: 32 }
    }

    /// Owners often remove lanes from memory, so that they load key records while the store lacks commits.
    fn of_repetition(rng: &mut Rng) -> Self {
        Self {
            leases: 1 << rng.below(5),
            losses: 1 << rng.below(4),
            disturbances: 1 << rng.between(3, 5),
            turns: 1 << rng.below(6),
            evictions: 200,
            checks: 1 << rng.below(6),
        }
    }

    fn weight(&self, action: Action) -> u64 {
        match action {
            Action::Lease(_) => self.leases,
            Action::Remember | Action::GoBack(_) => self.losses,
            Action::Run(..) => self.turns,
            Action::Evict(..) => self.evictions,
            Action::Check(..) => self.checks,
            Action::Spill(..)
            | Action::Arrive(..)
            | Action::Resend(..)
            | Action::Release(_)
            | Action::Disconnect(_)
            | Action::LateCommit(_)
            | Action::LateLoad(..) => self.disturbances,
            _ => 32,
        }
    }
}
