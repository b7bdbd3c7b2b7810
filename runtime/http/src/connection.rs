//! Serves connections, and limits the resources that callers occupy: connections, bytes of headers, and time.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use ordain_util::shutdown::shutdown_requested;

/// The limits for the callers of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenerLimits {
    /// The listener's name in the log.
    pub(crate) listener: &'static str,
    /// Maximum number of connections. At the limit, a new connection replaces the oldest idle connection. If no
    /// connection is idle, the new connection waits until another connection ends.
    pub(crate) connections: usize,
    /// Maximum size of a request's headers, in bytes.
    pub(crate) header_bytes: usize,
    /// Maximum number of headers of a request.
    pub(crate) headers: usize,
    /// `true` if a connection may carry several requests, one after the other.
    pub(crate) keep_alive: bool,
    /// Maximum lifetime of a connection, including its requests and responses.
    pub(crate) life: Duration,
    /// Time limit for a request and its response. The limit applies until the caller has read nearly all of the
    /// response.
    pub(crate) request: Duration,
}

/// Time limit for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after the operating system failed to accept a connection, for example because the process has too many open
/// files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// An open connection.
struct OpenConnection {
    is_busy: Arc<AtomicBool>,
    serving: AbortHandle,
}

/// Serves connections until shutdown is requested, and then finishes the current requests.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    mut end: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<OpenConnection> = VecDeque::new();
    loop {
        let next = async {
            let accepted = listener.accept().await;
            while connections.try_join_next().is_some() {}
            open.retain(|connection| !connection.serving.is_finished());
            if open.len() >= limits.connections && !close_oldest_idle(&mut open) {
                connections.join_next().await;
            }
            accepted
        };
        let accepted = tokio::select! {
            taken = next => taken,
            () = shutdown_requested(&mut end) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let asks = Arc::new(AtomicBool::new(false));
                let one = serve_connection(
                    stream,
                    router.clone(),
                    limits,
                    Arc::clone(&asks),
                    end.clone(),
                );
                open.push_back(OpenConnection { is_busy: asks, serving: connections.spawn(one) });
            }
            Err(error) => {
                tracing::debug!(%error, "connection to {} not accepted", limits.listener);
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Closes the oldest idle connection. Returns whether an idle connection existed.
fn close_oldest_idle(open: &mut VecDeque<OpenConnection>) -> bool {
    let idle = open.iter().position(|connection| !connection.is_busy.load(Ordering::Relaxed));
    let idle = idle.and_then(|at| open.remove(at));
    idle.inspect(|connection| connection.serving.abort()).is_some()
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: ListenerLimits,
    asks: Arc<AtomicBool>,
    mut end: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    http.max_buf_size(limits.header_bytes)
        .max_headers(limits.headers)
        .keep_alive(limits.keep_alive);
    let router_service = TowerToHyperService::new(router);
    let (requests, mut begun) = watch::channel(0_u64);
    let service = service_fn(|request| {
        asks.store(true, Ordering::Relaxed);
        requests.send_modify(|count| *count += 1);
        let answer = router_service.call(request);
        // Without keep-alive, the connection is busy until it ends.
        let asks = limits.keep_alive.then(|| BusyGuard(Arc::clone(&asks)));
        async move {
            answer.await.map(|response| response.map(|body| GuardedBody { body, _busy: asks }))
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut life = pin!(tokio::time::sleep(limits.life));
    let mut request = pin!(tokio::time::sleep(limits.request));
    let mut ends = false;
    loop {
        tokio::select! {
            // The result is ignored, because an error of a connection affects only its caller.
            _ = connection.as_mut() => return,
            () = &mut life => return,
            Ok(()) = begun.changed() => {
                request.as_mut().reset(Instant::now() + limits.request);
            }
            // The limit `limits.request` does not apply between two requests. `HEADER_TIMEOUT` limits the wait for the
            // next request.
            () = request.as_mut(), if asks.load(Ordering::Relaxed) => return,
            () = shutdown_requested(&mut end), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A guard that marks a connection as busy until it is dropped.
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The body of a response that is being sent.
struct GuardedBody {
    body: Body,
    _busy: Option<BusyGuard>,
}

impl hyper::body::Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
