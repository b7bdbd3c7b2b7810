//! A slot that moves from one node to another in steps, so that a test can act between the steps. The steps and their
//! order are the same as in `redis-cli --cluster reshard`.

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::redis::Redis;
use crate::resp::Reply;

/// The number of keys that [`Migration::finish`] moves with one command.
const KEYS: usize = 100;
/// The time in milliseconds after which a move of keys without progress fails.
const TIMEOUT_MS: &str = "10000";

/// A slot that is being moved. If the value is dropped before [`finish`](Self::finish), the slot stays in migration,
/// and its keys may be on both nodes.
#[derive(Debug)]
#[must_use = "the slot stays between two nodes until the migration is finished"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
    /// The id that the slot's new node has in the Cluster.
    target: String,
}

impl<'a> Migration<'a> {
    pub(crate) fn begin(cluster: &'a Cluster, slot: u16, to: usize) -> Result<Self> {
        let from = cluster.owner(slot)?;
        ensure!(from != to, "the node {to} already owns the slot {slot}");
        let source = id(&cluster.nodes()[from])?;
        let target = id(&cluster.nodes()[to])?;
        let migration = Self { cluster, slot: slot.to_string(), from, to, target };
        migration.set(migration.to(), &["IMPORTING", &source])?;
        migration.set(migration.from(), &["MIGRATING", &migration.target])?;
        Ok(migration)
    }

    /// Returns the slot's old node.
    pub fn from(&self) -> &'a Redis {
        &self.cluster.nodes()[self.from]
    }

    /// Returns the slot's new node.
    pub fn to(&self) -> &'a Redis {
        &self.cluster.nodes()[self.to]
    }

    /// Moves at most `limit` keys, and returns the number of moved keys. Afterwards, the nodes reply `TRYAGAIN` to a
    /// command if some of its keys are on the old node and some on the new node.
    pub fn move_keys(&self, limit: usize) -> Result<usize> {
        let count = limit.to_string();
        let keys = self.from().command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &count])?;
        let keys: Vec<&str> = keys.parts().iter().filter_map(Reply::text).collect();
        if !keys.is_empty() {
            let port = self.to().peer_port().to_string();
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", TIMEOUT_MS];
            command.extend(self.to().password().iter().flat_map(|password| ["AUTH", password]));
            command.push("KEYS");
            command.extend(&keys);
            self.from().command(&command)?;
        }
        Ok(keys.len())
    }

    /// Moves the remaining keys, and assigns the slot to its new owner at every running node.
    pub fn finish(self) -> Result<()> {
        while self.move_keys(KEYS)? > 0 {}
        // Assign the slot at the new owner first: if this command fails, the old owner still owns the slot.
        self.set(self.to(), &["NODE", &self.target])?;
        for (number, node) in self.cluster.nodes().iter().enumerate() {
            if number != self.to && node.is_running() {
                self.set(node, &["NODE", &self.target])?;
            }
        }
        Ok(())
    }

    fn set(&self, node: &Redis, state: &[&str]) -> Result<()> {
        let mut command = vec!["CLUSTER", "SETSLOT", &self.slot];
        command.extend(state);
        node.command(&command).map(drop)
    }
}

fn id(node: &Redis) -> Result<String> {
    let reply = node.command(&["CLUSTER", "MYID"])?;
    Ok(reply.text().context("the reply is not the id of a node")?.to_owned())
}
