//! Listings for users: streams, keys, dead letters. An unreadable record is listed as such, with
//! the reason, and not left out. Each page must be bounded in time and memory, however much the
//! store contains.

pub mod keys;
pub mod letters;
