//! Runs streams: partitions and their drivers, sources, sinks, replay, membership, and versions of
//! handlers. Nothing here decides what becomes of an event: the sequencer in `ordain-core` does.
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

pub mod completion;
pub mod driver;
pub mod https;
mod incident;
mod instance;
pub mod publish_file;
mod replay;
pub mod run;
mod sink;
pub mod source;
