//! Redis servers that lose their newest writes.

use anyhow::Result;
use ordain_servers::{Cluster, Redis, Sentinel, Snapshot, Takeover};

const MASTERS: usize = 3;

/// Redis servers, and the data for their next loss of writes.
pub enum LossyServers {
    /// One server. A loss restores the snapshot of its data.
    Alone(Box<Redis>, Option<Snapshot>),
    /// A master, a replica that lags, and a Sentinel. At a loss, the master dies and the replica becomes master.
    Watched(Box<Sentinel>),
    /// A Cluster, and the numbers of the masters whose replicas lag. At a loss, these replicas replace the masters
    /// while the masters still run.
    Shared(Cluster, Vec<usize>),
}

impl LossyServers {
    /// Starts one server.
    pub fn single() -> Result<Self> {
        Ok(Self::Alone(Box::new(Redis::start(&[])?), None))
    }

    /// Starts a master, its replica and a Sentinel.
    pub fn watched() -> Result<Self> {
        Ok(Self::Watched(Box::new(Sentinel::start()?)))
    }

    /// Starts a Cluster of three masters, each with a replica.
    pub fn shared() -> Result<Self> {
        let mut cluster = Cluster::start(MASTERS)?;
        cluster.add_replicas()?;
        Ok(Self::Shared(cluster, Vec::new()))
    }

    /// Returns the URL of a store on these servers.
    pub fn url(&self) -> String {
        match self {
            Self::Alone(redis, _) => redis.url(),
            Self::Watched(group) => group.url(),
            Self::Shared(cluster, _) => cluster.urls().swap_remove(0),
        }
    }

    /// Begins a period whose writes the servers may lose. In a Cluster, calls `is_lossy` once for each master, and only
    /// the masters for which it returns true may lose writes.
    pub fn begin(&mut self, mut is_lossy: impl FnMut() -> bool) -> Result<()> {
        match self {
            Self::Alone(redis, early) => *early = Some(redis.snapshot()?),
            Self::Watched(group) => group.let_replica_lag()?,
            Self::Shared(cluster, lagging) => {
                *lagging = (0..MASTERS).filter(|_| is_lossy()).collect();
                lagging.iter().try_for_each(|number| cluster.let_replica_lag(*number))?;
            }
        }
        Ok(())
    }

    /// Loses the writes since [`begin`](Self::begin). In a Cluster, only the masters whose replicas lag lose writes,
    /// and `way` returns the way in which each of these replicas becomes the master.
    pub fn lose(&mut self, mut way: impl FnMut() -> Takeover) -> Result<()> {
        match self {
            Self::Alone(redis, early) => {
                early.take().map_or(Ok(()), |snapshot| redis.go_back(&snapshot))
            }
            Self::Watched(group) => {
                group.failover()?;
                group.rejoin()
            }
            Self::Shared(cluster, lagging) => {
                lagging.drain(..).try_for_each(|number| cluster.take_over(number, way()))
            }
        }
    }
}
