//! The membership: the instances (processes) that run streams with the same store. The module `heartbeat` writes this
//! instance's heartbeat and reads the membership table.
//!
//! [`ordain_core::distribution`] computes the owner of each partition; `run/partition_manager.rs` claims and releases
//! partitions.

mod heartbeat;

pub(crate) use heartbeat::{Heartbeat, Membership, release_leases_of_dead_processes};
