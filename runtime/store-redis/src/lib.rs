//! The store in Redis: one server, a master under Sentinel, or a Cluster.
//!
//! **Commits.** One script call (`scripts/commit.lua`) commits a batch of one shard (a slice of the store). All Redis
//! keys of a shard are in one hash slot. If the server does not confirm a commit, the store returns
//! [`CommitReply::Unknown`](ordain_core::CommitReply::Unknown). The caller then sends the batch again under the same
//! commit number. If the server had already committed the batch, the script recognises the number and returns the reply
//! of that commit. One write of the script makes the commit. If the script ends before this write, readers ignore the
//! data that the script has written, and the next try overwrites this data.
//!
//! **Durability** depends on the server. The store reads the server's settings when it is opened, and reports the
//! durability that they provide.
//!
//! **Foreign and damaged values.** If a damaged value belongs to one key, the store refuses requests for that key only.
//! If all keys of a shard share the damaged value, each request that needs the value returns an error that names the
//! value, until an operator repairs the value.
//!
//! This crate must never decide anything that the sequencer decides: the batch contains each write and its condition.

mod call;
mod claim;
mod clock;
mod commit;
mod connection;
mod due;
mod error;
mod inspect;
mod layout;
pub mod leases;
pub mod list;
mod load;
mod marks;
mod message_log;
mod names;
mod outbox;
pub mod record;
mod records;
mod retry_warnings;
mod script;
mod server;
mod spill;
mod value;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all, try_join_all};
use ordain_core::shard_of;
use redis::{Cmd, Value, cmd};
use tokio::task::JoinHandle;

use self::clock::{ClockTask, StoreClock};
use self::connection::RedisConnection;
use self::error::{has_code, start_error, with_address};
use self::names::{RedisKeyKind, RedisKeys};
use self::retry_warnings::{RetryWarnings, WARN_INTERVAL};
use self::script::LuaScripts;
use self::server::{ServerSettings, SyncLevel};
use self::value::{number, parts, text, unexpected_reply};
use ordain_store::{
    DurabilityReport, HEALTH_MARK, MarkStore, Partition, RedisOptions, RedisUrl, Store, StoreError,
};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// The version of the stored layout. Ordain refuses a store whose layout has another version.
const SCHEMA_VERSION: &str = "10";

/// The time after which [`RedisStore::open`] no longer repeats a try that failed for a temporary reason, for example
/// because a server does not answer or is still loading its data.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay between two tries to open the store.
const START_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The maximum number of connections for commits that wait for replicas. The store uses several connections, because a
/// commit that waits delays all later commands on its connection.
const WAIT_CONNECTIONS: u32 = 8;

/// The interval between two probes on a connection. If the server's setting `timeout` is not 0, the server closes a
/// connection that is idle for longer than this setting. The interval is shorter than any sensible value of the
/// setting.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// A task that regularly sends a probe on rarely used connections, so that the server does not close them as idle.
/// Ordain must treat each closed connection as a sign that the store may have gone back in time.
struct KeepaliveTask(JoinHandle<()>);

impl KeepaliveTask {
    /// Starts the task. Returns `None` if the store has no rarely used connections.
    fn start(
        connection: &Arc<RedisConnection>,
        wait_connections: &Arc<[RedisConnection]>,
        names: &RedisKeys,
        shards: u32,
    ) -> Option<Self> {
        // If `connection` leads to a single server, this connection is never idle, because heartbeats use it. In a
        // Cluster, the heartbeats use only the connection to one of the nodes.
        let has_idle_nodes = connection.is_cluster();
        if wait_connections.is_empty() && !has_idle_nodes {
            return None;
        }
        let probes: Vec<Cmd> = (0..shards).map(|shard| probe(names, shard)).collect();
        let connection = Arc::clone(connection);
        let wait_connections = Arc::clone(wait_connections);
        Some(Self(tokio::spawn(async move {
            // A server that does not answer must not delay the probes of other servers, so each shard has its own loop.
            let loops = probes.iter().enumerate().map(async |(shard, probe)| {
                let waiting = wait_connections.iter().cycle().nth(shard);
                let links = [waiting, has_idle_nodes.then_some(&*connection)];
                loop {
                    tokio::time::sleep(KEEPALIVE_INTERVAL).await;
                    // Ignore the results. If a connection is broken, the next call that uses it reports the failure.
                    drop(join_all(links.iter().flatten().map(|link| link.call(probe))).await);
                }
            });
            let _: Vec<std::convert::Infallible> = join_all(loops).await;
        })))
    }
}

/// Returns the Redis keys with which the script `writable` checks a shard. The store has no Redis key with the second
/// name: the script uses the name only to check the user's rights.
fn writable_keys(names: &RedisKeys, shard: u32) -> Vec<String> {
    [RedisKeyKind::Marks, RedisKeyKind::Data].map(|kind| names.in_shard(shard, kind)).into()
}

/// Returns a command that only shows whether the server of a shard answers.
fn probe(names: &RedisKeys, shard: u32) -> Cmd {
    let mut probe = cmd("HGET");
    probe.arg(names.of_stream(shard, RedisKeyKind::Data, "")).arg("f");
    probe
}

impl Drop for KeepaliveTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A store in Redis.
pub struct RedisStore {
    connection: Arc<RedisConnection>,
    wait_connections: Arc<[RedisConnection]>,
    /// The task that sends probes on rarely used connections.
    _keepalive: Option<KeepaliveTask>,
    names: RedisKeys,
    scripts: LuaScripts,
    shards: u32,
    replicas: u32,
    dead_ttl: u64,
    retry_timeout: Option<Duration>,
    clock_offset_ms: Arc<AtomicU64>,
    /// The clock by which data expires; `None` until [`Self::with_clock`].
    clock: Option<Arc<StoreClock>>,
    /// The task that reads the server's clock; `None` if the store is open only for reading.
    clock_task: Option<ClockTask>,
    durability: DurabilityReport,
    /// The weakest level of durability among the servers when the store was opened; `None` if a server hid its setting
    /// `appendfsync`.
    sync_level: Option<SyncLevel>,
    retry_warnings: RetryWarnings,
    /// The number of times that this process noticed that the store had gone back in time.
    rollbacks: AtomicU64,
    /// The partitions that this process has registered in the store.
    registered_partitions: Mutex<BTreeSet<Partition>>,
}

impl RedisStore {
    /// Connects to the servers and opens the store. A try can fail for a temporary reason, for example because a server
    /// does not answer or the user lacks a required permission. In this case, tries again for about half a minute, or
    /// for `retry_timeout` if this timeout is shorter. Returns an error without another try in three cases: a server is
    /// too old; a server would evict Redis keys when its memory is full; or the store has another schema or number of
    /// shards.
    pub fn open(options: RedisOptions) -> BoxFuture<'static, Result<Self, StoreError>> {
        Box::pin(Self::wait_to_open(options))
    }

    async fn wait_to_open(options: RedisOptions) -> Result<Self, StoreError> {
        let started = Instant::now();
        let longest = shortened(START_TIMEOUT);
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let error = match Self::try_open(&options).await {
                Ok(store) => return Ok(store),
                Err(error) => error,
            };
            let StoreError::Unavailable(reason) = &error else {
                return Err(with_address(&options.address, error));
            };
            if started.elapsed()
                >= options.retry_timeout.map_or(longest, |patience| patience.min(longest))
            {
                return Err(with_address(&options.address, error));
            }
            if throttle.allow() {
                tracing::warn!(
                    "the store at {} is unavailable: {reason}; waiting for it to become available",
                    options.address
                );
            }
            tokio::time::sleep(START_RETRY_DELAY).await;
        }
    }

    /// Returns the part of [`Store::disconnects`] that `connection` does not count. This part contains the store
    /// rollbacks (losses of the newest writes) that this process noticed. Without a Cluster, it also contains the
    /// disconnects of the connections for commits that wait for replicas. In a Cluster, the count of `connection`
    /// already includes these disconnects.
    fn other_disconnects(&self) -> u64 {
        let waiting = if self.connection.is_cluster() { &[] } else { &*self.wait_connections };
        waiting.iter().map(RedisConnection::disconnects).sum::<u64>()
            + self.rollbacks.load(Ordering::SeqCst)
    }

    /// Replaces a key record with arbitrary bytes, for tests of damaged records.
    #[doc(hidden)]
    pub async fn overwrite_record(
        &self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut put = cmd("HSET");
        let data = self.names.of_stream(self.shard_of(key), RedisKeyKind::Data, stream);
        put.arg(data).arg(commit::record_field(key)).arg(bytes);
        self.run_command(&put).await.map(drop)
    }

    async fn try_open(options: &RedisOptions) -> Result<Self, StoreError> {
        let link = RedisConnection::connect(&options.address).await.map_err(start_error)?;
        let settings = ServerSettings::read(&link).await?;
        settings.check()?;
        let mut waiting_links = Vec::new();
        let wanted = if options.replicas == 0 { 0 } else { WAIT_CONNECTIONS.min(options.shards) };
        for number in 1..=wanted {
            let again = link.connect_again(number as usize).await;
            waiting_links.push(again.map_err(start_error)?);
        }
        let store = Self::with_connections(link, waiting_links, &settings, options);
        store.check_schema(&options.address, true).await?;
        store.with_clock(options).await
    }

    /// Starts the clock by which data expires, and updates the stored record of the clock if necessary.
    async fn with_clock(self, options: &RedisOptions) -> Result<Self, StoreError> {
        let key = self.names.in_common_shard(RedisKeyKind::Store);
        let script = &self.scripts.clock;
        let reading = clock::read(&self.connection, &key).await.map_err(start_error)?;
        let reading = reading.ok_or_else(|| unexpected_reply("TIME"))?;
        let (clock, changed) =
            StoreClock::new(&options.address, clock::steady_clock(), reading, options.reads_only);
        if let Some(record) = changed {
            clock::write(&self.connection, script, &key, record).await.map_err(start_error)?;
        }
        let clock = Arc::new(clock);
        let task = (!options.reads_only).then(|| {
            let connection = Arc::clone(&self.connection);
            ClockTask::start(connection, script.clone(), key, Arc::clone(&clock))
        });
        Ok(Self { clock: Some(clock), clock_task: task, ..self })
    }

    fn with_connections(
        link: RedisConnection,
        waiting_links: Vec<RedisConnection>,
        settings: &ServerSettings,
        options: &RedisOptions,
    ) -> Self {
        let durability = settings.durability(link.kind(), options.replicas);
        let names = RedisKeys::new(&options.prefix);
        let connection = Arc::new(link);
        let waiting_links = Arc::from(waiting_links);
        let shards = options.shards.max(1);
        let probing = KeepaliveTask::start(&connection, &waiting_links, &names, shards);
        Self {
            connection,
            wait_connections: waiting_links,
            _keepalive: probing,
            names,
            scripts: LuaScripts::new(&layout::layout()),
            shards,
            replicas: options.replicas,
            dead_ttl: options.dead_ttl,
            retry_timeout: options.retry_timeout,
            clock_offset_ms: Arc::clone(&options.clock_offset_ms),
            clock: None,
            clock_task: None,
            durability,
            sync_level: settings.sync_level(),
            retry_warnings: RetryWarnings::new(&options.address),
            rollbacks: AtomicU64::new(0),
            registered_partitions: Mutex::default(),
        }
    }

    /// Checks the rights of the user, and the schema and the number of shards of the store. If the store is new and
    /// `may_create` is `true`, creates the store and logs the creation. Returns whether the store was new.
    async fn check_schema(&self, address: &RedisUrl, may_create: bool) -> Result<bool, StoreError> {
        let key = self.names.in_common_shard(RedisKeyKind::Store);
        // The store has no Redis keys with these two names. The script uses the names only to check the user's rights.
        let [data, index] =
            [RedisKeyKind::Data, RedisKeyKind::Due].map(|kind| self.names.in_common_shard(kind));
        let keys = [key.clone(), data, index, self.names.in_common_shard(RedisKeyKind::Partitions)];
        let mut call = self.script_call(&self.scripts.open, &keys);
        call.arg(SCHEMA_VERSION).arg(self.shards).arg(self.replicas).arg(i32::from(may_create));
        let found = match self.run_script_once(&self.scripts.open, &call).await {
            Err(error) if has_code(&error, "WRONGTYPE") => {
                let words = self.wrong_type_error(error.to_string(), vec![key]).await.to_string();
                return Err(StoreError::Unusable(words));
            }
            found => found.map_err(start_error)?,
        };
        let [schema, shards, is_new] = parts(found, "the check of the store")?;
        let is_new = number(&is_new) == Some(1);
        if is_new && !may_create {
            return Ok(true);
        }
        let schema = text(schema);
        let shards = text(shards);
        let written =
            |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        if schema.as_deref() != Some(SCHEMA_VERSION) {
            return Err(StoreError::Unusable(format!(
                "{key}: the store has schema {}, but this version of Ordain reads schema \
                 {SCHEMA_VERSION}; use the version that wrote the store, or another store.prefix",
                written(&schema)
            )));
        }
        if shards != Some(self.shards.to_string()) {
            return Err(StoreError::Unusable(format!(
                "{key}: the store has {} shards, but store.shards is {}; correct store.shards, or \
                 use another store.prefix",
                written(&shards),
                self.shards
            )));
        }
        if is_new {
            tracing::info!("created a new store at {address} ({key}): no stream has state yet");
        }
        Ok(is_new)
    }

    fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards)
    }

    fn stream_keys<const N: usize>(
        &self,
        shard: u32,
        stream: &str,
        kinds: [RedisKeyKind; N],
    ) -> [String; N] {
        kinds.map(|kind| self.names.of_stream(shard, kind, stream))
    }
}

#[async_trait]
impl Store for RedisStore {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn durability(&self) -> DurabilityReport {
        self.durability.clone()
    }

    fn may_roll_back(&self) -> bool {
        true
    }

    fn disconnects(&self) -> u64 {
        self.connection.disconnects() + self.other_disconnects()
    }

    fn shard_disconnects(&self, shard: u32) -> u64 {
        self.connection.tag_disconnects(&shard.to_string()) + self.other_disconnects()
    }

    fn retry_reason(&self) -> Option<String> {
        self.retry_warnings.newest_reason()
    }

    fn lasting_failure(&self) -> Option<Duration> {
        self.retry_warnings.lasting()
    }

    async fn update_shard_disconnects(&self, shards: &BTreeSet<u32>) {
        let tags: Vec<String> = shards.iter().map(u32::to_string).collect();
        if !self.connection.has_several_nodes(&tags) {
            return;
        }
        let probes: Vec<Cmd> = shards.iter().map(|shard| probe(&self.names, *shard)).collect();
        // Ignore the results, because the connection counts each failure.
        drop(join_all(probes.iter().map(|probe| self.connection.call(probe))).await);
    }

    async fn check_servers(&self) -> Result<Option<String>, StoreError> {
        // An error of this request, for example a refused login, does not show that the store may lose data.
        let settings = ServerSettings::read(&self.connection).await?;
        self.connection.learn_nodes().await;
        match settings.check() {
            Ok(()) => {}
            Err(StoreError::Unusable(words)) => return Ok(Some(words)),
            Err(error) => return Err(error),
        }
        let report = settings.durability(self.connection.kind(), self.replicas);
        // If a server hides its setting now, or hid it when the store was opened, the levels are not compared.
        let is_weaker =
            settings.sync_level().zip(self.sync_level).is_some_and(|(now, before)| now < before);
        let is_new_risk = report.is_at_risk && report != self.durability;
        Ok((is_weaker || is_new_risk).then_some(report.description))
    }

    /// Checks every shard, because the shards of a Cluster are on several servers. The check of a shard writes a mark. If
    /// replicas are required, waits for them as a commit does.
    async fn check_writable(&self) -> Result<(), StoreError> {
        let script = &self.scripts.writable;
        let checks = (0..self.shards).map(async |shard| {
            let mut keys = writable_keys(&self.names, shard);
            if shard == 0 {
                keys.push(self.names.in_common_shard(RedisKeyKind::Store));
            }
            let mut call = self.script_call(script, &keys);
            call.arg(HEALTH_MARK);
            match commit::send_durably(self, script, shard, call).await {
                Ok(Some(Value::Int(1))) => Ok(()),
                Ok(Some(_)) => Err(claim::missing_record(self)),
                Ok(None) => Err(StoreError::Unavailable(format!(
                    "fewer than {} replicas have the newest writes",
                    self.replicas
                ))),
                Err(error) => self.with_key_name(Err(error), || keys).await,
            }
        });
        try_join_all(checks).await.map(drop)
    }

    async fn answers(&self) -> bool {
        let mut read = cmd("HGET");
        read.arg(self.names.in_common_shard(RedisKeyKind::Marks)).arg(HEALTH_MARK);
        match self.connection.call(&read).await {
            Ok(_) => true,
            Err(error) if has_code(&error, "NOPERM") => true,
            // Repeats the read, for example while the connection is restored.
            Err(_) => self.mark(HEALTH_MARK).await.is_ok(),
        }
    }

    /// Records the time of the store's clock if the clock of the server is behind, because the next process continues
    /// from this time. Otherwise does nothing: each answered request is already as durable as the server makes it.
    async fn flush(&self) -> Result<(), StoreError> {
        if let Some(clock) = self.clock.as_ref().filter(|clock| clock.is_behind())
            && self.clock_task.is_some()
        {
            let key = self.names.in_common_shard(RedisKeyKind::Store);
            // Ignore errors: without the record, the store only keeps data longer.
            drop(clock::follow(&self.connection, &self.scripts.clock, &key, clock).await);
        }
        Ok(())
    }
}
