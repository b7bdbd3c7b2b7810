//! What the tests share.
pub mod guests;
pub mod plugins;
pub mod workers;
