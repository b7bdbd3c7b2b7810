//! Tests with the nodes of a broker that end, or that their operator takes out of service.

use std::thread;

use anyhow::{Result, ensure};
use ordain_servers::{Proxy, Rabbit};
use ordain_tests::http::{admin, get, ready};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;

/// How a node of the broker leaves the service, and returns.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Kill,
    Maintenance,
}

impl Outage {
    fn begin(self, node: &Rabbit) -> Result<()> {
        match self {
            Self::Kill => node.kill(),
            Self::Maintenance => node.set_in_maintenance(true),
        }
    }

    fn end(self, node: &Rabbit) -> Result<()> {
        match self {
            Self::Kill => node.restart(),
            Self::Maintenance => node.set_in_maintenance(false),
        }
    }
}

/// The broker has three nodes. Twice, the node that leads the queue of the stream, and to which the host is connected,
/// leaves the service while events arrive. The host reaches the nodes at one address, as through a load balancer.
#[test]
fn outages_of_nodes_keep_the_order() -> Result<()> {
    let sections = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let first = Rabbit::start()?;
    let nodes = [first.join()?, first.join()?];
    let rig = Rig::on(first, sections, "ordering = \"fifo\"", "")?;
    let balancer = Proxy::start(nodes[0].port())?;
    let config = rig.home.read("ordain.toml");
    let address = |port: u16| format!("127.0.0.1:{port}");
    let text = config.replace(&address(rig.rabbit.port()), &address(balancer.port()));
    rig.home.write("ordain.toml", text)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;

    let [one, other] = &nodes;
    let outages = [(Outage::Kill, one, other), (Outage::Maintenance, other, one)];
    let lines = in_turn(40, 40);
    let mut out = Vec::new();
    let mut published = 0;
    for (outage, leaving, staying) in outages {
        balancer.forward_to(leaving.port());
        leaving.lead("cases")?;
        ready(&mut service)?;
        let events = &lines[published..published + lines.len() / outages.len()];
        thread::scope(|scope| {
            let publishing = scope.spawn(|| rig.publish(events));
            // The host has executed a part of the events.
            rig.take(&mut out, published + events.len() / 4)?;
            outage.begin(leaving)?;
            balancer.forward_to(staying.port());
            publishing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        published += events.len();
        rig.take(&mut out, published)?;
        outage.end(leaving)?;
    }
    ensure!(published == lines.len(), "{published} of {} events", lines.len());
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()
}

/// During the maintenance of the only node, the host is not ready. After the maintenance, it continues.
#[test]
fn maintenance_of_the_only_node_interrupts_the_streams() -> Result<()> {
    let sections = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let mut rig = Rig::with_private_broker(sections, "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    ready(&mut service)?;
    let lines = in_turn(20, 20);
    let (before, after) = lines.split_at(200);
    rig.publish(before)?;
    rig.rabbit.set_in_maintenance(true)?;
    let page = admin(&mut service)?;
    wait_until("a host that is not ready", || Ok(get(page, "/readyz")?.status == 503))?;
    rig.rabbit.set_in_maintenance(false)?;
    rig.reconnect()?;
    ready(&mut service)?;
    rig.publish(after)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}
