//! A TCP proxy before a server, to lose, cut, delay and hold up what passes. It never makes or
//! changes a byte: a client sees nothing through it that a network could not do.

mod frames;
mod link;
mod state;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

pub use state::Counts;
use state::{Inner, State};

use crate::port::Port;
use crate::wait::wait_until;

/// What a proxy does with what comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything.
    #[default]
    Pass,
    /// Passes what a client sends that much later; what has come meanwhile goes along.
    Delay(Duration),
    /// Accepts connections and passes nothing, in no direction and also on open connections, as
    /// a network that has gone silent. What was held up passes when the mode ends.
    HalfOpen,
    /// Refuses connections and cuts the open ones, as a machine without the server.
    Refuse,
    /// Passes requests, and closes a connection instead of passing the first answer that comes.
    /// For any protocol; for Redis, [`Proxy::lose_replies`] picks the requests.
    CutReplies,
}

/// A proxy on a private port of 127.0.0.1, before a server on another. A client of a server that is
/// down is accepted and closed. Dropping it closes all.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    state: Arc<State>,
}

impl Proxy {
    /// Starts one before the server on a port of 127.0.0.1, which need not run yet.
    pub fn start(server: u16) -> Result<Self> {
        let proxy = Self { port: Port::take()?, state: Arc::default() };
        let (port, state) = (proxy.port(), Arc::clone(&proxy.state));
        std::thread::spawn(move || {
            while state.until_open() {
                // Somebody else of the machine may listen there for a moment.
                if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                    state.change(|inner| inner.listens = true);
                    accept(&state, &listener, server);
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

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Changes the mode, from now on and for open connections too. When it returns, it is so.
    pub fn set(&self, mode: Mode) -> Result<()> {
        self.state.change(|inner| {
            inner.mode = mode;
            if mode == Mode::Refuse {
                inner.cut();
            }
        });
        let listens = mode != Mode::Refuse;
        wait_until("the proxy's port", || {
            if listens {
                return Ok(self.state.lock().listens);
            }
            // Asked of the system too: for a moment, a process that is being started elsewhere
            // holds a copy of what is closed here.
            let connects = self.wake();
            Ok(!connects && !self.state.lock().listens)
        })
    }

    /// Closes all connections now. New ones pass.
    pub fn cut(&self) {
        self.state.change(Inner::cut);
    }

    /// Loses the answers to the next `count` requests of Redis that contain some bytes (none:
    /// any): each request is done by the server, and when its answer arrives the connection is
    /// closed instead. Answers to earlier requests pass before. It replaces what an earlier call
    /// has asked for. Not for connections that subscribe, whose answers cannot be told apart.
    pub fn lose_replies(&self, count: u64, containing: impl AsRef<[u8]>) {
        self.state.change(|inner| inner.lose_replies(count, containing.as_ref()));
    }

    /// Loses the next `count` requests of Redis that contain some bytes (none: any): the
    /// connection is closed before the request is passed. It replaces what an earlier call has
    /// asked for.
    pub fn lose_requests(&self, count: u64, containing: impl AsRef<[u8]>) {
        self.state.change(|inner| inner.lose_requests(count, containing.as_ref()));
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Wakes the thread that waits for a connection. `false` where nobody does.
    fn wake(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).is_ok()
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

/// Accepts connections until that is not wanted any more.
fn accept(state: &Arc<State>, listener: &TcpListener, server: u16) {
    while let Ok((client, _)) = listener.accept() {
        if state.lock().is_shut() {
            return;
        }
        if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) {
            // It fails only where one of them is gone again.
            let _ = link::start(state, client, server);
        }
    }
}
