//! Redis servers that lose their last writes.

use anyhow::Result;
use ordain_servers::{Cluster, Redis, Sentinel, Snapshot, Takeover};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

const MASTERS: usize = 3;

/// Redis servers, and the data for their next loss of writes.
pub(crate) enum Servers {
    /// One server. A loss restores the snapshot of its data.
    Alone(Box<Redis>, Option<Snapshot>),
    /// A master, a replica that lags, and a Sentinel. At a loss, the master dies and the replica becomes master.
    Watched(Box<Sentinel>),
    /// A Cluster, and the numbers of the masters whose replicas lag. At a loss, these replicas replace the masters
    /// while the masters still run.
    Shared(Cluster, Vec<usize>),
}

impl Servers {
    pub(crate) fn single() -> Result<Self> {
        Ok(Self::Alone(Box::new(Redis::start(&[])?), None))
    }

    pub(crate) fn watched() -> Result<Self> {
        Ok(Self::Watched(Box::new(Sentinel::start()?)))
    }

    pub(crate) fn shared() -> Result<Self> {
        let mut cluster = Cluster::start(MASTERS)?;
        cluster.add_replicas()?;
        Ok(Self::Shared(cluster, Vec::new()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Alone(redis, _) => redis.url(),
            Self::Watched(group) => group.url(),
            Self::Shared(cluster, _) => cluster.urls().swap_remove(0),
        }
    }

    /// Begins a period whose writes the servers may lose.
    pub(crate) fn begin(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        match self {
            Self::Alone(redis, early) => *early = Some(redis.snapshot()?),
            Self::Watched(group) => group.let_replica_lag()?,
            Self::Shared(cluster, lagging) => {
                *lagging = (0..MASTERS).filter(|_| random.random_bool(0.6)).collect();
                lagging.iter().try_for_each(|number| cluster.let_replica_lag(*number))?;
            }
        }
        Ok(())
    }

    /// Loses the writes since [`begin`](Self::begin). In a Cluster, only the masters whose replicas lag lose writes.
    pub(crate) fn lose(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        match self {
            Self::Alone(redis, early) => {
                early.take().map_or(Ok(()), |snapshot| redis.go_back(&snapshot))
            }
            Self::Watched(group) => {
                group.failover()?;
                group.rejoin()
            }
            Self::Shared(cluster, lagging) => lagging.drain(..).try_for_each(|number| {
                let how = if random.random() { Takeover::Force } else { Takeover::Takeover };
                cluster.take_over(number, how)
            }),
        }
    }
}
