//! This process among others that run the same streams over the same store.
//!
//! `about` is what each says of itself and `report` how it is doing; `heart` says that this one runs and learns who else does,
//! `tenure` is the time in which it may act for a partition. Who is to have which partition is worked
//! out in [`ordain_core::ownership`], and `run/owning.rs` takes and gives them.

mod about;
mod heart;
mod report;
mod tenure;

pub use about::{About, PARTITIONS};
pub use heart::{Heart, Membership, bury};
pub use report::{BLOCKED, Report, Work};
pub use tenure::{Stage, Tenure};
