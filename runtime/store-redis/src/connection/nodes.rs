//! The connection to a Cluster. This module replaces the library's connection if it stays broken.
//!
//! The library reconnects only to the nodes that the Cluster has announced. If the names of these nodes do not resolve
//! for some seconds, or if all nodes get new addresses, the library never recovers. If a part of the Cluster does not
//! answer for a while, this module therefore connects again from the configured addresses, as at the start. A part of
//! the Cluster consists of the Redis keys with one hash tag: a shard of the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::RedisResult;
use redis::cluster_async::ClusterConnection;
use tokio::time::timeout;

use super::{cluster, connect};
use ordain_store::RedisAddress;
use ordain_util::wait::shortened;

/// The time after which the module reconnects if a part of the Cluster does not answer, and the minimum time between
/// two attempts to reconnect. With common settings, a failover of the Cluster takes less time.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
/// The timeout for a new connection to all nodes.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to all masters of a Cluster.
pub(super) struct ClusterNodes {
    address: RedisAddress,
    current: Mutex<ClusterConnection>,
    /// The total number of broken calls. `tag_disconnects` contains the number of broken calls for each hash tag.
    disconnects: AtomicU64,
    tag_disconnects: Mutex<HashMap<Vec<u8>, u64>>,
    /// The parts of the Cluster that do not answer, by hash tag, each with the time of its first unanswered call.
    silent: Mutex<HashMap<Vec<u8>, Instant>>,
    any_silent: AtomicBool,
    /// The time when the last attempt to reconnect began; `None` if there was none.
    last_attempt: tokio::sync::Mutex<Option<Instant>>,
}

impl ClusterNodes {
    pub(super) fn new(address: RedisAddress, connection: ClusterConnection) -> Self {
        Self {
            address,
            current: Mutex::new(connection),
            disconnects: AtomicU64::new(0),
            tag_disconnects: Mutex::default(),
            silent: Mutex::default(),
            any_silent: AtomicBool::new(false),
            last_attempt: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn connection(&self) -> ClusterConnection {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::SeqCst)
    }

    /// Returns the number of broken calls to the part of the Cluster with this hash tag.
    pub(super) fn tag_disconnects(&self, tag: &[u8]) -> u64 {
        if self.disconnects() == 0 {
            return 0;
        }
        let breaks = self.tag_disconnects.lock().unwrap_or_else(PoisonError::into_inner);
        breaks.get(tag).copied().unwrap_or_default()
    }

    /// Records that the part of the Cluster with this hash tag has answered a call.
    pub(super) fn record_reply(&self, tag: impl FnOnce() -> Vec<u8>) {
        if !self.any_silent.load(Ordering::Relaxed) {
            return;
        }
        let mut silent = self.silent();
        silent.remove(&tag());
        self.any_silent.store(!silent.is_empty(), Ordering::Relaxed);
    }

    /// Records that a call to the part of the Cluster with this hash tag broke. Reconnects if the part has not answered
    /// for `SILENCE_TIMEOUT`.
    pub(super) async fn record_disconnect(&self, tag: Vec<u8>) {
        self.count_disconnect(&tag);
        let since = *self.silent().entry(tag).or_insert_with(Instant::now);
        self.any_silent.store(true, Ordering::Relaxed);
        if since.elapsed() < shortened(SILENCE_TIMEOUT) {
            return;
        }
        // If another call is reconnecting, this call does not wait for it.
        let Ok(mut attempted) = self.last_attempt.try_lock() else { return };
        if attempted.is_some_and(|at| at.elapsed() < shortened(SILENCE_TIMEOUT)) {
            return;
        }
        *attempted = Some(Instant::now());
        match timeout(RECONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(connection)) => {
                tracing::warn!(
                    "a part of the Cluster at {} did not answer for {} s: reconnected to the Cluster",
                    self.address,
                    since.elapsed().as_secs()
                );
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = connection;
                self.silent().clear();
            }
            Ok(Err(error)) => tracing::debug!("cannot reconnect to the Cluster: {error}"),
            Err(_) => tracing::debug!("cannot reconnect to the Cluster: no answer"),
        }
    }

    fn count_disconnect(&self, tag: &[u8]) {
        let mut breaks = self.tag_disconnects.lock().unwrap_or_else(PoisonError::into_inner);
        *breaks.entry(tag.to_vec()).or_default() += 1;
        self.disconnects.fetch_add(1, Ordering::SeqCst);
    }

    async fn connect(&self) -> RedisResult<ClusterConnection> {
        let address = self.address.refreshed();
        let mut node = connect::connect_any(&address).await?;
        cluster::connect(&address, &mut node).await
    }

    fn silent(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
