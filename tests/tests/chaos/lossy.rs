//! Servers that lose their last writes.

use anyhow::Result;
use ordain_servers::{Cluster, Redis, Sentinel, Snapshot, Takeover};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

const MASTERS: usize = 3;

/// Servers, and the earlier state to which they return.
pub(crate) enum Servers {
    /// One server, whose data of an earlier time is restored.
    Alone(Box<Redis>, Option<Snapshot>),
    /// A master that dies, and a replica with fewer writes.
    Watched(Box<Sentinel>),
    /// Masters of a Cluster that are replaced while they run, and the numbers of those that are about to be replaced.
    Shared(Cluster, Vec<usize>),
}

impl Servers {
    pub(crate) fn alone() -> Result<Self> {
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

    /// Loses all writes since [`begin`](Self::begin).
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
