//! Runs streams. This crate contains the drivers, the sources and the sinks. A driver processes the events of one
//! partition. The crate also contains gap replay, the membership of instances, the rollout of handler versions, and the
//! publishing of files into streams. This crate must never decide how an event is settled: the sequencer in
//! `ordain-core` decides.
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
