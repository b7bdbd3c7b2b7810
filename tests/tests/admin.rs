//! The operators' listener of a running host: who may ask, what is answered, and that whoever asks
//! holds up nothing.

#[path = "admin/support.rs"]
mod support;

#[path = "admin/abuse.rs"]
mod abuse;
#[path = "admin/listen.rs"]
mod listen;
#[path = "admin/look.rs"]
mod look;
#[path = "admin/metrics.rs"]
mod metrics;
#[path = "admin/remote.rs"]
mod remote;
