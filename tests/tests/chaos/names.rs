//! A round in which the host name of the Redis servers does not resolve for ten seconds. Meanwhile the test breaks all
//! connections to these servers. Afterwards, the name resolves to another address.
//!
//! A library that the host preloads replaces the name resolution of libc for this name. The servers listen at both
//! addresses. Events arrive over HTTP, through the inbox, through a chain, or from RabbitMQ, whose name always
//! resolves. The store loses nothing, so each accepted event must take effect once and in order.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Cluster, Options, Redis, SECOND_ADDRESS, Sentinel, wait_until};
use ordain_tests::log::text;
use ordain_tests::names::{FIRST_ADDRESS, Name};
use ordain_tests::rig::Rig;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{Counts, Demands, RECOUNT_INTERVAL, taken, until_taken};
use super::event_target::{EventTarget, post};
use super::events::{Producer, SentEvents, while_producing};
use super::receiver::{Kind, Receiver, explain, redis};
use super::routes::Route;

/// The host name of all Redis servers.
const NAME: &str = "store.test";
/// The time during which the name does not resolve.
const OUTAGE_TIME: Duration = Duration::from_secs(10);
/// How long a host may take to accept events over HTTP again. The host repeats a failed request within one second of
/// the failure (`RETRY_BACKOFF` in `runtime/store-redis/src/call.rs`). Each request opens a new connection if the
/// previous connection is broken. Only a connection attempt that began during the outage can delay the request for
/// longer. Such an attempt ends after at most 3.2 seconds (`OWNERS_TIMEOUT` in
/// `runtime/store-redis/src/connection/cluster.rs`). The rest of the limit allows for a busy machine.
const RETURN_LIMIT: Duration = Duration::from_secs(10);
/// How long a host may take to become ready again. After the host has reconnected, it takes its partitions again.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long a host without its Redis servers may count as ready. The host checks its store every second, and waits two
/// seconds for an answer (`runtime/http/src/admin/health.rs`). The rest of the limit allows for a busy machine.
const NOTICED_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Servers {
    Alone(Redis),
    Watched(Box<Sentinel>),
    Shared(Cluster),
}

impl Servers {
    fn start(random: &mut ChaCha8Rng) -> Result<Self> {
        Ok(match random.random_range(0..4) {
            0 => Self::Alone(Redis::start(&[])?),
            1 => Self::Watched(Box::new(Sentinel::start()?)),
            _ => {
                let options = Options::new()
                    .line(&format!("cluster-announce-hostname {NAME}"))
                    .line("cluster-preferred-endpoint-type hostname");
                Self::Shared(Cluster::with(3, &options)?)
            }
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Alone(_) => "one server",
            Self::Watched(_) => "a Sentinel",
            Self::Shared(_) => "a Cluster",
        }
    }

    fn url(&self) -> String {
        let url = match self {
            Self::Alone(server) => server.url(),
            Self::Watched(group) => group.url(),
            Self::Shared(cluster) => cluster.urls().swap_remove(0),
        };
        url.replace(FIRST_ADDRESS, NAME)
    }

    fn masters(&self) -> &[Redis] {
        match self {
            Self::Alone(server) => std::slice::from_ref(server),
            Self::Watched(group) => &group.servers()[..1],
            Self::Shared(cluster) => cluster.nodes(),
        }
    }

    fn cut(&self) -> Result<()> {
        for server in self.masters() {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
        }
        Ok(())
    }

    /// Returns whether a host has connected to the second address of a master. With a Sentinel, returns true
    /// immediately: the Sentinel reports the first address of the master, so the hosts never use the second address.
    fn are_reached_elsewhere(&self) -> Result<bool> {
        if matches!(self, Self::Watched(_)) {
            return Ok(true);
        }
        let has_moved = |server: &Redis| {
            let clients = server.command(&["CLIENT", "LIST"])?;
            let place = format!("laddr={SECOND_ADDRESS}:{} ", server.port());
            Ok(clients.text().unwrap_or_default().contains(&place))
        };
        Ok(self.masters().iter().map(has_moved).collect::<Result<Vec<_>>>()?.contains(&true))
    }
}

#[derive(Debug)]
struct Settings {
    route: Route,
    is_fifo: bool,
    hosts: usize,
}

impl Settings {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        // The library resolves the name only for the hosts. The routes of `ordain publish` are therefore absent.
        let mut route = Route::draw_without_file(random);
        // The outage is longer than the lease. A host that loses its partitions returns its unacknowledged events to
        // RabbitMQ, which may change their order; a `sequenced` stream restores the order.
        let is_fifo = !route.uses_broker() && random.random_bool(0.5);
        if let Route::Chain { is_numbered } = &mut route {
            // If a partition gets another owner, the events of a `fifo` stream may get new numbers, and then their
            // messages may get new numbers as well (docs/guide/chains.md).
            *is_numbered &= !is_fifo;
        }
        Self { route, is_fifo, hosts: if random.random_bool(0.4) { 2 } else { 1 } }
    }
}

struct Round {
    servers: Servers,
    hosts: Vec<Receiver>,
    route: Route,
    /// The broker, if the events pass through one.
    _rig: Option<Arc<Rig>>,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let servers = Servers::start(random)?;
    let settings = Settings::draw(random);
    let Settings { route, is_fifo, hosts: count } = settings;
    let rig = route.start_broker()?;
    let kind = Kind {
        route,
        is_fifo,
        store: redis(&servers.url()),
        broker: rig.as_ref().map(|rig| rig.rabbit.url()),
        ..Kind::default()
    };
    let hosts = (0..count).map(|_| Receiver::start_by(&kind, |home| Name(NAME).prepare(home)));
    let hosts: Vec<Receiver> = hosts.collect::<Result<_>>()?;
    if let Some(rig) = &rig {
        rig.until_declared()?;
    }
    let target = EventTarget::new(&kind, rig.as_ref(), &hosts)?;
    let producer = Producer { target, route, ..Producer::default() };
    let mut round = Round { servers, hosts, route, _rig: rig };
    let summary = round.check(&producer, random.random());
    let Round { servers, hosts, .. } = &mut round;
    let summary =
        summary.with_context(|| format!("{} {}", servers.name(), explain(&settings, hosts)))?;
    hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{}, {settings:?}: {summary}", servers.name()))
}

impl Round {
    fn check(&mut self, producer: &Producer, seed: u64) -> Result<String> {
        let mut sent = SentEvents::new();
        let took = while_producing(producer, &mut sent, seed, |_| {
            let took = self.outage()?;
            sleep(Duration::from_secs(1));
            Ok(took)
        })?;
        let route = self.route;
        let demands = Demands { wants_all: true, is_exact: true, route, ..Demands::default() };
        until_taken(&self.hosts, &sent, demands)?;
        sleep(RECOUNT_INTERVAL);
        let counts = Counts::of(&sent, &taken(&self.hosts, &sent, demands)?);
        self.hosts.iter_mut().try_for_each(|host| {
            host.check_lost(0)?;
            host.check_no_rollbacks()
        })?;
        Ok(format!("{counts}; the hosts reconnected after {took:.1?}"))
    }

    /// Makes the name fail to resolve for the time [`OUTAGE_TIME`], and waits until all hosts are ready again. Returns
    /// how long the hosts took to reconnect.
    fn outage(&mut self) -> Result<Duration> {
        sleep(Duration::from_secs(1));
        self.resolve(None)?;
        let started = Instant::now();
        while started.elapsed() < OUTAGE_TIME {
            self.servers.cut()?;
            if self.route != Route::Exchange || started.elapsed() > NOTICED_LIMIT {
                ensure!(
                    !self.in_service()?.contains(&true),
                    "a host accepts events, or is ready, without its servers"
                );
            }
            sleep(Duration::from_millis(500));
        }
        self.resolve(Some(SECOND_ADDRESS))?;
        let limit = if self.route == Route::Exchange { READY_LIMIT } else { RETURN_LIMIT };
        let started = Instant::now();
        while self.in_service()?.contains(&false) || !self.servers.are_reached_elsewhere()? {
            for host in &mut self.hosts {
                ensure!(host.service.is_running()?, "a host ended: {}", host.service.stderr());
            }
            ensure!(started.elapsed() < limit, "a host does not reconnect");
            sleep(Duration::from_millis(100));
        }
        let took = started.elapsed();
        wait_until("hosts that are ready", || Ok(self.hosts.iter_mut().all(Receiver::is_ready)))?;
        Ok(took)
    }

    fn resolve(&self, to: Option<&str>) -> Result<()> {
        self.hosts.iter().try_for_each(|host| Name(NAME).resolve(&host.home, to))
    }

    /// Returns for each host whether it accepts events. If the hosts accept no events over HTTP, returns whether each
    /// host is ready.
    fn in_service(&mut self) -> Result<Vec<bool>> {
        let route = self.route;
        let is_in_service = |host: &mut Receiver| match route {
            Route::Exchange => Ok(host.is_ready()),
            _ => accepts_events(host, route),
        };
        self.hosts.iter_mut().map(is_in_service).collect()
    }
}

/// Returns whether the host accepts events of 16 keys, which reach each shard.
fn accepts_events(host: &Receiver, route: Route) -> Result<bool> {
    let events = (0..16).map(|key| route.event(&format!("probe-{key}"), 1));
    let events: Vec<String> = events.collect::<Result<_>>()?;
    Ok(post(host.address, &text(&events)).is_ok_and(|answer| answer.status == 202))
}
