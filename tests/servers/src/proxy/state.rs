//! The shared state of a proxy's threads: the mode, the requested losses, the open connections, and the counts. The
//! module never touches a byte that passes.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::proxy::Mode;

/// The counts of a proxy since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted connections.
    pub accepted: u64,
    /// Accepted connections that [`cut`](crate::Proxy::cut) or [`Mode::Refuse`] closed.
    pub cut: u64,
    /// Requests that did not reach the server. For each, the proxy closed the connection.
    pub requests_lost: u64,
    /// Replies that did not reach the client. For each, the proxy closed the connection.
    pub replies_lost: u64,
}

/// A number of requests or replies to lose.
#[derive(Debug)]
struct Losses {
    left: u64,
    containing: Vec<u8>,
}

impl Losses {
    /// Counts one loss if one is left and the request contains the bytes. Returns whether the request is lost.
    fn take(&mut self, request: &[u8]) -> bool {
        let wanted = &self.containing;
        let is_meant =
            wanted.is_empty() || request.windows(wanted.len()).any(|part| part == wanted);
        let takes = self.left > 0 && is_meant;
        self.left -= u64::from(takes);
        takes
    }
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    LoseRequest,
    LoseReply,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) mode: Mode,
    pub(crate) ended: bool,
    /// True if clients can connect now.
    pub(crate) listens: bool,
    pub(crate) counts: Counts,
    requests: Option<Losses>,
    replies: Option<Losses>,
    links: BTreeMap<u64, [TcpStream; 2]>,
}

impl State {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the threads that wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until clients may connect. Returns `false` if the proxy has ended.
    pub(crate) fn until_open(&self) -> bool {
        let shut = |inner: &mut Inner| inner.mode == Mode::Refuse && !inner.ended;
        let waited = self.changed.wait_while(self.lock(), shut);
        !waited.unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits until bytes of a connection may pass, and returns the mode; `None` if the connection has been closed.
    pub(crate) fn until_passing(&self, link: u64) -> Option<Mode> {
        let holds = |inner: &mut Inner| {
            inner.mode == Mode::HalfOpen && !inner.ended && inner.links.contains_key(&link)
        };
        let waited = self.changed.wait_while(self.lock(), holds);
        let inner = waited.unwrap_or_else(PoisonError::into_inner);
        (!inner.ended && inner.links.contains_key(&link)).then_some(inner.mode)
    }
}

impl Inner {
    pub(crate) fn lose_requests(&mut self, left: u64, containing: &[u8]) {
        self.requests = Some(Losses { left, containing: containing.to_vec() });
    }

    pub(crate) fn lose_replies(&mut self, left: u64, containing: &[u8]) {
        self.replies = Some(Losses { left, containing: containing.to_vec() });
    }

    /// Returns whether clients must not connect.
    pub(crate) fn is_shut(&self) -> bool {
        self.ended || self.mode == Mode::Refuse
    }

    pub(crate) fn fate(&mut self, request: &[u8]) -> Fate {
        let takes = |losses: &mut Option<Losses>| {
            losses.as_mut().is_some_and(|losses| losses.take(request))
        };
        if takes(&mut self.requests) {
            self.counts.requests_lost += 1;
            Fate::LoseRequest
        } else if takes(&mut self.replies) {
            Fate::LoseReply
        } else {
            Fate::Pass
        }
    }

    /// Registers a connection. Returns its number.
    pub(crate) fn open(&mut self, streams: [TcpStream; 2]) -> u64 {
        self.counts.accepted += 1;
        self.links.insert(self.counts.accepted, streams);
        self.counts.accepted
    }

    /// Closes a connection. Returns `false` if it was closed before.
    pub(crate) fn close(&mut self, link: u64) -> bool {
        let streams = self.links.remove(&link);
        streams.iter().flatten().for_each(shut);
        streams.is_some()
    }

    /// Closes all connections.
    pub(crate) fn cut(&mut self) {
        for streams in std::mem::take(&mut self.links).into_values() {
            streams.iter().for_each(shut);
            self.counts.cut += 1;
        }
    }
}

fn shut(stream: &TcpStream) {
    // The other side may have closed the connection.
    let _ = stream.shutdown(Shutdown::Both);
}
