//! The masters of the slots, as a node reports them.

use std::collections::BTreeMap;

use redis::Value;

use super::super::super::value::{array, number, text};
use super::super::connect::NodeAddress;

/// The number of slots of a Cluster (Redis Cluster specification).
pub(super) const SLOT_COUNT: usize = 16_384;

/// The masters of the slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotOwners {
    /// The ranges of slots. A key of the map is the first slot of a range. The value consists of the last slot and the
    /// master of the range.
    ranges: BTreeMap<usize, (usize, NodeAddress)>,
}

impl SlotOwners {
    /// Decodes the answer of a node to `CLUSTER SLOTS`. Ignores the parts that it cannot decode. If the answer omits
    /// the host of a node, uses `host`, the host of the queried node.
    pub(super) fn parse(answer: Value, host: &str) -> Self {
        let ranges = array(answer, "CLUSTER SLOTS").unwrap_or_default().into_iter();
        Self { ranges: ranges.filter_map(|range| parse_range(range, host)).collect() }
    }

    /// Returns the number of slots that have a master.
    pub(super) fn count(&self) -> usize {
        self.ranges.iter().map(|(first, (last, _))| last + 1 - first).sum()
    }

    /// Returns the master of a slot.
    pub(super) fn of(&self, slot: usize) -> Option<&NodeAddress> {
        let (_, (last, node)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(node)
    }
}

fn parse_range(range: Value, host: &str) -> Option<(usize, (usize, NodeAddress))> {
    let mut parts = array(range, "CLUSTER SLOTS").ok()?.into_iter();
    let [first, last] = [parts.next()?, parts.next()?].map(|slot| number(&slot));
    let [first, last] = [first? as usize, last? as usize];
    let mut node = array(parts.next()?, "CLUSTER SLOTS").ok()?.into_iter();
    let [name, port] = [node.next()?, node.next()?];
    let name = text(name).filter(|name| !name.is_empty()).unwrap_or_else(|| host.to_owned());
    let port = u16::try_from(number(&port)?).ok()?;
    // A node reports the host `?` if it must report a name, but knows none (Redis, CLUSTER SLOTS).
    let is_valid = first <= last && last < SLOT_COUNT && name != "?";
    is_valid.then_some((first, (last, NodeAddress { host: name, port })))
}

/// Decodes the detail of the error `MOVED` or `ASK`: a slot and the address of a node. If the address has no host, uses
/// `host`, the host of the node that reported the error.
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

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"id".to_vec());
        let master = Value::Array(vec![host, Value::Int(port), id]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
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
    fn redirections_are_decoded() {
        assert_eq!(parse_redirection("3999 10.0.0.1:6381", "h"), Some(node("10.0.0.1", 6_381)));
        assert_eq!(parse_redirection("3999 fe80::1:6381", "h"), Some(node("fe80::1", 6_381)));
        assert_eq!(parse_redirection("3999 :6381", "h"), Some(node("h", 6_381)));
        for bad in ["", "3999", "3999 ?:6381", "3999 host", "3999 host:x"] {
            assert_eq!(parse_redirection(bad, "h"), None, "{bad:?}");
        }
    }
}
