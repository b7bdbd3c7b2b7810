//! Classifies errors of the file system.

use std::io::{Error, ErrorKind};

/// Returns whether the same access may succeed later without a change of the configuration: the file or folder may be
/// mounted later, the disk may be full or read-only for a while, or a device may have failed once.
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
