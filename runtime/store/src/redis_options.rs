//! The options to open a store in Redis. The configuration checks them, and `ordain-store-redis`
//! uses them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::RedisUrl;

/// The maximum value of the setting `runtime.batch`, the number of events of a commit, for a store in Redis. Each event
/// adds at most ten values to the single `HSET` of a commit, and the script cannot pass more than 7,900 values
/// (`HSET_ARGUMENT_LIMIT` in `scripts/commit.lua`) to one command.
pub const REDIS_BATCH_LIMIT: usize = 768;

/// The options of a store in Redis.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// The address of Redis.
    pub address: RedisUrl,
    /// The prefix of the names of all Redis keys: no braces, at most 64 bytes.
    pub prefix: String,
    /// The number of shards (slices of the store, by hash of the key), at least one. The first process that opens the
    /// store records the number. Every later process must use the same number.
    pub shards: u32,
    /// The number of replicas that must have received a commit before the store confirms the commit.
    pub replicas: u32,
    /// The time to keep dead letters, in ms.
    pub dead_ttl: u64,
    /// The time for which the store repeats a request that fails for a temporary reason, for example because no server
    /// answers. `None` to repeat the request for ever. The store itself repeats no commit. An attempt to open the store
    /// is repeated for about half a minute, or for `retry_timeout` if this timeout is shorter.
    pub retry_timeout: Option<Duration>,
    /// True if the store is opened by a command that only reads, or that acts for a short time. Such a command never
    /// follows a jump of the server's clock: nothing expires because of the jump.
    pub reads_only: bool,
    /// The number of milliseconds added to the server's time, so that tests can advance time.
    #[doc(hidden)]
    pub clock_offset_ms: Arc<AtomicU64>,
}
