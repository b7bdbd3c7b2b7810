//! One connection through a proxy: a thread for each direction. A Redis request or reply passes only when it is
//! complete, so that the proxy can match each reply with its request. The bytes of other protocols pass as they arrive.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result};

use crate::proxy::Mode;
use crate::proxy::frames::{Scan, is_push, scan};
use crate::proxy::state::{RequestAction, State};

const CHUNK_BYTES: usize = 64 << 10;

struct ProxiedConnection {
    number: u64,
    state: Arc<State>,
    /// True if the client's first byte begins a Redis request; empty before the first byte arrives.
    speaks_redis: OnceLock<bool>,
    /// For each request to which the server has not replied yet, in order: true if the proxy must lose the reply.
    waiting: Mutex<VecDeque<bool>>,
}

/// Passes bytes between a client and the server until one of them, or the proxy, closes the connection.
pub(crate) fn start(state: &Arc<State>, client: TcpStream, server: TcpStream) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let both = || Ok::<_, std::io::Error>([client.try_clone()?, server.try_clone()?]);
    let [to_client, from_server] = both()?;
    let number = {
        let mut inner = state.lock();
        // The mode may have changed while the proxy connected to the server.
        if inner.is_shut() {
            return Ok(());
        }
        inner.open(both()?)
    };
    let state = Arc::clone(state);
    let connection = ProxiedConnection {
        number,
        state,
        speaks_redis: OnceLock::new(),
        waiting: Mutex::default(),
    };
    let connection = Arc::new(connection);
    let reverse = Arc::clone(&connection);
    std::thread::spawn(move || connection.run(&client, &server, ProxiedConnection::requests));
    std::thread::spawn(move || reverse.run(&from_server, &to_client, ProxiedConnection::answers));
    Ok(())
}

enum DirectionState {
    Continues,
    /// Nothing more passes in this direction until the connection ends.
    Waits,
    Ends,
}

/// The number of bytes that pass, and the next state.
type PassResult = (usize, DirectionState);

impl ProxiedConnection {
    /// Reads from one side, and writes to the other side the bytes that `pass` admits.
    fn run(&self, from: &TcpStream, to: &TcpStream, pass: fn(&Self, &[u8], Mode) -> PassResult) {
        // The end of one side, for any reason, closes both sides.
        let _ = self.pump(from, to, pass);
        self.state.change(|inner| inner.close(self.number));
    }

    fn pump(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        pass: fn(&Self, &[u8], Mode) -> PassResult,
    ) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut bytes = Vec::new();
        loop {
            let read = from.read(&mut chunk)?;
            let mode = self.state.until_passing(self.number).context("closed")?;
            bytes.extend_from_slice(&chunk[..read]);
            let (passed, next) = pass(self, &bytes, mode);
            to.write_all(&bytes[..passed])?;
            bytes.drain(..passed);
            match next {
                DirectionState::Continues if read > 0 => {}
                DirectionState::Waits => {
                    self.state.until_closed(self.number);
                    return Ok(());
                }
                DirectionState::Continues | DirectionState::Ends => return Ok(()),
            }
        }
    }

    fn requests(&self, bytes: &[u8], mode: Mode) -> PassResult {
        if let Mode::Delay(by) = mode {
            std::thread::sleep(by);
        }
        let (passed, next) = self.admit(bytes);
        // The bytes of an incomplete request arrive here again, together with the rest of the request.
        self.state.lock().remember(self.number, &bytes[..passed]);
        (passed, next)
    }

    /// Decides how many bytes of the client pass.
    fn admit(&self, bytes: &[u8]) -> PassResult {
        let mut at = 0;
        // A Redis client sends arrays, which begin with `*`. In the other protocols that tests use, a client's first
        // byte is another byte.
        if let Some(first) = bytes.first() {
            self.speaks_redis.get_or_init(|| *first == b'*');
        }
        while at < bytes.len() && self.speaks_redis() {
            let length = match scan(&bytes[at..]) {
                Scan::Complete(length) => length,
                Scan::Incomplete => return (at, DirectionState::Continues),
                Scan::Invalid => break,
            };
            let action = self.state.lock().decide(&bytes[at..at + length]);
            match action {
                RequestAction::LoseRequest => return (at, DirectionState::Ends),
                RequestAction::HoldRequest => return (at, DirectionState::Waits),
                RequestAction::Pass | RequestAction::LoseReply => {}
            }
            // Add the entry before the request is written, so that the entry exists when the reply arrives.
            self.waiting().push_back(action == RequestAction::LoseReply);
            at += length;
        }
        (bytes.len(), DirectionState::Continues)
    }

    fn answers(&self, bytes: &[u8], mode: Mode) -> PassResult {
        if mode == Mode::CutReplies && !bytes.is_empty() {
            self.lose();
            return (0, DirectionState::Ends);
        }
        let mut at = 0;
        while at < bytes.len() && self.speaks_redis() {
            let length = match scan(&bytes[at..]) {
                Scan::Complete(length) => length,
                Scan::Incomplete => return (at, DirectionState::Continues),
                Scan::Invalid => break,
            };
            if !is_push(&bytes[at..]) && self.waiting().pop_front() == Some(true) {
                self.lose();
                return (at, DirectionState::Ends);
            }
            at += length;
        }
        (bytes.len(), DirectionState::Continues)
    }

    fn speaks_redis(&self) -> bool {
        self.speaks_redis.get() == Some(&true)
    }

    fn lose(&self) {
        self.state.change(|inner| inner.counts.replies_lost += 1);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<bool>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
