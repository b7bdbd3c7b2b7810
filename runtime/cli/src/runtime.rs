//! The tokio runtime of a command.

use std::io;
use std::os::unix::net::UnixStream;

use tokio::runtime::Runtime;

/// Creates a multi-threaded runtime. Returns an error if the limit of open files leaves too few descriptors for the
/// process: tokio itself would panic, because it does not handle this error for the sockets through which it receives
/// signals.
pub(crate) fn new() -> io::Result<Runtime> {
    // A runtime needs six descriptors: the poll instance, its copy, its waker, the two sockets, and a copy of a socket.
    let room = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
    drop(room);
    Runtime::new()
}
