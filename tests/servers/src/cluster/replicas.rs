//! Replicas of the nodes of a Cluster. A test can make a replica lag behind its master, and can make a replica the
//! master.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Cluster;
use crate::redis::{Options, Redis};
use crate::wait::wait_until;

/// The time limit of an election in [`Cluster::take_over`]. If the other masters have not elected the replica by then,
/// the replica becomes the master without votes. A Redis server abandons an election without enough votes after five
/// seconds. For example, masters do not vote if another replica was elected shortly before.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The way in which a replica becomes the master. The old master takes no part, even if it has writes that the replica
/// lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The other masters vote. If they do not elect the replica within 10 seconds, the replica becomes the master
    /// without votes.
    Force,
    /// The replica becomes the master without votes.
    Takeover,
}

impl Cluster {
    /// Gives each node a replica. Waits until all replicas are in step with their masters ([`Redis::until_in_step`]),
    /// and all nodes know the replicas.
    pub fn add_replicas(&mut self) -> Result<()> {
        let mut options = Options::new().cluster();
        if let Some((_, certificates)) = self.nodes.first().and_then(Redis::tls) {
            options = options.tls_like(certificates);
        }
        if let Some(password) = self.nodes.first().and_then(Redis::password) {
            options = options.password(password);
        }
        for node in &self.nodes {
            let replica = Redis::with(&options)?;
            let bus =
                node.bus_port().context("the node has no port for the other nodes")?.to_string();
            let port = node.peer_port().to_string();
            replica.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            self.replicas.push(replica);
            self.swapped.push(AtomicBool::new(false));
        }
        for (node, replica) in self.nodes.iter().zip(&self.replicas) {
            let reply = node.command(&["CLUSTER", "MYID"])?;
            let id = reply.text().context("an id")?;
            wait_until("a node that knows its master", || {
                Ok(matches!(replica.attempt(&["CLUSTER", "REPLICATE", id])?, crate::Reply::Text(_)))
            })?;
        }
        self.replicas.iter().try_for_each(Redis::until_in_step)?;
        self.until_ready()?;
        wait_until("nodes that report a replica of each master", || {
            for node in &self.nodes {
                let reply = node.command(&["CLUSTER", "SLOTS"])?;
                // A range of slots consists of its first slot, its last slot, the master and the replicas.
                if !reply.parts().iter().all(|range| range.parts().len() > 3) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Waits until a client has requested the list of slots and their masters (`CLUSTER SLOTS`) from each master.
    pub fn until_queried(&self) -> Result<()> {
        let before = self.slots_queries()?;
        wait_until("a query of each master", || {
            Ok(self.slots_queries()?.iter().zip(&before).all(|(now, before)| now > before))
        })
    }

    /// Returns the number of calls of `CLUSTER SLOTS` that each master has answered.
    fn slots_queries(&self) -> Result<Vec<u64>> {
        let count = |number| {
            let stats = self.master(number).info("commandstats")?;
            let calls = stats
                .get("cmdstat_cluster|slots")
                .and_then(|stat| stat.strip_prefix("calls=")?.split(',').next()?.parse().ok());
            Ok(calls.unwrap_or(0))
        };
        (0..self.nodes.len()).map(count).collect()
    }

    /// Returns the present master of the slots that a node had at the start.
    pub fn master(&self, number: usize) -> &Redis {
        if self.is_swapped(number) { &self.replicas[number] } else { &self.nodes[number] }
    }

    /// Returns the replica of [`master`](Self::master).
    pub fn replica(&self, number: usize) -> &Redis {
        if self.is_swapped(number) { &self.nodes[number] } else { &self.replicas[number] }
    }

    /// Makes the replica of a master lag: from now on, the replica receives no write of its master.
    /// [`take_over`](Self::take_over) and [`fail_over`](Self::fail_over) end the lag.
    pub fn let_replica_lag(&self, number: usize) -> Result<()> {
        self.replica(number).fall_behind(self.master(number))
    }

    /// Makes the lagging replica the master, and waits until the old master is a replica of the new master and in step
    /// with it. Writes that only the old master had are lost.
    pub fn take_over(&self, number: usize, how: Takeover) -> Result<()> {
        let old = self.master(number);
        let new = self.replica(number);
        request_promotion(new, how)?;
        let started = Instant::now();
        let mut is_elected = true;
        wait_until("another master", || {
            if is_elected && started.elapsed() > ELECTION_TIMEOUT && has_role(new, "slave") {
                is_elected = false;
                new.command(&["CLUSTER", "FAILOVER", "TAKEOVER"])?;
            }
            Ok(has_role(new, "master") && has_role(old, "slave"))
        })?;
        old.until_in_step()?;
        self.swapped[number].fetch_xor(true, Ordering::SeqCst);
        Ok(())
    }

    /// Kills a master by SIGKILL, and makes its lagging replica the master. The cluster loses all writes that only the
    /// killed master has. The killed master stays down.
    pub fn fail_over(&self, number: usize) -> Result<()> {
        let new = self.replica(number);
        self.master(number).kill()?;
        request_promotion(new, Takeover::Takeover)?;
        wait_until("another master", || Ok(has_role(new, "master")))?;
        self.swapped[number].fetch_xor(true, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until the master of each node serves the whole Cluster. In contrast to
    /// [`until_ready`](Self::until_ready), this method works while killed nodes are down.
    pub fn until_masters_serve(&self) -> Result<()> {
        wait_until("masters that serve the whole Cluster", || {
            for number in 0..self.nodes.len() {
                let reply = self.master(number).command(&["CLUSTER", "INFO"])?;
                if !reply.text().unwrap_or_default().contains("cluster_state:ok") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn is_swapped(&self, number: usize) -> bool {
        self.swapped[number].load(Ordering::SeqCst)
    }
}

/// Sends the command that makes a lagging replica the master, and resumes the replica. The replica is paused when the
/// command arrives, so it reads the command before it receives the missing writes of the old master.
fn request_promotion(replica: &Redis, how: Takeover) -> Result<()> {
    let how = if how == Takeover::Force { "FORCE" } else { "TAKEOVER" };
    let mut connection = replica.connect()?;
    connection.send(&["CLUSTER", "FAILOVER", how])?;
    replica.resume()?;
    connection.receive()?;
    Ok(())
}

fn has_role(node: &Redis, role: &str) -> bool {
    let info = node.info("replication").unwrap_or_default();
    info.get("role").is_some_and(|name| name == role)
}
