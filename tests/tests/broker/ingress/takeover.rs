//! Tests of a Redis Cluster in which replicas that lack the last accepted events become masters.

use anyhow::{Context, Result, ensure};
use ordain_servers::{Cluster, Takeover};
use ordain_tests::http;
use ordain_tests::service::{Service, wait_until};

use super::in_turn::{check_effects, default_home, events_in_turn, messages, post_until_effects};
use super::support::{ingress, lost_events, post_all};

/// Replaces each master of a Cluster by a replica that lacks the last accepted events. No connection breaks. If
/// `after_effects` is true, the test waits before the takeover until all these events have taken effect.
fn take_over_cluster(after_effects: bool) -> Result<()> {
    const MASTERS: usize = 3;
    const SOME: usize = 1_560;
    let mut cluster = Cluster::start(MASTERS)?;
    cluster.add_replicas()?;
    let home = default_home(&format!("url = \"{}\"\n", cluster.urls().swap_remove(0)))?;
    let mut service = Service::start(&home, &["run"])?;
    let admin = http::ready(&mut service)?;
    let early = events_in_turn("a", SOME);
    post_until_effects(&mut service, "a", &early)?;
    (0..MASTERS).try_for_each(|number| cluster.let_replica_lag(number))?;
    let lacked = events_in_turn("b", SOME);
    if after_effects {
        post_until_effects(&mut service, "b", &lacked)?;
    } else {
        post_all(ingress(&mut service)?, &lacked)?;
    }
    (0..MASTERS).try_for_each(|number| cluster.take_over(number, Takeover::Takeover))?;
    cluster.until_masters_serve()?;
    post_until_effects(&mut service, "c", &events_in_turn("c", SOME))?;
    let mut lost = 0;
    let mut taken = 0;
    wait_until("the effect or the loss of each event that the replicas lacked", || {
        lost = lost_events(admin)?;
        taken = messages(&service, "b")?.len();
        Ok(lost + taken >= SOME)
    })
    .with_context(|| service.stderr())?;
    ensure!(
        lost + taken == SOME,
        "{lost} events were counted as lost, {taken} took effect: {}",
        service.stderr()
    );
    check_effects(&service, "a", &early)?;
    service.end()
}

/// Before the takeover, all accepted events have taken effect, so the host is idle. The new masters then assign the
/// numbers of some of these events to later events. The host must not remove the later events unread, and must count no
/// event as lost.
#[test]
fn events_after_takeover_of_a_cluster_take_effect() -> Result<()> {
    take_over_cluster(true)
}

/// At the takeover, some of the accepted events may still wait in the old masters. All later events must take effect.
/// The host must count exactly the events without effect as lost.
#[test]
fn events_lost_by_takeover_of_a_cluster_are_counted() -> Result<()> {
    take_over_cluster(false)
}
