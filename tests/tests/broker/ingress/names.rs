//! Tests of a Redis Cluster whose nodes report a name that does not resolve, or no name, for a while. Afterwards, a
//! running host must continue without a restart.
//!
//! A library that the host preloads resolves the name (`tests/src/names.rs`). The nodes listen at two addresses.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Cluster, Options, Reply, SECOND_ADDRESS, wait_for_command};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::text;
use ordain_tests::names::{FIRST_ADDRESS, Name};
use ordain_tests::service::{Service, wait_until};

use super::in_turn::{check_effects, default_home, events_in_turn, messages};
use super::support::{LINES_TYPE, ingress, lost_events, post};

const NAME: &str = "store.test";
/// The setting of a node that determines whether the node reports an address or a name.
const ENDPOINT_TYPE: &str = "cluster-preferred-endpoint-type";
/// The setting of a node that contains the name that the node reports.
const HOST_NAME: &str = "cluster-announce-hostname";
/// The number of events of a request: two events of each of 60 keys.
const EVENTS_PER_REQUEST: usize = 120;

struct Rig {
    cluster: Cluster,
    home: Home,
    service: Service,
    admin: SocketAddr,
    address: SocketAddr,
    lines: Vec<String>,
    accepted: usize,
}

impl Rig {
    /// Starts a Cluster whose nodes have these options, and a host that finds the Cluster under the name or address
    /// `seed`. For the host, the name [`NAME`] resolves to `to`, or does not resolve if `to` is `None`.
    fn start(options: &Options, seed: &str, to: Option<&str>) -> Result<Self> {
        let cluster = Cluster::with(3, options)?;
        let url = cluster.urls().swap_remove(0).replace(FIRST_ADDRESS, seed);
        let home = default_home("fifo", &format!("url = \"{url}\"\n"))?;
        let by = Name(NAME).prepare(&home)?;
        Name(NAME).resolve(&home, to)?;
        let mut service = Service::start_by(&home, &by, &["run"])?;
        let admin = http::ready(&mut service)?;
        let address = ingress(&mut service)?;
        let lines = events_in_turn("a", 3 * EVENTS_PER_REQUEST);
        Ok(Self { cluster, home, service, admin, address, lines, accepted: 0 })
    }

    /// Returns the next events of each of 60 keys. The shards of these keys are on all nodes.
    fn next_events(&self) -> String {
        text(&self.lines[self.accepted..self.accepted + EVENTS_PER_REQUEST])
    }

    /// Posts the next events repeatedly, until the host accepts them.
    fn post_until_accepted(&mut self) -> Result<()> {
        let events = self.next_events();
        wait_until("an accepted request", || {
            Ok(post(self.address, LINES_TYPE, &events)?.status == 202)
        })
        .with_context(|| self.service.stderr())?;
        self.accepted += EVENTS_PER_REQUEST;
        Ok(())
    }

    fn configure(&self, setting: &str, value: &str) -> Result<()> {
        self.cluster.nodes().iter().try_for_each(|node| node.configure(setting, value))
    }

    /// Waits until each node reports this address or name for every master.
    fn until_reported(&self, host: &str) -> Result<()> {
        wait_for_command(&format!("nodes that report {host}"), || {
            for node in self.cluster.nodes() {
                let reply = node.command(&["CLUSTER", "SLOTS"])?;
                let is_right = |range: &Reply| {
                    let host_of_master = range.parts().get(2).and_then(|node| node.parts().first());
                    host_of_master.and_then(Reply::text) == Some(host)
                };
                if !reply.parts().iter().all(is_right) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Closes the connections of the host to all nodes.
    fn cut(&self) -> Result<()> {
        for node in self.cluster.nodes() {
            node.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
        }
        Ok(())
    }

    /// Closes the connections of the host repeatedly, until the host is not ready. Then checks that the host rejects
    /// events. The rejected request waits ten seconds for the store, so the outage lasts at least ten seconds.
    fn until_away(&self) -> Result<()> {
        wait_for_command("a host that is not ready", || {
            self.cut()?;
            Ok(http::get(self.admin, "/readyz")?.status == 503)
        })?;
        let answer = post(self.address, LINES_TYPE, &self.next_events())?;
        ensure!(answer.status == 503, "{answer:?}");
        Ok(())
    }

    /// Posts the remaining events, and checks that each event took effect once and in order in the same process.
    fn check(mut self) -> Result<()> {
        while self.accepted < self.lines.len() {
            self.post_until_accepted()?;
        }
        http::ready(&mut self.service)?;
        let Self { service, lines, admin, .. } = &mut self;
        let all = lines.len();
        wait_until("the effects of all events", || Ok(messages(service, "a")?.len() >= all))
            .with_context(|| service.stderr())?;
        check_effects(service, "a", lines)?;
        ensure!(lost_events(*admin)? == 0, "events were counted as lost: {}", service.stderr());
        service.end()
    }
}

/// All nodes report the same name, and the store's URL in the host's configuration contains this name too. The
/// connections break, and the name does not resolve for at least ten seconds. Later, the name resolves to another
/// address.
#[test]
fn host_returns_after_the_name_of_the_nodes_resolves_again() -> Result<()> {
    let options = Options::new()
        .line(&format!("{HOST_NAME} {NAME}"))
        .line(&format!("{ENDPOINT_TYPE} hostname"));
    let mut rig = Rig::start(&options, NAME, Some(FIRST_ADDRESS))?;
    rig.post_until_accepted()?;
    Name(NAME).resolve(&rig.home, None)?;
    rig.until_away()?;
    Name(NAME).resolve(&rig.home, Some(SECOND_ADDRESS))?;
    rig.check()
}

/// The nodes begin to report a name that does not resolve. The connections break, so the host uses this name. Later,
/// the nodes report their addresses again.
#[test]
fn host_returns_after_the_nodes_reported_an_unknown_name() -> Result<()> {
    let mut rig = Rig::start(&Options::new(), FIRST_ADDRESS, None)?;
    rig.post_until_accepted()?;
    rig.configure(HOST_NAME, NAME)?;
    rig.configure(ENDPOINT_TYPE, "hostname")?;
    rig.until_reported(NAME)?;
    rig.until_away()?;
    rig.configure(ENDPOINT_TYPE, "ip")?;
    rig.until_reported(FIRST_ADDRESS)?;
    rig.check()
}

/// The setting of the nodes requires that they report names, but the nodes have no names, so they report `?`. The
/// connections break. The host must continue to use the addresses that it knows, also after the nodes report their
/// addresses again.
#[test]
fn host_keeps_its_nodes_while_they_report_no_name() -> Result<()> {
    let mut rig = Rig::start(&Options::new(), FIRST_ADDRESS, None)?;
    rig.post_until_accepted()?;
    rig.configure(ENDPOINT_TYPE, "hostname")?;
    rig.until_reported("?")?;
    rig.cut()?;
    rig.post_until_accepted()?;
    rig.configure(ENDPOINT_TYPE, "ip")?;
    rig.until_reported(FIRST_ADDRESS)?;
    rig.cut()?;
    rig.check()
}
