//! A test of a store in Redis while the clock of the Redis server jumps.

use anyhow::{Context, Result, ensure};
use ordain_servers::{Clock, Options, Redis};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use serde_json::json;

use super::support::{SECTIONS, ingress, metric, post_all, printed};

const HOUR_S: i64 = 3_600;
/// The differences between the clock of Redis and the clock of the machine, in hours.
const OFFSETS: [i64; 4] = [2, 0, -2, 0];

/// Three hosts accept events while the clock of Redis jumps forward and back. The first host owns the only
/// partition, and must keep it. Each event must take effect once and in order. At the end, the server loses some
/// events, and the hosts must count exactly these events as lost.
#[test]
fn events_take_effect_while_the_clock_of_redis_jumps() -> Result<()> {
    const LOST_EVENTS: u64 = 400;
    let clock = Clock::new()?;
    let redis = Redis::with(&Options::new().clock(&clock))?;
    let config = format!(
        "{SECTIONS}[runtime]\nlease = \"10m\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
        redis.url()
    );
    let mut homes = Vec::new();
    let mut services = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let home = Home::new(&["tally"], &config)?;
        let mut service = Service::start(&home, &["run"])?;
        http::ready(&mut service)?;
        addresses.push(ingress(&mut service)?);
        services.push(service);
        homes.push(home);
    }

    let lines = in_turn(20, 60);
    let mut parts = lines.chunks(lines.len() / (3 * OFFSETS.len()));
    let mut sent = 0;
    let mut post_part = |host: usize| -> Result<usize> {
        let part = parts.next().context("more events")?;
        post_all(addresses[host], part)?;
        sent += part.len();
        Ok(sent)
    };
    for hours in OFFSETS {
        // When the clock jumps, the first host may already have read some events that the second host accepted. The
        // second host may not know this yet. After the jump, the test posts events only to the two other hosts.
        post_part(1)?;
        clock.set(hours * HOUR_S)?;
        post_part(2)?;
        let count = post_part(0)?;
        let taken = wait_until("the effects of all events", || {
            Ok(printed(&services).lines().count() >= count)
        });
        taken.with_context(|| format!("{hours} hours: {}", services[0].stderr()))?;
    }
    tally::check(&by_key(&lines)?, &printed(&services))?;
    ensure!(services[1..].iter().all(|service| service.stdout().is_empty()), "the partition moved");

    // The second host accepts these events, and the server loses them. Before the second host counts these events as
    // lost, it checks all events that it accepted earlier.
    let early = redis.snapshot()?;
    services[0].pause()?;
    let unread: Vec<String> = (0..LOST_EVENTS)
        .map(|number| line(&format!("lost{number}"), 1, &json!({ "n": number })))
        .collect();
    post_all(addresses[1], &unread)?;
    redis.go_back(&early)?;
    let counted = wait_until("the count of the lost events", || {
        Ok(metric(&mut services[1], "ordain_events_lost_total")? >= LOST_EVENTS)
    });
    counted.with_context(|| services[1].stderr())?;
    services[0].resume()?;
    for (service, count) in services.iter_mut().zip([0, LOST_EVENTS, 0]) {
        let lost = metric(service, "ordain_events_lost_total")?;
        ensure!(
            lost == count,
            "the host counted {lost} events as lost instead of {count}: {}",
            service.stderr()
        );
    }
    services.iter_mut().try_for_each(Service::end)
}
