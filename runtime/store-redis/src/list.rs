//! Listings for users: streams, keys, dead letters. A listing shows an unreadable record with the reason, instead of
//! omitting it. The time and the memory for one page must have a limit that does not depend on the amount of data in
//! the store.

pub mod keys;
pub mod letters;
