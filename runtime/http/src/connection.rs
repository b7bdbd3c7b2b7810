//! Connections, and the bounds of what a caller can hold: a place, bytes of headers, and time.

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

use ordain_util::shutdown::asked_to_stop;

/// What callers of a listener can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// What it is called in the log.
    pub(crate) listener: &'static str,
    /// Connections at one time. A further one takes the place of the oldest that asks for nothing; where
    /// there is none, it waits in the system.
    pub(crate) connections: usize,
    /// Bytes of the headers of a request.
    pub(crate) header_bytes: usize,
    /// How many headers.
    pub(crate) headers: usize,
    /// Whether a connection may bring one request after the other.
    pub(crate) keep_alive: bool,
    /// A connection's life: its requests, the answers, and until the caller has taken them.
    pub(crate) life: Duration,
    /// For one request and its answer, until the caller has taken nearly all of it.
    pub(crate) request: Duration,
}

/// For the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// After a connection could not be taken, for example because the process has too many files open.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with a place.
struct Open {
    asks: Arc<AtomicBool>,
    serving: AbortHandle,
}

/// Serves until the end is asked for, and then what is being asked.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut end: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let next = async {
            let taken = listener.accept().await;
            while connections.try_join_next().is_some() {}
            open.retain(|it| !it.serving.is_finished());
            if open.len() >= limits.connections && !end_oldest_idle(&mut open) {
                connections.join_next().await;
            }
            taken
        };
        let taken = tokio::select! {
            taken = next => taken,
            () = asked_to_stop(&mut end) => break,
        };
        match taken {
            Ok((stream, _)) => {
                let asks = Arc::new(AtomicBool::new(false));
                let one = serve_one(stream, router.clone(), limits, Arc::clone(&asks), end.clone());
                open.push_back(Open { asks, serving: connections.spawn(one) });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection to {} was not taken", limits.listener);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Cuts the oldest connection that asks for nothing; answers whether there was one.
fn end_oldest_idle(open: &mut VecDeque<Open>) -> bool {
    let idle = open.iter().position(|it| !it.asks.load(Ordering::Relaxed));
    let idle = idle.and_then(|at| open.remove(at));
    idle.inspect(|it| it.serving.abort()).is_some()
}

async fn serve_one(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    asks: Arc<AtomicBool>,
    mut end: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
    http.max_buf_size(limits.header_bytes)
        .max_headers(limits.headers)
        .keep_alive(limits.keep_alive);
    let service = TowerToHyperService::new(router);
    let (requests, mut begun) = watch::channel(0_u64);
    let service = service_fn(|request| {
        asks.store(true, Ordering::Relaxed);
        requests.send_modify(|count| *count += 1);
        let answer = service.call(request);
        // Where it is the last one, it is over when it is sent.
        let asks = limits.keep_alive.then(|| Asks(Arc::clone(&asks)));
        async move { answer.await.map(|it| it.map(|body| Sending { body, _asks: asks })) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut life = pin!(tokio::time::sleep(limits.life));
    let mut request = pin!(tokio::time::sleep(limits.request));
    let mut ends = false;
    loop {
        tokio::select! {
            // What goes wrong on a connection is its caller's affair.
            _ = connection.as_mut() => return,
            () = &mut life => return,
            Ok(()) = begun.changed() => {
                request.as_mut().reset(Instant::now() + limits.request);
            }
            // Between two requests the headers of the next one have their own time.
            () = request.as_mut(), if asks.load(Ordering::Relaxed) => return,
            () = asked_to_stop(&mut end), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A connection asks for something until this is dropped.
struct Asks(Arc<AtomicBool>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// An answer on its way.
struct Sending {
    body: Body,
    _asks: Option<Asks>,
}

impl hyper::body::Body for Sending {
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
