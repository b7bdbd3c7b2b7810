//! How a store in Redis is opened: what the configuration has checked, and `ordain-store-redis` uses.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::RedisAddress;

/// Events of a batch at most, of which each adds up to ten values to the one write of a commit: more
/// than its script can hand over at once (`MOST` in `scripts/commit.lua`) must never come together.
pub const REDIS_BATCH_LIMIT: usize = 768;

/// How to open it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it is.
    pub address: RedisAddress,
    /// With what the names of all keys begin: no braces, at most 64 bytes.
    pub prefix: String,
    /// Shards, at least one; written down at the first use, and to be the same from then on.
    pub shards: u32,
    /// How many replicas must have a commit before it is answered.
    pub replicas: u32,
    /// How long dead letters are kept, in ms.
    pub dead_ttl: u64,
    /// How long a question other than a commit is asked again while no server answers, that of the
    /// start too if that is less than half a minute; `None`: for ever.
    pub patience: Option<Duration>,
    /// Milliseconds added to the server's time, so that tests can let time pass.
    #[doc(hidden)]
    pub shift: Arc<AtomicU64>,
}
