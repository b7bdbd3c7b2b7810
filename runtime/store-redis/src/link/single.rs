//! One server at a time, named or found by asking Sentinels.

use std::sync::{Mutex, PoisonError};

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::connect::any;
use super::sentinel;
use ordain_store::RedisAddress as Address;

/// One server at a time.
pub(super) struct Single {
    address: Address,
    /// The master's name, where Sentinels are to be asked for it.
    pub(super) master: Option<String>,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// How often one broke before it.
    breaks: u64,
}

impl Single {
    pub(super) fn new(address: Address, master: Option<String>) -> Self {
        Self {
            address,
            master,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// The connection, and how often one broke before it.
    pub(super) async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        let connection = match &self.master {
            None => any(&self.address).await?,
            Some(name) => sentinel::master(&self.address, name).await?,
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection = Some(connection.clone());
        Ok((connection, current.breaks))
    }

    fn present(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection.clone().map(|connection| (connection, current.breaks))
    }

    /// Lets go of the connection before which so many broke: it has broken too. Of the calls that
    /// fail with it the first one counts.
    pub(super) fn let_go(&self, before: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.breaks == before {
            current.connection = None;
            current.breaks += 1;
        }
    }

    /// How often a connection broke.
    pub(super) fn breaks(&self) -> u64 {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).breaks
    }
}
