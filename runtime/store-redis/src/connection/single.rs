//! The connection to a single server: the server that the URL names, or the master that Sentinels name.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::connect::connect_any;
use super::sentinel::{self, MasterAddress};
use ordain_store::RedisAddress;
use ordain_util::wait::shortened;

/// The interval between two queries of the Sentinels while the connection to a master works. The queries are needed
/// because a replaced master may still accept writes. It loses these writes when it becomes a replica of the new
/// master.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The connection to a single server. The server can change, if Sentinels name it.
pub(super) struct SingleServer {
    address: RedisAddress,
    /// The name of the master, if Sentinels name its address; `None` if the URL names the server.
    pub(super) master: Option<String>,
    current: Mutex<CurrentConnection>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<MultiplexedConnection>,
    /// The address of the connected server, if Sentinels named it.
    master_address: Option<MasterAddress>,
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
    pub(super) fn new(address: RedisAddress, master: Option<String>) -> Self {
        Self {
            address,
            master,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
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
        let (connection, place) = match &self.master {
            None => (connect_any(&self.address.refreshed()).await?, None),
            Some(name) => {
                let place =
                    sentinel::newest_masters(&self.address.refreshed(), name).await?.swap_remove(0);
                (sentinel::open_master(&self.address.refreshed(), &place).await?, Some(place))
            }
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection = Some(connection.clone());
        current.master_address = place;
        Ok((connection, current.disconnects))
    }

    async fn check_master(&self) {
        let Some(name) = &self.master else { return };
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
    /// before this connection. Does nothing if another call has already dropped the connection.
    pub(super) fn drop_broken(&self, before: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.disconnects == before {
            current.connection = None;
            current.master_address = None;
            current.disconnects += 1;
        }
    }

    /// Returns the number of broken connections.
    pub(super) fn disconnects(&self) -> u64 {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).disconnects
    }
}
