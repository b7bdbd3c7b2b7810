//! The scopes of the model. Each scope is small; together the scopes cover all rules of `docs/internals/protocol.md`.

use crate::{Event, Scope, StorePart};

fn event(key: u8, sequence: u8, partition: u8) -> Event {
    Event { key, sequence, partition }
}

fn events(sequences: &[u8]) -> Vec<Event> {
    sequences.iter().map(|sequence| event(0, *sequence, 0)).collect()
}

/// Scopes with one partition.
impl Scope {
    /// Returns a scope in which the second event of a key arrives first. The partition has two owners, one after the
    /// other or at the same time.
    pub fn one_partition() -> Self {
        Self {
            keys: 1,
            shards: 1,
            leases: vec![0, 0],
            queue: events(&[2, 1]),
            run_ahead: 2,
            late_commits: 1,
            spills: true,
            evicts_lanes: true,
            ..Self::default()
        }
    }

    /// Returns a scope with three events, so that one owner may spill an event that another owner has not received.
    pub fn three_events() -> Self {
        Self {
            queue: events(&[1, 2, 3]),
            late_commits: 0,
            evicts_lanes: false,
            ..Self::one_partition()
        }
    }

    /// Returns [`Scope::three_events`] with messages to publish, and without spilling.
    pub fn outbox() -> Self {
        let queue = events(&[1, 2, 3]);
        Self { queue, publishes: true, spills: false, ..Self::three_events() }
    }

    /// Returns a scope with two shards. An owner claims each shard in a separate step, and commits to both shards.
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

    /// Returns [`Scope::two_shards`] with three owners, and without spilling.
    pub fn three_owners() -> Self {
        Self { leases: vec![0, 0, 0], spills: false, ..Self::two_shards() }
    }
}

/// Scopes with two partitions.
impl Scope {
    /// Returns a scope in which the events of one key come to two partitions, and one load may arrive late.
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
            evicts_lanes: true,
            ..Self::default()
        }
    }

    /// Returns a scope in which one of two partitions has two owners. The older owner may still load the key after the
    /// newer owner has claimed the partition.
    pub fn older_owner() -> Self {
        Self {
            leases: vec![0, 0, 1],
            queue: vec![event(0, 1, 0), event(0, 2, 1)],
            late_loads: 0,
            evicts_lanes: false,
            ..Self::two_partitions()
        }
    }

    /// Returns a scope in which one batch may write two keys, and another partition may take one of these keys over.
    pub fn two_keys() -> Self {
        Self {
            keys: 2,
            queue: vec![event(0, 1, 0), event(1, 1, 0), event(0, 2, 1)],
            take_overs: 2,
            late_loads: 0,
            evicts_lanes: false,
            ..Self::two_partitions()
        }
    }

    /// Returns a scope in which the events of one key come to two partitions, and have messages to publish. The
    /// protocol does not guarantee the order of messages that different partitions publish.
    pub fn moved_outbox() -> Self {
        Self {
            queue: vec![event(0, 1, 0), event(0, 2, 1)],
            late_loads: 0,
            spills: false,
            evicts_lanes: false,
            publishes: true,
            ..Self::two_partitions()
        }
    }
}

/// Scopes with a store that goes back in time.
impl Scope {
    /// Returns a scope in which the whole store, only the leases, or only the shard may go back: each at most once, in
    /// any order.
    pub fn goes_back() -> Self {
        Self {
            keys: 1,
            shards: 1,
            leases: vec![0, 0],
            queue: events(&[1, 2]),
            run_ahead: 1,
            goes_back: vec![StorePart::All, StorePart::Leases, StorePart::Shard(0)],
            ..Self::default()
        }
    }

    /// Returns a scope with three owners. Two of them may get the same epoch, because the leases may go back.
    pub fn goes_back_under_three() -> Self {
        Self {
            leases: vec![0, 0, 0],
            queue: events(&[1]),
            goes_back: vec![StorePart::All, StorePart::Leases],
            ..Self::goes_back()
        }
    }

    /// Returns a scope with two shards, in which only the leases or only the first shard may go back: each at most
    /// once, in any order.
    pub fn goes_back_in_part() -> Self {
        Self {
            keys: 2,
            shards: 2,
            queue: vec![event(0, 1, 0), event(1, 1, 0)],
            goes_back: vec![StorePart::Leases, StorePart::Shard(0)],
            ..Self::goes_back()
        }
    }

    /// Returns a scope in which the shard may go back once, and events have messages to publish.
    pub fn goes_back_with_outbox() -> Self {
        let goes_back = vec![StorePart::Shard(0)];
        Self { run_ahead: 2, goes_back, publishes: true, ..Self::goes_back() }
    }

    /// Returns a scope in which the shard may go back once, and the only owner repeats the lost commits. The third
    /// event of the key arrives before the second event, so the owner may spill it.
    pub fn repeats_commits() -> Self {
        Self {
            leases: vec![0],
            queue: events(&[1, 3, 2]),
            goes_back: vec![StorePart::Shard(0)],
            spills: true,
            evicts_lanes: true,
            repeats_commits: true,
            ..Self::goes_back()
        }
    }

    /// Returns [`Scope::repeats_commits`] with a shard that may go back twice, also while the owner repeats commits.
    pub fn repeats_commits_twice() -> Self {
        let goes_back = vec![StorePart::Shard(0), StorePart::Shard(0)];
        Self { goes_back, ..Self::repeats_commits() }
    }

    /// Returns a scope in which the shard may go back once, and a repeated commit may arrive late.
    pub fn goes_back_with_late_commit() -> Self {
        let goes_back = vec![StorePart::Shard(0)];
        Self { late_commits: 1, goes_back, ..Self::goes_back() }
    }
}

/// Larger scopes, for `ORDAIN_MODEL=large`.
impl Scope {
    /// Returns [`Scope::one_partition`] with three events.
    pub fn one_partition_large() -> Self {
        Self { queue: events(&[2, 1, 3]), ..Self::one_partition() }
    }

    /// Returns [`Scope::two_shards`] with a second event in the first shard.
    pub fn two_shards_large() -> Self {
        let queue = vec![event(0, 1, 0), event(1, 1, 0), event(0, 2, 0)];
        Self { queue, ..Self::two_shards() }
    }

    /// Returns [`Scope::older_owner`] with a third event, and with at most two take-overs of the key.
    pub fn two_partitions_large() -> Self {
        let queue = vec![event(0, 1, 0), event(0, 3, 1), event(0, 2, 0)];
        Self { queue, take_overs: 2, ..Self::older_owner() }
    }

    /// Returns [`Scope::goes_back`] with messages to publish.
    pub fn goes_back_with_outbox_large() -> Self {
        Self { publishes: true, ..Self::goes_back() }
    }

    /// Returns [`Scope::goes_back`] with spilled events, and with a commit that may arrive late. Only the shard may go
    /// back.
    pub fn goes_back_large() -> Self {
        Self {
            late_commits: 1,
            spills: true,
            goes_back: vec![StorePart::Shard(0)],
            ..Self::goes_back()
        }
    }

    /// Returns a scope with two partitions that share a shard. The shard may go back once. One of the partitions has
    /// two owners.
    pub fn goes_back_under_two_partitions() -> Self {
        Self {
            leases: vec![0, 1, 1],
            queue: vec![event(0, 1, 1), event(0, 2, 0), event(0, 3, 1)],
            take_overs: 2,
            late_loads: 1,
            goes_back: vec![StorePart::Shard(0)],
            ..Self::goes_back()
        }
    }
}
