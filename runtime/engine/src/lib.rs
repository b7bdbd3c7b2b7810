//! Runs streams. This crate contains the drivers of partitions, the sources, the sinks, replay, membership, and the
//! rollout of handler versions. This crate must never decide how an event is settled: the sequencer in `ordain-core`
//! decides.
#![deny(
    clippy::print_stderr,
    reason = "a closed standard error must not end the process: use `text::print_lossy`"
)]

pub mod completion;
pub mod driver;
pub mod https;
mod incident;
mod membership;
pub mod publish_file;
mod replay;
pub mod run;
mod sink;
pub mod source;
