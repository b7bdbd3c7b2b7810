//! Workers that commit continuously while a test causes failures. Each worker acts as the owner of one shard. At the
//! end, each worker compares its answered commits with the stored data.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordain_core::{Key, StateUpdate};
use ordain_servers::wait_until;
use ordain_store::Store;
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, event};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use super::dedicated::{outbox, step, until_applied};

const KEYS: usize = 3;
/// The distance from the sequence of the settled event to the sequence of a spilled event.
const AHEAD_DISTANCE: u64 = 4;
/// The delay between two commits of a shard. Because of this delay, some failures occur while no commit is in progress.
const COMMIT_DELAY: Duration = Duration::from_micros(500);

pub(super) struct ShardWorkers {
    shared: Arc<WorkState>,
    tasks: JoinSet<Worker>,
}

#[derive(Default)]
struct WorkState {
    must_stop: AtomicBool,
    answered: AtomicU64,
}

/// A worker that acts as the owner of one shard. The worker sends each commit repeatedly, until the store answers the
/// commit.
pub(super) struct Worker {
    owner: Owner,
    pub(super) shard: u32,
    keys: Vec<(Key, Progress)>,
    /// The longest time from the first attempt of a commit to its answer.
    pub(super) longest: Duration,
    random: ChaCha8Rng,
}

#[derive(Default)]
struct Progress {
    settled: u64,
    spilled: Option<u64>,
}

impl ShardWorkers {
    /// Starts the workers. Prints the seed of their random choices, so that a failure can be reproduced.
    pub(super) async fn start(store: &Arc<RedisStore>) -> Self {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let owner = Owner::claim(&**store, "s", 0).await;
        let shared = Arc::new(WorkState::default());
        let mut tasks = JoinSet::new();
        for shard in 0..store.shards() {
            let worker = Worker::new(&owner, shard, seed);
            tasks.spawn(worker.run(Arc::clone(store), Arc::clone(&shared)));
        }
        Self { shared, tasks }
    }

    pub(super) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    pub(super) fn until_more(&self, count: u64) {
        let wanted = self.answered() + count;
        wait_until("more commits", || Ok(self.answered() >= wanted)).expect("more commits");
    }

    /// Waits until all commits in progress are answered, and stops the workers. Compares the answered commits with the
    /// stored data.
    pub(super) async fn finish(self, store: &dyn Store) -> Vec<Worker> {
        self.shared.must_stop.store(true, Ordering::Relaxed);
        let workers = self.tasks.join_all().await;
        for worker in &workers {
            worker.check(store).await;
        }
        workers
    }
}

impl Worker {
    fn new(owner: &Owner, shard: u32, seed: u64) -> Self {
        let owner = Owner {
            partition: owner.partition.clone(),
            claim: owner.claim,
            numbers: owner.numbers.clone(),
        };
        let names = (0..).map(|number| format!("key-{number}"));
        let names = names.filter(|name| owner.shard(name) == shard).take(KEYS);
        let keys = names.map(|name| (name.into(), Progress::default())).collect();
        let random = ChaCha8Rng::seed_from_u64(seed ^ u64::from(shard));
        Self { owner, shard, keys, longest: Duration::ZERO, random }
    }

    async fn run(mut self, store: Arc<RedisStore>, shared: Arc<WorkState>) -> Self {
        while !shared.must_stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.commit(&*store).await;
            self.longest = self.longest.max(started.elapsed());
            shared.answered.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(COMMIT_DELAY).await;
        }
        self
    }

    /// Commits one event of each of some random keys.
    async fn commit(&mut self, store: &dyn Store) {
        let which = self.random.random_range(1..1_u32 << KEYS);
        let mut writes = Vec::new();
        for (number, (key, progress)) in self.keys.iter_mut().enumerate() {
            if which & 1 << number == 0 {
                continue;
            }
            progress.settled += 1;
            let mut write = step(key, progress.settled);
            write.state = StateUpdate::Put(progress.settled.to_string().into());
            if progress.spilled.is_some_and(|spilled| spilled <= progress.settled) {
                progress.spilled = None;
            }
            if progress.spilled.is_none() && self.random.random_ratio(1, 4) {
                let sequence = progress.settled + AHEAD_DISTANCE;
                write.spill = vec![(sequence, event(key, sequence, "held"))];
                progress.spilled = Some(sequence);
            }
            progress.spilled.iter().for_each(|sequence| write.record.spilled.add(*sequence));
            writes.push(write);
        }
        let batch = self.owner.batch(writes);
        let applied = until_applied(store, &self.owner, &batch).await;
        assert_eq!(applied.refused, [], "commit {} of shard {}", batch.number, self.shard);
    }

    /// Checks that the store has every answered commit completely and exactly once.
    async fn check(&self, store: &dyn Store) {
        let entries = outbox(store, &self.owner, self.shard).await;
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        let last = self.owner.numbers[self.shard as usize];
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "the outbox of shard {}", self.shard);
        for (key, progress) in &self.keys {
            let messages = entries.iter().flat_map(|entry| &entry.messages);
            let sequences = messages.filter(|message| message.key == *key);
            let sequences: Vec<u64> = sequences.map(|message| message.emitted.sequence).collect();
            assert_eq!(sequences, (1..=progress.settled).collect::<Vec<_>>(), "messages of {key}");
            let loaded = self.owner.load(store, key).await;
            if progress.settled == 0 {
                assert_eq!(loaded, None);
                continue;
            }
            let loaded = loaded.expect("a key record");
            assert_eq!(loaded.record.next, progress.settled + 1, "{key}");
            assert_eq!(loaded.state, Some(progress.settled.to_string().into()), "{key}");
            let spilled: Vec<u64> = progress.spilled.into_iter().collect();
            assert_eq!(self.owner.spilled(store, key, 0).await, spilled, "{key}");
        }
    }
}

pub(super) fn pause(random: &mut impl Rng, ms: Range<u64>) {
    std::thread::sleep(Duration::from_millis(random.random_range(ms)));
}
