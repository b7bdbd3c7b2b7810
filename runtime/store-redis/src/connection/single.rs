//! The connection to a single server: the server that the URL names, the master that Sentinels name, or one node of a
//! Cluster.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};

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
    /// The number of attempts to connect that have failed, and the error of the last one.
    failures: u64,
    last_failure: Option<RedisError>,
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

    /// Returns the connection, and the number of connections that broke before it. Concurrent calls share the result of
    /// one attempt to connect, even if the attempt fails. If each call made its own attempt to reach a silent host, the
    /// last of many calls would wait for a long time.
    pub(super) async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let failures = {
            let current = self.current();
            if let Some(connection) = &current.connection {
                return Ok((connection.clone(), current.disconnects));
            }
            current.failures
        };
        let _connecting = self.connecting.lock().await;
        {
            let current = self.current();
            if let Some(connection) = &current.connection {
                return Ok((connection.clone(), current.disconnects));
            }
            if current.failures > failures
                && let Some(error) = &current.last_failure
            {
                return Err(error.clone());
            }
        }
        let result = self.open().await;
        let mut current = self.current();
        match result {
            Ok((connection, master_address)) => {
                current.connection = Some(connection.clone());
                current.master_address = master_address;
                Ok((connection, current.disconnects))
            }
            Err(error) => {
                current.failures += 1;
                current.last_failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Opens a connection. Returns also the address of the server, if Sentinels name it.
    async fn open(&self) -> RedisResult<(MultiplexedConnection, Option<NodeAddress>)> {
        let address = self.address.refreshed();
        Ok(match &self.target {
            ServerTarget::Url => (connect_any(&address).await?.0, None),
            ServerTarget::Master(name) => {
                let master_address = sentinel::newest_masters(&address, name).await?.swap_remove(0);
                (sentinel::open_master(&address, &master_address).await?, Some(master_address))
            }
            ServerTarget::Node(node) => (open(&address, &node.host, node.port, true).await?, None),
        })
    }

    async fn check_master(&self) {
        let ServerTarget::Master(name) = &self.target else { return };
        let (before, ours) = {
            let current = self.current();
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
            "the Sentinels at {} report that the master {name:?} is now {newest} and no longer {ours}; \
             connecting to the new master",
            self.address
        );
        self.drop_broken(before);
    }

    fn current(&self) -> MutexGuard<'_, CurrentConnection> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a connection that failed or leads to a replaced master. `before` is the number of connections that broke
    /// before this connection. Returns `false`, and does nothing, if another call has already dropped the connection.
    pub(super) fn drop_broken(&self, before: u64) -> bool {
        let mut current = self.current();
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
        self.current().disconnects
    }
}
