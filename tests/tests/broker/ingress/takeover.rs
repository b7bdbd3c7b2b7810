//! Tests of a Redis Cluster in which replicas that lack the newest accepted events become masters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Cluster, Takeover};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{line, text};
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

use super::in_turn::{
    KEYS, check_effects, default_home, events_in_turn, messages, post_until_effects,
};
use super::support::{LINES_TYPE, ingress, lost_events, post, post_all};

const MASTERS: usize = 3;
/// The number of events that a test posts in each of three periods: before the replicas lag, while they lag, and after
/// the takeover.
const EVENTS: usize = 1_560;
/// The pause between two requests of a producer. An election may take seconds, so the pause limits the number of
/// events.
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);

struct Rig {
    cluster: Cluster,
    service: Service,
    admin: SocketAddr,
    early: Vec<String>,
    _home: Home,
}

impl Rig {
    /// Starts a host of a stream with this ordering, and makes all replicas lag after the first effects.
    fn start(ordering: &str) -> Result<Self> {
        let mut cluster = Cluster::start(MASTERS)?;
        cluster.add_replicas()?;
        let rig = Self::start_host(cluster, ordering, &["run"])?;
        rig.let_replicas_lag()?;
        Ok(rig)
    }

    /// Starts a host of a stream with this ordering, whose configuration names one node of the Cluster.
    fn start_host(cluster: Cluster, ordering: &str, args: &[&str]) -> Result<Self> {
        let store = format!("url = \"{}\"\n", cluster.urls().swap_remove(0));
        let home = default_home(ordering, &store)?;
        let mut service = Service::start(&home, args)?;
        let admin = http::ready(&mut service)?;
        let early = events_in_turn("a", EVENTS);
        post_until_effects(&mut service, "a", &early)?;
        Ok(Self { cluster, service, admin, early, _home: home })
    }

    fn let_replicas_lag(&self) -> Result<()> {
        (0..MASTERS).try_for_each(|number| self.cluster.let_replica_lag(number))
    }

    /// Makes each lagging replica a master, while its old master still runs. No connection of the host breaks.
    fn take_over(&self, how: Takeover) -> Result<()> {
        (0..MASTERS).try_for_each(|number| self.cluster.take_over(number, how))
    }

    /// Makes each lagging replica the master while a producer posts events whose keys begin with `name`. Returns the
    /// accepted events.
    fn take_over_while_posting(&mut self, how: Takeover, name: &str) -> Result<Vec<String>> {
        let address = ingress(&mut self.service)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let posting = scope.spawn(|| post_until(&is_over, address, name));
            let done = self.take_over(how);
            is_over.store(true, Ordering::SeqCst);
            let posted = posting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.and(posted)
        })
    }

    /// Posts later events, which must all take effect. Then waits until the host has executed each event at risk (an
    /// event that the replicas may lack), or has counted the event as lost. The keys of the events at risk begin with
    /// `names`, and there are `count` such events.
    fn check(&mut self, names: &[&str], count: usize) -> Result<()> {
        self.cluster.until_masters_serve()?;
        post_until_effects(&mut self.service, "c", &events_in_turn("c", EVENTS))?;
        let Self { service, admin, early, .. } = self;
        let mut lost = 0;
        let mut taken = 0;
        wait_until("the effect or the loss of each event that the replicas lacked", || {
            lost = lost_events(*admin)?;
            taken = 0;
            for name in names {
                taken += messages(service, name)?.len();
            }
            Ok(lost + taken >= count)
        })
        .with_context(|| service.stderr())?;
        ensure!(
            lost + taken == count,
            "{lost} events were counted as lost, {taken} of {count} took effect: {}",
            service.stderr()
        );
        check_effects(service, "a", early)?;
        service.end()
    }
}

/// Posts an event of each of 60 keys with each request, until `is_over` is set. Repeats a request that the host does
/// not accept, as a producer does. Returns the accepted events.
fn post_until(is_over: &AtomicBool, address: SocketAddr, name: &str) -> Result<Vec<String>> {
    let mut accepted = Vec::new();
    for number in 1.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let event = |key: usize| line(&format!("{name}{key}"), number, &json!({ "n": number }));
        let events: Vec<String> = (0..KEYS).map(event).collect();
        wait_until("an accepted request", || {
            Ok(post(address, LINES_TYPE, &text(&events))?.status == 202)
        })?;
        accepted.extend(events);
        sleep(REQUEST_INTERVAL);
    }
    Ok(accepted)
}

/// Before the takeover, all accepted events have taken effect, so the host is idle. The new masters then assign the
/// numbers of some of these events to later events. The host must not remove the later events before it has read them,
/// and must count no event as lost.
#[test]
fn events_after_takeover_of_a_cluster_take_effect() -> Result<()> {
    let mut rig = Rig::start("fifo")?;
    post_until_effects(&mut rig.service, "b", &events_in_turn("b", EVENTS))?;
    rig.take_over(Takeover::Takeover)?;
    rig.check(&["b"], EVENTS)
}

/// At the takeover, some of the accepted events may still wait in the old masters. All later events must take effect.
/// The host must count as lost exactly the events without effect.
#[test]
fn events_lost_by_takeover_of_a_cluster_are_counted() -> Result<()> {
    let mut rig = Rig::start("fifo")?;
    post_all(ingress(&mut rig.service)?, &events_in_turn("b", EVENTS))?;
    rig.take_over(Takeover::Takeover)?;
    rig.check(&["b"], EVENTS)
}

/// All masters are killed and stay down, and their replicas become the masters. The configuration names only one of the
/// killed masters, so the host knows the replicas only from the masters' answers at its start.
#[test]
fn host_finds_the_replicas_of_killed_masters() -> Result<()> {
    check_killed_masters(Rig::start("fifo")?)
}

/// All masters are killed and stay down, and their replicas become the masters. The replicas have joined the Cluster
/// after the start of the host, so the running host must detect the new replicas.
#[test]
fn host_finds_replicas_that_joined_later() -> Result<()> {
    let args = ["--wait-divisor=100", "run"];
    let mut rig = Rig::start_host(Cluster::start(MASTERS)?, "fifo", &args)?;
    rig.cluster.add_replicas()?;
    rig.cluster.until_queried()?;
    rig.let_replicas_lag()?;
    check_killed_masters(rig)
}

/// Kills all masters. The host must find the new masters, and must count as lost exactly the events without effect.
fn check_killed_masters(mut rig: Rig) -> Result<()> {
    let address = ingress(&mut rig.service)?;
    post_all(address, &events_in_turn("b", EVENTS))?;
    (0..MASTERS).try_for_each(|number| rig.cluster.fail_over(number))?;
    let first = line("d0", 1, &json!({ "n": 1 }));
    wait_until("an accepted request", || {
        Ok(post(address, LINES_TYPE, &text(std::slice::from_ref(&first)))?.status == 202)
    })
    .with_context(|| rig.service.stderr())?;
    rig.check(&["b", "d"], EVENTS + 1)
}

/// A producer posts events while the other masters elect each replica. The host must count as lost exactly the events
/// without effect, including the events that it accepted during the elections.
#[test]
fn events_posted_during_elections_in_a_cluster_take_effect_or_are_counted() -> Result<()> {
    let mut rig = Rig::start("fifo")?;
    post_all(ingress(&mut rig.service)?, &events_in_turn("b", EVENTS))?;
    let posted = rig.take_over_while_posting(Takeover::Force, "d")?;
    ensure!(!posted.is_empty(), "the producer posted no event");
    rig.check(&["b", "d"], EVENTS + posted.len())
}

/// In a `sequenced` stream, the later events of a key wait for its lost events. A producer posts events during the
/// takeover, and afterwards sends all events again that the new masters may lack. Each event must then take effect once
/// and in order.
fn check_events_sent_again(how: Takeover) -> Result<()> {
    let mut rig = Rig::start("sequenced")?;
    let lacked = events_in_turn("b", EVENTS);
    post_all(ingress(&mut rig.service)?, &lacked)?;
    let posted = rig.take_over_while_posting(how, "d")?;
    let Rig { cluster, service, early, .. } = &mut rig;
    cluster.until_masters_serve()?;
    post_until_effects(service, "c", &events_in_turn("c", EVENTS))?;
    post_until_effects(service, "b", &lacked)?;
    post_until_effects(service, "d", &posted)?;
    check_effects(service, "a", early)?;
    service.end()
}

#[test]
fn sequenced_events_take_effect_after_a_takeover_of_a_cluster() -> Result<()> {
    check_events_sent_again(Takeover::Takeover)
}

#[test]
fn sequenced_events_take_effect_after_elections_in_a_cluster() -> Result<()> {
    check_events_sent_again(Takeover::Force)
}
