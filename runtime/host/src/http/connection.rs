//! Connections, and the bounds of what a caller can hold: a place, bytes of headers, and time.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::driver::asked_to_stop;

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
    let service = service_fn(|request| {
        asks.store(true, Ordering::Relaxed);
        let answer = service.call(request);
        let asks = Arc::clone(&asks);
        async move {
            let answer = answer.await;
            // Where it is the last one, it is over when it is sent.
            asks.store(!limits.keep_alive, Ordering::Relaxed);
            answer
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut life = pin!(tokio::time::sleep(limits.life));
    let mut ends = false;
    loop {
        tokio::select! {
            // What goes wrong on a connection is its caller's affair.
            _ = connection.as_mut() => return,
            () = &mut life => return,
            () = asked_to_stop(&mut end), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
