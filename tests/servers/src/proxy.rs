//! A TCP proxy in front of a server. The proxy can delay, hold back or lose bytes, and close connections. The proxy
//! never adds or changes a byte, so a client sees only behaviour that a network could cause.

mod connection;
mod frames;
mod state;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::Result;

pub use state::ProxyCounts;
use state::{State, StateInner};

use crate::port::Port;
use crate::wait::wait_until;

/// The way in which a proxy handles connections and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Passes all bytes, except the requests and replies that the proxy must lose or hold back on the instruction of a
    /// test.
    #[default]
    Pass,
    /// Passes the client's bytes after this delay. Bytes that arrive during a delay pass after the next delay. The
    /// bytes of the server pass without a delay.
    Delay(Duration),
    /// Accepts connections, and passes nothing in either direction, on new and on open connections, like a network that
    /// drops all packets. The bytes that the proxy held back pass when the mode ends.
    HalfOpen,
    /// Refuses new connections and closes the open connections, like a machine without the server.
    Refuse,
    /// Passes requests, and closes each connection instead of passing its next reply. Works for any protocol; for
    /// Redis, [`Proxy::lose_replies`] can select the requests.
    CutReplies,
}

/// A proxy on a private port of 127.0.0.1, in front of a server on another port. While the server is down, the proxy
/// accepts a client and closes the connection. Dropping the proxy closes all connections.
#[derive(Debug)]
pub struct Proxy {
    address: Ipv4Addr,
    port: Arc<Port>,
    /// The port of the server.
    server: Arc<AtomicU16>,
    state: Arc<State>,
}

impl Proxy {
    /// Starts a proxy in front of the server on a port of 127.0.0.1. The server need not be running yet.
    pub fn start(server: u16) -> Result<Self> {
        Self::listen(Ipv4Addr::LOCALHOST, Arc::new(Port::take()?), Arc::new(AtomicU16::new(server)))
    }

    /// Starts another proxy in front of the same server, on the same port of another address of this machine.
    pub fn start_beside(&self, address: Ipv4Addr) -> Result<Self> {
        Self::listen(address, Arc::clone(&self.port), Arc::clone(&self.server))
    }

    fn listen(address: Ipv4Addr, port: Arc<Port>, server: Arc<AtomicU16>) -> Result<Self> {
        let proxy = Self { address, port, server: Arc::clone(&server), state: Arc::default() };
        let port = proxy.port();
        let state = Arc::clone(&proxy.state);
        std::thread::spawn(move || {
            while state.until_open() {
                // Another process of the machine may listen on the port for a moment.
                if let Ok(listener) = TcpListener::bind((address, port)) {
                    state.change(|inner| inner.listens = true);
                    accept(&state, &listener, &server);
                    drop(listener);
                    state.change(|inner| inner.listens = false);
                } else {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        proxy.set(Mode::Pass)?;
        Ok(proxy)
    }

    /// Returns the proxy's port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Closes all open connections, and passes new connections to another server on a port of 127.0.0.1.
    pub fn forward_to(&self, server: u16) {
        self.server.store(server, Ordering::SeqCst);
        self.cut();
    }

    /// Changes the mode for new and open connections. The mode is in effect when the method returns.
    pub fn set(&self, mode: Mode) -> Result<()> {
        self.state.change(|inner| {
            inner.mode = mode;
            if mode == Mode::Refuse {
                inner.cut();
            }
        });
        let listens = mode != Mode::Refuse;
        wait_until("the opening or closing of the proxy's port", || {
            if listens {
                return Ok(self.state.lock().listens);
            }
            // The check also tries to connect. Clients may still be able to connect for a moment, because a process
            // that another thread is starting may hold a copy of the closed listener.
            let connects = self.wake();
            Ok(!connects && !self.state.lock().listens)
        })
    }

    /// Silences each open connection whose client has sent the given bytes. The proxy searches only the first 4 KiB
    /// that it has passed for each client. No more bytes pass on these connections, as if a network dropped only their
    /// packets. Does not affect new connections. Returns the number of silenced connections.
    pub fn silence(&self, containing: impl AsRef<[u8]>) -> usize {
        self.state.change(|inner| inner.silence(containing.as_ref()))
    }

    /// Closes all open connections. New connections are not affected.
    pub fn cut(&self) {
        self.state.change(StateInner::cut);
    }

    /// Loses the replies to the next `count` Redis requests that contain the bytes `containing`. If `containing` is
    /// empty, the proxy counts every request. The server executes each request. When the reply arrives, the proxy
    /// closes the connection instead of passing the reply. Replies to earlier requests pass first. The instruction of a
    /// later call replaces the instruction of an earlier call. The method does not work for connections that subscribe,
    /// because the proxy cannot match their replies with requests.
    pub fn lose_replies(&self, count: u64, containing: impl AsRef<[u8]>) {
        self.state.change(|inner| inner.lose_replies(count, containing.as_ref()));
    }

    /// Loses the next `count` Redis requests that contain the bytes `containing`. If `containing` is empty, every
    /// request counts. The proxy closes the connection instead of passing the request. The instruction of a later call
    /// replaces the instruction of an earlier call.
    pub fn lose_requests(&self, count: u64, containing: impl AsRef<[u8]>) {
        self.state.change(|inner| inner.lose_requests(count, containing.as_ref()));
    }

    /// Holds back the next Redis request that contains the given bytes, and everything that the client sends after this
    /// request on the same connection. The held bytes never reach the server: the proxy drops them when the connection
    /// ends. Earlier requests and their replies pass. The instruction of a later call replaces the instruction of an
    /// earlier call.
    pub fn hold_request(&self, containing: impl AsRef<[u8]>) {
        self.state.change(|inner| inner.hold_request(containing.as_ref()));
    }

    /// Returns the counts since the start of the proxy.
    pub fn counts(&self) -> ProxyCounts {
        self.state.lock().counts
    }

    /// Wakes the thread that accepts connections, by connecting to the proxy. Returns whether the connection succeeded.
    fn wake(&self) -> bool {
        TcpStream::connect((self.address, self.port())).is_ok()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.change(|inner| {
            inner.ended = true;
            inner.cut();
        });
        self.wake();
    }
}

fn accept(state: &Arc<State>, listener: &TcpListener, server: &AtomicU16) {
    while let Ok((client, _)) = listener.accept() {
        if state.lock().is_shut() {
            return;
        }
        if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server.load(Ordering::SeqCst)))
        {
            // The call fails only if one side has closed its connection already.
            let _ = connection::start(state, client, server);
        }
    }
}
