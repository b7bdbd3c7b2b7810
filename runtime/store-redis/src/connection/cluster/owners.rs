//! The masters of the slots and the addresses of all nodes, as a node reports them.

use std::collections::BTreeMap;

use redis::Value;

use super::super::super::value::{array, number, text};
use super::super::connect::NodeAddress;

/// The number of slots of a Cluster (Redis Cluster specification).
pub(super) const SLOT_COUNT: usize = 16_384;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotOwners {
    /// The ranges of slots. A key of the map is the first slot of a range. The value consists of the last slot and the
    /// master of the range.
    ranges: BTreeMap<usize, (usize, NodeAddress)>,
    /// The address of each node, by its id.
    nodes: BTreeMap<String, NodeAddress>,
}

impl SlotOwners {
    /// Decodes the answer to `CLUSTER SLOTS`, and ignores the parts that it cannot decode. If the answer omits the host
    /// of a node, uses `host`, the host of the queried node.
    pub(super) fn parse(answer: Value, host: &str) -> Self {
        let mut owners = Self::default();
        for range in array(answer, "CLUSTER SLOTS").unwrap_or_default() {
            owners.add_range(range, host);
        }
        owners
    }

    /// Adds a range of slots and its nodes. Returns `None` if the range is invalid or its master has no address.
    fn add_range(&mut self, range: Value, host: &str) -> Option<()> {
        let mut parts = array(range, "CLUSTER SLOTS").ok()?.into_iter();
        let [first, last] = [parts.next()?, parts.next()?].map(|slot| number(&slot));
        let [first, last] = [first? as usize, last? as usize];
        let mut nodes = parts.map(|node| parse_node(node, host));
        let (id, master) = nodes.next()??;
        self.nodes.insert(id, master.clone());
        self.nodes.extend(nodes.flatten());
        if first <= last && last < SLOT_COUNT {
            self.ranges.insert(first, (last, master));
        }
        Some(())
    }

    pub(super) fn count(&self) -> usize {
        self.ranges.iter().map(|(first, (last, _))| last + 1 - first).sum()
    }

    pub(super) fn of(&self, slot: usize) -> Option<&NodeAddress> {
        let (_, (last, node)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(node)
    }

    /// Returns the addresses of the masters and their replicas, each with the id of the node.
    pub(super) fn nodes(&self) -> &BTreeMap<String, NodeAddress> {
        &self.nodes
    }
}

fn parse_node(node: Value, host: &str) -> Option<(String, NodeAddress)> {
    let mut node = array(node, "CLUSTER SLOTS").ok()?.into_iter();
    let [name, port, id] = [node.next()?, node.next()?, node.next()?];
    let name = text(name).filter(|name| !name.is_empty()).unwrap_or_else(|| host.to_owned());
    let port = u16::try_from(number(&port)?).ok()?;
    // A node reports the host `?` if its settings require a host name, but the node has no host name (Redis, CLUSTER
    // SLOTS).
    (name != "?").then_some((text(id)?, NodeAddress { host: name, port }))
}

/// Returns the address of the node to which an error redirects a call. `detail` contains a slot and the address. If the
/// address has no host, uses `host`, the host of the node that reported the error.
pub(super) fn parse_redirection(detail: &str, host: &str) -> Option<NodeAddress> {
    let (name, port) = detail.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    let name = if name.is_empty() { host } else { name };
    let port = port.parse().ok()?;
    (name != "?").then(|| NodeAddress { host: name.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> NodeAddress {
        NodeAddress { host: host.to_owned(), port }
    }

    fn reported(host: Value, port: i64, id: &[u8]) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(id.to_vec())])
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), reported(host, port, b"id")])
    }

    #[test]
    fn masters_of_slots_are_decoded() {
        let name = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let ranges = vec![
            range(0, 9, name("10.0.0.1"), 7_000),
            range(20, 20, Value::Nil, 7_001),
            range(30, 39, name(""), 7_002),
            range(40, 49, name("?"), 7_003),
            range(50, 49, name("10.0.0.1"), 7_000),
            range(60, 16_384, name("10.0.0.1"), 7_000),
            range(70, 79, name("10.0.0.1"), 70_000),
            Value::Int(1),
        ];
        let owners = SlotOwners::parse(Value::Array(ranges), "queried");
        assert_eq!(owners.count(), 10 + 1 + 10);
        assert_eq!(owners.of(0), Some(&node("10.0.0.1", 7_000)));
        assert_eq!(owners.of(9), Some(&node("10.0.0.1", 7_000)));
        assert_eq!(owners.of(10), None);
        assert_eq!(owners.of(20), Some(&node("queried", 7_001)));
        assert_eq!(owners.of(35), Some(&node("queried", 7_002)));
        assert_eq!(owners.of(45), None);
        assert_eq!(SlotOwners::parse(Value::Nil, "queried").count(), 0);
    }

    #[test]
    fn addresses_of_masters_and_replicas_are_decoded() {
        let name = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let nodes = [
            reported(name("10.0.0.1"), 7_000, b"master"),
            reported(name("10.0.0.2"), 7_001, b"replica"),
            reported(name("?"), 7_002, b"unnamed"),
            Value::Nil,
            reported(Value::Nil, 7_003, b"queried"),
        ];
        let range = [Value::Int(0), Value::Int(9)].into_iter().chain(nodes).collect();
        let owners = SlotOwners::parse(Value::Array(vec![Value::Array(range)]), "queried");
        assert_eq!(owners.of(9), Some(&node("10.0.0.1", 7_000)));
        let expected = [
            ("master", node("10.0.0.1", 7_000)),
            ("queried", node("queried", 7_003)),
            ("replica", node("10.0.0.2", 7_001)),
        ];
        let expected = expected.map(|(id, address)| (id.to_owned(), address));
        assert_eq!(owners.nodes(), &BTreeMap::from(expected));
    }

    #[test]
    fn redirections_are_decoded() {
        assert_eq!(parse_redirection("3999 10.0.0.1:6381", "h"), Some(node("10.0.0.1", 6_381)));
        assert_eq!(parse_redirection("3999 fe80::1:6381", "h"), Some(node("fe80::1", 6_381)));
        assert_eq!(parse_redirection("3999 :6381", "h"), Some(node("h", 6_381)));
        for bad in ["", "3999", "3999 ?:6381", "3999 host", "3999 host:x"] {
            assert_eq!(parse_redirection(bad, "h"), None, "{bad:?}");
        }
    }
}
