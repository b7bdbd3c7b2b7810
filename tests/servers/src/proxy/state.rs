//! What the threads of a proxy share: the mode, what is to be lost, the open connections, and the
//! counts. It never touches a byte that passes.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::proxy::Mode;

/// What a proxy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that it accepted.
    pub accepted: u64,
    /// Of these, closed by [`cut`](crate::Proxy::cut) or by [`Mode::Refuse`].
    pub cut: u64,
    /// Requests that did not reach the server. Each closed its connection.
    pub requests_lost: u64,
    /// Answers that did not reach the client. Each closed its connection.
    pub replies_lost: u64,
}

/// Requests or answers that shall be lost.
#[derive(Debug)]
struct Losses {
    left: u64,
    containing: Vec<u8>,
}

impl Losses {
    /// Takes one, where there is one left and the request is meant.
    fn take(&mut self, request: &[u8]) -> bool {
        let wanted = &self.containing;
        let is_meant = wanted.is_empty() || request.windows(wanted.len()).any(|it| it == wanted);
        let takes = self.left > 0 && is_meant;
        self.left -= u64::from(takes);
        takes
    }
}

/// What becomes of a request.
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
    /// Whether clients can connect now.
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

    /// Changes something that others may wait for.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until clients may connect. `false` where the proxy has ended.
    pub(crate) fn until_open(&self) -> bool {
        let shut = |inner: &mut Inner| inner.mode == Mode::Refuse && !inner.ended;
        let waited = self.changed.wait_while(self.lock(), shut);
        !waited.unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits until bytes of a connection may pass, and returns the mode. Nothing where the
    /// connection has been closed.
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

    /// Whether clients may not connect.
    pub(crate) fn is_shut(&self) -> bool {
        self.ended || self.mode == Mode::Refuse
    }

    pub(crate) fn fate(&mut self, request: &[u8]) -> Fate {
        let takes = |it: &mut Option<Losses>| it.as_mut().is_some_and(|it| it.take(request));
        if takes(&mut self.requests) {
            self.counts.requests_lost += 1;
            Fate::LoseRequest
        } else if takes(&mut self.replies) {
            Fate::LoseReply
        } else {
            Fate::Pass
        }
    }

    /// Notes a connection; its number.
    pub(crate) fn open(&mut self, streams: [TcpStream; 2]) -> u64 {
        self.counts.accepted += 1;
        self.links.insert(self.counts.accepted, streams);
        self.counts.accepted
    }

    /// Closes a connection. `false` where it was closed before.
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
    // It may have been closed by the other side.
    let _ = stream.shutdown(Shutdown::Both);
}
