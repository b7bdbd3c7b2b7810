//! The operators' listener of a running host: who may ask, what is answered, and that whoever asks
//! holds up nothing.

mod abuse;
mod listen;
mod look;
mod metrics;
mod remote;
mod support;
