//! The HTTP listeners: the admin API for operators and the ingress for producers. This crate also defines the rows
//! (keys, dead letters, streams, handlers and instances) that the admin API and the command line show. The listeners
//! limit the connections, the memory and the time that their callers use, so that no caller can block the processing of
//! events.
#![deny(
    clippy::print_stderr,
    reason = "a closed standard error must not end the process: use `text::print_lossy`"
)]

mod access;
pub mod admin;
mod chunked_body;
mod connection;
pub mod ingress;
mod listen;
mod problem;
pub mod view;
