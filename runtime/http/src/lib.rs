//! The HTTP listeners: the admin API and the ingress, and the rows that the admin API and the command line show. A
//! caller can occupy limited connections, bytes and time, and must never be able to block a driver.
#![deny(clippy::print_stderr, reason = "a closed stderr must end nothing: use `text::print_lossy`")]

mod access;
pub mod admin;
mod chunked_body;
mod connection;
pub mod ingress;
mod listen;
mod problem;
pub mod view;

pub use listen::ListenError;
