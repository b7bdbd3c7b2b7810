//! Listings for users: streams, keys, dead letters. An unreadable record is listed as such, with
//! the reason, and not left out. Each page must be bounded in time and memory, however much the
//! store contains.

mod keys;
pub mod letters;

/// Returns the first place after this one.
fn after(mut place: Vec<u8>) -> Vec<u8> {
    place.push(0);
    place
}
