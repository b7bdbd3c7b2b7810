//! An answer that is handed over in parts, so that whoever does not read it holds no more than one of
//! them beyond what it has room for.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of a part.
const PART: usize = 32 << 10;

/// What is left to be handed over, and what it has until then.
pub(crate) struct Parts {
    rest: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

impl Parts {
    /// All of an answer.
    pub(crate) fn new(rest: Bytes, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { rest, _place: place }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let size = self.rest.len().min(PART);
        if size == 0 {
            return Poll::Ready(None);
        }
        // A copy: a part of the whole would keep all of it.
        let part = Bytes::copy_from_slice(&self.rest[..size]);
        self.rest.advance(size);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
