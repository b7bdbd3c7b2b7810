//! Tests of a running host's admin listener: who may send requests, the responses, and that callers do not delay the
//! host.

mod abuse;
mod listen;
mod look;
mod metrics;
mod remote;
mod support;
