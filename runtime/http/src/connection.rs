//! Serves connections, and limits the resources that callers occupy: connections, bytes of headers, and time.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use ordain_util::shutdown::shutdown_requested;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenerLimits {
    /// The listener's name in the log.
    pub(crate) listener: &'static str,
    /// Maximum number of connections. At the limit, a new connection replaces the oldest idle connection. If no
    /// connection is idle, the new connection waits until another connection ends.
    pub(crate) connections: usize,
    pub(crate) header_bytes: usize,
    pub(crate) headers: usize,
    /// `true` if a connection may carry several requests, one after the other.
    pub(crate) keep_alive: bool,
    /// With `true`, a caller that has closed its side of the connection still receives the response. The listener then
    /// also processes the requests of callers that have disconnected.
    pub(crate) half_close: bool,
    /// Time limit for the headers of a request, counted from the start of the connection or from the end of the
    /// previous response. With `keep_alive`, the time therefore includes the pause before the request.
    pub(crate) header_timeout: Duration,
    /// Maximum time for which a connection serves requests, counted from the start of the connection. The time in which
    /// a closing connection discards an unread request does not count.
    pub(crate) life: Duration,
    /// Time limit for a request and its response, counted from the end of the request's headers. The limit applies
    /// until the caller has read nearly all of the response. A closing connection discards an unread request, also for
    /// at most this time.
    pub(crate) request: Duration,
}

/// Time for which a closing connection waits for the next bytes of a request that the listener does not process: longer
/// than a usual interruption of a network.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Size, in bytes, of the buffer into which a closing connection reads the rest of a request that the listener does not
/// process. The connection discards the content of the buffer.
const LINGER_BUFFER_BYTES: usize = 16 << 10;
/// Delay after the operating system failed to accept a connection, for example because the process has too many open
/// files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

struct OpenConnection {
    is_busy: Arc<AtomicBool>,
    serving: AbortHandle,
}

/// Serves connections until `end` requests the shutdown. Then closes the listener and finishes the current requests.
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
                let is_busy = Arc::new(AtomicBool::new(false));
                let one = serve_connection(
                    stream,
                    router.clone(),
                    limits,
                    Arc::clone(&is_busy),
                    end.clone(),
                );
                open.push_back(OpenConnection { is_busy, serving: connections.spawn(one) });
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

/// Serves a connection. Then closes it in such a way that the caller receives the last response.
async fn serve_connection(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    limits: ListenerLimits,
    is_busy: Arc<AtomicBool>,
    end: watch::Receiver<bool>,
) {
    let served = serve_requests(&mut stream, router, limits, &is_busy, end).await;
    if served == ControlFlow::Continue(()) {
        // From now on, a new connection may replace this connection.
        is_busy.store(false, Ordering::Relaxed);
        let _ = tokio::time::timeout(limits.request, linger(&mut stream)).await;
    }
}

/// Serves the requests of a connection until the connection must end. Returns `Continue` if the caller may still be
/// sending a request that this function no longer reads.
async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    limits: ListenerLimits,
    is_busy: &Arc<AtomicBool>,
    mut end: watch::Receiver<bool>,
) -> ControlFlow<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    http.max_buf_size(limits.header_bytes)
        .max_headers(limits.headers)
        .keep_alive(limits.keep_alive)
        .half_close(limits.half_close);
    let router_service = TowerToHyperService::new(router);
    let (requests, mut begun) = watch::channel(0_u64);
    let is_unread = Arc::<AtomicBool>::default();
    let service = service_fn(|request: Request<Incoming>| {
        is_busy.store(true, Ordering::Relaxed);
        requests.send_modify(|count| *count += 1);
        let is_unread = Arc::clone(&is_unread);
        let answer = router_service.call(request.map(|body| RequestBody::new(body, &is_unread)));
        // Without keep-alive, the connection is busy until it ends.
        let busy_guard = limits.keep_alive.then(|| BusyGuard(Arc::clone(is_busy)));
        async move {
            let response = answer.await;
            response.map(|mut response| {
                if is_unread.load(Ordering::Relaxed) {
                    // The connection ends after this response, because the next bytes of the caller belong to the
                    // unread body.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response.map(|body| GuardedBody { body, _busy: busy_guard })
            })
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut life = pin!(tokio::time::sleep(limits.life));
    let mut request = pin!(tokio::time::sleep(limits.request));
    let mut ends = false;
    loop {
        tokio::select! {
            // `biased` checks the branches in order. A new request therefore restarts the time limit before the branch
            // of the time limit runs.
            biased;
            // An error of a connection affects only the caller of this connection.
            served = connection.as_mut() => {
                let is_partly_read = served.is_err() || is_unread.load(Ordering::Relaxed);
                return if is_partly_read { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            }
            () = &mut life => return ControlFlow::Break(()),
            Ok(()) = begun.changed() => {
                request.as_mut().reset(Instant::now() + limits.request);
            }
            () = request.as_mut() => {
                if is_busy.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                // The limit `limits.request` does not apply between two requests. `limits.header_timeout` limits the
                // wait for the next request.
                request.as_mut().reset(Instant::now() + limits.request);
            }
            () = shutdown_requested(&mut end), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Ends the sending side of a connection, and discards the bytes that the caller still sends. If the connection were
/// closed immediately, the operating system would answer these bytes with a reset. A caller that sends its whole
/// request before it reads the response would then lose the response.
async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let _ = stream.shutdown().await;
    let mut discarded = vec![0; LINGER_BUFFER_BYTES];
    loop {
        let read = tokio::time::timeout(LINGER_IDLE_TIMEOUT, stream.read(&mut discarded)).await;
        if !matches!(read, Ok(Ok(1..))) {
            return;
        }
    }
}

/// The body of a request. `is_unread` is true until the whole body has been read.
struct RequestBody {
    body: Incoming,
    is_unread: Arc<AtomicBool>,
}

impl RequestBody {
    fn new(body: Incoming, is_unread: &Arc<AtomicBool>) -> Self {
        is_unread.store(!body.is_end_stream(), Ordering::Relaxed);
        Self { body, is_unread: Arc::clone(is_unread) }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.is_unread.store(false, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A guard that marks its connection as idle when the guard is dropped.
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The body of a response, with the guard of a connection that stays busy until this body is dropped. Without
/// keep-alive, there is no guard.
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::routing::{get, post};
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const LIMITS: ListenerLimits = crate::ingress::INGRESS_LIMITS;

    const SLOW_RESPONSE_DELAY: Duration = Duration::from_secs(70);

    /// Connects to a test listener with the limits of the ingress. The path `/` answers a request without reading its
    /// body.
    fn connect() -> DuplexStream {
        let slow = async || {
            tokio::time::sleep(SLOW_RESPONSE_DELAY).await;
            "slow"
        };
        let router = Router::new()
            .route("/slow", get(slow))
            .route("/", post(async || "refused"))
            .route("/whole", post(async |_: Bytes| "received"))
            .route("/never", get(pending::<&'static str>));
        let (client, server) = duplex(1 << 10);
        tokio::spawn(async move {
            let (_stop, end) = watch::channel(false);
            serve_connection(server, router, LIMITS, Arc::default(), end).await;
        });
        client
    }

    async fn response(client: &mut DuplexStream, body: &str) -> String {
        let mut received = Vec::new();
        while !received.ends_with(body.as_bytes()) {
            let bytes = client.read_buf(&mut received).await.expect("a response");
            assert_ne!(bytes, 0, "{:?}", String::from_utf8_lossy(&received));
        }
        String::from_utf8(received).expect("text")
    }

    async fn assert_closed(client: &mut DuplexStream) {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("the end of the connection");
        assert_eq!(rest, b"", "{:?}", String::from_utf8_lossy(&rest));
    }

    fn head(path: &str, bytes: usize) -> String {
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n")
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_reads_last_receives_the_response() {
        const BODY_BYTES: usize = 20 << 20;
        let mut client = connect();
        client.write_all(head("/", BODY_BYTES).as_bytes()).await.expect("the headers");
        client.write_all(&vec![b'x'; BODY_BYTES]).await.expect("the whole body");
        let refused = response(&mut client, "refused").await;
        assert!(refused.contains("\r\nconnection: close\r\n"), "{refused}");
        assert_closed(&mut client).await;
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_sends_too_many_headers_receives_the_response() {
        let mut client = connect();
        let header = format!("x: {}\r\n", "x".repeat(1 << 10));
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n").await.expect("the start");
        for _ in 0..4 * LIMITS.header_bytes / header.len() {
            client.write_all(header.as_bytes()).await.expect("a header");
        }
        let refused = response(&mut client, "\r\n\r\n").await;
        assert!(refused.starts_with("HTTP/1.1 431 "), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_caller_with_an_unread_body_is_disconnected() {
        let mut client = connect();
        client.write_all(head("/", 100).as_bytes()).await.expect("the headers");
        response(&mut client, "refused").await;
        tokio::time::sleep(LINGER_IDLE_TIMEOUT * 2).await;
        client.write_all(b"x").await.expect_err("the connection is closed");
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_never_stops_sending_is_disconnected() {
        let mut client = connect();
        client.write_all(head("/", usize::MAX >> 8).as_bytes()).await.expect("the headers");
        let began = Instant::now();
        while client.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(began.elapsed() <= LIMITS.request + LINGER_IDLE_TIMEOUT, "{:?}", began.elapsed());
    }

    /// Load balancers and pools of connections usually keep an idle connection for 60 seconds. If the listener closes
    /// the connection earlier, a request that is sent at this moment is lost.
    #[tokio::test(start_paused = true)]
    async fn pause_of_a_minute_between_requests_is_allowed() {
        let mut client = connect();
        for pause in [0, 9, 11, 61, 70] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            client.write_all(head("/whole", 1).as_bytes()).await.expect("the headers");
            client.write_all(b"x").await.expect("the body");
            response(&mut client, "received").await;
        }
        tokio::time::sleep(LIMITS.header_timeout * 2).await;
        assert_closed(&mut client).await;
    }

    /// A caller gets a slow response, and then pauses before its next request. The pause ends after the time limit of
    /// the first request.
    #[tokio::test(start_paused = true)]
    async fn pause_after_a_slow_response_is_allowed() {
        let pause = LIMITS.header_timeout.saturating_sub(Duration::from_secs(5));
        assert!(SLOW_RESPONSE_DELAY + pause > LIMITS.request);
        let mut client = connect();
        for _ in 0..3 {
            let request = b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n";
            client.write_all(request).await.expect("the request");
            response(&mut client, "slow").await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Some callers close their side of the connection when they have sent the request, and then read the response.
    #[tokio::test(start_paused = true)]
    async fn caller_that_closes_its_side_receives_the_response() {
        let mut client = connect();
        let request = b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(request).await.expect("the request");
        client.shutdown().await.expect("the end of the caller's side");
        response(&mut client, "slow").await;
        assert_closed(&mut client).await;
    }

    #[tokio::test(start_paused = true)]
    async fn response_has_a_time_limit() {
        let mut client = connect();
        client.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
        let began = Instant::now();
        assert_closed(&mut client).await;
        assert!(began.elapsed() >= LIMITS.request, "{:?}", began.elapsed());
    }
}
