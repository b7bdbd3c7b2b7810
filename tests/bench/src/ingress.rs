//! `ingress`: measures the rate at which the host accepts events over HTTP and executes them. In some sides, the host
//! has low limits, which the producers exceed.
//!
//! Each producer has keys of its own, and posts its next request after the answer to its previous request. A producer
//! that gets the status 429 waits for the time that the answer names, opens a new connection, and sends the same
//! request again. The clock runs from the first request until all events have taken effect. The handler rejects an
//! event that does not follow the previous event of its key. If all events take effect and none is rejected, no event
//! was lost, repeated or swapped. The source of the stream may be a queue of RabbitMQ. The host then writes each event
//! into the store, publishes the event to the broker, and consumes the event from the queue.

mod producer;

use std::fs;
use std::net::TcpListener as Reserved;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ordain_servers::{Rabbit, Redis};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::CommonArgs;
use crate::amqp::admin;
use crate::amqp::side::RunningSide;
use crate::process::{cpu_seconds, peak};
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};
use producer::{Outcome, Producer};

/// Time limit for the host's start, and for all events to take effect.
const HOST_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval between two requests to the host. With these requests, the benchmark first checks whether the host is
/// ready, and later reads how many events have taken effect.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of keys of all producers together.
const KEYS: usize = 1_024;
/// The name of the stream.
pub(crate) const STREAM: &str = "bench";

#[derive(Debug, Args)]
pub(crate) struct IngressArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Factor by which the benchmark multiplies the number of events
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
}

#[derive(Debug, Clone, Copy)]
struct Side {
    name: &'static str,
    on_redis: bool,
    connections: usize,
    /// Number of events in each request.
    together: usize,
    /// Number of requests over all connections together.
    requests: usize,
    /// True if the host has the low limits [`BOUNDS`] instead of the defaults.
    is_bounded: bool,
    /// The ordering of the stream, if its source is a queue of RabbitMQ; `None` if its source is HTTP.
    by_broker: Option<&'static str>,
}

const fn side(name: &'static str, on_redis: bool, connections: usize, together: usize) -> Side {
    let requests = if together == 1 { 40_000 } else { 200_000 / together };
    let is_bounded = false;
    let by_broker = None;
    Side { name, on_redis, connections, together, requests, is_bounded, by_broker }
}

const SIDES: [Side; 8] = [
    side("embedded 1", false, 64, 1),
    side("embedded 100", false, 16, 100),
    Side { is_bounded: true, ..side("embedded 100 bounded", false, 512, 100) },
    side("redis 1", true, 64, 1),
    side("redis 100", true, 16, 100),
    Side { is_bounded: true, ..side("redis 100 bounded", true, 512, 100) },
    Side { by_broker: Some("sequenced"), ..side("broker 100", true, 16, 100) },
    Side { by_broker: Some("fifo"), ..side("broker 100 fifo", true, 16, 100) },
];

/// The low limits. All connections together would send about 23 MB at one time, and `in_flight` is about a sixth of
/// this size. `queue` is a fiftieth of its default.
const BOUNDS: [&str; 2] = ["request_size = \"256KiB\"\nin_flight = \"4MiB\"", ", queue = 2000"];

pub(crate) fn bench(args: &IngressArgs) -> Result<Report> {
    let sides = args.sides.of(&SIDES, |side| side.name)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rabbit =
        sides.iter().any(|side| side.by_broker.is_some()).then(Rabbit::start).transpose()?;
    let measure = |side| runtime.block_on(measure(args, rabbit.as_ref(), &side));
    let rows = medians(args.common.runs, &sides, |side| side.name, measure)?;
    let report = Report::new("ingress", rows)
        .ratio("embedded 100 bounded", "embedded 100")
        .ratio("redis 100 bounded", "redis 100");
    Ok(report.note(
        "256 bytes of data per event, 1,024 keys; 64 connections with one event per request, 16 connections with \
         100; Redis with appendfsync everysec. bounded: 512 connections with 100 events per request, `in_flight` of \
         4 MiB and `queue` of 2,000 events, so that the host rejects many requests. events/s: until all events have \
         taken effect. p50 and p99: duration of the accepted requests, until the answer 202. longest: duration of \
         the slowest request, accepted or not. CPU: host, and Redis. broker: the source of the stream is a queue of \
         RabbitMQ, whose CPU is not counted. Each event took effect once and in order.",
    ))
}

async fn measure(args: &IngressArgs, rabbit: Option<&Rabbit>, side: &Side) -> Result<Row> {
    let redis = side.on_redis.then(|| Redis::start(&["appendfsync everysec"])).transpose()?;
    let home = tempfile::tempdir()?;
    let reserved = [Reserved::bind("127.0.0.1:0")?, Reserved::bind("127.0.0.1:0")?];
    let [port, ingress] = [reserved[0].local_addr()?.port(), reserved[1].local_addr()?.port()];
    drop(reserved);
    let store = redis.as_ref().map_or(String::new(), |redis| {
        format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url())
    });
    let [sections, bounds] = if side.is_bounded { BOUNDS } else { [""; 2] };
    let mut source = format!("source = {{ kind = \"http\"{bounds} }}");
    let mut broker = String::new();
    if let (Some(ordering), Some(rabbit)) = (side.by_broker, rabbit) {
        broker = format!("[broker]\nurl = \"{}\"\n", rabbit.url());
        // Each run has a new exchange and a new queue.
        let name = format!("bench-{ingress}");
        source = format!(
            "ordering = \"{ordering}\"\n\
             source = {{ kind = \"amqp\", exchange = \"{name}\", queue = \"{name}\" }}"
        );
    }
    let config = format!(
        "{store}{broker}[plugins]\ndir = \"{}\"\n[admin]\nlisten = \"127.0.0.1:{port}\"\n\
         [ingress]\nlisten = \"127.0.0.1:{ingress}\"\n{sections}\n[streams.{STREAM}]\nhandler = \"probe\"\n\
         {source}\n",
        args.common.plugins.canonicalize()?.display()
    );
    fs::write(home.path().join("ordain.toml"), config)?;
    let mut running = RunningSide::on(&args.common.ordain, home.path())?;
    let begun = Instant::now();
    while admin::get(port, "/readyz").await.is_err() {
        running.check()?;
        ensure!(begun.elapsed() < HOST_TIMEOUT, "{}: the host is not ready", side.name);
        sleep(POLL_INTERVAL).await;
    }
    let each = ((side.requests as f64 * args.scale) as usize / side.connections).max(1);
    let total = (each * side.connections * side.together) as u64;
    eprintln!("{}: {total} events for the process {}", side.name, running.id());
    let of_redis = || redis.as_ref().map_or(Ok(0.0), Redis::cpu);
    let started = Instant::now();
    let before = (cpu_seconds(running.id())?, of_redis()?);
    let mut producers = JoinSet::new();
    for number in 0..side.connections {
        producers.spawn(
            Producer::new(ingress, number, KEYS / side.connections, side.together).send(each),
        );
    }
    let mut sent = Outcome::default();
    while let Some(one) = producers.join_next().await {
        sent.add(one??);
    }
    while admin::effects(port, STREAM).await? < total {
        running.check()?;
        ensure!(started.elapsed() < HOST_TIMEOUT, "{}: not all events took effect", side.name);
        sleep(POLL_INTERVAL).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let used = [cpu_seconds(running.id())? - before.0, of_redis()? - before.1];
    let peak_mib = peak(running.id());
    let effects = admin::effects(port, STREAM).await?;
    ensure!(effects == total, "{}: some events took effect twice", side.name);
    let dead = admin::get(port, &format!("/v1/dead?stream={STREAM}")).await?;
    let dead: Value = serde_json::from_str(&dead)?;
    ensure!(
        dead["dead"].as_array().context("the listing of dead letters has no `dead`")?.is_empty(),
        "{dead}"
    );
    running.finish()?;
    eprintln!(
        "{}: {} requests were accepted, {} rejected, {} without an answer",
        side.name,
        sent.accepted_ms.len(),
        sent.rejected,
        sent.lost
    );
    // With low limits, the producers are faster than the stream, so the host must have rejected at least one request.
    ensure!(!side.is_bounded || sent.rejected > 0, "{}: no request was rejected", side.name);
    ensure!(
        side.is_bounded || sent.lost == 0,
        "{}: {} requests had no answer",
        side.name,
        sent.lost
    );
    sent.accepted_ms.sort_by(f64::total_cmp);
    let ms =
        |part: f64| Some(sent.accepted_ms[((sent.accepted_ms.len() - 1) as f64 * part) as usize]);
    let per_million = |used: f64| used / (total as f64 / 1e6);
    Ok(Row {
        side: side.name.to_owned(),
        events_per_s: total as f64 / seconds,
        cpu_s_per_million: Some(per_million(used[0] + used[1])),
        consumer_cpu_s_per_million: Some(per_million(used[0])),
        redis_cpu_s_per_million: side.on_redis.then(|| per_million(used[1])),
        p50_ms: ms(0.50),
        p99_ms: ms(0.99),
        longest_ms: Some(sent.longest),
        peak_mib,
        ..Row::default()
    })
}
