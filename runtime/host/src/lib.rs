//! The host of Ordain.
pub mod plugin;
pub mod store;
