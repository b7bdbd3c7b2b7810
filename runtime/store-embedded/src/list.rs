//! Listings for users: streams, keys, dead letters. A listing shows an unreadable record with the reason, instead of
//! omitting it. Each page must be bounded in time and memory, however much data the store contains.

mod keys;
pub mod letters;

/// Returns the first place after this one.
fn after(mut place: Vec<u8>) -> Vec<u8> {
    place.push(0);
    place
}
