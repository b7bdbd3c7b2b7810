//! The host of Ordain: everything round the sequencer that touches the outside world.
//!
//! Without the feature `runtime` it is what a producer needs: configuration, store, broker, and
//! [`publish`].
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

#[cfg(feature = "runtime")]
pub mod admin;
pub mod broker;
#[cfg(feature = "runtime")]
pub mod cli;
pub mod cloudevents;
pub mod config;
#[cfg(feature = "runtime")]
pub mod driver;
#[cfg(all(feature = "runtime", any(test, fuzzing)))]
pub mod fuzzing;
#[cfg(feature = "runtime")]
pub mod generate;
#[cfg(feature = "runtime")]
pub mod histogram;
#[cfg(feature = "runtime")]
mod http;
#[cfg(feature = "runtime")]
mod https;
#[cfg(feature = "runtime")]
pub mod ingress;
pub mod instance;
pub mod open;
#[cfg(feature = "runtime")]
pub mod plugin;
#[cfg(feature = "runtime")]
pub mod probe;
pub mod publish;
#[cfg(feature = "runtime")]
pub mod replay;
#[cfg(feature = "runtime")]
pub mod run;
#[cfg(feature = "runtime")]
pub mod sink;
#[cfg(feature = "runtime")]
pub mod source;
pub mod store;
pub mod text;
pub mod told;
#[cfg(feature = "runtime")]
pub mod view;
pub mod wait;
pub mod whole;
