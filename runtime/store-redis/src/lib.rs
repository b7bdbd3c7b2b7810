//! The store in Redis: one server, a master under Sentinel, or a Cluster.
//!
//! **Commits.** One script call commits a batch of one shard (`scripts/commit.lua`), all of whose
//! keys lie in one hash slot. A call that is not answered is answered [`CommitReply::Unknown`](ordain_core::CommitReply::Unknown), and
//! sent again under the same number: the script recognises it. What a call that ended half-way has
//! left says nothing to anybody, and the next try writes over it.
//!
//! **Durability** is the server's; it is read when the store is opened, and said.
//!
//! **Foreign and damaged values.** What is wrong with one key refuses that key; what is wrong with
//! what all keys of a shard share is an error that names it, and the shard waits until somebody
//! mends it.
//!
//! Policy must never be decided here; what a write does and when it applies stands in the batch.

mod call;
mod chains;
mod claim;
mod commit;
mod due;
mod error;
mod layout;
pub mod leases;
mod link;
pub mod list;
mod load;
mod marks;
mod names;
mod outbox;
pub mod record;
mod records;
mod script;
mod server;
mod spill;
mod trouble;
mod value;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use ordain_core::shard_of;
use redis::cmd;
use tokio::task::JoinHandle;

use self::error::{at, has_code, unusable_or_away};
use self::link::Link;
use self::names::{Kind, Names};
use self::script::Scripts;
use self::trouble::{Trouble, WARN_INTERVAL};
use self::value::{parts, text};
use ordain_store::{Durability, Partition, RedisOptions as Options, Store, StoreError};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// The version of all that is written. One that reads another refuses the store.
const SCHEMA: &str = "9";

/// How long a start waits for servers that do not answer, or are still reading their data.
const START: Duration = Duration::from_secs(30);
/// Between two tries of a start.
const START_RETRY: Duration = Duration::from_millis(500);

/// Connections for commits that wait for replicas, since waiting holds up all that is sent behind
/// it.
const WAITING_LINKS: u32 = 8;

/// Between two probes of a connection that nothing else keeps in use: less than any sensible `timeout` of a
/// server, after which it closes a connection.
const PROBE: Duration = Duration::from_secs(2);

/// A task that keeps rarely used connections busy. A server closes idle connections after its `timeout`, and
/// Ordain treats each broken connection as a store that may have gone back in time.
struct Probing(JoinHandle<()>);

impl Probing {
    fn start(links: &Arc<[Link]>, names: &Names, shards: u32) -> Option<Self> {
        if links.is_empty() {
            return None;
        }
        let keys = (0..shards).map(|shard| names.of_stream(shard, Kind::Data, ""));
        let (links, keys) = (Arc::clone(links), keys.collect::<Vec<_>>());
        Some(Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(PROBE).await;
                let probes = keys.iter().enumerate().map(|(shard, key)| {
                    let mut probe = cmd("HGET");
                    probe.arg(key).arg("f");
                    let link = &links[shard % links.len()];
                    async move { link.call(&probe).await }
                });
                // What is wrong shows where the connection is used.
                drop(join_all(probes).await);
            }
        })))
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A store in Redis.
pub struct Redis {
    link: Link,
    waiting_links: Arc<[Link]>,
    /// Keeps those in use.
    _probing: Option<Probing>,
    names: Names,
    scripts: Scripts,
    shards: u32,
    replicas: u32,
    dead_ttl: u64,
    patience: Option<Duration>,
    shift: Arc<AtomicU64>,
    durability: Durability,
    trouble: Trouble,
    /// How often the store was found to have gone back in time.
    rewinds: AtomicU64,
    /// Partitions that it has noted to be there.
    noted: Mutex<BTreeSet<Partition>>,
}

impl Redis {
    /// Connects, and refuses servers on which what is acknowledged could vanish silently, users
    /// who lack a right that is needed, and a store of another schema or shape. Waits half a minute
    /// at most for servers that do not answer.
    pub fn open(options: Options) -> BoxFuture<'static, Result<Self, StoreError>> {
        Box::pin(Self::wait_to_open(options))
    }

    async fn wait_to_open(options: Options) -> Result<Self, StoreError> {
        let started = Instant::now();
        let longest = shortened(START);
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let error = match Self::try_open(&options).await {
                Ok(store) => return Ok(store),
                Err(error) => error,
            };
            let StoreError::Unavailable(reason) = &error else {
                return Err(at(&options.address, error));
            };
            if started.elapsed() >= options.patience.map_or(longest, |it| it.min(longest)) {
                return Err(at(&options.address, error));
            }
            if throttle.allow() {
                tracing::warn!(
                    "the store at {} is not there yet, and is waited for: {reason}",
                    options.address
                );
            }
            tokio::time::sleep(START_RETRY).await;
        }
    }

    /// Puts any bytes in the place of a job. For tests of what a damaged job does.
    #[doc(hidden)]
    pub async fn overwrite_job(
        &self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut put = cmd("HSET");
        let data = self.names.of_stream(self.shard_of(key), Kind::Data, stream);
        put.arg(data).arg(commit::job_field(key)).arg(bytes);
        self.ask(&put).await.map(drop)
    }

    async fn try_open(options: &Options) -> Result<Self, StoreError> {
        let link = Link::connect(&options.address).await.map_err(unusable_or_away)?;
        let durability = server::look(&link, options.replicas).await?;
        let mut waiting_links = Vec::new();
        let wanted = if options.replicas == 0 { 0 } else { WAITING_LINKS.min(options.shards) };
        for _ in 0..wanted {
            let link = Link::connect(&options.address).await.map_err(unusable_or_away)?;
            waiting_links.push(link);
        }
        let names = Names::new(&options.prefix);
        let waiting_links = Arc::from(waiting_links);
        let probing = Probing::start(&waiting_links, &names, options.shards.max(1));
        let store = Self {
            link,
            waiting_links,
            _probing: probing,
            names,
            scripts: Scripts::new(&layout::layout()),
            shards: options.shards.max(1),
            replicas: options.replicas,
            dead_ttl: options.dead_ttl,
            patience: options.patience,
            shift: Arc::clone(&options.shift),
            durability,
            trouble: Trouble::new(&options.address),
            rewinds: AtomicU64::new(0),
            noted: Mutex::default(),
        };
        store.check_shape().await?;
        Ok(store)
    }

    /// Writes down what this store is, at its first use.
    async fn check_shape(&self) -> Result<(), StoreError> {
        let key = self.names.common(Kind::Store);
        // Names that nothing has, to ask for the rights to such.
        let [data, index] = [Kind::Data, Kind::Due].map(|kind| self.names.common(kind));
        let keys = [key.clone(), data, index, self.names.common(Kind::Partitions)];
        let mut call = self.call_of(&self.scripts.open, &keys);
        call.arg(SCHEMA).arg(self.shards).arg(self.replicas);
        let found = match self.answer(&self.scripts.open, &call).await {
            Err(error) if has_code(&error, "WRONGTYPE") => {
                let words = self.explained(error.to_string(), vec![key]).await.to_string();
                return Err(StoreError::Unusable(words));
            }
            found => found.map_err(unusable_or_away)?,
        };
        let [schema, shards] = parts(found, "what the store is")?;
        let (schema, shards) = (text(schema), text(shards));
        let written = |it: &Option<String>| it.clone().unwrap_or_else(|| "nothing".to_owned());
        if schema.as_deref() != Some(SCHEMA) {
            return Err(StoreError::Unusable(format!(
                "{key} says that the store has schema {}, and this version of Ordain reads schema \
                 {SCHEMA}: use the version that wrote it, or another store.prefix",
                written(&schema)
            )));
        }
        if shards != Some(self.shards.to_string()) {
            return Err(StoreError::Unusable(format!(
                "{key} says that the store has {} shards, and store.shards is {}: set it to that, or \
                 use another store.prefix",
                written(&shards),
                self.shards
            )));
        }
        Ok(())
    }

    fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards)
    }

    fn of_stream<const N: usize>(&self, shard: u32, stream: &str, kinds: [Kind; N]) -> [String; N] {
        kinds.map(|kind| self.names.of_stream(shard, kind, stream))
    }
}

#[async_trait]
impl Store for Redis {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn durability(&self) -> Durability {
        self.durability.clone()
    }

    fn may_go_back(&self) -> bool {
        true
    }

    fn breaks(&self) -> u64 {
        let links = self.waiting_links.iter().chain([&self.link]);
        links.map(Link::breaks).sum::<u64>() + self.rewinds.load(Ordering::SeqCst)
    }

    fn breaks_of(&self, shard: u32) -> u64 {
        let (tag, links) = (shard.to_string(), self.waiting_links.iter().chain([&self.link]));
        links.map(|it| it.breaks_of(&tag)).sum::<u64>() + self.rewinds.load(Ordering::SeqCst)
    }

    /// Each answer says that what was asked is as durable as the server makes it.
    async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
