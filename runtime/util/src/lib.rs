//! Small parts that every crate of the runtime shares. Nothing here knows streams, stores or brokers.
#![deny(clippy::print_stderr, reason = "a broken standard error must end nothing: `text::say`")]

pub mod gauge;
pub mod histogram;
pub mod probe;
pub mod shutdown;
pub mod text;
pub mod told;
pub mod wait;
pub mod whole;
