//! The tables that concern the process as a whole.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::reader::Reader;
use super::scalar::choice;
use super::section::{kinds, section};
use super::text::{BrokerUrl, FilePath, Name, Secret};
use super::units::{Millis, Off, Size};
use ordain_store::{RedisAddress, RedisOptions};

section! {
    /// `[runtime]`: what the process may use, shared by all streams.
    pub struct Runtime {
        /// Threads that execute handlers. Left out: one per processor.
        workers: Option<usize> [1 to 1_024],
            because "a handler only computes, so more threads than processors only take turns";
        /// Keys in memory, over all streams and partitions.
        max_active_keys: usize [1 to 10_000_000] = 100_000,
            because "with key and state a lane takes about 1 KiB, so this is about 100 MiB";
        /// Memory for events, states, outcomes and what is unpublished. At three quarters of it
        /// waiting events go to the store and reading stops; at all of it nothing is loaded or
        /// executed until something is written. Store and handlers take theirs besides.
        memory_budget: Size ["16MiB" to "1024GiB"] = "512MiB",
            because "enough for the windows of many partitions, and half of a small machine";
        /// Events of a partition that are dispatched or executed and not yet committed.
        run_ahead: usize [1 to 1_000_000] = 4_096,
            because "eight full batches: the handlers work on while one commits, and a crash repeats little";
        /// Events in a commit.
        batch: usize [1 to 65_536] = 512,
            because "more no longer lowers the cost of an event, and makes the next one wait longer";
        /// Bytes in a commit; the outcome of a single turn always fits.
        batch_size: Size ["64KiB" to "256MiB"] = "4MiB",
            because "a few ms of a disk's writing, which is what everyone behind it waits";
        /// The largest event, as delivered with everything around its data.
        event_size: Size ["1KiB" to "64MiB"] = "1MiB",
            because "events say what happened; larger things are kept elsewhere and named";
        /// How long a partition belongs to an instance that is not heard of.
        lease: Millis ["2s" to "10m"] = "10s",
            because "longer than a usual pause of a process or network, shorter than anyone minds";
        /// From the first signal to the end, with what is then unfinished left to the next start.
        shutdown_grace: Millis ["0s" to "1h"] = "30s",
            because "what service managers wait before they kill";
        /// A sink that is told of parked keys and dead letters.
        alerts: Option<Name>;
    }
}

section! {
    /// `[admin]`: metrics, health, and what operators see and do.
    pub struct Admin {
        /// Where to listen; port 0 takes a free one.
        listen: SocketAddr = "127.0.0.1:7070",
            because "nobody beyond this machine reaches it until that is asked for";
        /// What a caller must present. Needed for an address beyond this machine.
        token: Option<Secret>;
    }
}

section! {
    /// `[ingress]`: events in over HTTP.
    pub struct Ingress {
        /// Where to listen; port 0 takes a free one.
        listen: SocketAddr = "127.0.0.1:7071",
            because "nobody beyond this machine reaches it until that is asked for";
        /// What a caller must present. Needed for an address beyond this machine.
        token: Option<Secret>;
        /// The largest request.
        request_size: Size ["1KiB" to "256MiB"] = "8MiB",
            because "some thousand events at once: larger ones gain nothing and take longer to send again";
        /// Bytes of all requests that are being taken at one time; beyond, producers are sent away for a moment.
        in_flight: Size ["1MiB" to "16GiB"] = "64MiB",
            because "eight of the largest, or some ten thousand small ones";
    }
}

/// As where the section is not there.
impl Default for Ingress {
    fn default() -> Self {
        let mut reader = Reader::new("", Path::new(""), &|_| None);
        reader.document("").expect("all its settings have defaults")
    }
}

section! {
    /// `[broker]`: the RabbitMQ of all sources and sinks of kind `amqp`.
    pub struct Broker {
        /// Where it is.
        url: BrokerUrl;
        /// How often a quiet connection is probed; whole seconds. Left out: a fifth of the lease,
        /// and at least a second.
        heartbeat: Option<Millis> ["1s" to "5m"],
            because "a connection must be known to be dead before its partition is another's";
    }
}

kinds! {
    /// `[store]`: where jobs, spilled events, outboxes and dead letters are kept.
    pub enum StoreConfig {
        /// A folder of this process.
        "embedded" => Embedded(Embedded),
        /// A Redis, which several machines can reach.
        "redis" => Redis(Redis),
    }
}

impl StoreConfig {
    /// How long a dead letter is kept.
    pub fn dead_ttl(&self) -> Millis {
        match self {
            Self::Embedded(store) => store.dead_ttl,
            Self::Redis(store) => store.dead_ttl,
        }
    }
}

impl Redis {
    /// Returns how this store is opened. Requests other than commits are repeated for `patience` while
    /// no server answers; `None`: without an end.
    pub fn options(&self, patience: Option<Duration>) -> RedisOptions {
        RedisOptions {
            address: self.url.clone(),
            prefix: self.prefix.to_string(),
            shards: self.shards,
            replicas: self.durability.replicas(),
            dead_ttl: self.dead_ttl.0,
            patience,
            shift: Arc::default(),
        }
    }
}

section! {
    /// `[store] kind = "embedded"`.
    pub struct Embedded {
        /// The folder; made if it is not there. One process at a time may have it open.
        path: FilePath = "ordain-data",
            because "beside the configuration, where it is found";
        /// Memory for what was read from it; writing has its own, of about 100 MiB.
        cache: Size ["1MiB" to "1024GiB"] = "64MiB",
            because "the hot part of the jobs of a million keys; the rest is in the system's cache";
        /// How long a dead letter is kept.
        dead_ttl: Millis ["1m" to "3650d"] = "30d",
            because "someone is back from holiday by then";
    }
}

section! {
    /// `[store] kind = "redis"`.
    pub struct Redis {
        /// Where it is: a server, a few nodes of a Cluster, or Sentinels (with commas between
        /// them, and a master's name at the end where they watch several). Which of these it is,
        /// is asked.
        url: RedisAddress;
        /// With what the names of all its keys begin.
        prefix: Name = "ordain",
            because "several Ordains can share one Redis under different ones";
        /// Slices of the store, each in one hash slot. It cannot be changed later without a drain.
        shards: u32 [1 to 1_024] = 16,
            because "more than the masters of a usual cluster, and few enough for large batches";
        /// What a commit waits for.
        durability: Durability = "local",
            because "waiting for replicas costs a round trip for each batch";
        /// How long a dead letter is kept.
        dead_ttl: Millis ["1m" to "3650d"] = "30d",
            because "someone is back from holiday by then";
    }
}

/// What a commit in Redis waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The master's answer.
    Local,
    /// That many replicas too.
    Replicas(u32),
}

impl Durability {
    /// How many replicas must have a commit before it is answered.
    pub fn replicas(self) -> u32 {
        match self {
            Self::Local => 0,
            Self::Replicas(count) => count,
        }
    }
}

/// Redis's own documentation advises against more replicas of one master.
const REPLICAS_LIMIT: u32 = 16;

impl super::scalar::Scalar for Durability {
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
    /// `[plugins]`: the handlers, and what each may use.
    pub struct Plugins {
        /// The folder with `<handler>@<version>.wasm` or `<handler>.wasm`.
        dir: FilePath = "plugins",
            because "beside the configuration, where it is found";
        /// Time for one event, counted while the handler runs.
        timeout: Millis ["1ms" to "1h"] = "5s",
            because "a thousand times what a handler takes, and short enough to be noticed";
        /// Memory of one instance, all its memories together.
        memory: Size ["1MiB" to "4GiB"] = "64MiB",
            because "every language's runtime starts within it, and a leak is stopped early";
        /// Whether an instance serves many events or one.
        instance: Instance = "reuse",
            because "a new instance for each event costs up to a millisecond, depending on the language";
        /// Events after which a reused instance is replaced.
        instance_events: u64 [1 to 1_000_000_000] = 10_000,
            because "its cost vanishes among so many, and slow leaks are cut off";
        /// The largest state of a key.
        state_size: Size ["1KiB" to "64MiB"] = "1MiB",
            because "it is written with every commit of the key";
        /// Messages in one outcome.
        messages: usize [1 to 100_000] = 1_000,
            because "more is a loop, not a reaction to one event";
        /// Bytes of all messages in one outcome.
        messages_size: Size ["1KiB" to "256MiB"] = "4MiB",
            because "an outcome then fits the usual commit";
        /// Log of one event. An event that writes more fails, and what it wrote until then is kept.
        log: Size [0 to "1MiB"] = "16KiB",
            because "some hundred lines: enough to understand one event";
        /// Processor time for compiling a handler. What takes more is not used.
        compile_timeout: Millis ["1s" to "1h"] = "5m",
            because "the largest that was measured takes a hundredth of it";
        /// Memory for compiling a handler. What takes more is not used.
        compile_memory: Size ["256MiB" to "64GiB"] = "4GiB",
            because "one of 3 MB takes a fortieth of it, and a file made to fill memory stops there";
    }
}

/// How instances of a handler are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instance {
    /// Events follow each other on one instance.
    Reuse,
    /// Each event has its own.
    Fresh,
}

choice!(Instance { "reuse" => Instance::Reuse, "fresh" => Instance::Fresh, });

/// Used by tables of streams too, where it means "never" or "not at all".
pub(super) type OrOff = Off<Millis>;
