//! Standard output and standard error of a guest (the WebAssembly code of a handler), which both write to the log of
//! the event.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::super::log_line::LogOrigin;
use super::log::EventLog;

/// Maximum size of one write of a guest, in bytes. A guest queries this limit before each write.
const WRITE_LIMIT_BYTES: usize = 4 << 10;

/// Standard output or standard error of a guest. Writes never wait: output above the limit of the event's log is
/// dropped.
#[derive(Clone)]
pub(super) struct GuestOutput {
    log: Arc<EventLog>,
    origin: LogOrigin,
}

impl GuestOutput {
    pub(super) fn new(log: Arc<EventLog>, origin: LogOrigin) -> Self {
        Self { log, origin }
    }
}

impl IsTerminal for GuestOutput {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestOutput {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for GuestOutput {
    async fn ready(&mut self) {}
}

#[async_trait::async_trait]
impl OutputStream for GuestOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.write(self.origin, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_LIMIT_BYTES)
    }
}

/// An implementation that `StdoutStream` requires. No guest can use it, because the linker does not offer the
/// interfaces that need it.
impl AsyncWrite for GuestOutput {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.log.write(self.origin, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
