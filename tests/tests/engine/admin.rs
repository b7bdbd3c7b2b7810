//! Tests of the HTTP listener for operators (the admin listener): access to it, its responses, and clients that must
//! not delay the host.

mod abuse;
mod listen;
mod listings;
mod metrics;
mod remote;
mod support;
