//! The operators' listener: metrics, health, and a look at streams, keys, dead letters and handlers
//! while they run. It changes nothing, and whatever its callers do must hold up no driver: its
//! connections, its questions to the store and the time of each are bounded.

mod health;
mod look;
mod metrics;
mod parked;
mod scale;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::connection::{self, Limits};
use crate::guard::{self, Guard};
use crate::listen::ListenError;
use crate::problem::Problem;
use health::Health;
use ordain_config::{Admin as Settings, Loaded, Secret};
use ordain_engine::run::Figures;
use ordain_util::shutdown::asked_to_stop;
use parked::ParkedKeys;
use scale::Wanted;

/// Where it listens if the configuration does not say.
const DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);

/// Questions to the store under way at one time, until their answers are sent: each may bring a page
/// of some MiB.
const QUESTIONS: usize = 8;

/// Operators, dashboards and probes are few. A key of the longest kind fits into a path, percent-encoded. One
/// request each: so a connection is idle, answered, or over.
const LIMITS: Limits = Limits {
    listener: "the admin listener",
    connections: 64,
    header_bytes: 16 << 10,
    headers: 64,
    keep_alive: false,
    life: Duration::from_secs(40),
    request: Duration::from_secs(40),
};

/// From the end of everything else until connections are cut.
const GRACE: Duration = Duration::from_secs(1);

/// A listener. Dropping it ends it at once.
pub struct Admin {
    end: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

/// What every request may need.
struct App {
    loaded: Loaded,
    figures: Arc<Figures>,
    shutdown: watch::Receiver<bool>,
    health: Health,
    parked: ParkedKeys,
    wanted: Wanted,
    questions: Arc<Semaphore>,
}

impl Admin {
    /// Listens where the configuration says; without `[admin]` at its default, unless the run ends
    /// by itself (`once`).
    pub fn listen<'a>(
        loaded: &'a Loaded,
        once: bool,
        figures: &'a Arc<Figures>,
        shutdown: &'a watch::Receiver<bool>,
    ) -> BoxFuture<'a, Result<Option<Self>, ListenError>> {
        Box::pin(Self::begin(loaded, once, figures, shutdown))
    }

    async fn begin(
        loaded: &Loaded,
        once: bool,
        figures: &Arc<Figures>,
        shutdown: &watch::Receiver<bool>,
    ) -> Result<Option<Self>, ListenError> {
        let (address, token) = match &loaded.config.admin {
            Some(Settings { listen, token }) => (*listen, token.clone()),
            None if once => return Ok(None),
            None => (DEFAULT, None),
        };
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (bound_to, listener) =
            bound.await.map_err(|error| ListenError::new(loaded, "admin", address, &error))?;
        tracing::info!("admin listening on http://{bound_to}");
        let app = Arc::new(App {
            loaded: loaded.clone(),
            figures: Arc::clone(figures),
            shutdown: shutdown.clone(),
            health: Health::default(),
            parked: ParkedKeys::default(),
            wanted: Wanted::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
        });
        let (end, mut ended) = watch::channel(false);
        let router = router(&app, token);
        let serving = tokio::spawn(async move {
            let connections = connection::serve(listener, router, LIMITS, ended.clone());
            tokio::pin!(connections);
            tokio::select! {
                () = &mut connections => return,
                () = asked_to_stop(&mut ended) => {}
                () = health::watch(&app) => {}
                () = parked::count(&app) => {}
                () = scale::watch(&app) => {}
            }
            connections.await;
        });
        Ok(Some(Self { end, serving }))
    }

    /// Answers what is being asked, for a moment at most, and ends.
    pub fn end(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.end.send_replace(true);
            // Whatever it could not finish is cut when it is dropped.
            let _ = tokio::time::timeout(GRACE, &mut self.serving).await;
        })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn no_route() -> Problem {
    Problem::not_found(
        "there is no such page. There are: /metrics, /healthz, /readyz, /v1/streams, \
         /v1/streams/{stream}/keys, /v1/streams/{stream}/keys/{key}, /v1/dead, /v1/plugins, /v1/instances, \
         /v1/scale/{stream}",
    )
}

fn no_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read: use GET")
}

fn router(app: &Arc<App>, token: Option<Secret>) -> Router {
    let guard = Guard { section: "admin", token };
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/v1/streams", get(look::streams))
        .route("/v1/streams/{stream}/keys", get(look::keys))
        .route("/v1/streams/{stream}/keys/{key}", get(look::key))
        .route("/v1/dead", get(look::dead))
        .route("/v1/plugins", get(look::plugins))
        .route("/v1/instances", get(look::instances))
        .route("/v1/scale/{stream}", get(look::scale))
        .fallback(async || no_route())
        .method_not_allowed_fallback(async || no_method())
        .layer(axum::middleware::from_fn_with_state(Arc::new(guard), guard::guard))
        // Whoever watches over the process has no token.
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(health::ready))
        .method_not_allowed_fallback(async || no_method())
        .layer(axum::middleware::from_fn(guard::in_time))
        .with_state(Arc::clone(app))
}
