//! Tests of Redis keys that another program removes while a host runs.

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::http;
use ordain_tests::service::{Service, wait_until};

use super::in_turn::{check_effects, default_home, events_in_turn, post_until_effects};
use super::support::{lost_events, waiting};

const SHARDS: u32 = 4;

/// While a host runs, another program removes the empty queues of a stream from Redis, and nothing else. Later events
/// then get numbers that the host has already seen. These events must nevertheless take effect, and the host must count
/// no event as lost.
#[test]
fn events_after_removal_of_the_queues_take_effect() -> Result<()> {
    const MANY: usize = 6_000;
    let redis = Redis::start(&[])?;
    let store = format!("url = \"{}\"\nshards = {SHARDS}\n", redis.url());
    let home = default_home("fifo", &store)?;
    let mut service = Service::start(&home, &["run"])?;
    let admin = http::ready(&mut service)?;
    let early = events_in_turn("a", MANY);
    post_until_effects(&mut service, "a", &early)?;
    let mut connection = redis.connect()?;
    wait_until("empty queues", || {
        Ok(waiting(&mut connection, SHARDS)?.iter().all(|count| *count == 0))
    })?;
    for shard in 0..SHARDS {
        let log = format!("ordain:{{{shard}}}:log:stream/cases");
        let removed = connection.command(&["DEL", &log])?;
        ensure!(removed.int() == Some(1), "shard {shard} had no queue: {removed:?}");
    }
    post_until_effects(&mut service, "b", &events_in_turn("b", MANY))?;
    check_effects(&service, "a", &early)?;
    ensure!(lost_events(admin)? == 0, "events were counted as lost: {}", service.stderr());
    service.end()
}
