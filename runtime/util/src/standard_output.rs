//! Inspects standard output. Must never write to standard output.

use std::io;

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};

/// Returns whether standard output was closed, or not open for writing, when this process started. Writes to standard
/// output then succeed, but their bytes are lost.
///
/// If a process starts with a closed standard output, Rust opens `/dev/null` for reading and writing instead. If
/// standard output is open only for reading, Rust ignores the error of each write. A shell opens `/dev/null` only for
/// writing (`> /dev/null`), so this function returns `false` if a user discards the output in this way.
pub fn is_closed() -> bool {
    let output = io::stdout();
    let Ok(flags) = fcntl_getfl(&output) else { return true };
    let mode = flags & OFlags::RWMODE;
    mode == OFlags::RDONLY || (mode == OFlags::RDWR && is_null_device(&output))
}

fn is_null_device(output: &io::Stdout) -> bool {
    let Ok(null) = stat("/dev/null") else { return false };
    fstat(output).is_ok_and(|found| found.st_dev == null.st_dev && found.st_ino == null.st_ino)
}
