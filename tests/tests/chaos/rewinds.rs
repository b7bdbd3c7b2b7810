//! A round in which the servers lose their last seconds again and again, while events come over HTTP.
//!
//! Each event that was accepted while nothing got lost must take effect once, and those of a key in order. Of what
//! was accepted in between, what did not take effect must be what the host counted as lost. The events of a
//! `sequenced` stream are sent once more at the end, as their producer would, and then all must have taken effect.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ordain_servers::Port;
use ordain_tests::host::Home;
use ordain_tests::http::{self, Answer};
use ordain_tests::log::{Line, line, text};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally::{FIRST_HASH, hash};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::lossy::Servers;

const KEYS: usize = 40;
/// Events of a request.
const BATCH: usize = 60;
/// How long a producer tries.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long the round waits for late effects before it counts the lost events: longer than any poll or retry of the host.
const SETTLES: Duration = Duration::from_secs(4);

/// What a round is like.
#[derive(Debug)]
struct Settings {
    is_fifo: bool,
    /// Whether the host is slow, and events come fast until they get lost, so that many wait in the store.
    has_backlog: bool,
    /// Whether the host is killed in between.
    is_killed: bool,
    hosts: usize,
    losses: usize,
}

/// An event that was accepted.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    number: u64,
    /// Whether nothing got lost meanwhile.
    is_safe: bool,
}

/// What came of a round.
#[derive(Debug, Default)]
struct Counts {
    accepted: usize,
    safe: usize,
    lost: usize,
}

/// Plays a round.
pub(crate) fn play(mut servers: Servers, random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings {
        is_fifo: random.random_bool(0.7),
        has_backlog: random.random_bool(0.4),
        is_killed: random.random_bool(0.25),
        hosts: if random.random_bool(0.3) { 2 } else { 1 },
        losses: random.random_range(1..4),
    };
    let mut hosts: Vec<Host> =
        (0..settings.hosts).map(|_| Host::start(&servers, &settings)).collect::<Result<_>>()?;
    let (phase, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let addresses: Vec<SocketAddr> = hosts.iter().map(|it| it.address).collect();
    let seed = random.random();
    let accepted = std::thread::scope(|scope| {
        let produce = || produce(&addresses, &settings, &phase, &is_over, seed);
        let producer = scope.spawn(produce);
        let disturbed = disturb(&mut servers, &mut hosts, &settings, &phase, random);
        is_over.store(true, Ordering::SeqCst);
        let accepted = producer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        disturbed.and(accepted)
    });
    let accepted = accepted.with_context(|| explain(&settings, &hosts))?;
    let counted = check(&mut hosts, &settings, &accepted);
    let counts = counted.with_context(|| explain(&settings, &hosts))?;
    hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{counts}; {settings:?}"))
}

fn explain(settings: &Settings, hosts: &[Host]) -> String {
    let logs: Vec<String> = hosts.iter().map(|host| host.service.stderr()).collect();
    format!("{settings:?}\n{}", logs.join("\n----\n"))
}

/// Lets the servers lose something again and again.
fn disturb(
    servers: &mut Servers,
    hosts: &mut [Host],
    settings: &Settings,
    phase: &AtomicU32,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    let mut wait = |most: u64| sleep(Duration::from_millis(random.random_range(100..most)));
    for _ in 0..settings.losses {
        wait(1_500);
        phase.fetch_add(1, Ordering::SeqCst);
        let mut chance = ChaCha8Rng::seed_from_u64(u64::from(phase.load(Ordering::SeqCst)));
        servers.begin(&mut chance)?;
        wait(2_000);
        if settings.is_killed {
            hosts[0].service.kill()?;
        }
        servers.lose(&mut chance)?;
        phase.fetch_add(1, Ordering::SeqCst);
        wait(1_000);
        if settings.is_killed {
            hosts[0].start_again()?;
        }
    }
    wait(1_000);
    Ok(())
}

/// Sends events of some keys, in order within each, until the end. Returns the accepted ones by key.
fn produce(
    addresses: &[SocketAddr],
    settings: &Settings,
    phase: &AtomicU32,
    is_over: &AtomicBool,
    seed: u64,
) -> Result<BTreeMap<String, Vec<Accepted>>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut accepted: BTreeMap<String, Vec<Accepted>> = BTreeMap::new();
    while !is_over.load(Ordering::SeqCst) {
        let mut batch: Vec<(String, u64)> = Vec::new();
        for _ in 0..random.random_range(1..=BATCH) {
            let key = format!("k{}", random.random_range(0..KEYS));
            let in_batch = batch.iter().filter(|it| it.0 == key).count();
            let number = accepted.get(&key).map_or(0, Vec::len) + in_batch + 1;
            batch.push((key, number as u64));
        }
        let is_safe = post_until_accepted(addresses, phase, &batch)?;
        for (key, number) in batch {
            accepted.entry(key).or_default().push(Accepted { number, is_safe });
        }
        // Events that are to pile up and get lost come fast.
        let is_fast = settings.has_backlog && !phase.load(Ordering::SeqCst).is_multiple_of(2);
        sleep(Duration::from_millis(random.random_range(0..if is_fast { 2 } else { 60 })));
    }
    Ok(accepted)
}

/// Posts events until a host accepts them; whether nothing got lost meanwhile.
fn post_until_accepted(
    addresses: &[SocketAddr],
    phase: &AtomicU32,
    batch: &[(String, u64)],
) -> Result<bool> {
    let lines: Vec<String> =
        batch.iter().map(|(key, number)| line(key, *number, &json!({ "n": number }))).collect();
    let body = text(&lines);
    let started = Instant::now();
    for address in addresses.iter().cycle() {
        let before = phase.load(Ordering::SeqCst);
        match post(*address, &body) {
            Ok(Answer { status: 202, .. }) => {
                return Ok(before.is_multiple_of(2) && before == phase.load(Ordering::SeqCst));
            }
            Ok(Answer { status: 429 | 503, .. }) | Err(_) => sleep(Duration::from_millis(50)),
            Ok(other) => bail!("{other:?}"),
        }
        ensure!(started.elapsed() < PATIENCE, "nothing is accepted any more");
    }
    bail!("there is no host")
}

fn post(address: SocketAddr, body: &str) -> Result<Answer> {
    let head = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    http::send(address, format!("{head}{body}").as_bytes())
}

/// Waits until all that was accepted has taken effect or is lost, and counts.
fn check(
    hosts: &mut [Host],
    settings: &Settings,
    accepted: &BTreeMap<String, Vec<Accepted>>,
) -> Result<Counts> {
    if !settings.is_fifo {
        let address = hosts[0].address;
        let all = accepted.iter().flat_map(|(key, events)| {
            events.iter().map(|event| line(key, event.number, &json!({ "n": event.number })))
        });
        for chunk in all.collect::<Vec<_>>().chunks(500) {
            wait_until("an answer to the events that are sent again", || {
                Ok(post(address, &text(chunk)).is_ok_and(|it| it.status == 202))
            })?;
        }
    }
    let taken = |hosts: &[Host]| {
        let effects = effects(hosts)?;
        let of_key = |(key, events): (&String, &Vec<Accepted>)| {
            let chain = chain(key, events, effects.get(key), !settings.is_fifo);
            chain.map(|taken| (key.clone(), taken))
        };
        accepted.iter().map(of_key).collect::<Result<BTreeMap<String, usize>>>()
    };
    let mut last = None;
    let arrived = wait_until("all that is safe takes effect", || {
        last = Some(taken(hosts));
        Ok(matches!(last, Some(Ok(_))))
    });
    arrived.with_context(|| format!("{:?}", last.map(|it| it.map(drop))))?;
    sleep(SETTLES);
    let taken: usize = taken(hosts)?.values().sum();
    let all = accepted.values().flatten();
    let accepted = all.clone().count();
    let counts = Counts {
        accepted,
        safe: all.filter(|event| event.is_safe).count(),
        lost: accepted - taken,
    };
    // Only the process that accepted an event counts its loss, and a killed process forgets what it accepted.
    if settings.hosts == 1 && !settings.is_killed && settings.is_fifo {
        let counted = hosts[0].lost()?;
        ensure!(
            counted == counts.lost as u64,
            "{} are lost, and {counted} were counted",
            counts.lost
        );
    }
    Ok(counts)
}

/// The messages of each key: how many events it had counted, and their hash.
type Effects = BTreeMap<String, BTreeMap<u64, Vec<u64>>>;

fn effects(hosts: &[Host]) -> Result<Effects> {
    let (mut effects, mut ids) = (Effects::new(), BTreeMap::new());
    for host in hosts {
        let out = format!("{}{}", host.before, host.service.stdout());
        for line in out.split_inclusive('\n').filter(|it| it.ends_with('\n')) {
            let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let data = &message["data"];
            let id = message["id"].as_str().context("an id")?.to_owned();
            if let Some(before) = ids.insert(id, data.clone()) {
                ensure!(before == *data, "another message has the id of {line}");
                continue;
            }
            let hash = u64::from_str_radix(data["hash"].as_str().context("a hash")?, 16)?;
            let key = data["key"].as_str().context("a key")?.to_owned();
            let count = data["count"].as_u64().context("a count")?;
            effects.entry(key).or_default().entry(count).or_default().push(hash);
        }
    }
    Ok(effects)
}

/// How many of a key's events took effect. Each at most once, in order, and all that are safe: the messages have a
/// chain of hashes that shows it. Beside it there may be messages of effects that were lost.
fn chain(
    key: &str,
    events: &[Accepted],
    effects: Option<&BTreeMap<u64, Vec<u64>>>,
    wants_all: bool,
) -> Result<usize> {
    let none = BTreeMap::new();
    let effects = effects.unwrap_or(&none);
    // How many took effect, the hash, and how many events were looked at; the longest ones are on top.
    let mut open = vec![(0_u64, FIRST_HASH, 0_usize)];
    let (mut best, mut whole) = ((0, 0), None);
    while let Some((count, before, from)) = open.pop() {
        best = best.max((from, count));
        let rest = &events[from..];
        let must = |event: &Accepted| event.is_safe || wants_all;
        if !rest.iter().any(must) {
            whole = whole.max(Some(count as usize));
        }
        let Some(hashes) = effects.get(&(count + 1)) else { continue };
        // Lost events are skipped.
        let until = rest.iter().position(must).map_or(rest.len(), |at| at + 1);
        for (at, event) in rest[..until].iter().enumerate().rev() {
            let line = Line {
                key: key.to_owned(),
                sequence: count + 1,
                kind: "test".to_owned(),
                data: json!({ "n": event.number }).to_string(),
                end: false,
            };
            let hash = hash(before, &line);
            if hashes.contains(&hash) {
                open.push((count + 1, hash, from + at + 1));
            }
        }
    }
    let (seen, count) = best;
    whole.with_context(|| {
        format!("key {key}: {count} took effect, and then not {:?}", events.get(seen))
    })
}

/// A host, and where its events come in.
struct Host {
    home: Home,
    service: Service,
    address: SocketAddr,
    /// What came out before it was killed.
    before: String,
    _port: Port,
}

impl Host {
    fn start(servers: &Servers, settings: &Settings) -> Result<Self> {
        let prefetch = if settings.has_backlog { 4 } else { 500 };
        let ordering = if settings.is_fifo { "fifo" } else { "sequenced" };
        // The same port after a start: a producer knows no other.
        let port = Port::take()?;
        let config = format!(
            "[runtime]\nlease = \"2s\"\n[ingress]\nlisten = \"127.0.0.1:{}\"\n\
             [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 4\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"{ordering}\"\n\
             source = {{ kind = \"http\", partitions = 2, prefetch = {prefetch} }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            port.number(),
            servers.url()
        );
        let home = Home::new(&["tally"], &config)?;
        let mut service = Service::start(&home, &["run"])?;
        http::ready(&mut service)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        Ok(Self { home, service, address, before: String::new(), _port: port })
    }

    fn start_again(&mut self) -> Result<()> {
        let out = self.service.stdout();
        self.before += &out[..out.rfind('\n').map_or(0, |at| at + 1)];
        self.service = Service::start(&self.home, &["run"])?;
        http::ready(&mut self.service).map(drop)
    }

    /// How many events it has counted as lost.
    fn lost(&mut self) -> Result<u64> {
        let metrics = http::get(http::admin(&mut self.service)?, "/metrics")?.body;
        let lost = metrics.lines().filter(|it| it.starts_with("ordain_events_lost_total{"));
        Ok(lost.filter_map(|it| it.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, safe, lost } = self;
        write!(f, "{accepted} events accepted, {safe} of them while nothing got lost, {lost} lost")
    }
}
