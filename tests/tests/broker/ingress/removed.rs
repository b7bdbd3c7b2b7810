//! Tests of Redis keys that another program removes while a host runs.

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::http;
use ordain_tests::service::{Service, wait_until};

use super::in_turn::{KEYS, check_effects, default_home, events_in_turn, post_until_effects};
use super::support::{ingress, lost_events, post_all, waiting};

const SHARDS: u32 = 4;

/// While a host runs, another program removes one Redis key of each shard, and nothing else. `name` is the part of the
/// Redis key's name after the shard. At this time, no event waits. Later events must take effect, earlier events that
/// the test sends again must have no effect, and the host must count no event as lost.
fn remove_from_each_shard(ordering: &str, name: &str) -> Result<()> {
    const EVENTS: usize = 6_000;
    let redis = Redis::start(&[])?;
    let store = format!("url = \"{}\"\nshards = {SHARDS}\n", redis.url());
    let home = default_home(ordering, &store)?;
    let mut service = Service::start(&home, &["run"])?;
    let admin = http::ready(&mut service)?;
    let early = events_in_turn("a", EVENTS);
    post_until_effects(&mut service, "a", &early)?;
    let mut connection = redis.connect()?;
    wait_until("empty queues", || {
        Ok(waiting(&mut connection, SHARDS)?.iter().all(|count| *count == 0))
    })?;
    for shard in 0..SHARDS {
        let key = format!("ordain:{{{shard}}}:{name}");
        let removed = connection.command(&["DEL", &key])?;
        ensure!(removed.int() == Some(1), "{key} did not exist: {removed:?}");
    }
    post_until_effects(&mut service, "b", &events_in_turn("b", EVENTS))?;
    post_all(ingress(&mut service)?, &early)?;
    // These events follow the repeated events in the queue of each shard.
    post_until_effects(&mut service, "c", &events_in_turn("c", KEYS))?;
    check_effects(&service, "a", &early)?;
    ensure!(lost_events(admin)? == 0, "events were counted as lost: {}", service.stderr());
    // The reader must have counted the loss of its position in the queue of each shard.
    if name.starts_with("log:") {
        for shard in 0..SHARDS {
            let sample = format!("ordain_rollbacks_total{{stream=\"cases\",shard=\"{shard}\"}}");
            let count = http::metric(admin, &sample)?.unwrap_or(0);
            ensure!(count > 0, "no metric shows the loss of shard {shard}: {}", service.stderr());
        }
    }
    service.end()
}

/// After the removal of the queues, the queue entries of later events get the numbers of entries that the host has
/// already read.
#[test]
fn events_after_removal_of_the_queues_take_effect() -> Result<()> {
    remove_from_each_shard("fifo", "log:stream/cases")
}

/// For a `sequenced` stream, the removed Redis keys also contain the ids and the retained copies of the events.
#[test]
fn sequenced_events_after_removal_of_the_queues_take_effect() -> Result<()> {
    remove_from_each_shard("sequenced", "log:stream/cases")
}

/// The host still has the ids of the events in memory, so it must recognise the repeated events.
#[test]
fn events_after_removal_of_the_ids_take_effect() -> Result<()> {
    remove_from_each_shard("fifo", "ids:cases")
}
