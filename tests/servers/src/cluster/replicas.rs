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
    /// Gives each node a replica, and waits until all replicas are in step with their masters
    /// ([`Redis::until_in_step`]). The masters must have no password.
    pub fn add_replicas(&mut self) -> Result<()> {
        let options = match self.nodes.first().and_then(Redis::tls) {
            Some((_, certificates)) => Options::new().tls_like(certificates),
            None => Options::new(),
        };
        let options = options.cluster();
        for node in &self.nodes {
            let replica = Redis::with(&options)?;
            let bus = node.bus_port().context("a node has a bus")?.to_string();
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
        self.until_ready()
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
    /// [`take_over`](Self::take_over) ends this.
    pub fn let_replica_lag(&self, number: usize) -> Result<()> {
        self.replica(number).fall_behind(self.master(number))
    }

    /// Makes the lagging replica the master, and waits until the old master is its replica and in step. Writes that
    /// only the old master had are lost.
    pub fn take_over(&self, number: usize, how: Takeover) -> Result<()> {
        let old = self.master(number);
        let new = self.replica(number);
        let how = if how == Takeover::Force { "FORCE" } else { "TAKEOVER" };
        // Send the command while the replica is paused, so that the resumed replica reads the command before it
        // receives the missing writes of the old master.
        let mut connection = new.connect()?;
        connection.send(&["CLUSTER", "FAILOVER", how])?;
        new.resume()?;
        connection.receive()?;
        let has_role = |node: &Redis, role: &str| {
            let info = node.info("replication").unwrap_or_default();
            info.get("role").is_some_and(|name| name == role)
        };
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

    fn is_swapped(&self, number: usize) -> bool {
        self.swapped[number].load(Ordering::SeqCst)
    }
}
