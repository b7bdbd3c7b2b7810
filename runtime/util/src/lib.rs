//! Small parts that every crate of the runtime shares. Nothing here knows streams, stores or brokers.
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

pub mod backoff;
pub mod gauge;
pub mod histogram;
pub mod log_throttle;
pub mod probe;
pub mod shutdown;
pub mod text;
pub mod wait;
pub mod whole;
