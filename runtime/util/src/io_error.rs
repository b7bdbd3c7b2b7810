//! Classifies errors of the file system.

use std::io::{Error, ErrorKind};

use rustix::io::Errno;

/// Returns whether an error shows that a path leads to no file. Either a part of the path is missing, or a part that
/// must be a folder is a file, or links lead in a circle.
pub fn leads_to_no_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_a_file_is_recognised() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "").expect("a file");
        std::os::unix::fs::symlink("circle", folder.path().join("circle")).expect("a link");
        for path in ["missing", "file/inside", "circle"] {
            let error = std::fs::metadata(folder.path().join(path)).expect_err(path);
            assert!(leads_to_no_file(&error), "{path}: {error}");
        }
        assert!(!leads_to_no_file(&ErrorKind::PermissionDenied.into()));
    }
}
