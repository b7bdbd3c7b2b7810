//! The queues of streams in a store in Redis.

use anyhow::Result;
use ordain_servers::Redis;

/// Returns the Redis key of the queue of a stream in a shard.
pub fn redis_key(stream: &str, shard: u32) -> String {
    format!("ordain:{{{shard}}}:log:stream/{stream}")
}

/// Returns how many events of a stream wait in a shard. The result is 0 if the shard has no queue of the stream.
pub fn waiting_events(redis: &Redis, stream: &str, shard: u32) -> Result<u64> {
    let reply = redis.command(&["HGET", &redis_key(stream, shard), "w"])?;
    Ok(reply.text().map_or(Ok(0), str::parse)?)
}
