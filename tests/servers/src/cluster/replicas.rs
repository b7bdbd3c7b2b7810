//! Replicas of the nodes of a Cluster, which lag and take over.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use super::Cluster;
use crate::redis::{Options, Redis};
use crate::wait::wait_until;

/// How a replica becomes the master: without asking its master, which may have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The other masters agree.
    Force,
    /// It does not ask them either.
    Takeover,
}

impl Cluster {
    /// Gives each node a replica, and waits until all are in step.
    pub fn add_replicas(&mut self) -> Result<()> {
        let options = Options::new().cluster();
        for node in &self.nodes {
            let replica = Redis::with(&options)?;
            let bus = node.bus().context("a node has a bus")?.to_string();
            replica.command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus])?;
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

    /// The master of the slots that a node had first.
    pub fn master(&self, number: usize) -> &Redis {
        if self.is_swapped(number) { &self.replicas[number] } else { &self.nodes[number] }
    }

    /// The replica of [`master`](Self::master).
    pub fn replica(&self, number: usize) -> &Redis {
        if self.is_swapped(number) { &self.nodes[number] } else { &self.replicas[number] }
    }

    /// Lets a replica fall behind: until [`take_over`](Self::take_over) it gets nothing of what its master is
    /// told.
    pub fn let_replica_lag(&self, number: usize) -> Result<()> {
        self.replica(number).fall_behind(self.master(number))
    }

    /// Makes the lagging replica the master, and waits until the old master follows it. Writes that only the old master
    /// had are lost then.
    pub fn take_over(&self, number: usize, how: Takeover) -> Result<()> {
        let (old, new) = (self.master(number), self.replica(number));
        let how = if how == Takeover::Force { "FORCE" } else { "TAKEOVER" };
        // The command waits there while it stands still, so that it comes before the old master does.
        let mut connection = new.connect()?;
        connection.send(&["CLUSTER", "FAILOVER", how])?;
        new.resume()?;
        connection.receive()?;
        let has_role = |node: &Redis, role: &str| {
            let info = node.info("replication").unwrap_or_default();
            info.get("role").is_some_and(|it| it == role)
        };
        wait_until("another master", || Ok(has_role(new, "master") && has_role(old, "slave")))?;
        old.until_in_step()?;
        self.swapped[number].fetch_xor(true, Ordering::SeqCst);
        Ok(())
    }

    fn is_swapped(&self, number: usize) -> bool {
        self.swapped[number].load(Ordering::SeqCst)
    }
}
