//! What the listeners have in common: connections with bounds, who may ask, and errors in plain words.

pub(crate) mod connection;
pub(crate) mod guard;
pub(crate) mod parts;
pub(crate) mod problem;
