//! What people look at: streams, keys, dead letters. What cannot be read is listed as that, with
//! the reason, rather than left out. Must be bounded in time and memory by page, however much the
//! store holds.

pub mod keys;
pub mod letters;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::cmd;

pub(super) use self::keys::{key, keys};
pub(super) use self::letters::{Bounds, Wanted, letter, letters, letters_of_shard};
use super::Redis;
use super::names::Kind;
use super::value::{array, number, parts, strange, text};
use ordain_store::{Destination, StoreError};

/// Rows of a page, whatever is asked for.
const PAGE_ROWS: usize = 1_000;

/// See [`Store::streams`](ordain_store::Store::streams).
pub(super) async fn streams(store: &Redis) -> Result<Vec<Arc<str>>, StoreError> {
    let mut ask = cmd("SMEMBERS");
    ask.arg(store.names.common(Kind::Partitions));
    let partitions = array(store.ask(&ask).await?, "partitions")?;
    let names: BTreeSet<Arc<str>> = partitions
        .into_iter()
        .filter_map(text)
        .filter_map(|partition| partition.split_once(':').map(|(_, stream)| stream.into()))
        .collect();
    let holding = try_join_all(names.iter().map(|stream| holds_anything(store, stream))).await?;
    Ok(names.into_iter().zip(holding).filter(|(_, holds)| *holds).map(|(name, _)| name).collect())
}

async fn holds_anything(store: &Redis, stream: &str) -> Result<bool, StoreError> {
    let script = &store.scripts.holds;
    // One after the other: the first one nearly always has something.
    for shard in 0..store.shards {
        let [data] = store.of_stream(shard, stream, [Kind::Data]);
        let log = store.log(shard, &Destination::Stream(stream.into()));
        let (names, mut cursor) = ([data, log], 0);
        loop {
            let mut call = store.call_of(script, &names);
            call.arg(cursor);
            let [found, next] = parts(store.run(script, call).await?, script.name)?;
            cursor = number(&next).ok_or_else(|| strange(script.name))?;
            if number(&found) == Some(1) {
                return Ok(true);
            }
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(false)
}
