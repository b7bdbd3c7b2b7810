//! The HTTP listeners: the admin API for operators and the ingress for producers. This crate also has the rows that the
//! admin API and the command line show. A caller can occupy only limited connections, bytes and time, and must never be
//! able to block a driver.
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
