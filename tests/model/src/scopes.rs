//! The scopes of the model. Each scope is small, and together they cover everything that the rules name.

use crate::{Event, Part, Scope};

fn event(key: u8, sequence: u8, partition: u8) -> Event {
    Event { key, sequence, partition }
}

/// Returns events of key 0 in the queue of partition 0.
fn events(sequences: &[u8]) -> Vec<Event> {
    sequences.iter().map(|sequence| event(0, *sequence, 0)).collect()
}

/// One partition.
impl Scope {
    /// A key whose second event arrives first, and two owners, one after the other or at the same time.
    pub fn one_partition() -> Self {
        Self {
            keys: 1,
            shards: 1,
            leases: vec![0, 0],
            queue: events(&[2, 1]),
            run_ahead: 2,
            late_commits: 1,
            spills: true,
            leaves: true,
            ..Self::default()
        }
    }

    /// Three events, so that one owner may spill an event that another owner does not know.
    pub fn three_events() -> Self {
        Self { queue: events(&[1, 2, 3]), late_commits: 0, leaves: false, ..Self::one_partition() }
    }

    /// Messages to publish.
    pub fn outbox() -> Self {
        let queue = events(&[1, 2, 3]);
        Self { queue, publishes: true, spills: false, ..Self::three_events() }
    }

    /// Two shards; an owner claims one after the other, and commits in each.
    pub fn two_shards() -> Self {
        Self {
            keys: 2,
            shards: 2,
            leases: vec![0, 0],
            queue: vec![event(0, 1, 0), event(1, 1, 0)],
            run_ahead: 1,
            spills: true,
            ..Self::default()
        }
    }

    /// Two shards, and three owners.
    pub fn three_owners() -> Self {
        Self { leases: vec![0, 0, 0], spills: false, ..Self::two_shards() }
    }
}

/// Two partitions.
impl Scope {
    /// A key whose events come to two partitions; a load arrives late.
    pub fn two_partitions() -> Self {
        Self {
            keys: 1,
            shards: 1,
            leases: vec![0, 1],
            queue: vec![event(0, 2, 0), event(0, 1, 0), event(0, 3, 1)],
            run_ahead: 1,
            take_overs: 3,
            late_loads: 1,
            spills: true,
            leaves: true,
            ..Self::default()
        }
    }

    /// Two owners of one of the partitions; the older owner may load at any later time.
    pub fn older_owner() -> Self {
        Self {
            leases: vec![0, 0, 1],
            queue: vec![event(0, 1, 0), event(0, 2, 1)],
            late_loads: 0,
            leaves: false,
            ..Self::two_partitions()
        }
    }

    /// A batch that writes two keys, of which one is taken over.
    pub fn two_keys() -> Self {
        Self {
            keys: 2,
            queue: vec![event(0, 1, 0), event(1, 1, 0), event(0, 2, 1)],
            take_overs: 2,
            late_loads: 0,
            leaves: false,
            ..Self::two_partitions()
        }
    }

    /// Messages of a key whose events come to two partitions. The partitions need not publish them in order.
    pub fn moved_outbox() -> Self {
        Self {
            queue: vec![event(0, 1, 0), event(0, 2, 1)],
            late_loads: 0,
            spills: false,
            leaves: false,
            publishes: true,
            ..Self::two_partitions()
        }
    }
}

/// A store that goes back in time.
impl Scope {
    /// The whole store, only the leases, and only the shard go back, each once and in any order.
    pub fn goes_back() -> Self {
        Self {
            keys: 1,
            shards: 1,
            leases: vec![0, 0],
            queue: events(&[1, 2]),
            run_ahead: 1,
            goes_back: vec![Part::All, Part::Leases, Part::Shard(0)],
            ..Self::default()
        }
    }

    /// Three owners, of which two may have the same epoch.
    pub fn goes_back_under_three() -> Self {
        Self {
            leases: vec![0, 0, 0],
            queue: events(&[1]),
            goes_back: vec![Part::All, Part::Leases],
            ..Self::goes_back()
        }
    }

    /// The leases or one of two shards go back.
    pub fn goes_back_in_part() -> Self {
        Self {
            keys: 2,
            shards: 2,
            queue: vec![event(0, 1, 0), event(1, 1, 0)],
            goes_back: vec![Part::Leases, Part::Shard(0)],
            ..Self::goes_back()
        }
    }

    /// A shard that goes back, with messages to publish.
    pub fn goes_back_with_outbox() -> Self {
        let goes_back = vec![Part::Shard(0)];
        Self { run_ahead: 2, goes_back, publishes: true, ..Self::goes_back() }
    }

    /// A shard that goes back, with a commit that arrives late.
    pub fn goes_back_with_late_commit() -> Self {
        let goes_back = vec![Part::Shard(0)];
        Self { late_commits: 1, goes_back, ..Self::goes_back() }
    }
}

/// Larger scopes, for `ORDAIN_MODEL=large`.
impl Scope {
    /// [`Scope::one_partition`] with three events.
    pub fn one_partition_large() -> Self {
        Self { queue: events(&[2, 1, 3]), ..Self::one_partition() }
    }

    /// [`Scope::two_shards`] with a second event in one of them.
    pub fn two_shards_large() -> Self {
        let queue = vec![event(0, 1, 0), event(1, 1, 0), event(0, 2, 0)];
        Self { queue, ..Self::two_shards() }
    }

    /// [`Scope::older_owner`] with a third event.
    pub fn two_partitions_large() -> Self {
        let queue = vec![event(0, 1, 0), event(0, 3, 1), event(0, 2, 0)];
        Self { queue, take_overs: 2, ..Self::older_owner() }
    }

    /// [`Scope::goes_back`] with messages to publish.
    pub fn goes_back_with_outbox_large() -> Self {
        Self { publishes: true, ..Self::goes_back() }
    }

    /// [`Scope::goes_back`] with spilled events and a commit that arrives late, where only the shard goes back.
    pub fn goes_back_large() -> Self {
        Self { late_commits: 1, spills: true, goes_back: vec![Part::Shard(0)], ..Self::goes_back() }
    }

    /// Two partitions, one of them with two owners, that share a shard; this shard goes back.
    pub fn goes_back_under_two_partitions() -> Self {
        Self {
            leases: vec![0, 1, 1],
            queue: vec![event(0, 1, 1), event(0, 2, 0), event(0, 3, 1)],
            take_overs: 2,
            late_loads: 1,
            goes_back: vec![Part::Shard(0)],
            ..Self::goes_back()
        }
    }
}
