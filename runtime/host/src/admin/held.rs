//! A page on its way to its caller, which keeps its place until it is sent: pages in memory are as
//! few as questions to the store.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes that are handed to the connection at a time.
const CHUNK: usize = 64 << 10;

/// A text that is sent in parts.
pub(super) struct Held {
    text: String,
    sent: usize,
    _place: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn new(text: String, place: OwnedSemaphorePermit) -> Self {
        Self { text, sent: 0, _place: place }
    }

    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.sent..]
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let rest = self.rest();
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        // A copy: what the connection has not sent yet does not keep the whole page.
        let chunk = Bytes::copy_from_slice(&rest[..CHUNK.min(rest.len())]);
        self.sent += chunk.len();
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest().len() as u64)
    }
}
