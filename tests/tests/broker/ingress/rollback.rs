//! Tests of a Redis that goes back in time while events wait in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_core::shard_of;
use ordain_servers::{Mode, Options, Proxy, Redis, Reply, Sentinel, Takeover};
use ordain_tests::host::Home;
use ordain_tests::http::{self, Answer};
use ordain_tests::log::{line, text};
use ordain_tests::lossy::LossyServers;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{
    LINES_TYPE, READ_AHEAD, SECTIONS, events, inbox_events, ingress, into_file, lost_events, post,
    post_all, waiting,
};

/// The number of events that a test posts together. This number is larger than the prefetch of the host, so some of the
/// events wait in the store.
const EVENTS: usize = 3_000;
/// The number of events that a test posts together for an inbox. While the broker is down, a host processes some of
/// these events (see [`EARLY_EVENTS`]), and reads more of them in advance. The rest of the events waits in the store.
const INBOX_EVENTS: usize = 8_000;
/// While the broker is down, a host with `prefetch = 100` processes at least this number of events from the inbox of
/// its partition. This number is the overtaking limit in docs/guide/http.md, "Order in a `fifo` stream".
const EARLY_EVENTS: usize = 5_000;
const SHARDS: u32 = 4;

/// Returns for each name (the first character of a key) how many of its events took effect. Ignores repeated messages,
/// and checks that no event took effect twice. Each key has one event.
fn effects(service: &Service) -> Result<BTreeMap<char, usize>> {
    let mut ids = BTreeSet::new();
    let mut counts = BTreeMap::new();
    for line in service.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let message: Value = serde_json::from_str(line).context("a message")?;
        ensure!(message["data"]["count"] == 1, "an event took effect twice: {line}");
        let name = message["subject"].as_str().and_then(|subject| subject.chars().next());
        if ids.insert(message["id"].to_string()) {
            *counts.entry(name.context("a key")?).or_default() += 1;
        }
    }
    Ok(counts)
}

/// After the server went back in time, the server assigns the numbers of lost events to new events. The host must
/// execute the new events, although it has already read events with these numbers. The host must count as lost exactly
/// the lost events that did not take effect.
#[test]
fn events_accepted_after_rollback_take_effect() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(
        &["tally"],
        &format!(
            "{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
             source = {{ kind = \"http\", prefetch = 5 }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    // The stream is slow, so most of these events wait.
    post_all(address, &events("a", EVENTS))?;
    let early = redis.snapshot()?;
    post_all(address, &events("b", EVENTS))?;
    redis.go_back(&early)?;
    post_all(address, &events("c", EVENTS))?;
    wait_until("the effects of all events that the server has", || {
        let counts = effects(&service)?;
        Ok(counts.get(&'a') == Some(&EVENTS) && counts.get(&'c') == Some(&EVENTS))
    })?;
    service.until_says("the store went back in time")?;
    let admin = http::admin(&mut service)?;
    let taken = *effects(&service)?.get(&'b').unwrap_or(&0);
    let lost = lost_events(admin)?;
    ensure!(
        lost > 0 && lost + taken == EVENTS,
        "{lost} events were counted as lost, and {taken} took effect"
    );
    service.end()
}

/// The server goes back in time while the broker is down. Events for the stream of the broker arrived over HTTP, and
/// wait in the inbox in the store. The events that the server still has, and later events, must take effect.
#[test]
fn inbox_events_accepted_after_rollback_take_effect() -> Result<()> {
    let redis = Redis::start(&[])?;
    let rig = Rig::with_private_broker("", "", "")?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n", redis.url());
    let text = config(&rig.rabbit.url(), &format!("{SECTIONS}{store}"), "", "");
    let home = Home::new(&["tally"], &into_file(&text, "-"))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    rig.rabbit.stop()?;
    post_all(address, &events("a", EVENTS))?;
    let early = redis.snapshot()?;
    post_all(address, &events("b", EVENTS))?;
    redis.go_back(&early)?;
    post_all(address, &events("c", EVENTS))?;
    rig.rabbit.restart()?;
    wait_until("the effects of all events that the server has", || {
        let counts = effects(&service)?;
        Ok(counts.get(&'a') == Some(&EVENTS) && counts.get(&'c') == Some(&EVENTS))
    })?;
    let lost = lost_events(http::admin(&mut service)?)?;
    let taken = *effects(&service)?.get(&'b').unwrap_or(&0);
    ensure!(
        lost + taken >= EVENTS,
        "{lost} events were counted as lost, and {taken} took effect: {}",
        service.stderr()
    );
    service.end()
}

/// The servers go back in time after the host has executed some of the events that the servers lose. More lost events
/// wait in the servers than the host reads in advance. Later events get the numbers of lost events that the host has
/// read. The host must execute all later events, and must count as lost exactly the lost events without effect. With a
/// `rig`, the stream has an inbox, and the broker is down while the lost events wait.
fn lose_unread_events(mut servers: LossyServers, rig: Option<&Rig>) -> Result<()> {
    const EARLIER_EVENTS: usize = 20;
    const LATER_EVENTS: usize = 1_500;
    let sections = format!(
        "{SECTIONS}[runtime]\nlease = \"10m\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n",
        servers.url()
    );
    let ordering = "ordering = \"fifo\"";
    let settings = match rig {
        Some(rig) => {
            into_file(&config(&rig.rabbit.url(), &sections, ordering, "prefetch = 100"), "-")
        }
        None => format!(
            "{sections}[streams.cases]\nhandler = \"tally\"\n{ordering}\n\
             source = {{ kind = \"http\", prefetch = 1 }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
        ),
    };
    let home = Home::new(&["tally"], &settings)?;
    let mut service = Service::start(&home, &["run"])?;
    let admin = http::ready(&mut service)?;
    let address = ingress(&mut service)?;
    let taken = |service: &Service, name: char| -> Result<usize> {
        Ok(effects(service)?.get(&name).copied().unwrap_or_default())
    };
    if let Some(rig) = rig {
        rig.until_declared()?;
    }
    post_all(address, &events("a", EARLIER_EVENTS))?;
    wait_until("the earlier effects", || Ok(taken(&service, 'a')? == EARLIER_EVENTS))?;
    if let Some(rig) = rig {
        wait_until("an empty inbox", || inbox_events(&mut service).map(|count| count == 0))?;
        rig.rabbit.stop()?;
    }

    servers.begin(|| true)?;
    let lossy = events("b", if rig.is_some() { INBOX_EVENTS } else { EVENTS });
    // All events are in one request. With several requests, the host could execute the events of one request before the
    // test posts the next request.
    let answer = post(address, LINES_TYPE, &text(&lossy))?;
    ensure!(answer.status == 202, "{answer:?}");
    let least = if rig.is_some() { EARLY_EVENTS } else { 1 };
    wait_until("effects of events that the servers lose", || Ok(taken(&service, 'b')? >= least))
        .with_context(|| service.stderr())?;
    let before = taken(&service, 'b')?;
    ensure!(before + READ_AHEAD < lossy.len(), "the stream is too fast: {before} effects");
    servers.lose(|| Takeover::Takeover)?;
    post_all(address, &events("c", LATER_EVENTS))?;
    if let Some(rig) = rig {
        rig.rabbit.restart()?;
    }
    wait_until("the effects of all later events", || Ok(taken(&service, 'c')? == LATER_EVENTS))
        .with_context(|| service.stderr())?;

    let mut lost = 0;
    let mut done = 0;
    let explained = wait_until("the effect or the loss of each lost event", || {
        lost = lost_events(admin)?;
        done = taken(&service, 'b')?;
        Ok(lost + done >= lossy.len())
    });
    let log = || {
        format!("{lost} events were counted as lost, and {done} took effect: {}", service.stderr())
    };
    explained.with_context(log)?;
    ensure!(lost > 0 && lost + done == lossy.len(), log());
    service.end()
}

#[test]
fn lost_unread_events_are_counted() -> Result<()> {
    lose_unread_events(LossyServers::single()?, None)
}

#[test]
fn unread_events_that_a_failover_loses_are_counted() -> Result<()> {
    lose_unread_events(LossyServers::watched()?, None)
}

/// When the broker is available again, the host drops the events that it has read from the inbox and not yet processed.
/// If the server has lost these events, the host must count them as lost.
#[test]
fn lost_unread_inbox_events_are_counted() -> Result<()> {
    let rig = Rig::with_private_broker("", "", "")?;
    lose_unread_events(LossyServers::single()?, Some(&rig))
}

#[test]
fn unread_inbox_events_that_a_failover_loses_are_counted() -> Result<()> {
    let rig = Rig::with_private_broker("", "", "")?;
    lose_unread_events(LossyServers::watched()?, Some(&rig))
}

/// The host accepts an event over HTTP for a stream whose source is RabbitMQ. It first retains a copy of the event for
/// replay, and then puts the event into the inbox. The server loses the retained copy between the two writes. Before
/// the host answers 202, it must retain the event again.
#[test]
fn copy_lost_during_a_request_is_retained_again() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let rig = Rig::with_private_broker("", "", "")?;
    let url = redis.url_at(proxy.port());
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\nshards = 1\n");
    let text = config(&rig.rabbit.url(), &format!("{SECTIONS}{store}"), "", "");
    let home = Home::new(&["tally"], &into_file(&text, "-"))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    // After the first effect, the store contains all data that the host needs to continue.
    post_all(address, &[line("first", 1, &json!({ "n": 1 }))])?;
    wait_until("the first effect", || Ok(effects(&service)?.get(&'f') == Some(&1)))?;
    let early = redis.snapshot()?;
    let retained = || -> Result<usize> {
        let keys = redis.command(&["KEYS", "ordain:{0}:log:exchange/*"])?;
        let Some(log) = keys.parts().first().and_then(Reply::text) else { return Ok(0) };
        let fields = redis.command(&["HGETALL", log])?;
        let texts = fields.parts().iter().filter_map(Reply::text);
        Ok(texts.filter(|text| text.contains("marker-of-the-event")).count())
    };
    // The proxy delays each write of the host by at least a second. The server can therefore lose the first write
    // before it receives the second write.
    proxy.set(Mode::Delay(Duration::from_secs(1)))?;
    let event = line("a", 1, &json!({ "text": "marker-of-the-event" }));
    let answer = std::thread::scope(|scope| -> Result<Answer> {
        let posting = scope.spawn(|| post(address, LINES_TYPE, &event));
        wait_until("a retained copy", || Ok(retained()? == 1))?;
        redis.go_back(&early)?;
        proxy.set(Mode::Pass)?;
        posting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    ensure!(answer.status == 202, "{answer:?}: {}", service.stderr());
    ensure!(retained()? == 1, "the store has no retained copy: {}", service.stderr());
    wait_until("the effect of the event", || Ok(effects(&service)?.get(&'a') == Some(&1)))
        .with_context(|| service.stderr())?;
    service.end()
}

/// Returns one key of each shard, in the order of the shards. No key is a part of another key.
fn key_of_each_shard(name: &str) -> Vec<String> {
    let of = |shard| {
        let mut keys = (0..).map(|number| format!("{name}{number}."));
        keys.find(|key| shard_of(key, SHARDS) == shard)
    };
    (0..SHARDS).filter_map(of).collect()
}

/// A request has one event for each of four shards. A network split separates the master from the Sentinel. The host
/// writes three of the events to this master. Before the host can write the fourth event, the Sentinel promotes the
/// replica, which lacks the three events. The host must write the three events again before it answers 202.
#[test]
fn accepted_request_survives_the_end_of_a_split() -> Result<()> {
    let group = Sentinel::behind_proxies(&Options::new())?;
    let home = Home::new(
        &["tally"],
        &format!(
            "{SECTIONS}[runtime]\nlease = \"30s\"\n\
             [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = {SHARDS}\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
             source = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            group.url()
        ),
    )?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    http::ready(&mut service)?;
    let lines_of = |keys: &[String]| -> Vec<String> {
        keys.iter().map(|key| line(key, 1, &json!({ "n": 1 }))).collect()
    };
    let keys = key_of_each_shard("a");
    post_all(address, &lines_of(&keys))?;
    let mut master = group.master().connect()?;
    wait_until("empty queues after the first effects", || {
        let is_done = effects(&service)?.get(&'a') == Some(&keys.len());
        Ok(is_done && waiting(&mut master, SHARDS)?.iter().all(|count| *count == 0))
    })?;

    let mut cut_off = group.cut_off()?;
    let keys = key_of_each_shard("b");
    let proxy = &group.proxies()[0];
    proxy.hold_request(keys.last().context("a key")?);
    let body = text(&lines_of(&keys));
    let answer = std::thread::scope(|scope| -> Result<Answer> {
        let posting = scope.spawn(|| post(address, LINES_TYPE, &body));
        wait_until("a part of the request in the old master", || {
            let is_held = proxy.counts().requests_held == 1;
            Ok(is_held && waiting(cut_off.connection(), SHARDS)? == [1, 1, 1, 0])
        })?;
        // The test starts the failover with a command. If the test waited until the Sentinel considers the master down,
        // the host would answer the request with an error after ten seconds.
        group.sentinel().command(&["SENTINEL", "FAILOVER", group.name()])?;
        group.until_replaced()?;
        group.heal_split()?;
        posting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    ensure!(answer.status == 202, "{answer:?}: {}", service.stderr());
    wait_until("the effects of the whole request", || {
        Ok(effects(&service)?.get(&'b') == Some(&keys.len()))
    })
    .with_context(|| service.stderr())?;
    service.end()
}

/// One host owns the only partition of a `fifo` stream and reads its queue, and the other host accepts the events.
struct HostPair {
    redis: Redis,
    reader: Service,
    accepting: Service,
    admin: SocketAddr,
    address: SocketAddr,
    _homes: [Home; 2],
}

impl HostPair {
    /// Starts Redis and both hosts with this lease. The first host becomes the owner of the partition.
    fn start(lease: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let text = format!(
            "{SECTIONS}[runtime]\nlease = \"{lease}\"\n\
             [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 2\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        );
        let homes = [Home::new(&["tally"], &text)?, Home::new(&["tally"], &text)?];
        let mut reader = Service::start(&homes[0], &["run"])?;
        http::ready(&mut reader)?;
        let mut accepting = Service::start(&homes[1], &["run"])?;
        let admin = http::ready(&mut accepting)?;
        let address = ingress(&mut accepting)?;
        Ok(Self { redis, reader, accepting, admin, address, _homes: homes })
    }
}

/// While the host that reads the queue is paused, the server loses accepted events. The accepting host must count and
/// log exactly these events as lost, although it reads no queue.
#[test]
fn lost_events_for_another_process_are_counted() -> Result<()> {
    const EVENTS_PER_READER: usize = 400;
    let pair = HostPair::start("10m")?;
    let HostPair { redis, mut reader, mut accepting, admin, address, _homes } = pair;
    let until_effects = |reader: &Service, name: char| {
        wait_until(&format!("the effects of all events {name}"), || {
            Ok(effects(reader)?.get(&name) == Some(&EVENTS_PER_READER))
        })
    };
    post_all(address, &events("a", EVENTS_PER_READER))?;
    until_effects(&reader, 'a').with_context(|| reader.stderr())?;
    let early = redis.snapshot()?;
    reader.pause()?;
    post_all(address, &events("b", EVENTS_PER_READER))?;
    redis.go_back(&early)?;
    // The queue entries of these events get the numbers of the lost entries.
    post_all(address, &events("c", EVENTS_PER_READER))?;
    reader.resume()?;
    until_effects(&reader, 'c').with_context(|| reader.stderr())?;
    let counted =
        wait_until("the count of the lost events", || Ok(lost_events(admin)? >= EVENTS_PER_READER));
    counted.with_context(|| accepting.stderr())?;
    // The accepting host must also not count an event as lost later if the event took effect. The test therefore makes
    // the accepting host check all its events: the reader executes more events, and the server then loses another set
    // of events. When the accepting host detects this loss, it checks all events.
    post_all(address, &events("d", EVENTS_PER_READER))?;
    until_effects(&reader, 'd').with_context(|| reader.stderr())?;
    let early = redis.snapshot()?;
    reader.pause()?;
    post_all(address, &events("e", EVENTS_PER_READER))?;
    redis.go_back(&early)?;
    let counted = wait_until("another loss", || Ok(lost_events(admin)? >= 2 * EVENTS_PER_READER));
    counted.with_context(|| accepting.stderr())?;
    reader.resume()?;
    let log = accepting.stderr();
    ensure!(
        lost_events(admin)? == 2 * EVENTS_PER_READER,
        "the host counted other events as lost: {log}"
    );
    let logged = log.lines().filter(|line| line.contains("may be lost"));
    let logged = logged.filter_map(|line| {
        let rest = line.split_once(" events=")?.1;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    });
    ensure!(
        logged.sum::<usize>() == 2 * EVENTS_PER_READER,
        "the log states another number of lost events: {log}"
    );
    let effects = effects(&reader)?;
    ensure!(!effects.contains_key(&'b') && !effects.contains_key(&'e'), "{effects:?}");
    reader.end()?;
    accepting.end()
}

/// The owner of the partition dies. The other host accepts events, and the server loses them. Then the accepting host
/// takes over the partition. At this time, the accepting host does not know yet whether its events were read. The
/// accepting host must count each lost event once, and the events that the server still has must take effect.
#[test]
fn lost_events_are_counted_once_over_a_takeover() -> Result<()> {
    const EVENTS_PER_READER: usize = 400;
    let pair = HostPair::start("2s")?;
    let HostPair { redis, mut reader, mut accepting, admin, address, _homes } = pair;
    post_all(address, &events("a", EVENTS_PER_READER))?;
    wait_until(
        "the first effects",
        || Ok(effects(&reader)?.get(&'a') == Some(&EVENTS_PER_READER)),
    )?;
    let early = redis.snapshot()?;
    reader.kill()?;
    post_all(address, &events("b", EVENTS_PER_READER))?;
    redis.go_back(&early)?;
    post_all(address, &events("c", EVENTS_PER_READER))?;
    let taken = wait_until("the effects of the remaining events", || {
        Ok(effects(&accepting)?.get(&'c') == Some(&EVENTS_PER_READER))
    });
    taken.with_context(|| accepting.stderr())?;
    let counted =
        wait_until("the count of the lost events", || Ok(lost_events(admin)? >= EVENTS_PER_READER));
    counted.with_context(|| accepting.stderr())?;
    post_all(address, &events("d", EVENTS_PER_READER))?;
    wait_until("later effects", || Ok(effects(&accepting)?.get(&'d') == Some(&EVENTS_PER_READER)))?;
    ensure!(
        lost_events(admin)? == EVENTS_PER_READER,
        "the host counted other events as lost: {}",
        accepting.stderr()
    );
    ensure!(!effects(&accepting)?.contains_key(&'b'), "a lost event took effect");
    accepting.end()
}
