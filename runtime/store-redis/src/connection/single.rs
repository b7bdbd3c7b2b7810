//! The connection to a single server: the server that the URL names, the master that Sentinels name, or one node of a
//! Cluster.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};

use super::connect::{NodeAddress, connect_any, open};
use super::master::SentinelMaster;
use ordain_store::RedisUrl;

/// The connection to a single server. Under Sentinel, the server can change.
pub(super) struct SingleServer {
    url: RedisUrl,
    target: ServerTarget,
    current: Mutex<CurrentConnection>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
pub(super) enum ServerTarget {
    Url,
    Master(Arc<SentinelMaster>),
    Node(NodeAddress),
}

impl ServerTarget {
    /// Returns how often the Sentinels replaced the server; 0 if no Sentinels name the server.
    fn master_changes(&self) -> u64 {
        match self {
            Self::Master(master) => master.changes(),
            Self::Url | Self::Node(_) => 0,
        }
    }
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<MultiplexedConnection>,
    /// The value of [`ServerTarget::master_changes`] for which the connection was opened. If the value is higher now,
    /// the connection leads to a replaced master and must not be used.
    master_changes: u64,
    /// The number of connections that broke before this connection was opened.
    broken: u64,
    /// The number of failed attempts to connect, and the error of the last failed attempt.
    failures: u64,
    last_failure: Option<RedisError>,
}

impl CurrentConnection {
    /// Returns the number of disconnects before this connection was opened: broken connections plus changes of the
    /// master. No two connections have the same number.
    fn disconnects(&self) -> u64 {
        self.broken + self.master_changes
    }
}

impl SingleServer {
    pub(super) fn new(url: RedisUrl, target: ServerTarget) -> Self {
        Self { url, target, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    pub(super) fn is_under_sentinel(&self) -> bool {
        matches!(self.target, ServerTarget::Master(_))
    }

    /// Creates another link to the same server. Under Sentinel, both links use the same master at any time.
    pub(super) fn another_link(&self) -> Self {
        Self::new(self.url.clone(), self.target.clone())
    }

    /// Returns the connection, and the number of disconnects before it. Concurrent calls share the result of one
    /// attempt to connect, even if the attempt fails. If each call made its own attempt to reach a silent host, the
    /// last of many calls would wait for a long time.
    pub(super) async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let failures = {
            let current = self.current();
            if let Some(usable) = self.usable(&current) {
                return Ok(usable);
            }
            current.failures
        };
        let _connecting = self.connecting.lock().await;
        {
            let current = self.current();
            if let Some(usable) = self.usable(&current) {
                return Ok(usable);
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
            Ok((connection, master_changes)) => {
                current.connection = Some(connection.clone());
                current.master_changes = master_changes;
                Ok((connection, current.disconnects()))
            }
            Err(error) => {
                current.failures += 1;
                current.last_failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns the connection and the number of disconnects before it. Returns `None` if the connection is missing, or
    /// if it leads to a replaced master.
    fn usable(&self, current: &CurrentConnection) -> Option<(MultiplexedConnection, u64)> {
        let connection = current.connection.as_ref()?;
        let is_valid = current.master_changes == self.target.master_changes();
        is_valid.then(|| (connection.clone(), current.disconnects()))
    }

    /// Opens a connection. Also returns the value of [`ServerTarget::master_changes`] for which the connection is
    /// valid.
    async fn open(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let address = self.url.refresh();
        Ok(match &self.target {
            ServerTarget::Url => (connect_any(&address).await?.0, 0),
            ServerTarget::Master(master) => master.connect().await?,
            ServerTarget::Node(node) => (open(&address, &node.host, node.port, true).await?, 0),
        })
    }

    fn current(&self) -> MutexGuard<'_, CurrentConnection> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a broken connection. `before` is the number of disconnects before this connection was opened. Returns
    /// `false`, and does nothing, if another call has already dropped or replaced the connection.
    pub(super) fn drop_broken(&self, before: u64) -> bool {
        let mut current = self.current();
        let is_first = current.disconnects() == before;
        if is_first {
            current.connection = None;
            current.broken += 1;
        }
        is_first
    }

    /// Returns the number of broken connections, plus the number of changes of the master that Sentinels name.
    pub(super) fn disconnects(&self) -> u64 {
        self.current().broken + self.target.master_changes()
    }
}
