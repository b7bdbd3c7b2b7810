//! The host of Ordain: everything round the sequencer that touches the outside world.

pub mod cli;
pub mod cloudevents;
pub mod config;
pub mod driver;
pub mod generate;
pub mod plugin;
pub mod probe;
pub mod run;
pub mod sink;
pub mod source;
pub mod store;
