//! The numbers by which scripts know how records and writes are laid out.

use std::collections::BTreeMap;

use super::{commit, record};

/// Each with the name that scripts have for it.
pub(super) fn layout() -> BTreeMap<&'static str, usize> {
    let of_writes = commit::LAYOUT.map(|(name, number)| (name, usize::from(number)));
    record::layout().into_iter().chain(of_writes).collect()
}
