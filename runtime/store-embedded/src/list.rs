//! What people look at: streams, keys, dead letters. What cannot be read is listed as that, with
//! the reason, rather than left out. Must be bounded in time and memory by page, however much
//! the store holds.

mod keys;
pub mod letters;

/// The first place after this one.
fn after(mut place: Vec<u8>) -> Vec<u8> {
    place.push(0);
    place
}
