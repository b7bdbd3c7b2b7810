//! An attempt to connect to the broker. When the caller stops waiting, this module closes the socket of the attempt.
//! Otherwise the client library would keep the socket and a thread until the broker answers the login. A hung broker
//! never answers.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

#[derive(Debug, Default)]
enum AttemptSocket {
    /// There is no socket to close: the attempt has no socket yet, or [`ConnectAttempt::succeed`] is about to end the
    /// attempt.
    #[default]
    None,
    Waiting(TcpStream),
    /// The caller has given up the attempt, or the attempt has succeeded.
    Abandoned,
}

/// The caller's side of an attempt. Dropping a `ConnectAttempt` gives up the attempt and closes its socket. After
/// [`Self::succeed`], the socket stays open.
#[derive(Debug)]
pub(super) struct ConnectAttempt {
    socket: Arc<Mutex<AttemptSocket>>,
    /// This sender is dropped together with the attempt. A running [`SocketOpener::run`] then returns an error.
    running: watch::Sender<()>,
}

#[derive(Debug)]
pub(super) struct SocketOpener {
    socket: Arc<Mutex<AttemptSocket>>,
    running: watch::Receiver<()>,
}

impl ConnectAttempt {
    pub(super) fn new() -> Self {
        Self { socket: Arc::default(), running: watch::Sender::default() }
    }

    pub(super) fn opener(&self) -> SocketOpener {
        SocketOpener { socket: Arc::clone(&self.socket), running: self.running.subscribe() }
    }

    /// Ends the attempt, and keeps its socket open. The caller calls this method when the broker has accepted the
    /// login.
    pub(super) fn succeed(self) {
        *lock(&self.socket) = AttemptSocket::None;
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        let mut socket = lock(&self.socket);
        if let AttemptSocket::Waiting(open) = &*socket {
            // Ignore an error, because the broker may already have closed the socket.
            let _ = open.shutdown(Shutdown::Both);
        }
        *socket = AttemptSocket::Abandoned;
    }
}

impl SocketOpener {
    /// Runs a step of the attempt. If the attempt ends before the step, returns an error immediately.
    pub(super) async fn run<T>(&self, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut running = self.running.clone();
        tokio::select! {
            done = step => done,
            _ = running.changed() => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Keeps a second handle of the socket, so that a dropped [`ConnectAttempt`] can close the socket. Fails if the
    /// attempt has ended.
    pub(super) fn keep(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let open = TcpStream::from(socket.try_clone_to_owned()?);
        let mut socket = lock(&self.socket);
        if matches!(*socket, AttemptSocket::Abandoned) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *socket = AttemptSocket::Waiting(open);
        Ok(())
    }
}

fn lock(socket: &Mutex<AttemptSocket>) -> MutexGuard<'_, AttemptSocket> {
    socket.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Dropping an attempt closes its socket, even if the library still has a handle of the socket.
    #[test]
    fn given_up_attempt_closes_its_socket() {
        let attempt = ConnectAttempt::new();
        let (mut client, mut server) = pair();
        attempt.opener().keep(client.as_fd()).unwrap();
        drop(attempt);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn successful_attempt_keeps_its_socket() {
        let attempt = ConnectAttempt::new();
        let (client, server) = pair();
        attempt.opener().keep(client.as_fd()).unwrap();
        attempt.succeed();
        server.set_nonblocking(true).unwrap();
        let read = (&server).read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// After the caller has given up an attempt, a step that still waits fails immediately, and the attempt refuses to
    /// keep a socket.
    #[tokio::test]
    async fn given_up_attempt_fails_its_steps_and_keeps_no_socket() {
        let attempt = ConnectAttempt::new();
        let opener = attempt.opener();
        drop(attempt);
        let never = std::future::pending::<io::Result<()>>();
        assert!(opener.run(never).await.is_err());
        let (client, _server) = pair();
        assert!(opener.keep(client.as_fd()).is_err());
    }
}
