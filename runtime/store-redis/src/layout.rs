//! The constants that scripts need to read and write records, and to read the writes of a batch.

use std::collections::BTreeMap;

use super::{commit, record};

/// Returns all constants by the names that scripts use.
pub(super) fn layout() -> BTreeMap<&'static str, usize> {
    let of_writes = commit::LAYOUT.map(|(name, number)| (name, usize::from(number)));
    record::layout().into_iter().chain(of_writes).collect()
}
