//! The records of incidents (losses of data by a store, and their effects) in the log of a host.

use anyhow::{Context, Result};
use ordain_servers::Redis;
use serde_json::Value;

/// The beginning of the log field that contains the record.
const FIELD: &str = "cloudevent=";

/// Returns the records of all incidents in a log, in order. Ignores a last line that is not complete yet.
pub fn records(log: &str) -> Result<Vec<Value>> {
    let whole = log.rfind('\n').map_or(0, |at| at + 1);
    let lines = log[..whole].lines();
    let fields = lines.filter_map(|line| Some((line, line.split_once(FIELD)?.1)));
    let record = |(line, field): (&str, &str)| -> Result<Value> {
        // The log contains the record as a quoted text. More fields may follow.
        let mut values = serde_json::Deserializer::from_str(field).into_iter::<String>();
        let text = values.next().context("no value")?.with_context(|| line.to_owned())?;
        serde_json::from_str(&text).with_context(|| line.to_owned())
    };
    fields.map(record).collect()
}

/// Returns the total number of events that the records report as lost.
pub fn lost_events(records: &[Value]) -> u64 {
    let lost = records.iter().filter(|record| record["type"] == "ordain.events.lost");
    lost.filter_map(|record| record["data"]["events"].as_u64()).sum()
}

/// Returns the number of the last commit in the fence of a shard, for partition 0 of a stream.
pub fn last_commit(redis: &Redis, shard: u32, stream: &str) -> Result<u64> {
    // The fence begins with a byte for its format and 16 bytes for the claim.
    const NUMBER: &str = "local fence = redis.call('HGET', KEYS[1], 'f0') \
         return struct.unpack('<I8', string.sub(fence, 18, 25))";
    let data = format!("ordain:{{{shard}}}:data:{stream}");
    let reply = redis.command(&["EVAL", NUMBER, "1", &data])?;
    Ok(reply.int().context("a number")?.try_into()?)
}
