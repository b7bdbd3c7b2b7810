//! The membership: the processes that run streams over the same store. `heartbeat` writes this process's heartbeat and
//! reads the other members.
//!
//! [`ordain_core::distribution`] computes the owner of each partition; `run/partition_manager.rs` claims and releases
//! partitions.

mod heartbeat;

pub(crate) use heartbeat::{Heartbeat, Membership, release_leases_of_dead_processes};
