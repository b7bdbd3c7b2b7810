//! Listings for users: streams, keys, dead letters. A listing shows an unreadable record with the reason, instead of
//! omitting it. The time and the memory for one page must have a limit, independent of the amount of data in the store.

mod keys;
pub mod letters;

/// Returns the lowest place that sorts after `place`.
fn after(mut place: Vec<u8>) -> Vec<u8> {
    place.push(0);
    place
}
