//! Listings for users: streams, keys, dead letters. A listing shows an unreadable record with the reason, instead of
//! omitting it. The time and the memory for one page must have a limit, independent of the amount of data in the store.

mod keys;
pub mod letters;

fn after(mut table_key: Vec<u8>) -> Vec<u8> {
    table_key.push(0);
    table_key
}
