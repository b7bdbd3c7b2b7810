//! The consumers that this program implements as sides, each in a process of its own, and their common parts.

mod bare;
mod hand;
mod unordered;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer as Deliveries};
use ordain_amqp::BrokerEndpoint;
use ordain_config::{LoadedConfig, SourceConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use super::case::broker;
use super::latency::Ages;

/// The kind of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Receives deliveries, and acknowledges many of them together.
    Bare,
    /// Receives and acknowledges deliveries, and publishes a message for each.
    BarePublish,
    /// Executes up to 64 events of a partition at a time, in no order, each event as [`hand`] describes.
    Tasks,
    /// Executes one event after the other, as [`hand`] describes. The broker delivers an event only after the
    /// acknowledgement of the previous event.
    Single,
    /// Executes one event after the other, as [`hand`] describes. The broker delivers later events in advance.
    Serial,
    /// Runs the host's pipeline without the sequencer.
    Unordered,
}

/// The reason why the side `unordered` has no [`Partition`] and needs no prefetch here.
const PIPELINE: &str = "the side `unordered` uses the host's own source";

/// Consumes all events of one load, and waits for SIGTERM. Then prints the percentiles of the latency, if the data of
/// the measured events shows the time of publication.
#[derive(Debug, clap::Args)]
pub(crate) struct Consumer {
    /// Kind of the consumer
    kind: Kind,
    /// Configuration file, as for the host
    #[arg(long)]
    config: PathBuf,
    /// Address of Redis
    #[arg(long)]
    redis: String,
    /// Number of events of the load
    #[arg(long)]
    events: u64,
    /// Number of events at the start of the load that do not count towards the percentiles of the latency
    #[arg(long)]
    cold: usize,
}

/// The number of deliveries that a consumer still has to acknowledge, and the ages of the events that are done.
#[derive(Debug)]
struct Progress {
    left: AtomicU64,
    ages: Mutex<Ages>,
}

impl Progress {
    /// Records the ages of the events with which the consumer is done now. `data` contains the data of each event.
    fn done<'a>(&self, data: impl IntoIterator<Item = &'a [u8]>) {
        let mut ages = self.ages.lock().unwrap_or_else(PoisonError::into_inner);
        data.into_iter().for_each(|data| ages.done(data));
    }

    /// Records that this number of further deliveries is acknowledged.
    fn acknowledged(&self, count: u64) {
        self.left.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The channel and the deliveries of a partition, and the progress of its consumer.
struct Partition {
    channel: Channel,
    deliveries: Deliveries,
    progress: Arc<Progress>,
}

impl Consumer {
    pub(crate) fn run(&self) -> Result<()> {
        // The host uses the same kind of Tokio runtime.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.consume())
    }

    async fn consume(&self) -> Result<()> {
        let loaded = LoadedConfig::load(&self.config)?;
        let mut end = signal(SignalKind::terminate())?;
        let progress =
            Arc::new(Progress { left: AtomicU64::new(self.events), ages: Mutex::default() });
        if self.kind == Kind::Unordered {
            unordered::run(&loaded, &progress, &mut end).await?;
        } else {
            self.each_partition(&loaded, &progress, &mut end).await?;
        }
        let left = progress.left.load(Ordering::Relaxed);
        ensure!(left == 0, "{left} deliveries are not acknowledged");
        let ages =
            std::mem::take(&mut *progress.ages.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(latency) = ages.latency(self.cold) {
            println!("{}", serde_json::to_string(&latency)?);
        }
        Ok(())
    }

    /// Consumes all partitions, each on a channel of its own.
    async fn each_partition(
        &self,
        loaded: &LoadedConfig,
        progress: &Arc<Progress>,
        end: &mut Signal,
    ) -> Result<()> {
        let (broker, topology) = broker(loaded)?;
        let connection = broker.connect("consumer").await?;
        let stream =
            loaded.config.streams.values().next().context("the configuration has no stream")?;
        let mut consumers = JoinSet::new();
        for number in 0..stream.source.partitions() {
            let channel = connection.create_channel().await?;
            let prefetch = BasicQosOptions::default();
            channel.basic_qos(self.prefetch(&stream.source), prefetch).await?;
            let queue = topology.queue(number);
            let options = BasicConsumeOptions::default();
            let nothing = FieldTable::default();
            let deliveries =
                channel.basic_consume(queue.as_str().into(), "".into(), options, nothing).await?;
            let partition = Partition { channel, deliveries, progress: Arc::clone(progress) };
            let kind = self.kind;
            let redis = self.redis.clone();
            let broker = broker.clone();
            consumers.spawn(partition.run(kind, redis, broker));
        }
        tokio::select! {
            _ = end.recv() => {}
            Some(ended) = consumers.join_next() => {
                ended??;
                bail!("the broker has ended a subscription");
            }
        }
        Ok(connection.close(200, "done".into()).await?)
    }

    fn prefetch(&self, source: &SourceConfig) -> u16 {
        match self.kind {
            Kind::Bare | Kind::BarePublish => source.prefetch().try_into().unwrap_or(u16::MAX),
            Kind::Tasks | Kind::Serial => hand::PREFETCH,
            Kind::Single => 1,
            Kind::Unordered => unreachable!("{PIPELINE}"),
        }
    }
}

impl Partition {
    async fn run(self, kind: Kind, redis: String, broker: BrokerEndpoint) -> Result<()> {
        match kind {
            Kind::BarePublish => bare::consume_and_publish(self, &broker).await,
            Kind::Tasks => hand::tasks(self, &redis).await,
            Kind::Single | Kind::Serial => hand::serial(self, &redis).await,
            Kind::Bare => bare::consume(self).await,
            Kind::Unordered => unreachable!("{PIPELINE}"),
        }
    }
}
