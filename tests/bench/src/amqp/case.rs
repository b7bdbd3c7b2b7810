//! One measurement: fresh queues of a broker, a fresh Redis, and a folder with the configuration of a host. All sides
//! get the same events, and the benchmark measures all sides in the same way.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ExchangeKind};
use ordain_amqp::{BrokerEndpoint, PREPARE_TIMEOUT, Topology};
use ordain_config::{LoadedConfig, SourceConfig};
use ordain_servers::{Rabbit, Redis};
use tempfile::TempDir;

use super::load::{Load, PlannedDelivery, key_name};

/// The name of the stream, of its exchange and of its queue.
pub(crate) const STREAM: &str = "bench";
/// The name of the exchange for messages, and of the queue that is bound to this exchange.
pub(crate) const OUT_NAME: &str = "out";
/// Maximum number of published events without a confirm.
const CONFIRM_LIMIT: usize = 2_000;
/// Interval between two bursts of a steady load.
const BURST_INTERVAL: Duration = Duration::from_millis(1);

/// The options in which the measurements differ.
#[derive(Debug, Clone)]
pub(crate) struct CaseOptions {
    pub(crate) plugins: PathBuf,
    pub(crate) partitions: u32,
    /// The prefetch, if it differs from the host's default.
    pub(crate) prefetch: Option<u16>,
    /// `appendfsync` of Redis.
    pub(crate) fsync: String,
    /// True if the host keeps everything in its embedded store.
    pub(crate) embedded: bool,
    /// True if each event makes a message for the exchange [`OUT_NAME`].
    pub(crate) emits: bool,
    /// Settings of the stream that differ from the defaults.
    pub(crate) stream: &'static str,
}

/// The queues, the Redis and the folder of one measurement.
pub(crate) struct Case {
    pub(crate) redis: Redis,
    /// The folder of `ordain.toml`.
    pub(crate) home: TempDir,
    pub(crate) loaded: LoadedConfig,
    /// The port of the host's admin server.
    pub(crate) admin: u16,
    emits: bool,
    queues: Vec<String>,
    connection: Connection,
    publishing: Channel,
    watching: Channel,
}

impl Case {
    pub(crate) async fn new(options: &CaseOptions, rabbit: &Rabbit) -> Result<Self> {
        let redis = Redis::start(&[&format!("appendfsync {}", options.fsync)])?;
        let home = tempfile::tempdir()?;
        let file = home.path().join("ordain.toml");
        // The system chooses a free port. Another process is unlikely to use the port before the host does.
        let admin = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        fs::write(&file, config(options, rabbit, &redis, admin))?;
        let loaded = LoadedConfig::load(&file)?;
        loaded.check_supported()?;
        let (broker, topology) = broker(&loaded)?;
        let connection = broker.connect("bench").await?;
        topology.prepare(&broker, &connection, false, PREPARE_TIMEOUT).await?;
        let publishing = connection.create_channel().await?;
        publishing.confirm_select(ConfirmSelectOptions::default()).await?;
        let watching = connection.create_channel().await?;
        if options.emits {
            declare_out(&watching).await?;
        }
        let queues = (0..options.partitions).map(|number| topology.queue(number)).collect();
        let emits = options.emits;
        Ok(Self { redis, home, loaded, admin, emits, queues, connection, publishing, watching })
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.home.path().join("ordain.toml")
    }

    /// Publishes a load as fast as the broker confirms it.
    pub(crate) async fn fill(&self, load: &Load) -> Result<()> {
        let mut confirms = VecDeque::with_capacity(CONFIRM_LIMIT);
        for planned in &load.deliveries {
            if confirms.len() == CONFIRM_LIMIT
                && let Some(oldest) = confirms.pop_front()
            {
                confirmed(oldest).await?;
            }
            confirms.push_back(self.publish(load, *planned).await?);
        }
        for confirm in confirms {
            confirmed(confirm).await?;
        }
        Ok(())
    }

    /// Publishes a part of a load at the rate `rate`, in events per second. Returns the rate that was reached.
    pub(crate) async fn pace(
        &self,
        load: &Load,
        part: &[PlannedDelivery],
        rate: f64,
    ) -> Result<f64> {
        let mut left = part.iter();
        let mut confirms = FuturesOrdered::new();
        let mut interval = tokio::time::interval(BURST_INTERVAL);
        let started = Instant::now();
        let mut sent = 0;
        while left.len() > 0 || !confirms.is_empty() {
            tokio::select! {
                _ = interval.tick(), if left.len() > 0 => {
                    let due = (started.elapsed().as_secs_f64() * rate) as usize;
                    let room = CONFIRM_LIMIT - confirms.len();
                    let burst = due.saturating_sub(sent).min(room);
                    for planned in left.by_ref().take(burst) {
                        let confirm = self.publish(load, *planned).await?;
                        confirms.push_back(confirmed(confirm));
                        sent += 1;
                    }
                }
                Some(confirmed) = confirms.next() => confirmed?,
            }
        }
        Ok(sent as f64 / started.elapsed().as_secs_f64())
    }

    async fn publish(
        &self,
        load: &Load,
        planned: PlannedDelivery,
    ) -> Result<lapin::PublisherConfirm> {
        let (properties, data) = load.event(planned);
        let exchange = STREAM.into();
        let key = key_name(planned.key).into();
        let options = BasicPublishOptions::default();
        Ok(self.publishing.basic_publish(exchange, key, options, &data, properties).await?)
    }

    /// Returns how many of the `deliveries` deliveries of a load are done. If each delivery makes a message, the result
    /// is the number of messages in the queue [`OUT_NAME`]. Otherwise the result is the number of deliveries that have
    /// left the queues. This number includes the deliveries that the consumer has received but not acknowledged; the
    /// prefetch limits them. A measurement uses the difference of two such numbers, in which the unacknowledged
    /// deliveries cancel out.
    ///
    /// Returns `None` if a queue is too busy to answer: the broker then reports no messages and no consumers for the
    /// queue. The broker reports the same for an empty queue [`OUT_NAME`], so the function also returns `None` in this
    /// case.
    pub(crate) async fn done(&self, deliveries: u64) -> Result<Option<u64>> {
        if self.emits {
            let messages = u64::from(self.queue_state(OUT_NAME).await?.message_count());
            return Ok(Some(messages).filter(|count| *count > 0));
        }
        let mut ready = 0;
        for queue in &self.queues {
            let state = self.queue_state(queue).await?;
            if state.consumer_count() == 0 && state.message_count() == 0 {
                return Ok(None);
            }
            ready += u64::from(state.message_count());
        }
        Ok(Some(deliveries.saturating_sub(ready)))
    }

    /// Returns whether each queue has a consumer.
    pub(crate) async fn is_consumed(&self) -> Result<bool> {
        for queue in &self.queues {
            if self.queue_state(queue).await?.consumer_count() == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn queue_state(&self, queue: &str) -> Result<lapin::Queue> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let state = self.watching.queue_declare(queue.into(), passive, FieldTable::default());
        state.await.with_context(|| format!("cannot read the state of the queue {queue}"))
    }

    /// Removes the queues. All of their deliveries must have been acknowledged.
    pub(crate) async fn end(self) -> Result<()> {
        for queue in &self.queues {
            let options = QueueDeleteOptions::default();
            let left = self.watching.queue_delete(queue.as_str().into(), options).await?;
            ensure!(left == 0, "the queue {queue} is not empty: it contains {left} deliveries");
        }
        if self.emits {
            self.watching.queue_delete(OUT_NAME.into(), QueueDeleteOptions::default()).await?;
        }
        Ok(self.connection.close(200, "done".into()).await?)
    }
}

async fn confirmed(confirm: lapin::PublisherConfirm) -> Result<()> {
    ensure!(confirm.await?.is_ack(), "the broker refused an event");
    Ok(())
}

async fn declare_out(channel: &Channel) -> Result<()> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let nothing = FieldTable::default;
    channel.exchange_declare(OUT_NAME.into(), ExchangeKind::Topic, durable, nothing()).await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(OUT_NAME.into(), durable, arguments).await?;
    let options = QueueBindOptions::default();
    Ok(channel.queue_bind(OUT_NAME.into(), OUT_NAME.into(), "#".into(), options, nothing()).await?)
}

/// Returns the host's configuration: the addresses and folders of a measurement, and its options. All other settings
/// have their defaults.
fn config(options: &CaseOptions, rabbit: &Rabbit, redis: &Redis, admin: u16) -> String {
    let plugins = options.plugins.display();
    let partitions = options.partitions;
    let mut text = format!("[plugins]\ndir = \"{plugins}\"\n");
    let mut add = |line: &str| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{line}");
    };
    if !options.embedded {
        add(&format!("[store]\nkind = \"redis\"\nurl = \"{}\"", redis.url()));
    }
    add(&format!("[admin]\nlisten = \"127.0.0.1:{admin}\""));
    add(&format!("[broker]\nurl = \"{}\"", rabbit.url()));
    add(&format!("[streams.{STREAM}]\nhandler = \"probe\"\n{}", options.stream));
    let prefetch =
        options.prefetch.map(|prefetch| format!(", prefetch = {prefetch}")).unwrap_or_default();
    add(&format!(
        "source = {{ kind = \"amqp\", exchange = \"{STREAM}\", queue = \"{STREAM}\", \
         partitions = {partitions}{prefetch} }}"
    ));
    if options.emits {
        add(&format!("[sinks.{OUT_NAME}]\nkind = \"amqp\"\nexchange = \"{OUT_NAME}\""));
    }
    text
}

/// Returns the broker and the topology of a configuration.
pub(crate) fn broker(loaded: &LoadedConfig) -> Result<(BrokerEndpoint, Topology)> {
    let config = loaded.config.broker.as_ref().context("the configuration has no broker")?;
    // Most AMQP clients have the same default for the heartbeat interval.
    let heartbeat = Duration::from_mins(1);
    let broker = BrokerEndpoint::new(config.url.clone(), heartbeat);
    let stream =
        loaded.config.streams.values().next().context("the configuration has no stream")?;
    let SourceConfig::Amqp(source) = &stream.source else {
        anyhow::bail!("the stream's source must be of the kind `amqp`")
    };
    Ok((broker, Topology::of(source)))
}
