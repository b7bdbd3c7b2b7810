//! The host of Ordain: everything round the sequencer that touches the outside world.
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

pub mod admin;
pub mod broker;
pub mod cli;
pub mod cloudevents;
pub mod config;
pub mod driver;
pub mod generate;
pub mod histogram;
pub mod instance;
pub mod plugin;
pub mod probe;
pub mod publish;
pub mod run;
pub mod sink;
pub mod source;
pub mod store;
pub mod text;
pub mod told;
pub mod view;
pub mod wait;
