//! This process among others that run the same streams over the same store: `heart` writes its heartbeat
//! and reads who else runs.
//!
//! [`ordain_core::ownership`] computes which process is to have which partition; `run/owning.rs` takes
//! and releases them.

mod heart;

pub(crate) use heart::{Heart, Membership, bury};
