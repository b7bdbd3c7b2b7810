//! Helpers that create stores on real Redis servers. Several stores share a server, and each store has its own prefix.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ordain_core::shard_of;
use ordain_servers::Cluster;
use ordain_store::Store;
use ordain_store::{RedisAddress, RedisOptions};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{DEAD_TTL, Fixture};

/// One server for all tests. Each store has its own prefix, so a test cannot change the data of another test.
static SINGLE_SERVER: LazyLock<ordain_servers::Redis> =
    LazyLock::new(|| ordain_servers::Redis::start(&[]).expect("a server"));

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(3).expect("a Cluster"));

static PREFIXES: AtomicU64 = AtomicU64::new(0);

/// A store under test, on servers that the stores of other tests use too.
pub(super) struct Rig {
    store: RedisStore,
    options: RedisOptions,
    servers: fn() -> &'static [ordain_servers::Redis],
}

impl Rig {
    pub(super) async fn single() -> Self {
        let url = tokio::task::spawn_blocking(|| SINGLE_SERVER.url()).await.expect("a server");
        Self::open(&url, || std::slice::from_ref(&*SINGLE_SERVER)).await
    }

    /// Creates a store on a Cluster of three masters, with the URL of one of them.
    pub(super) async fn cluster() -> Self {
        let url = tokio::task::spawn_blocking(|| CLUSTER.urls().remove(0)).await;
        Self::open(&url.expect("a Cluster"), || CLUSTER.nodes()).await
    }

    async fn open(url: &str, servers: fn() -> &'static [ordain_servers::Redis]) -> Self {
        let options = options(url);
        let store = RedisStore::open(options.clone()).await.expect("a new store");
        Self { store, options, servers }
    }

    /// Replaces all Redis keys with the prefix `to` by copies of the Redis keys with the prefix `from`, on each server.
    async fn copy(&self, from: String, to: String) {
        const COPY: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[2] .. ':*')) do \
                redis.call('DEL', key) \
            end \
            for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do \
                redis.call('COPY', key, ARGV[2] .. string.sub(key, #ARGV[1] + 1)) \
            end";
        let servers = self.servers;
        let copied = tokio::task::spawn_blocking(move || {
            for server in servers() {
                server.command(&["EVAL", COPY, "0", &from, &to]).expect("copies");
            }
        });
        copied.await.expect("copies");
    }
}

/// Returns the options of a store with a new prefix on the server at `url`.
pub(super) fn options(url: &str) -> RedisOptions {
    RedisOptions {
        address: RedisAddress::parse(url).expect("a URL"),
        prefix: format!("test-{}", PREFIXES.fetch_add(1, Ordering::Relaxed)),
        shards: 4,
        replicas: 0,
        dead_ttl: DEAD_TTL,
        retry_timeout: None,
        reads_only: false,
        clock_offset_ms: Arc::default(),
    }
}

pub(super) fn keys_of_shards(shards: u32) -> Vec<String> {
    let key_of = |shard: u32| {
        let mut names = (0..).map(|number| format!("key-{number}"));
        names.find(|key| shard_of(key, shards) == shard).expect("a key of the shard")
    };
    (0..shards).map(key_of).collect()
}

impl Fixture for Rig {
    const MARKS_WITH_OUTBOX: bool = false;
    const PAGES_ARE_EXACT: bool = false;

    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn advance_clock(&mut self, ms: u64) {
        self.options.clock_offset_ms.fetch_add(ms, Ordering::Relaxed);
    }

    async fn reopen(&mut self) {
        self.store = RedisStore::open(self.options.clone()).await.expect("the store again");
    }

    async fn take_snapshot(&mut self) {
        let prefix = &self.options.prefix;
        self.copy(prefix.clone(), format!("remembered-{prefix}")).await;
    }

    async fn go_back(&mut self) {
        let prefix = &self.options.prefix;
        self.copy(format!("remembered-{prefix}"), prefix.clone()).await;
    }

    async fn overwrite_record(&mut self, stream: &str, key: &str, bytes: Vec<u8>) {
        self.store.overwrite_record(stream, key, bytes).await.expect("garbage");
    }
}
