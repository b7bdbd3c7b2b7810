//! The shared state of a proxy's threads: the mode, the requested losses, the open connections, and the counts. The
//! module never changes a byte that passes.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::proxy::Mode;

/// The counts of a proxy since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Accepted connections for which the proxy reached the server.
    pub accepted: u64,
    /// Accepted connections that [`cut`](crate::Proxy::cut) or [`Mode::Refuse`] closed.
    pub cut: u64,
    /// Requests that [`lose_requests`](crate::Proxy::lose_requests) kept from the server. For each such request, the
    /// proxy closed the connection.
    pub requests_lost: u64,
    /// Replies that [`lose_replies`](crate::Proxy::lose_replies) or [`Mode::CutReplies`] kept from the client. For each
    /// such reply, the proxy closed the connection.
    pub replies_lost: u64,
    /// Requests that the proxy held back until the end of their connection.
    pub requests_held: u64,
}

/// An instruction to lose or hold back requests, or to lose their replies: the number of requests to which it still
/// applies, and the bytes that such a request must contain.
#[derive(Debug)]
struct LossOrder {
    left: u64,
    containing: Vec<u8>,
}

impl LossOrder {
    /// Returns whether the instruction applies to this request: the request contains the bytes, and the number is not
    /// used up. If the instruction applies, reduces the number by one.
    fn take(&mut self, request: &[u8]) -> bool {
        let takes = self.left > 0 && contains(request, &self.containing);
        self.left -= u64::from(takes);
        takes
    }
}

/// The maximum number of bytes that the proxy keeps for each connection: the first bytes of the client that passed.
const HEAD_BYTES: usize = 4 << 10;

#[derive(Debug)]
struct OpenConnection {
    streams: [TcpStream; 2],
    head: Vec<u8>,
    /// True if the proxy passes no more bytes of the connection.
    is_silent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestAction {
    Pass,
    LoseRequest,
    LoseReply,
    HoldRequest,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    inner: Mutex<StateInner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct StateInner {
    pub(crate) mode: Mode,
    pub(crate) ended: bool,
    pub(crate) listens: bool,
    pub(crate) counts: ProxyCounts,
    requests: Option<LossOrder>,
    replies: Option<LossOrder>,
    holds: Option<LossOrder>,
    connections: BTreeMap<u64, OpenConnection>,
}

impl State {
    pub(crate) fn lock(&self) -> MutexGuard<'_, StateInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a connection has been closed, or the proxy has ended.
    pub(crate) fn until_closed(&self, connection: u64) {
        let is_open =
            |inner: &mut StateInner| !inner.ended && inner.connections.contains_key(&connection);
        drop(self.changed.wait_while(self.lock(), is_open));
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut StateInner) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until clients may connect. Returns `false` if the proxy has ended.
    pub(crate) fn until_open(&self) -> bool {
        let shut = |inner: &mut StateInner| inner.mode == Mode::Refuse && !inner.ended;
        let waited = self.changed.wait_while(self.lock(), shut);
        !waited.unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits until bytes of a connection may pass, and returns the mode. Returns `None` if the connection has been
    /// closed or the proxy has ended.
    pub(crate) fn until_passing(&self, connection: u64) -> Option<Mode> {
        let holds = |inner: &mut StateInner| {
            let is_half_open = inner.mode == Mode::HalfOpen;
            let open = inner.connections.get(&connection);
            !inner.ended && open.is_some_and(|open| open.is_silent || is_half_open)
        };
        let waited = self.changed.wait_while(self.lock(), holds);
        let inner = waited.unwrap_or_else(PoisonError::into_inner);
        (!inner.ended && inner.connections.contains_key(&connection)).then_some(inner.mode)
    }
}

impl StateInner {
    pub(crate) fn lose_requests(&mut self, left: u64, containing: &[u8]) {
        self.requests = Some(LossOrder { left, containing: containing.to_vec() });
    }

    pub(crate) fn lose_replies(&mut self, left: u64, containing: &[u8]) {
        self.replies = Some(LossOrder { left, containing: containing.to_vec() });
    }

    pub(crate) fn hold_request(&mut self, containing: &[u8]) {
        self.holds = Some(LossOrder { left: 1, containing: containing.to_vec() });
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.ended || self.mode == Mode::Refuse
    }

    pub(crate) fn decide(&mut self, request: &[u8]) -> RequestAction {
        let takes = |losses: &mut Option<LossOrder>| {
            losses.as_mut().is_some_and(|losses| losses.take(request))
        };
        if takes(&mut self.requests) {
            self.counts.requests_lost += 1;
            RequestAction::LoseRequest
        } else if takes(&mut self.replies) {
            RequestAction::LoseReply
        } else if takes(&mut self.holds) {
            self.counts.requests_held += 1;
            RequestAction::HoldRequest
        } else {
            RequestAction::Pass
        }
    }

    /// Registers a connection. Returns its number.
    pub(crate) fn open(&mut self, streams: [TcpStream; 2]) -> u64 {
        self.counts.accepted += 1;
        let open = OpenConnection { streams, head: Vec::new(), is_silent: false };
        self.connections.insert(self.counts.accepted, open);
        self.counts.accepted
    }

    /// Keeps a copy of a client's bytes that pass now, up to [`HEAD_BYTES`] bytes for each connection.
    pub(crate) fn remember(&mut self, connection: u64, bytes: &[u8]) {
        if let Some(open) = self.connections.get_mut(&connection) {
            let room = HEAD_BYTES.saturating_sub(open.head.len());
            open.head.extend(bytes.iter().take(room));
        }
    }

    /// Silences the connections whose kept bytes contain the given bytes. Returns the number of these connections.
    pub(crate) fn silence(&mut self, containing: &[u8]) -> usize {
        let mut silenced = 0;
        for open in self.connections.values_mut().filter(|open| contains(&open.head, containing)) {
            open.is_silent = true;
            silenced += 1;
        }
        silenced
    }

    /// Closes a connection. Returns `false` if the connection was closed before.
    pub(crate) fn close(&mut self, connection: u64) -> bool {
        let open = self.connections.remove(&connection);
        open.iter().flat_map(|open| &open.streams).for_each(shut);
        open.is_some()
    }

    pub(crate) fn cut(&mut self) {
        for open in std::mem::take(&mut self.connections).into_values() {
            open.streams.iter().for_each(shut);
            self.counts.cut += 1;
        }
    }
}

/// Returns whether `bytes` contain `wanted`. If `wanted` is empty, the result is always true.
fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || bytes.windows(wanted.len()).any(|part| part == wanted)
}

fn shut(stream: &TcpStream) {
    // Ignore an error: the other side may have closed the connection.
    let _ = stream.shutdown(Shutdown::Both);
}
