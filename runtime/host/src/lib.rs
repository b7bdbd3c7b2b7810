//! The host of Ordain.
pub mod store;
