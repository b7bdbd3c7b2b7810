//! The connection to a single server: the server that the URL names, the master that Sentinels name, or one node of a
//! Cluster.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::connect::{NodeAddress, connect_any, open};
use super::sentinel;
use ordain_store::RedisAddress;
use ordain_util::wait::shortened;

/// The interval between two queries of the Sentinels while the connection to a master works. The queries are needed
/// because a replaced master may still accept writes. It loses these writes when it becomes a replica of the new
/// master.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The connection to a single server. The server can change, if Sentinels name it.
pub(super) struct SingleServer {
    address: RedisAddress,
    target: ServerTarget,
    current: Mutex<CurrentConnection>,
    connecting: tokio::sync::Mutex<()>,
}

/// The server to connect to.
pub(super) enum ServerTarget {
    /// The server that the URL names.
    Url,
    /// The master with this name. The Sentinels that the URL names report its address.
    Master(String),
    /// A node of a Cluster.
    Node(NodeAddress),
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<MultiplexedConnection>,
    /// The address of the connected server, if Sentinels named it.
    master_address: Option<NodeAddress>,
    /// The number of connections that broke before this one.
    disconnects: u64,
}

/// Regularly queries the Sentinels, and drops the connection if they have replaced the master. Ends when `single` is
/// dropped.
pub(super) async fn follow_master(single: Weak<SingleServer>) {
    loop {
        tokio::time::sleep(shortened(SENTINEL_POLL_INTERVAL)).await;
        let Some(single) = single.upgrade() else { return };
        single.check_master().await;
    }
}

impl SingleServer {
    pub(super) fn new(address: RedisAddress, target: ServerTarget) -> Self {
        Self {
            address,
            target,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// Returns whether Sentinels name the server.
    pub(super) fn is_under_sentinel(&self) -> bool {
        matches!(self.target, ServerTarget::Master(_))
    }

    /// Returns the address of a node of a Cluster.
    pub(super) fn node(&self) -> Option<&NodeAddress> {
        match &self.target {
            ServerTarget::Node(node) => Some(node),
            _ => None,
        }
    }

    /// Returns the connection, and the number of connections that broke before it.
    pub(super) async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        if let Some(connection) = self.current_connection() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.current_connection() {
            return Ok(connection);
        }
        let address = self.address.refreshed();
        let (connection, place) = match &self.target {
            ServerTarget::Url => (connect_any(&address).await?.0, None),
            ServerTarget::Master(name) => {
                let place = sentinel::newest_masters(&address, name).await?.swap_remove(0);
                (sentinel::open_master(&address, &place).await?, Some(place))
            }
            ServerTarget::Node(node) => (open(&address, &node.host, node.port, true).await?, None),
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection = Some(connection.clone());
        current.master_address = place;
        Ok((connection, current.disconnects))
    }

    async fn check_master(&self) {
        let ServerTarget::Master(name) = &self.target else { return };
        let (before, ours) = {
            let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            (current.disconnects, current.master_address.clone())
        };
        let Some(ours) = ours else { return };
        // If no Sentinel answers, this function keeps the connection.
        let Ok(newest) = sentinel::newest_masters(&self.address.refreshed(), name).await else {
            return;
        };
        let newest = match newest.first() {
            Some(first) if !newest.contains(&ours) => first,
            _ => return,
        };
        if sentinel::open_master(&self.address.refreshed(), newest).await.is_err() {
            return;
        }
        tracing::warn!(
            "the Sentinels at {} name {newest} as master {name:?} instead of {ours}: \
             connecting to the new master",
            self.address
        );
        self.drop_broken(before);
    }

    fn current_connection(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection.clone().map(|connection| (connection, current.disconnects))
    }

    /// Drops a connection that failed or leads to a replaced master. `before` is the number of connections that broke
    /// before this connection. Returns `false`, and does nothing, if another call has already dropped the connection.
    pub(super) fn drop_broken(&self, before: u64) -> bool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = current.disconnects == before;
        if is_first {
            current.connection = None;
            current.master_address = None;
            current.disconnects += 1;
        }
        is_first
    }

    /// Returns the number of broken connections.
    pub(super) fn disconnects(&self) -> u64 {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).disconnects
    }
}
