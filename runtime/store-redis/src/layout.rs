//! The constants that the scripts use: the layout of records, and of the arguments of a commit.

use std::collections::BTreeMap;

use ordain_store::clock::JUMP_LIMIT_MS;

use super::{commit, record};

/// Returns all constants, by the names that the scripts use.
pub(super) fn layout() -> BTreeMap<&'static str, usize> {
    let of_writes = commit::LAYOUT.map(|(name, number)| (name, usize::from(number)));
    let jump_limit = ("CLOCK_JUMP_LIMIT", JUMP_LIMIT_MS as usize);
    record::layout().into_iter().chain(of_writes).chain([jump_limit]).collect()
}
