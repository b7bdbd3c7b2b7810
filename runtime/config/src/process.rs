//! The tables of the file that concern the whole process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::broker_url::BrokerUrl;
use super::management::ManagementUrl;
use super::reader::ConfigReader;
use super::scalar::choice;
use super::section::{kinds, section};
use super::text::{FilePath, ResourceName, Secret};
use super::units::{ByteSize, Millis, OffOr};
use ordain_store::{RedisOptions, RedisUrl};

section! {
    /// `[runtime]`: limits of the process, shared by all streams.
    pub struct RuntimeConfig {
        /// Number of threads that execute handlers. Default: one per processor.
        workers: Option<usize> [1 to 1_024],
            because "a handler only computes, so threads beyond the number of processors do not add throughput";
        /// Maximum number of keys in memory, over all streams and partitions.
        max_active_keys: usize [1 to 10_000_000] = 100_000,
            because "a key in memory takes about 1 KiB with its state, so 100,000 keys take about 100 MiB";
        /// Memory for events, states, outcomes and unpublished messages, divided among the partitions. The store and
        /// the handlers use additional memory.
        ///
        /// When a partition has used three quarters of its part, it moves waiting events to the store and reads no
        /// further events. When the part is full, the partition completes its commits and publications before it loads
        /// or executes anything.
        memory_budget: ByteSize ["16MiB" to "1024GiB"] = "512MiB",
            because "512 MiB hold the prefetched events of many partitions, and are half of the memory of a small \
                     machine";
        /// Maximum number of events of a partition that have been passed to a handler and are not yet committed.
        run_ahead: usize [1 to 1_000_000] = 4_096,
            because "eight full batches of 512 keep the handlers busy during a commit, and a crash repeats few events";
        /// Number of events at which a commit is full. The events of the key that fills the commit may exceed this
        /// number.
        batch: usize [1 to 65_536] = 512,
            because "larger batches no longer lower the cost of an event, and delay the next batch";
        /// Size at which a commit is full. A full commit takes no more outcomes (results of handlers). The outcome that
        /// fills a commit may exceed this size, so that even the largest outcome fits into a commit.
        batch_size: ByteSize ["64KiB" to "256MiB"] = "4MiB",
            because "a disk writes 4 MiB in a few ms, and the next commits wait until the disk has written them";
        /// Maximum size of an event, with its attributes and headers.
        event_size: ByteSize ["1KiB" to "64MiB"] = "1MiB",
            because "an event describes what happened and refers to larger data, which is stored elsewhere";
        /// How long an instance owns its partitions after its last heartbeat.
        lease: Millis ["2s" to "10m"] = "10s",
            because "ten seconds are longer than a usual pause of a process or network, and short enough for a quick \
                     failover";
        /// Longest time from the first signal to the end of the process. If some events are still unfinished after this
        /// time, the process ends, and the next start executes these events again.
        shutdown_grace: Millis ["0s" to "1h"] = "30s",
            because "service managers usually wait at least this long before they kill a process";
        /// Sink that receives a message for each parked key and dead letter.
        alerts: Option<ResourceName>;
    }
}

section! {
    /// `[admin]`: metrics, health, and the operators' interface.
    pub struct AdminConfig {
        /// Address and port to listen on; port 0 selects a free port.
        listen: SocketAddr = "127.0.0.1:7070",
            because "other machines cannot reach 127.0.0.1; access from other machines must be configured explicitly";
        /// Token that a caller must present. Required for an address that other machines can reach.
        token: Option<Secret>;
    }
}

section! {
    /// `[ingress]`: accepts events over HTTP.
    pub struct IngressConfig {
        /// Address and port to listen on; port 0 selects a free port.
        listen: SocketAddr = "127.0.0.1:7071",
            because "other machines cannot reach 127.0.0.1; access from other machines must be configured explicitly";
        /// Token that a caller must present. Required for an address that other machines can reach.
        token: Option<Secret>;
        /// Maximum size of the body of a request.
        request_size: ByteSize ["1KiB" to "256MiB"] = "8MiB",
            because "8 MiB hold several thousand events; larger requests do not raise the throughput, and a producer \
                     needs longer to send them again after a failure";
        /// Maximum total size of the requests in progress. Beyond this size, Ordain rejects new requests, and producers
        /// retry these requests after a moment.
        in_flight: ByteSize ["1MiB" to "16GiB"] = "64MiB",
            because "64 MiB hold eight requests of the largest size, or ten thousand requests of a few KiB";
    }
}

/// The settings that apply if the file has no `[ingress]`.
impl Default for IngressConfig {
    fn default() -> Self {
        let mut reader = ConfigReader::new("", Path::new(""), &|_| None);
        reader.document("").expect("defaults for all settings")
    }
}

section! {
    /// `[broker]`: the RabbitMQ of all sources and sinks of kind `amqp`.
    pub struct BrokerConfig {
        /// URL of the broker.
        url: BrokerUrl;
        /// Interval between the probes (AMQP heartbeats) of an idle connection, in whole seconds. Default: a fifth of
        /// `runtime.lease`, rounded down, but at least one second.
        heartbeat: Option<Millis> ["1s" to "5m"],
            because "RabbitMQ must detect a dead connection before another instance owns the partition";
        /// URL of the broker's management API. Ordain uses the API only for warnings: about policies and queue
        /// arguments that make a queue lose events, about missing bindings, and about other queues that take events
        /// from a stream. Ordain logs in as the user of `url`, who needs the tag `management`.
        management: Option<ManagementUrl>;
    }
}

kinds! {
    /// `[store]`: the store, which keeps key records, spilled events, outboxes and dead letters.
    pub enum StoreConfig {
        /// A folder that one process uses.
        "embedded" => Embedded(EmbeddedConfig),
        /// A Redis, which several machines can share.
        "redis" => Redis(RedisConfig),
    }
}

impl StoreConfig {
    /// Returns how long the store keeps a dead letter.
    pub fn dead_ttl(&self) -> Millis {
        match self {
            Self::Embedded(store) => store.dead_ttl,
            Self::Redis(store) => store.dead_ttl,
        }
    }
}

impl RedisConfig {
    /// Returns the options for opening this store. While no server responds, the store retries requests other than
    /// commits for `patience`. If `patience` is `None`, the store retries these requests without a time limit. The call
    /// that opens the store retries for at most half a minute, even if `patience` is longer or `None`.
    pub fn options(&self, patience: Option<Duration>) -> RedisOptions {
        RedisOptions {
            address: self.url.clone(),
            prefix: self.prefix.to_string(),
            shards: self.shards,
            replicas: self.durability.replicas(),
            dead_ttl: self.dead_ttl.0,
            retry_timeout: patience,
            reads_only: false,
            clock_offset_ms: Arc::default(),
        }
    }
}

section! {
    /// `[store] kind = "embedded"`.
    pub struct EmbeddedConfig {
        /// The folder; created if it is missing. Only one process at a time can open it.
        path: FilePath = "ordain-data",
            because "a folder next to the configuration is easy to find";
        /// Size of the cache for data that was read from the folder. Writes use about 100 MiB of additional memory.
        cache: ByteSize ["1MiB" to "1024GiB"] = "64MiB",
            because "64 MiB hold the frequently used part of a million key records; the operating system caches the \
                     rest";
        /// How long the store keeps a dead letter.
        dead_ttl: Millis ["1m" to "3650d"] = "30d",
            because "an operator can return from a holiday before the store removes the letter";
    }
}

section! {
    /// `[store] kind = "redis"`.
    pub struct RedisConfig {
        /// URL with the address of a server.
        ///
        /// For a Cluster or Sentinels, the URL has the addresses of a few nodes, separated by commas. If the Sentinels
        /// watch several masters, the URL ends with the name of the master. Ordain detects whether a server, a Cluster
        /// or Sentinels run at the addresses.
        url: RedisUrl;
        /// Prefix of the names of all keys in Redis.
        prefix: ResourceName = "ordain",
            because "several Ordain deployments can share one Redis under different prefixes";
        /// Number of shards of the store, each in one hash slot. The number cannot be changed later: another number
        /// requires another `prefix`, under which Ordain begins with an empty store.
        shards: u32 [1 to 1_024] = 16,
            because "16 shards are more than the masters of a usual Cluster, and still allow large batches";
        /// The servers that must have a commit before the commit succeeds: the master alone, or the master and N
        /// replicas.
        durability: RedisDurability = "local",
            because "waiting for replicas adds a round trip to each batch";
        /// How long the store keeps a dead letter.
        dead_ttl: Millis ["1m" to "3650d"] = "30d",
            because "an operator can return from a holiday before the store removes the letter";
    }
}

/// The servers of Redis that must have a commit before the commit succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisDurability {
    /// The master.
    Local,
    /// The master and this many replicas.
    Replicas(u32),
}

impl RedisDurability {
    /// Returns how many replicas must have a commit before the commit succeeds.
    pub fn replicas(self) -> u32 {
        match self {
            Self::Local => 0,
            Self::Replicas(count) => count,
        }
    }
}

/// Largest N that the setting accepts in `replicas:N`: far more replicas than a master usually has.
const REPLICAS_LIMIT: u32 = 16;

impl super::scalar::Scalar for RedisDurability {
    const FORM: &'static str = "\"local\" or \"replicas:N\" with N from 1 to 16";

    fn parse(text: &str) -> Result<Self, String> {
        if text == "local" {
            return Ok(Self::Local);
        }
        match text.strip_prefix("replicas:").and_then(|count| count.parse().ok()) {
            Some(count) if (1..=REPLICAS_LIMIT).contains(&count) => Ok(Self::Replicas(count)),
            _ => Err(String::new()),
        }
    }
}

section! {
    /// `[plugins]`: the handlers and their limits.
    pub struct PluginsConfig {
        /// Folder of the handlers: files named `<handler>@<version>.wasm` or `<handler>.wasm`.
        dir: FilePath = "plugins",
            because "a folder next to the configuration is easy to find";
        /// Time limit for one event, counted while the handler runs.
        timeout: Millis ["1ms" to "1h"] = "5s",
            because "a handler usually needs a thousandth of five seconds, and operators soon notice a handler that \
                     hangs";
        /// Memory limit of one handler instance, over all its memories.
        memory: ByteSize ["1MiB" to "4GiB"] = "64MiB",
            because "64 MiB are enough for handlers in all languages and events of 1 KB, and low enough to stop a leak \
                     early";
        /// Use of a handler instance: for many events (`reuse`) or for one event (`fresh`).
        instance: InstanceMode = "reuse",
            because "a new instance for each event costs 0.03 to 2.5 ms, depending on the language";
        /// Number of events after which Ordain replaces a reused handler instance.
        instance_events: u64 [1 to 1_000_000_000] = 10_000,
            because "over 10,000 events, the cost of a new instance is negligible, and slow leaks stay small";
        /// Maximum size of the state of a key.
        state_size: ByteSize ["1KiB" to "64MiB"] = "1MiB",
            because "every commit of the key writes the whole state";
        /// Maximum number of messages in one outcome (the result of the handler for one event).
        messages: usize [1 to 100_000] = 1_000,
            because "a handler that emits more messages for one event usually contains an endless loop";
        /// Maximum total size of the messages in one outcome.
        messages_size: ByteSize ["1KiB" to "256MiB"] = "4MiB",
            because "`runtime.batch_size` has the same default, so one commit holds such an outcome";
        /// Maximum size of the log that a handler writes for one event. If the handler writes more, the log contains
        /// the beginning of the handler's lines and the number of missing bytes, and the event still takes effect.
        /// Lines below the log level of the process do not count towards this size. With 0, Ordain writes none of the
        /// handler's lines to the log.
        log: ByteSize [0 to "1MiB"] = "16KiB",
            because "a few hundred lines are enough to understand one event";
        /// Maximum processor time for compiling a handler. A handler that needs more is rejected.
        compile_timeout: Millis ["1s" to "1h"] = "5m",
            because "the slowest measured compilation of a handler takes twelve seconds";
        /// Maximum memory for compiling a handler. A handler that needs more is rejected.
        compile_memory: ByteSize ["256MiB" to "64GiB"] = "4GiB",
            because "the compilation of a handler of 3 MB needs about 100 MiB, and the limit stops a malicious file";
    }
}

/// The number of events that a handler instance executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceMode {
    /// A handler instance executes many events, one after the other.
    Reuse,
    /// A new handler instance executes each event.
    Fresh,
}

choice!(InstanceMode { "reuse" => InstanceMode::Reuse, "fresh" => InstanceMode::Fresh, });

/// A duration or `"off"`, which means "never". The tables of streams use this type too.
pub(super) type OffOrMillis = OffOr<Millis>;
