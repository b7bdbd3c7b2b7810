//! The HTTP listeners: the admin API and the ingress, and the rows that the admin API and the command line show. A
//! caller can occupy limited connections, bytes and time, and must never be able to block a driver.
#![deny(clippy::print_stderr, reason = "a closed stderr must end nothing: use `text::print_lossy`")]

pub mod admin;
mod connection;
mod guard;
pub mod ingress;
mod listen;
mod parts;
mod problem;
pub mod view;

pub use listen::ListenError;
