//! A response body that is sent in chunks. The body keeps its memory and its permit until it has handed the last chunk
//! to the connection. By then, the caller has read everything except the last chunk and the bytes that the connection
//! and the operating system still buffer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

const CHUNK_BYTES: usize = 32 << 10;

/// The unsent rest of a response. `_permit` is the permit of a query of the store, or of the bytes of a request; `None`
/// if the response holds no permit.
pub(crate) struct ChunkedBody {
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ChunkedBody {
    /// Creates the body of a response from all bytes of the response and the permit that the response holds.
    pub(crate) fn new(rest: Bytes, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { rest, _permit: place }
    }
}

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let size = self.rest.len().min(CHUNK_BYTES);
        if size == 0 {
            return Poll::Ready(None);
        }
        // The chunk is a copy, because a slice would keep the whole buffer in memory after the body has ended.
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
