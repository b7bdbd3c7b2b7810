//! Listings for users: streams, keys, dead letters. A listing shows an unreadable record with the reason, instead of
//! omitting it. Each page must be bounded in time and memory, however much data the store contains.

pub mod keys;
pub mod letters;
