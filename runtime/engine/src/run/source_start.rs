//! Starts the source of a partition.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordain_core::{OrderingMode, SequencerSettings};

use super::RunError;
use super::partition_factory::{PartitionFactory, StreamConsumers};
use crate::driver::PartitionMetrics;
use crate::sink::PartitionHandle;
use crate::source::{self, FileOptions, FileSet, Inbox, QueueOptions, ScanResult, unrouted_queue};
use ordain_amqp::{ConsumerOptions, ExchangeProducer, Topology};
use ordain_cloudevents::EventDecoder;
use ordain_cloudevents::SourceHandle;
use ordain_config::{
    AmqpSourceConfig, FileOrStdio, FileSourceConfig, HttpSourceConfig, ResourceName, SourceConfig,
    StoreConfig, StreamConfig, StreamSourceConfig,
};
use ordain_store::Ownership;
use ordain_store::checkpoint::{Checkpoint, reread_advice};
use ordain_store::{Claim, Mark, Partition, QueueRecords, StoreError};
use ordain_util::file_pattern::FilePattern;
use ordain_util::source_health::SourceState;
use tokio::task::block_in_place;

/// Deliveries that the broker has sent and the driver has not taken may use a quarter of a partition's memory budget.
/// The sequencer accepts no deliveries while its own memory is at or above three quarters of the budget.
const PREFETCH_MEMORY_DIVISOR: usize = 4;

/// Delay before the next scan of a folder, if programs rename or truncate its files without a pause.
const SCAN_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Delay before the next attempt to write a checkpoint that the store did not accept.
const CHECKPOINT_RETRY_DELAY: Duration = Duration::from_millis(500);

pub(super) struct StartedSource {
    pub(super) source: SourceHandle,
    /// `None` if the stream has no inbox.
    pub(super) inbox: Option<Inbox>,
    /// `None` for standard input and for the sources of other kinds, which have no checkpoint.
    pub(super) checkpoint_name: Option<String>,
}

impl PartitionFactory<'_> {
    /// Starts the source of a partition, and its inbox if the stream has one. The inbox publishes to the broker the
    /// events that arrived over HTTP.
    pub(super) async fn start_source(
        &self,
        name: &ResourceName,
        stream: &StreamConfig,
        settings: &SequencerSettings,
        metrics: &Arc<PartitionMetrics>,
        handle: &Arc<PartitionHandle>,
    ) -> Result<StartedSource, RunError> {
        let health = metrics.renew_health();
        // The consumer of a broker's queue sets `Consuming` itself, after it has subscribed to the queue.
        if !matches!(stream.source, SourceConfig::Amqp(_)) {
            health.set(SourceState::Consuming);
        }
        match &stream.source {
            SourceConfig::Amqp(config) => {
                let ownership = &handle.ownership;
                let source =
                    self.start_consumer(name, stream, config, settings, metrics, ownership);
                let inbox = self.start_inbox(stream, config, handle, metrics).await?;
                Ok(StartedSource { source, inbox, checkpoint_name: None })
            }
            SourceConfig::Stream(StreamSourceConfig { queue, .. })
            | SourceConfig::Http(HttpSourceConfig { queue, .. }) => {
                let options = self.queue_options(&handle.partition, handle.claim, *queue, metrics);
                let source = source::read_queue(QueueOptions {
                    is_fed_locally: matches!(stream.source, SourceConfig::Stream(_)),
                    backlog_gauge: Some(Arc::clone(&metrics.lag)),
                    handle: Some(Arc::clone(handle)),
                    ..options
                });
                Ok(StartedSource { source, inbox: None, checkpoint_name: None })
            }
            SourceConfig::File(config) => {
                let (source, checkpoint) = self.start_file(name, stream, config, handle).await?;
                Ok(StartedSource { source, inbox: None, checkpoint_name: checkpoint })
            }
        }
    }

    /// Returns the options that all readers of queues have in common. The caller sets the options in which the readers
    /// differ. `limit` is the maximum number of events that may wait for the partition, in all shards together.
    fn queue_options(
        &self,
        partition: &Partition,
        claim: Claim,
        limit: u64,
        metrics: &PartitionMetrics,
    ) -> QueueOptions {
        QueueOptions {
            store: Arc::clone(self.store),
            partition: partition.clone(),
            claim,
            notifier: self.notifiers.of(partition),
            limit,
            is_fed_locally: false,
            has_other_writers: matches!(self.loaded.config.store, StoreConfig::Redis(_)),
            backlog_gauge: None,
            counts_delivered: false,
            handle: None,
            losses: Arc::clone(&metrics.losses),
            used: None,
        }
    }

    /// Starts the inbox of a partition. If the stream has several partitions, the owner of partition 0 also reads the
    /// queue of events without a known partition. Returns `None` if the configuration has no exchange for the stream.
    async fn start_inbox(
        &self,
        stream: &StreamConfig,
        config: &AmqpSourceConfig,
        handle: &PartitionHandle,
        metrics: &PartitionMetrics,
    ) -> Result<Option<Inbox>, RunError> {
        let (Some(exchange), Some(broker)) = (&config.exchange, &self.broker) else {
            return Ok(None);
        };
        let [of_partition, of_none] = &metrics.inbox;
        let options = |partition: &Partition, claim, waits| {
            let queue = self.queue_options(partition, claim, config.inbox, metrics);
            // A process without an ingress (the HTTP listener for producers) polls less often, and therefore reads the
            // events of other processes up to a few seconds later.
            let others = queue.has_other_writers && self.loaded.config.ingress.is_some();
            let waits = Some(Arc::clone(waits));
            QueueOptions {
                has_other_writers: others,
                backlog_gauge: waits,
                counts_delivered: true,
                ..queue
            }
        };
        let routed = options(&handle.partition, handle.claim, of_partition);
        let mut unrouted_options = None;
        if config.partitions > 1 && handle.partition.number == 0 {
            let unrouted = unrouted_queue(&handle.partition.stream, config.partitions);
            unrouted_options = match self.store.claim(&unrouted, handle.claim.epoch).await {
                Ok(claimed) => Some(options(&unrouted, claimed.claim, of_none)),
                // Another process has claimed this queue under a later lease of partition 0. This process will soon
                // detect that it has lost its own lease.
                Err(StoreError::InUse(_)) => None,
                Err(error) => return Err(error.into()),
            };
        }
        let in_order = stream.ordering == OrderingMode::Fifo;
        let locations = config.locations();
        let stream_name = &handle.partition.stream;
        let producer = || {
            let retry_timeout = Duration::ZERO;
            ExchangeProducer::new(
                broker,
                stream_name,
                &exchange.0,
                &locations,
                in_order,
                retry_timeout,
            )
        };
        // The stream recognises the broker's copy of an early event if the id of the event is among the newest `window`
        // ids of its key. Pass at most `window / 2` events early, because other events of the key can arrive before the
        // copies of these events. Also leave room for the ids of all events that the broker may redeliver. A
        // `sequenced` stream needs no limit, because this stream recognises the copy by its sequence.
        let repeats = stream.source.redelivery_limit(self.loaded.config.ingress.is_some());
        let window = stream.id_window.max(repeats);
        let early_limit = (window / 2).min(window - stream.source.prefetch());
        let early_limit = if in_order { early_limit } else { usize::MAX };
        let gate = self.gate(stream_name);
        Ok(Some(Inbox::start(routed, unrouted_options, early_limit, &gate, producer)))
    }

    /// Starts the consumer of a broker's queue. This source has no checkpoint, because the broker itself tracks
    /// acknowledgements.
    fn start_consumer(
        &self,
        name: &ResourceName,
        stream: &StreamConfig,
        config: &AmqpSourceConfig,
        settings: &SequencerSettings,
        metrics: &Arc<PartitionMetrics>,
        ownership: &Arc<Ownership>,
    ) -> SourceHandle {
        let broker = self.broker.as_ref().expect(
            "the check of the configuration requires [broker] for a source of \
                                                  kind `amqp`",
        );
        let StreamConsumers { last_prefetch, exchange_fault } =
            self.consumers.borrow_mut().entry(name.shared()).or_default().clone();
        ordain_amqp::start(ConsumerOptions {
            broker: Arc::clone(broker),
            topology: Topology::of(config),
            partition: settings.partition,
            stream: name.shared(),
            prefetch: settings.prefetch.try_into().unwrap_or(u16::MAX),
            memory: settings.memory_budget / PREFETCH_MEMORY_DIVISOR,
            last_prefetch,
            consumer_tag: Arc::clone(&self.consumer_tag),
            unreadable_limit: config.unreadable_limit,
            decoder: ordain_amqp::DeliveryDecoder::of_stream(
                name,
                stream,
                config,
                self.loaded.config.runtime.event_size.bytes(),
            ),
            gate: self.gate(name),
            exchange_fault,
            ownership: Arc::clone(ownership),
            lag: Arc::clone(&metrics.lag),
            dropped: Arc::clone(&metrics.dropped),
            records: QueueRecords::new(self.store, &name.shared()),
            topology_throttle: ordain_amqp::topology_throttle(),
            unchecked_throttle: ordain_amqp::topology_throttle(),
            refused_markers: Mutex::default(),
            missing_exchanges: Mutex::default(),
            binding_list: self
                .management
                .as_ref()
                .map(|api| Arc::clone(api) as Arc<dyn ordain_amqp::BindingList>),
            health: metrics.health(),
            topology_changes: Arc::clone(&metrics.topology_changes),
        })
    }

    /// Starts a source of files. Without a usable checkpoint, the source starts at the beginning of its files. Also
    /// returns the name of the checkpoint; `None` for standard input.
    async fn start_file(
        &self,
        name: &ResourceName,
        stream: &StreamConfig,
        config: &FileSourceConfig,
        handle: &PartitionHandle,
    ) -> Result<(SourceHandle, Option<String>), RunError> {
        let event_size = self.loaded.config.runtime.event_size.bytes();
        let options = FileOptions {
            files: None,
            stream: name.to_string(),
            follow: !self.once,
            decoder: EventDecoder::new(stream.ordering, event_size)
                .with_locations(stream.source.cloudevent_locations()),
        };
        let FileOrStdio::File(path) = &config.path else {
            return Ok((source::read_file(options).map_err(RunError::Thread)?, None));
        };
        let mark_name = Checkpoint::mark_name(name);
        let stored = self.store.mark(&mark_name).await?;
        let mut is_first_start = false;
        let checkpoint = match stored {
            None if self.store.streams().await?.iter().any(|stream| **stream == **name) => {
                tracing::warn!(
                    stream = %name, path = %path.display(),
                    "the store has data of the stream, but no checkpoint of a file: reading the file from its \
                     beginning; {}", reread_advice(stream.ordering)
                );
                None
            }
            None => {
                is_first_start = true;
                None
            }
            Some(bytes) => match Checkpoint::decode(&bytes) {
                Ok(checkpoint) => Some(checkpoint),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(
                        stream = %name, "{error:#}; reading the file from its beginning; {}",
                        reread_advice(stream.ordering)
                    );
                    None
                }
            },
        };
        let pattern = FilePattern::new(path);
        let mut files = match &checkpoint {
            Some(checkpoint) => FileSet::resume(pattern, name, stream.ordering, checkpoint),
            None => FileSet::new(pattern, name, stream.ordering, is_first_start),
        };
        let lost_in = checkpoint.as_ref().map_or_else(Vec::new, |checkpoint| {
            checkpoint.shards_that_lost_commits(&handle.claimed_commits)
        });
        if !lost_in.is_empty() {
            tracing::warn!(
                stream = %name, path = %path.display(), shards = ?lost_in,
                "the store went back in time: these shards have lost commits on which the checkpoint of the file \
                 depends. Now reading the file from its beginning; {}", reread_advice(stream.ordering)
            );
            handle.losses.add_rollbacks(&lost_in);
            files.rewind();
        }
        // The checkpoint below must contain all files, so repeat the scan while programs rename the files of the
        // folder. If this process loses the partition, the caller drops this future.
        while self.scan(name, path, &mut files)? == ScanResult::Unsettled {
            tokio::time::sleep(SCAN_RETRY_DELAY).await;
        }
        if let Some(line) = files.resumed_line() {
            tracing::info!(stream = %name, line, "reading the file from its checkpoint");
        }
        // Replace the checkpoint now, for two reasons. First, the checkpoint must contain all files that the source
        // knows now, because a file that is not in the checkpoint counts as new at the next start. Second, after a loss
        // of commits, later commits get the numbers of the lost commits. The next start would then accept the old
        // checkpoint as valid.
        let mut known = files.progress();
        if let [file] = &mut known[..]
            && file.is_live
            && !file.is_begun()
        {
            // Write neither the length nor the first bytes of this file into the checkpoint. The source begins to read
            // the file immediately. If the file contains only blank lines, the source reads these lines, but writes no
            // other checkpoint. If a program then rewrites the file, the next start would compare the file with this
            // checkpoint, and treat the blank lines as unread.
            file.forget_content();
        }
        let beginning = Checkpoint::new(known, handle.claimed_commits.to_vec())
            .with_compressed(files.known_compressed());
        let mark = Mark { name: mark_name.clone(), value: beginning.encode().into() };
        let put = async || {
            let disconnects = self.store.disconnects();
            self.store.put_checkpoint(&handle.partition, handle.claim, disconnects, &mark).await
        };
        // If this process has lost the partition, the checkpoint is not needed.
        while !put().await? && !handle.ownership.is_lost() {
            tokio::time::sleep(CHECKPOINT_RETRY_DELAY).await;
        }
        let options = FileOptions { files: Some(files), ..options };
        Ok((source::read_file(options).map_err(RunError::Thread)?, Some(mark_name)))
    }

    /// Scans the folder of the files. An error names the setting of the path.
    fn scan(
        &self,
        name: &ResourceName,
        path: &Path,
        files: &mut FileSet,
    ) -> Result<ScanResult, RunError> {
        let scanned = block_in_place(|| files.scan());
        Ok(scanned.map_err(|error| {
            let message = format!("{} cannot be read: {error}", path.display());
            let setting = format!("streams.{name}.source.path");
            self.loaded.setting_error(&setting, message).caused_by(&error)
        })?)
    }
}
