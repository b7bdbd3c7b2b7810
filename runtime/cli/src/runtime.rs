//! The tokio runtime of a command, and the limit of open files.

use std::io;
use std::os::unix::net::UnixStream;

use anyhow::anyhow;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use super::cli::CommandError;

/// Creates a multi-threaded runtime, and raises the limit of open files. Returns an error if the limit leaves too few
/// descriptors for the process.
pub(crate) fn new() -> Result<Runtime, CommandError> {
    raise_file_limit();
    start().map_err(|error| {
        CommandError::Unavailable(anyhow!("the process cannot start its tasks: {error}"))
    })
}

/// Checks that the process can open enough descriptors, and creates the runtime. Without the check, tokio itself would
/// panic, because it does not handle this error for the sockets through which it receives signals.
fn start() -> io::Result<Runtime> {
    // A runtime needs six descriptors: the poll instance, its copy, its waker, the two sockets, and a copy of a socket.
    let room = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
    drop(room);
    Runtime::new()
}

/// Raises the soft limit of open files to the hard limit. The soft limit is often 1,024 files. The listeners accept
/// more connections, so clients could use up all descriptors, and the store could then not open its files.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the system refuses the change, the process continues with the present limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
