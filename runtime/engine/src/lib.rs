//! Runs streams: partitions and their drivers, sources, sinks, replay, membership, and versions of handlers. This crate
//! must never decide what becomes of an event: the sequencer in `ordain-core` decides.
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
