//! Classifies errors of the file system.

use std::io::{Error, ErrorKind};

/// Returns whether the same access may succeed later without a change of the configuration. Examples: the file or
/// folder is not mounted yet, the disk is full or read-only for a while, or a device has failed once.
pub fn may_pass(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
            | ErrorKind::InvalidFilename
            | ErrorKind::AlreadyExists
            | ErrorKind::Unsupported
    )
}
