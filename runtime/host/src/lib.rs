//! The host of Ordain.
pub mod config;
pub mod store;
