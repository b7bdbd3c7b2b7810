//! Versions of a stream's handler, and which of them executes its events.

use std::sync::Arc;

/// Which handler executed an event: `name@semver`, or without a semver `name+digest`.
pub type Version = Arc<str>;

/// A handler version as the store has decided on it for a stream.
///
/// Decisions of a stream are numbered: each has a higher generation than the one before. A job
/// records the one that its last event was executed under, and no commit under an older one is
/// taken: so no key goes back to a version that was left, unless that was decided anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// From 1.
    pub generation: u64,
    /// The version.
    pub version: Version,
    /// SHA-256 of its file.
    pub digest: [u8; 32],
}
