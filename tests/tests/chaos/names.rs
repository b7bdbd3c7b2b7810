//! A round in which the host name of the servers does not resolve for ten seconds. Meanwhile the test breaks all
//! connections to the servers. Afterwards, the name resolves to another address.
//!
//! A library that the host preloads replaces the name resolution of libc for this name. The servers listen at both
//! addresses.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Cluster, Options, Redis, SECOND_ADDRESS, Sentinel};
use ordain_tests::names::{FIRST_ADDRESS, Name};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{Counts, Demands, SETTLE_TIME, taken, until_taken};
use super::event_target::{EventTarget, post};
use super::events::{Producer, SentEvents, while_producing};
use super::receiver::{Kind, Receiver, explain, redis};

/// The host name of all servers.
const NAME: &str = "store.test";
/// The time during which the name does not resolve.
const OUTAGE_TIME: Duration = Duration::from_secs(10);
/// How long a host may take to reconnect. The Redis client of the host reconnects to a lost node of a Cluster after at
/// most 15 seconds.
const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// The servers behind the name.
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

    /// Returns the servers with which the host keeps connections.
    fn masters(&self) -> &[Redis] {
        match self {
            Self::Alone(server) => std::slice::from_ref(server),
            Self::Watched(group) => &group.servers()[..1],
            Self::Shared(cluster) => cluster.nodes(),
        }
    }

    /// Closes the connections of all clients to the masters, including the connections of the hosts.
    fn cut(&self) -> Result<()> {
        for server in self.masters() {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
        }
        Ok(())
    }

    /// Returns whether a host has connected to the second address of a master. With a Sentinel, returns true at once:
    /// the Sentinel reports the first address of the master, so the hosts never use the second.
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

/// Plays a round.
pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let name = Name(NAME);
    let servers = Servers::start(random)?;
    let is_fifo = random.random_bool(0.5);
    let kind = Kind { is_fifo, store: redis(&servers.url()), ..Kind::default() };
    let count = if random.random_bool(0.4) { 2 } else { 1 };
    let hosts = (0..count).map(|_| Receiver::start_by(&kind, |home| name.prepare(home)));
    let mut hosts: Vec<Receiver> = hosts.collect::<Result<_>>()?;
    let summary = outages(&servers, &name, &mut hosts, random);
    let summary =
        summary.with_context(|| format!("{} {}", servers.name(), explain(&is_fifo, &hosts)))?;
    hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{}, {count} hosts: {summary}", servers.name()))
}

fn outages(
    servers: &Servers,
    name: &Name,
    hosts: &mut [Receiver],
    random: &mut ChaCha8Rng,
) -> Result<String> {
    let producer = Producer {
        target: EventTarget::Hosts(hosts.iter().map(|host| host.address).collect()),
        ..Producer::default()
    };
    let mut sent = SentEvents::new();
    let seed = random.random();
    let took = while_producing(&producer, &mut sent, seed, |_| {
        let took = outage(servers, name, hosts)?;
        sleep(Duration::from_secs(1));
        Ok(took)
    })?;
    let demands = Demands { wants_all: true, is_exact: true, ..Demands::default() };
    until_taken(hosts, &sent, demands)?;
    sleep(SETTLE_TIME);
    let counts = Counts::of(&sent, &taken(hosts, &sent, demands)?);
    hosts.iter_mut().try_for_each(|host| host.check_lost(0))?;
    Ok(format!("{counts}; the hosts reconnected after {took:.1?}"))
}

/// Makes the name fail to resolve for the time [`OUTAGE_TIME`]. Returns how long the hosts then took to reconnect.
fn outage(servers: &Servers, name: &Name, hosts: &mut [Receiver]) -> Result<Duration> {
    sleep(Duration::from_secs(1));
    hosts.iter().try_for_each(|host| name.resolve(&host.home, None))?;
    let started = Instant::now();
    while started.elapsed() < OUTAGE_TIME {
        servers.cut()?;
        ensure!(!hosts.iter().any(is_taken), "events were accepted without servers");
        sleep(Duration::from_millis(500));
    }
    hosts.iter().try_for_each(|host| name.resolve(&host.home, Some(SECOND_ADDRESS)))?;
    let started = Instant::now();
    while !hosts.iter().all(is_taken) || !servers.are_reached_elsewhere()? {
        for host in &mut *hosts {
            ensure!(host.service.is_running()?, "a host ended: {}", host.service.stderr());
        }
        ensure!(started.elapsed() < RETURN_LIMIT, "a host does not reconnect");
        sleep(Duration::from_millis(100));
    }
    Ok(started.elapsed())
}

/// Returns whether the host accepts events of 16 keys, which reach each shard.
fn is_taken(host: &Receiver) -> bool {
    let events: String = (0..16)
        .map(|key| {
            ordain_tests::log::line(&format!("probe-{key}"), 1, &serde_json::json!({})) + "\n"
        })
        .collect();
    post(host.address, &events).is_ok_and(|answer| answer.status == 202)
}
