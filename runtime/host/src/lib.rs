//! The host of Ordain.
pub mod cloudevents;
pub mod config;
pub mod generate;
pub mod store;
