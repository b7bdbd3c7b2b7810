//! Starts a partition for which this instance has the lease: claims the partition, publishes the messages that an
//! earlier owner left unpublished, and builds the parts of the driver.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use ordain_core::{Input, Rollout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::broker::{has_queue, update_record};
use super::partition_factory::PartitionFactory;
use super::source_start::StartedSource;
use crate::completion::{COMPLETION_LIMIT, Completion};
use crate::driver::{DriverConfig, PartitionMetrics};
use crate::replay;
use crate::run::RunError;
use crate::sink::{
    OutboxBacklog, PartitionHandle, PublishWatermark, PublisherCommand, PublisherError,
};
use ordain_amqp::TopologyRecord;
use ordain_config::numbering;
use ordain_config::{
    Config, LoadedConfig, PartitionParams, ResourceName, SinkConfig, StreamConfig,
};
use ordain_store::{ClaimedPartition, InstanceId, OutboxEntry, Partition, Store, StoreError};
use ordain_store::{InstanceInfo, Ownership};
use ordain_util::command::PrintedCommand;
use ordain_util::log_throttle::LogThrottle;
use ordain_wasm::{LogTarget, StreamContext};

const OUTBOX_PAGE_COMMITS: usize = 64;
/// Time between two warnings that a partition cannot start yet, because the outbox publisher has not sent the messages
/// of an earlier owner.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the maximum number of unpublished batches that the sequencers of all partitions together allow. The channel
/// to the outbox publisher has room for this number, so it never fills.
pub(super) fn unpublished_batch_limit(config: &Config) -> usize {
    let settings = config.streams.values().map(|stream| {
        let settings = config.sequencer_settings(stream, &partition_share(config, stream, 0, None));
        stream.source.partitions() as usize * (settings.max_outbox + settings.run_ahead)
    });
    settings.sum::<usize>().max(1)
}

fn partition_share(
    config: &Config,
    stream: &StreamConfig,
    partition: u32,
    version: Option<Arc<Rollout>>,
) -> PartitionParams {
    PartitionParams {
        partition,
        stream_partitions: stream.source.partitions() as usize,
        process_partitions: config.partitions(),
        workers: config.workers(),
        version,
        seed: u64::from(std::process::id()) << 32 | u64::from(partition),
    }
}

/// Rejects a store with unpublished messages of a stream if neither this configuration nor another running instance has
/// the stream, because no process would publish these messages. Warns about queued events of such a stream. Also warns
/// about a stream that no longer has a source in the broker, if its former bindings (bindings of an earlier
/// configuration) still deliver messages to its queues.
pub(super) async fn check_backlog(
    loaded: &LoadedConfig,
    store: &Arc<dyn Store>,
    id: InstanceId,
) -> Result<(), RunError> {
    let others = InstanceInfo::of_other_instances(&store.table().await?, id);
    'streams: for stream in store.streams().await? {
        let is_configured = loaded.config.streams.contains_key(&*stream);
        let has_other = others.iter().any(|other| other.streams.contains_key(&*stream));
        let mut record = TopologyRecord::read(store, &stream).await?;
        update_record(loaded, &stream, &mut record);
        if !has_queue(loaded, &stream) && (is_configured || !has_other) && !record.former.is_empty()
        {
            tracing::warn!(
                stream = &*stream,
                "stream no longer receives events from a queue, but bindings of an earlier configuration still deliver \
                 messages to its queues; remove these bindings with {}",
                PrintedCommand::new("streams unbind").argument(&stream)
            );
        }
        if is_configured {
            continue;
        }
        for number in 0..=numbering::partitions(&**store, &stream).await? {
            let partition = Partition { stream: Arc::clone(&stream), number };
            let waiting = store.queue_length(&partition).await?;
            if waiting > 0 && !has_other {
                tracing::warn!(
                    stream = &*stream,
                    partition = number,
                    events = waiting,
                    "the store has events for a stream that is not configured; it keeps them until the stream is \
                     configured again"
                );
            }
            for shard in 0..store.shards() {
                if store.outbox(&partition, shard, 0, 1).await?.is_empty() {
                    continue;
                }
                let Some(other) = others.iter().find(|other| other.streams.contains_key(&*stream))
                else {
                    return Err(PublisherError::UnknownStream(partition.stream).into());
                };
                tracing::info!(
                    stream = &*stream,
                    process = other.name,
                    "the store has unpublished messages of a stream that is not configured here; the processes that \
                     run the stream publish them"
                );
                continue 'streams;
            }
        }
    }
    Ok(())
}

/// Returns the maximum total size, in bytes, of sent left-over messages. These are messages of earlier owners that the
/// outbox publisher has sent to the sinks, and that the store has not marked as published yet. If a dead process had
/// the same settings as this process, the limit has room for all messages that the dead process left unpublished.
pub(super) fn backlog_bytes_limit(config: &Config) -> usize {
    2 * config.runtime.memory_budget.bytes()
}

impl PartitionFactory<'_> {
    /// Claims a partition under the epoch of the lease. Waits until the outbox publisher has sent the messages that an
    /// earlier owner left in the outbox of the partition. Then builds the parts of the driver. Returns `None` in three
    /// cases:
    /// - Another process has claimed the partition under a later lease.
    /// - The outbox publisher has ended.
    /// - The stream is not configured here.
    pub(super) async fn start_partition(
        &self,
        partition: &Partition,
        epoch: u64,
        ownership: Arc<Ownership>,
        metrics: &Arc<PartitionMetrics>,
    ) -> Result<Option<DriverConfig>, RunError> {
        let streams = &self.loaded.config.streams;
        let Some((name, stream)) = streams.get_key_value(&*partition.stream) else {
            return Ok(None);
        };
        let claimed = match self.store.claim(partition, epoch).await {
            Err(StoreError::InUse(_)) => return Ok(None),
            claimed => claimed?,
        };
        let (completion_sender, completions) = mpsc::channel(COMPLETION_LIMIT);
        let handle = Arc::new(PartitionHandle {
            partition: partition.clone(),
            claim: claimed.claim,
            dead_letter: stream.dead_letter.as_ref().map(ResourceName::shared),
            completions: completion_sender,
            ownership,
            claimed_commits: claimed.commits.clone().into(),
            watermarks: (0..self.store.shards()).map(|_| PublishWatermark::default()).collect(),
            durable_commits: claimed.commits.iter().map(|commit| AtomicU64::new(*commit)).collect(),
            rollbacks: AtomicU64::default(),
            losses: Arc::clone(&metrics.losses),
            driven: AtomicBool::new(false),
        });
        let Some(backlog) = self.publish_backlog(&handle, &claimed, metrics).await? else {
            return Ok(None);
        };
        self.driver_config(name, stream, claimed, handle, completions, backlog, metrics).await
    }

    /// Waits until the outbox publisher has sent the messages that an earlier owner committed and did not publish, so
    /// that new messages follow them. Returns reports for the sequencer about the sent messages that the store has not
    /// marked as published yet; `None` if the outbox publisher has ended. Until the driver starts, the metrics count
    /// the messages that this method has read.
    async fn publish_backlog(
        &self,
        handle: &Arc<PartitionHandle>,
        claimed: &ClaimedPartition,
        metrics: &PartitionMetrics,
    ) -> Result<Option<Vec<Input>>, RunError> {
        let mut messages = 0;
        let mut waiting = 0;
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        for (shard, last) in (0..).zip(&claimed.commits) {
            let mut after = 0;
            loop {
                let partition = &handle.partition;
                let mut entries =
                    self.store.outbox(partition, shard, after, OUTBOX_PAGE_COMMITS).await?;
                entries.retain(|entry| entry.number <= *last);
                let Some(newest) = entries.last() else { break };
                after = newest.number;
                let content = |entry: &OutboxEntry| entry.messages.len() + entry.letters.len();
                waiting += entries.iter().map(content).sum::<usize>();
                metrics.set_backlog(waiting);
                let (accepted, mut reply) = oneshot::channel();
                let backlog =
                    OutboxBacklog { handle: Arc::clone(handle), shard, entries, accepted };
                let mut request = pin!(async {
                    self.publisher_commands
                        .send(PublisherCommand::PublishBacklog(backlog))
                        .await
                        .ok()?;
                    (&mut reply).await.ok()
                });
                messages += loop {
                    match timeout(WARN_INTERVAL, &mut request).await {
                        Ok(Some(accepted)) => break accepted,
                        Ok(None) => return Ok(None),
                        Err(_) if throttle.allow() => tracing::warn!(
                            stream = &*partition.stream,
                            partition = partition.number,
                            "partition not started yet: Ordain first publishes the messages that earlier processes \
                             left unpublished, and some of these messages are not sent yet. Ordain sends messages of \
                             at most about twice the `memory_budget` at a time. If this line repeats, check that the \
                             sinks accept messages"
                        ),
                        Err(_) => {}
                    }
                };
            }
        }
        if messages > 0 {
            tracing::info!(
                stream = &*handle.partition.stream,
                messages,
                "publishing messages that an earlier process committed and did not publish"
            );
        }
        let (sender, receiver) = oneshot::channel();
        let command = PublisherCommand::TakeSentBacklog(Arc::clone(handle), sender);
        let sent = self.publisher_commands.send(command).await;
        Ok(if sent.is_ok() { receiver.await.ok() } else { None })
    }

    #[allow(clippy::too_many_arguments, reason = "the method only combines its arguments")]
    async fn driver_config(
        &self,
        name: &ResourceName,
        stream: &StreamConfig,
        claimed: ClaimedPartition,
        handle: Arc<PartitionHandle>,
        completions: mpsc::Receiver<Completion>,
        backlog: Vec<Input>,
        metrics: &Arc<PartitionMetrics>,
    ) -> Result<Option<DriverConfig>, RunError> {
        let config = &self.loaded.config;
        let Some(mut version) = self.handlers.watch(name) else { return Ok(None) };
        let active = version.active();
        let rollout = active.as_ref().map(|active| Arc::clone(&active.rollout));
        let completion_sender = handle.completions.clone();
        let partition = handle.partition.clone();
        let mut context =
            StreamContext::new(name.shared(), config.sinks.keys().map(ResourceName::shared));
        for (sink, config) in &config.sinks {
            if let SinkConfig::Amqp(config) = config {
                context = context.with_routing_key(sink.shared(), config.routing_key.clone());
            }
        }
        if let Some(observer) = self.handlers.engine.observer() {
            let log: Arc<dyn LogTarget> = observer.clone();
            context = context.with_log(log);
        }
        let turns = self.pool.attach(
            context,
            active,
            // A worker's thread runs this function. A running driver always takes its completions, so the call blocks
            // only for a short time. If the driver is gone, the results are not needed.
            Box::new(move |turns| drop(completion_sender.blocking_send(Completion::Turns(turns)))),
        );
        let settings = config.sequencer_settings(
            stream,
            &partition_share(config, stream, partition.number, rollout),
        );
        let StartedSource { source, inbox, checkpoint_name: checkpoint } =
            self.start_source(name, stream, &settings, metrics, &handle).await?;
        let replay = replay::ReplaySources::new(
            config,
            (name, stream),
            self.store,
            &partition,
            &self.replay_limits,
        );
        Ok(Some(DriverConfig {
            settings,
            version,
            partition,
            claimed,
            store: Arc::clone(self.store),
            turns,
            publisher: self.committed_batches.clone(),
            handle,
            backlog,
            completions,
            source,
            inbox,
            replay,
            checkpoint_name: checkpoint,
            once: self.once,
            may_end: self.may_end.subscribe(),
            metrics: Arc::clone(metrics),
        }))
    }
}
