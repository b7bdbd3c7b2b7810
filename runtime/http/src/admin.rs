//! The operators' listener: serves metrics and health, lists streams, keys, dead letters, handlers and instances, and
//! performs actions. Only the module `actions` may change the data of a stream. HTTP callers must never delay the
//! processing of events. This module therefore limits the number of connections and store queries, and the duration of
//! connections and requests.

mod actions;
mod health;
mod listings;
mod metrics;
mod parked;
mod scale;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::access::{self, AccessRule};
use crate::connection::{self, ListenerLimits};
use crate::ingress;
use crate::listen::listen_error;
use crate::problem::ProblemDetails;
use health::StoreHealth;
use ordain_config::{AdminConfig as Settings, ConfigError, LoadedConfig, Secret};
use ordain_engine::run::RunStatus;
use ordain_util::shutdown::shutdown_requested;
use parked::ParkedCounts;
use scale::WantedInstances;

/// The address at which the listener listens if the configuration has no `[admin]`.
const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);

/// Maximum number of store queries at one time, because each query may return a page of several MiB. A query counts
/// against this limit until its response is sent.
const QUERY_LIMIT: usize = 8;

/// Limits for operators, dashboards and probes: these callers open few connections. The limit of the header size leaves
/// room for the longest key, percent-encoded, in a path. A connection carries one request: the connection is idle until
/// the request arrives, and is closed after the response.
const ADMIN_LIMITS: ListenerLimits = ListenerLimits {
    listener: "the admin listener",
    connections: 64,
    header_bytes: 16 << 10,
    headers: 64,
    keep_alive: false,
    half_close: false,
    header_timeout: Duration::from_secs(10),
    life: Duration::from_secs(40),
    request: Duration::from_secs(40),
};

/// After this time, the listener closes the connections with requests in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The admin listener. Dropping this value closes the listener and its connections immediately.
pub struct AdminListener {
    url: String,
    end: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

struct AdminState {
    loaded: LoadedConfig,
    /// True if the process accepts events over HTTP as soon as its store is open.
    accepts_events: bool,
    figures: Arc<RunStatus>,
    shutdown: watch::Receiver<bool>,
    health: StoreHealth,
    parked_counts: ParkedCounts,
    wanted: WantedInstances,
    query_permits: Arc<Semaphore>,
}

impl AdminState {
    /// Creates the state of the listener. `once` states whether the process runs with `--once`, and therefore accepts
    /// no events over HTTP.
    fn new(
        loaded: &LoadedConfig,
        once: bool,
        figures: &Arc<RunStatus>,
        shutdown: &watch::Receiver<bool>,
    ) -> Self {
        Self {
            loaded: loaded.clone(),
            accepts_events: !once && ingress::settings(&loaded.config).is_some(),
            figures: Arc::clone(figures),
            shutdown: shutdown.clone(),
            health: StoreHealth::default(),
            parked_counts: ParkedCounts::default(),
            wanted: WantedInstances::default(),
            query_permits: Arc::new(Semaphore::new(QUERY_LIMIT)),
        }
    }
}

/// Returns the address at which programs on this machine reach a listener that listens at `bound`.
fn reachable_address(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

impl AdminListener {
    /// Starts the listener at the configured address or, without `[admin]`, at the default address. If there is no
    /// `[admin]` and `once` is set (`ordain run --once`), starts no listener and returns `None`.
    pub fn listen<'a>(
        loaded: &'a LoadedConfig,
        once: bool,
        figures: &'a Arc<RunStatus>,
        shutdown: &'a watch::Receiver<bool>,
    ) -> BoxFuture<'a, Result<Option<Self>, ConfigError>> {
        Box::pin(Self::begin(loaded, once, figures, shutdown))
    }

    async fn begin(
        loaded: &LoadedConfig,
        once: bool,
        figures: &Arc<RunStatus>,
        shutdown: &watch::Receiver<bool>,
    ) -> Result<Option<Self>, ConfigError> {
        let (address, token) = match &loaded.config.admin {
            Some(Settings { listen, token }) => (*listen, token.clone()),
            None if once => return Ok(None),
            None => (DEFAULT_ADDRESS, None),
        };
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (bound_to, listener) =
            bound.await.map_err(|error| listen_error(loaded, "admin", address, &error))?;
        tracing::info!("admin listening on http://{bound_to}");
        let url = format!("http://{}", reachable_address(bound_to));
        let app = Arc::new(AdminState::new(loaded, once, figures, shutdown));
        let (end, mut ended) = watch::channel(false);
        let router = router(&app, token);
        let serving = tokio::spawn(async move {
            let connections = connection::serve(listener, router, ADMIN_LIMITS, ended.clone());
            tokio::pin!(connections);
            tokio::select! {
                () = &mut connections => return,
                () = shutdown_requested(&mut ended) => {}
                () = health::watch(&app) => {}
                () = parked::count_on_request(&app) => {}
                () = scale::watch_wanted(&app) => {}
            }
            connections.await;
        });
        Ok(Some(Self { url, end, serving }))
    }

    /// Returns the URL at which programs on this machine reach the listener.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops accepting connections, waits up to one second for the requests in progress, and then closes all
    /// connections.
    pub fn end(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.end.send_replace(true);
            // The drop of `self` aborts the task, which closes the remaining connections.
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut self.serving).await;
        })
    }
}

impl Drop for AdminListener {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn no_route() -> ProblemDetails {
    ProblemDetails::not_found(
        "there is no such page. There are: /metrics, /healthz, /readyz, /readyz/ingress, /v1/streams, \
         /v1/streams/{stream}/actions, /v1/streams/{stream}/keys, /v1/streams/{stream}/keys/{key}, /v1/dead, \
         /v1/plugins, /v1/instances, /v1/scale/{stream}",
    )
}

fn no_method() -> ProblemDetails {
    let words = "this page is read-only: use GET. Only /v1/streams/{stream}/actions requires POST";
    ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, words)
}

fn router(app: &Arc<AdminState>, token: Option<Secret>) -> Router {
    let guard = AccessRule { section: "admin", token };
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/v1/streams", get(listings::streams))
        .route("/v1/streams/{stream}/actions", post(actions::act_on_stream))
        .route("/v1/streams/{stream}/keys", get(listings::keys))
        .route("/v1/streams/{stream}/keys/{key}", get(listings::key))
        .route("/v1/dead", get(listings::dead))
        .route("/v1/plugins", get(listings::plugins))
        .route("/v1/instances", get(listings::instances))
        .route("/v1/scale/{stream}", get(listings::scale))
        .fallback(async || no_route())
        .method_not_allowed_fallback(async || no_method())
        .layer(axum::middleware::from_fn_with_state(Arc::new(guard), access::check_access))
        // Probes present no token, so the pages for probes require no token.
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(health::ready))
        .route("/readyz/ingress", get(health::ingress_ready))
        .method_not_allowed_fallback(async || no_method())
        .layer(axum::middleware::from_fn(access::limit_time))
        .with_state(Arc::clone(app))
}
