//! A real Redis Cluster of masters that share all slots. The Cluster never fails over by itself: while a killed master
//! is down, no node serves the slots of this master. A master may have a replica, which a test can make the master.

mod migration;
mod replicas;

use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};

pub use migration::Migration;
pub use replicas::Takeover;

use crate::proxy::Proxy;
use crate::redis::{Options, Redis};
use crate::wait::wait_until;

const SLOTS: usize = 16_384;

/// A Cluster of masters. At the start, each master has an equal share of the slots, in the order of the masters.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    /// The proxies: one in front of each node, or no proxies.
    proxies: Vec<Proxy>,
    /// The replicas: one replica of each node, or no replicas.
    replicas: Vec<Redis>,
    /// For each node that has a replica: true if the replica is the master now.
    swapped: Vec<AtomicBool>,
}

impl Cluster {
    /// Starts `masters` masters, and waits until the Cluster serves all slots. At least 3 masters are needed, so that a
    /// majority remains when one master is lost. The start takes 2 to 3 seconds, because a Redis node waits 2 seconds
    /// before it serves commands.
    pub fn start(masters: usize) -> Result<Self> {
        Self::with(masters, &Options::new())
    }

    /// Starts a Cluster in which every node has these options.
    pub fn with(masters: usize, options: &Options) -> Result<Self> {
        Self::of(nodes(masters, options)?, Vec::new())
    }

    /// Starts a Cluster with a proxy in front of each node. The nodes announce the proxies as their addresses.
    pub fn behind_proxies(masters: usize, options: &Options) -> Result<Self> {
        let nodes = nodes(masters, options)?;
        let mut proxies = Vec::new();
        for node in &nodes {
            let proxy = Proxy::start(node.port())?;
            node.configure("cluster-announce-port", &proxy.port().to_string())?;
            proxies.push(proxy);
        }
        Self::of(nodes, proxies)
    }

    fn of(nodes: Vec<Redis>, proxies: Vec<Proxy>) -> Result<Self> {
        for (index, node) in nodes.iter().enumerate() {
            let slots = share(index, nodes.len());
            let first = slots.start().to_string();
            let last = slots.end().to_string();
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            // Each node gets a different configuration epoch. With equal epochs, the nodes would first have to resolve
            // a conflict.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
        }
        for (index, node) in nodes.iter().enumerate() {
            for other in &nodes[index + 1..] {
                let bus = other
                    .bus_port()
                    .context("the node has no port for the other nodes")?
                    .to_string();
                let port = other.peer_port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        let cluster = Self { nodes, proxies, replicas: Vec::new(), swapped: Vec::new() };
        cluster.until_ready()?;
        Ok(cluster)
    }

    /// Returns the nodes in the order of their numbers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns the proxies in front of the nodes, in the order of the nodes; none if the Cluster was started without
    /// proxies.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Returns the URLs of all nodes; if the Cluster was started with proxies, the URLs of the proxies.
    pub fn urls(&self) -> Vec<String> {
        let url = |(number, node): (usize, &Redis)| match self.proxies.get(number) {
            Some(proxy) => node.url_at(proxy.port()),
            None => node.url(),
        };
        self.nodes.iter().enumerate().map(url).collect()
    }

    /// The port of the node's proxy, or, without a proxy, the port of the node.
    fn named(&self, number: usize) -> u16 {
        self.proxies.get(number).map_or_else(|| self.nodes[number].port(), Proxy::port)
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> Result<u16> {
        let reply = self.running().command(&["CLUSTER", "KEYSLOT", key])?;
        let slot = reply.int().context("the reply is not the number of a slot")?;
        Ok(u16::try_from(slot)?)
    }

    /// Returns the number of the node that owns a slot, in the view of the first running node.
    pub fn owner(&self, slot: u16) -> Result<usize> {
        let slot = i64::from(slot);
        let reply = self.running().command(&["CLUSTER", "SLOTS"])?;
        let mut ranges = reply.parts().iter().map(crate::Reply::parts);
        let owner = ranges.find_map(|range| match range {
            [first, last, owner, ..] if first.int()? <= slot && slot <= last.int()? => {
                owner.parts().get(1)?.int()
            }
            _ => None,
        });
        let port = owner.with_context(|| format!("no node owns the slot {slot}"))?;
        let mut numbers = 0..self.nodes.len();
        let number = numbers.find(|number| i64::from(self.named(*number)) == port);
        number.context("the owner is none of the nodes")
    }

    /// Waits until every running node reports that the Cluster has all its nodes and serves all slots. A test must call
    /// this method after a restart, because a restarted node waits 2 seconds before it serves commands.
    pub fn until_ready(&self) -> Result<()> {
        let known = format!("cluster_known_nodes:{}", self.nodes.len() + self.replicas.len());
        let slots = format!("cluster_slots_ok:{SLOTS}");
        let wanted = ["cluster_state:ok", &slots, &known];
        wait_until("a Cluster in which every node serves all slots", || {
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                let reply = node.command(&["CLUSTER", "INFO"])?;
                let text = reply.text().unwrap_or_default();
                if !wanted.iter().all(|wanted| text.lines().any(|line| line == *wanted)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Begins to move a slot to the node `to`. From now on, the owner replies `ASK` for absent keys of the slot, and
    /// the node `to` serves the slot to clients that send `ASKING`.
    pub fn migrate(&self, slot: u16, to: usize) -> Result<Migration<'_>> {
        Migration::begin(self, slot, to)
    }

    fn running(&self) -> &Redis {
        // If no node is running, the caller gets the error of the first node.
        self.nodes.iter().find(|node| node.is_running()).unwrap_or(&self.nodes[0])
    }
}

fn nodes(masters: usize, options: &Options) -> Result<Vec<Redis>> {
    let mut options = options.clone().cluster();
    let mut nodes = Vec::new();
    for _ in 0..masters {
        let node = Redis::with(&options)?;
        // Each node must trust the others, so all nodes have the certificates of the first node.
        if let Some((_, certificates)) = node.tls() {
            options = options.tls_like(certificates);
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// Returns the slots of the master with this index, if `masters` masters share all slots.
fn share(index: usize, masters: usize) -> RangeInclusive<usize> {
    index * SLOTS / masters..=(index + 1) * SLOTS / masters - 1
}

#[test]
fn every_slot_has_one_owner() {
    for masters in 1..=7 {
        let slots: Vec<usize> = (0..masters).flat_map(|index| share(index, masters)).collect();
        assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>(), "{masters} masters");
    }
}
