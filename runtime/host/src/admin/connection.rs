//! Connections, and the bounds of what a caller can hold: a place, bytes of headers, and time.

use std::collections::VecDeque;
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

/// Connections at one time: operators, dashboards and probes are few. A further one takes the place
/// of the oldest that has not asked for anything yet; where there is none, it waits in the system.
const CONNECTIONS: usize = 64;
/// Bytes and number of the headers of a request: a key of the longest kind fits, percent-encoded.
const HEADER_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// For the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// A connection's life, of one request: the headers, the answer, and until the caller has taken it.
const LIFE: Duration = Duration::from_secs(40);
/// After a connection could not be taken, for example because the process has too many files open.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with a place.
struct Open {
    asked: Arc<AtomicBool>,
    serving: AbortHandle,
}

/// Serves until the end is asked for, and then what is being asked.
pub(super) async fn serve(listener: TcpListener, router: Router, mut end: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let next = async {
            let taken = listener.accept().await;
            while connections.try_join_next().is_some() {}
            open.retain(|it| !it.serving.is_finished());
            if open.len() >= CONNECTIONS && !end_oldest_idle(&mut open) {
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
                let asked = Arc::new(AtomicBool::new(false));
                let one = serve_one(stream, router.clone(), Arc::clone(&asked), end.clone());
                open.push_back(Open { asked, serving: connections.spawn(one) });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection to the admin listener was not taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Cuts the oldest connection that has not asked for anything; answers whether there was one.
fn end_oldest_idle(open: &mut VecDeque<Open>) -> bool {
    let idle = open.iter().position(|it| !it.asked.load(Ordering::Relaxed));
    let idle = idle.and_then(|at| open.remove(at));
    idle.inspect(|it| it.serving.abort()).is_some()
}

async fn serve_one(
    stream: TcpStream,
    router: Router,
    asked: Arc<AtomicBool>,
    mut end: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
    // One request each: so a connection is idle, answered, or over.
    http.max_buf_size(HEADER_BYTES).max_headers(HEADERS).keep_alive(false);
    let service = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        service.call(request)
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    // What goes wrong on a connection is its caller's affair.
    let served = tokio::time::timeout(LIFE, connection);
    let idle_at_end = async {
        asked_to_stop(&mut end).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = served => {}
        () = idle_at_end => {}
    }
}
