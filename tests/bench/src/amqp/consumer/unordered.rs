//! The host's pipeline without order: the host's own source, workers and store, but no sequencer. The workers execute
//! each delivery when it arrives, and get no state of the key. A table in memory keeps the next sequence of each key,
//! but only because the store's commits are conditional on this sequence.
//!
//! The comparison with this side shows the cost of order. No configuration of the host makes such a pipeline.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::open::open_store;
use anyhow::{Context, Result, bail, ensure};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use ordain_amqp::{
    self, BrokerEndpoint, ConsumerOptions, DeliveryDecoder, LastPrefetch, TopologyGate,
};
use ordain_cloudevents::{AckProgress, DeliveryBatch, SourceHandle};
use ordain_config::{LoadedConfig, SourceConfig, StreamConfig};
use ordain_core::{
    AttemptToken, Batch, CommitReply, Event, HandlerOutcome, Key, KeyRecord, KeyWrite,
    OrderingMode, Rollout, StateUpdate, Turn, TurnResult, WriteCondition, shard_of,
};
use ordain_store::Ownership;
use ordain_store::{ClaimedPartition, Partition, QueueRecords, Store};
use ordain_wasm::{ActiveVersion, StreamContext, TurnQueueHandle, TurnResults, WorkerPool};
use ordain_wasm::{create_engine, scan_folder};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use super::Progress;
use crate::amqp::case::broker as broker_of;

/// Maximum number of `TurnResults` that may wait for a partition, as in the host.
const COMPLETION_LIMIT: usize = ordain_engine::completion::COMPLETION_LIMIT;

/// Runs all partitions until the process gets SIGTERM.
pub(super) async fn run(
    loaded: &LoadedConfig,
    progress: &Arc<Progress>,
    end: &mut Signal,
) -> Result<()> {
    let engine = create_engine(loaded)?;
    let folder = scan_folder(loaded)?;
    let store = open_store(loaded, None).await?;
    let (broker, topology) = broker_of(loaded)?;
    let broker = Arc::new(broker);
    let pool = WorkerPool::start(&engine)?;
    let (name, stream) =
        loaded.config.streams.iter().next().context("the configuration has no stream")?;
    let mut lines = tokio::task::JoinSet::new();
    for number in 0..stream.source.partitions() {
        let partition = Partition { stream: name.shared(), number };
        // The store is new, so the first epoch is free.
        let claimed = store.claim(&partition, 1).await?;
        let (send, results) = mpsc::channel(COMPLETION_LIMIT);
        let file = folder
            .highest(&stream.handler)
            .context("the folder of handlers has no handler of the stream")?;
        let active = ActiveVersion::first(engine.load(file)?);
        let version = Arc::clone(&active.rollout);
        let done = Box::new(move |results| drop(send.blocking_send(results)));
        let context = StreamContext::new(name.shared(), [""; 0]);
        let turns = pool.attach(context, Some(active), done);
        let event_size = loaded.config.runtime.event_size.bytes();
        let options =
            consumer(stream, &partition, Arc::clone(&broker), topology.clone(), event_size, &store);
        let line = Line {
            shards: Shards::new(&store, &partition, &claimed, loaded, stream, version),
            source: ordain_amqp::start(options),
            turns,
            results,
            room: stream.source.prefetch(),
            window: Window::default(),
            progress: Arc::clone(progress),
        };
        lines.spawn(line.run());
    }
    tokio::select! {
        _ = end.recv() => {}
        Some(ended) = lines.join_next() => {
            ended??;
            bail!("the pipeline of a partition has ended");
        }
    }
    lines.shutdown().await;
    Ok(())
}

fn consumer(
    stream: &StreamConfig,
    partition: &Partition,
    broker: Arc<BrokerEndpoint>,
    topology: ordain_amqp::Topology,
    event_size: usize,
    store: &Arc<dyn Store>,
) -> ConsumerOptions {
    let SourceConfig::Amqp(source) = &stream.source else {
        unreachable!("`broker_of` accepts no other source")
    };
    let decoder = DeliveryDecoder::new(
        String::new(),
        OrderingMode::Sequenced,
        event_size,
        source.locations(),
        source.partitions > 1,
    );
    ConsumerOptions {
        ownership: Arc::new(Ownership::permanent()),
        broker,
        topology,
        partition: partition.number,
        stream: Arc::clone(&partition.stream),
        prefetch: source.prefetch.try_into().unwrap_or(u16::MAX),
        // No memory limit: only the prefetch limits the deliveries that wait for this consumer.
        memory: usize::MAX,
        unreadable_limit: source.unreadable_limit,
        last_prefetch: LastPrefetch::default(),
        consumer_tag: "ordain-bench".into(),
        decoder,
        gate: TopologyGate::new(None).1,
        exchange_fault: Arc::default(),
        lag: Arc::default(),
        dropped: Arc::default(),
        records: QueueRecords::new(store, &partition.stream),
        topology_throttle: ordain_amqp::topology_throttle(),
        unchecked_throttle: ordain_amqp::topology_throttle(),
        refused_markers: std::sync::Mutex::default(),
        missing_exchanges: std::sync::Mutex::default(),
        binding_list: None,
        health: Arc::default(),
        topology_changes: Arc::default(),
    }
}

/// A partition with its source, its store and its workers.
struct Line {
    shards: Shards,
    source: SourceHandle,
    turns: TurnQueueHandle,
    results: mpsc::Receiver<TurnResults>,
    /// Number of further deliveries that the line accepts: the prefetch minus the deliveries that are not committed
    /// yet.
    room: usize,
    window: Window,
    progress: Arc<Progress>,
}

impl Line {
    async fn run(mut self) -> Result<()> {
        let acknowledge =
            self.source.acknowledge.take().context("the source has no acknowledgements")?;
        loop {
            tokio::select! {
                biased;
                Some(answer) = self.shards.commits.next() => {
                    let committed = self.shards.committed(answer?)?;
                    self.progress.done(committed.iter().map(|delivery| delivery.event.data()));
                    self.room += committed.len();
                    let before = self.window.first;
                    for pending in &committed {
                        self.window.finish(pending.delivery);
                    }
                    let through = self.window.first;
                    if through > before {
                        acknowledge.send_replace(AckProgress { subscription_epoch: 1, through });
                        self.progress.acknowledged(through - before);
                    }
                }
                Some(results) = self.results.recv() => {
                    for done in results.take() {
                        self.shards.executed(done)?;
                    }
                }
                deliveries = self.source.deliveries.recv(), if self.room > 0 => {
                    self.take(deliveries.context("the source failed")?)?;
                }
            }
            self.shards.commit();
        }
    }

    fn take(&mut self, deliveries: DeliveryBatch) -> Result<()> {
        ensure!(deliveries.subscription_epoch == 1, "the connection was lost");
        let mut turns = Vec::with_capacity(deliveries.items.len());
        for (event, _) in deliveries.items {
            let event = event.map_err(|letter| anyhow::anyhow!("{}", letter.error))?;
            turns.push(self.shards.turn(self.window.add(), Arc::new(event)));
            self.room = self.room.saturating_sub(1);
        }
        self.turns.submit(turns);
        Ok(())
    }
}

/// The deliveries from the first unfinished delivery on. For each delivery, `done` has a flag that is true if the
/// delivery is finished.
#[derive(Default)]
struct Window {
    /// Number of finished deliveries before the first unfinished one.
    first: u64,
    done: VecDeque<bool>,
}

impl Window {
    /// Adds the next delivery, and returns its number, counted from 0.
    fn add(&mut self) -> u64 {
        self.done.push_back(false);
        self.first + self.done.len() as u64 - 1
    }

    fn finish(&mut self, delivery: u64) {
        self.done[(delivery - self.first) as usize] = true;
        while self.done.pop_front_if(|done| *done).is_some() {
            self.first += 1;
        }
    }
}

/// A delivery that is not committed yet, with its event and the change of the key's state.
struct PendingDelivery {
    delivery: u64,
    key: Key,
    event: Arc<Event>,
    state: StateUpdate,
}

/// The index of a shard, and the reply to its commit.
type CommitAnswer = (usize, CommitReply);

/// Executed deliveries by shard. Each shard commits its deliveries in batches, and has at most one batch under way.
struct Shards {
    store: Arc<dyn Store>,
    partition: Partition,
    claimed: ClaimedPartition,
    /// Maximum number of events in a commit.
    batch: usize,
    digests: usize,
    version: Arc<Rollout>,
    serial: u64,
    executing: HashMap<u64, PendingDelivery>,
    all: Vec<Shard>,
    commits: FuturesUnordered<BoxFuture<'static, Result<CommitAnswer>>>,
}

#[derive(Default)]
struct Shard {
    number: u64,
    records: HashMap<Key, KeyRecord>,
    executed: VecDeque<PendingDelivery>,
    committing: Vec<PendingDelivery>,
}

impl Shards {
    fn new(
        store: &Arc<dyn Store>,
        partition: &Partition,
        claimed: &ClaimedPartition,
        loaded: &LoadedConfig,
        stream: &StreamConfig,
        version: Arc<Rollout>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            partition: partition.clone(),
            claimed: claimed.clone(),
            batch: loaded.config.runtime.batch,
            digests: stream.digests,
            version,
            serial: 0,
            executing: HashMap::new(),
            all: (0..store.shards()).map(|_| Shard::default()).collect(),
            commits: FuturesUnordered::new(),
        }
    }

    /// Returns the turn that executes a delivery.
    fn turn(&mut self, delivery: u64, event: Arc<Event>) -> Turn {
        self.serial += 1;
        let key: Key = event.key().into();
        let turn = Turn {
            token: AttemptToken { lane: 0, serial: self.serial },
            key: Arc::clone(&key),
            state: None,
            events: vec![(event.sequence().unwrap_or_default(), Arc::clone(&event))],
            fresh: false,
            bytes: usize::MAX,
        };
        let pending = PendingDelivery { delivery, key, event, state: StateUpdate::Keep };
        self.executing.insert(self.serial, pending);
        turn
    }

    fn executed(&mut self, done: TurnResult) -> Result<()> {
        let mut pending = self
            .executing
            .remove(&done.token.serial)
            .context("a worker returned a turn that this side did not submit")?;
        ensure!(matches!(done.outcomes[..], [HandlerOutcome::Effect { .. }]), "{:?}", done.failure);
        pending.state = done.state;
        let shard = shard_of(&pending.key, self.store.shards()) as usize;
        self.all[shard].executed.push_back(pending);
        Ok(())
    }

    /// Commits the executed deliveries of each shard that has no commit under way.
    fn commit(&mut self) {
        for at in 0..self.all.len() {
            let shard = &mut self.all[at];
            if !shard.committing.is_empty() || shard.executed.is_empty() {
                continue;
            }
            let count = shard.executed.len().min(self.batch);
            shard.committing = shard.executed.drain(..count).collect();
            shard.number += 1;
            let number = shard.number;
            let number_of_shard = at as u32;
            let writes = shard.writes(self.digests, &self.version, self.partition.number);
            let batch = Batch {
                shard: number_of_shard,
                number,
                writes,
                letters: Vec::new(),
                forward: false,
                repeated: false,
            };
            let store = Arc::clone(&self.store);
            let partition = self.partition.clone();
            let claim = self.claimed.claim;
            self.commits.push(Box::pin(async move {
                Ok((at, store.commit(&partition, claim, Arc::new(batch)).await))
            }));
        }
    }

    /// Returns the deliveries of an applied commit.
    fn committed(&mut self, (at, reply): CommitAnswer) -> Result<Vec<PendingDelivery>> {
        let CommitReply::Applied(applied) = reply else {
            bail!("the commit of shard {at} failed: {reply:?}")
        };
        ensure!(
            applied.refused.is_empty(),
            "the store refused writes of shard {at}: {:?}",
            applied.refused
        );
        let shard = &mut self.all[at];
        let committed = std::mem::take(&mut shard.committing);
        for pending in &committed {
            if let Some(record) = shard.records.get_mut(&pending.key) {
                record.fill_times(applied.time);
            }
        }
        Ok(committed)
    }
}

impl Shard {
    /// Returns one write for each key of the next commit.
    fn writes(&mut self, digests: usize, version: &Arc<Rollout>, partition: u32) -> Vec<KeyWrite> {
        let mut places: HashMap<Key, usize> = HashMap::new();
        let mut writes: Vec<KeyWrite> = Vec::with_capacity(self.committing.len());
        for pending in &mut self.committing {
            let record = self
                .records
                .entry(Arc::clone(&pending.key))
                .or_insert_with(|| KeyRecord::new(1, partition));
            let expect = if record.next == 1 {
                WriteCondition::Absent
            } else {
                WriteCondition::Next(record.next)
            };
            record.next += 1;
            record.digests.push(pending.event.repeat_digest(), digests);
            record.rollout = Some(version.clone());
            let place = *places.entry(Arc::clone(&pending.key)).or_insert(writes.len());
            if place == writes.len() {
                writes.push(write(&pending.key, expect, record));
            }
            writes[place].record = record.clone();
            writes[place].state = std::mem::take(&mut pending.state);
        }
        writes
    }
}

fn write(key: &Key, expect: WriteCondition, record: &KeyRecord) -> KeyWrite {
    KeyWrite {
        key: Arc::clone(key),
        condition: expect,
        record: record.clone(),
        state: StateUpdate::Keep,
        messages: Vec::new(),
        letters: Vec::new(),
        removed_letters: Vec::new(),
        spill: Vec::new(),
        ids: std::iter::empty().collect(),
        due_in: None,
        expire_in: None,
    }
}
