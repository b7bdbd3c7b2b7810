//! What people look at: streams, keys, dead letters. What cannot be read is listed as that, with
//! the reason, rather than left out. Must be bounded in time and memory by page, however much the
//! store holds.

pub mod keys;
pub mod letters;
