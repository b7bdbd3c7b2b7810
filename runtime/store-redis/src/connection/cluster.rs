//! Connects to all masters of a Cluster.

use std::num::NonZeroUsize;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Value, cmd};

use super::super::value::{array, number};
use super::connect::{
    CONNECT_TIMEOUT, RESPONSE_TIMEOUT, config_error, connection_info, retryable_error,
};
use ordain_store::RedisAddress;

/// The maximum number of tries of one call that the Cluster redirects or refuses. After the last try, the caller gets
/// the error.
const TRIES_LIMIT: u32 = 6;
/// The minimum and maximum delay between two tries of a call, in ms.
const RETRY_DELAYS_MS: (u64, u64) = (20, 500);
/// The number of slots of a Cluster (Redis Cluster specification).
const SLOT_COUNT: u64 = 16_384;

/// Connects to all masters, after `node` has confirmed that all slots are assigned.
pub(super) async fn connect(
    address: &RedisAddress,
    node: &mut MultiplexedConnection,
) -> RedisResult<ClusterConnection> {
    if !matches!(&*address.path, "" | "0") {
        return Err(config_error(format!(
            "{address} is a Cluster, which has no databases: remove {:?}",
            address.path
        )));
    }
    check_slots(node).await?;
    let nodes =
        address.hosts.iter().map(|(host, port)| connection_info(address, host, *port, true));
    let mut client = ClusterClient::builder(nodes)
        .retries(TRIES_LIMIT)
        .min_retry_wait(RETRY_DELAYS_MS.0)
        .max_retry_wait(RETRY_DELAYS_MS.1)
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(RESPONSE_TIMEOUT)
        .max_connection_attempts(NonZeroUsize::MIN);
    if let Some(user) = &address.user {
        client = client.username(user);
    }
    if let Some(password) = &address.password {
        client = client.password(password);
    }
    client.build()?.get_async_connection().await
}

/// Returns an error if the Cluster has unassigned slots, because the client library would search for the nodes of these
/// slots without end.
async fn check_slots(node: &mut MultiplexedConnection) -> RedisResult<()> {
    let ranges: Value = cmd("CLUSTER").arg("SLOTS").query_async(node).await?;
    let ranges = array(ranges, "CLUSTER SLOTS").unwrap_or_default().into_iter();
    let assigned: u64 = ranges
        .filter_map(|range| {
            let range = array(range, "CLUSTER SLOTS").ok()?;
            Some(number(range.get(1)?)?.saturating_sub(number(range.first()?)?) + 1)
        })
        .sum();
    if assigned >= SLOT_COUNT {
        return Ok(());
    }
    Err(retryable_error(format!(
        "only {assigned} of the {SLOT_COUNT} slots of this Cluster have a node: `redis-cli --cluster \
         create` creates a Cluster, and `redis-cli --cluster fix` reassigns slots that have lost \
         their node"
    )))
}
