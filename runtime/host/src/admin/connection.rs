//! Connections, and the bounds of what a caller can hold: a place, bytes of headers, and time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::guard::REQUEST_TIME;
use crate::driver::asked_to_stop;

/// Connections at one time: operators, dashboards and probes are few. Others wait in the system.
const CONNECTIONS: usize = 64;
/// Bytes and number of the headers of a request: a key of the longest kind fits, percent-encoded.
const HEADER_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// For the headers of a request, and between two requests.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// A connection's life, so that one that is only held ends.
const LIFE: Duration = Duration::from_mins(2);
/// After a connection could not be taken, for example because the process has too many files open.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the end is asked for, and then what is being asked.
pub(super) async fn serve(listener: TcpListener, router: Router, mut end: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, taken) = tokio::select! {
            next = next => next,
            () = asked_to_stop(&mut end) => break,
        };
        match taken {
            Ok((stream, _)) => {
                let (router, end) = (router.clone(), end.clone());
                connections.spawn(async move {
                    serve_one(stream, router, end).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection to the admin listener was not taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_one(stream: TcpStream, router: Router, mut end: watch::Receiver<bool>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
    http.max_buf_size(HEADER_BYTES).max_headers(HEADERS);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // What goes wrong on a connection is its caller's affair.
        _ = &mut connection => return,
        () = tokio::time::sleep(LIFE) => {}
        () = asked_to_stop(&mut end) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(REQUEST_TIME, connection).await;
}
