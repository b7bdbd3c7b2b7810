//! All masters of a Cluster.

use std::num::NonZeroUsize;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Value, cmd};

use super::super::address::Address;
use super::super::value::text;
use super::connect::{ANSWER, CONNECT, info, info_field, not_yet, wrong};

/// Redirections and refused tries of one call before its caller hears of them.
const TRIES: u32 = 6;
/// Between such tries, in ms.
const WAIT: (u64, u64) = (20, 500);
/// Slots of a Cluster (Redis Cluster specification).
const SLOTS: u32 = 16_384;

/// Connects to all of them, once `node` says that there are some.
pub(super) async fn connect(
    address: &Address,
    node: &mut MultiplexedConnection,
) -> RedisResult<ClusterConnection> {
    if !matches!(&*address.path, "" | "0") {
        return Err(wrong(format!(
            "{address} is a Cluster, which has no databases: leave {:?} out",
            address.path
        )));
    }
    check_slots(node).await?;
    let nodes = address.hosts.iter().map(|(host, port)| info(address, host, *port, true));
    let mut client = ClusterClient::builder(nodes)
        .retries(TRIES)
        .min_retry_wait(WAIT.0)
        .max_retry_wait(WAIT.1)
        .connection_timeout(CONNECT)
        .response_timeout(ANSWER)
        .max_connection_attempts(NonZeroUsize::MIN);
    if let Some(user) = &address.user {
        client = client.username(user);
    }
    if let Some(password) = &address.password {
        client = client.password(password);
    }
    client.build()?.get_async_connection().await
}

/// The client would look for nodes again and again in a Cluster that was never put together.
async fn check_slots(node: &mut MultiplexedConnection) -> RedisResult<()> {
    // A user who may not ask it may do all that is needed.
    let answer: RedisResult<Value> = cmd("CLUSTER").arg("INFO").query_async(node).await;
    let Some(info) = answer.ok().and_then(text) else { return Ok(()) };
    let assigned = info_field(&info, "cluster_slots_assigned");
    match assigned.and_then(|it| it.parse::<u32>().ok()) {
        Some(assigned) if assigned < SLOTS => Err(not_yet(format!(
            "only {assigned} of the {SLOTS} slots of this Cluster have a node: `redis-cli \
             --cluster create` puts one together, and `redis-cli --cluster fix` gives out slots \
             that have lost their node"
        ))),
        _ => Ok(()),
    }
}
