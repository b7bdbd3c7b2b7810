//! `isolation`: measures how a gapped key affects other keys. The first event of the gapped key is missing, and the
//! host holds all later events of this key. The benchmark also measures the rate at which the host executes the held
//! events after the missing event has arrived.
//!
//! Both sides get the same events of the same keys in the same order, except that the side `gapped` gets the first
//! event of the gapped key last.
//!
//! In the first measurement, the queue contains the events at the start. The clock runs from the first delivery until
//! all events of the other keys have taken effect. During this time, the side `no_gap` also executes the events of the
//! gapped key. The side `gapped` spills these events, and executes them afterwards. In the second measurement, the
//! events come at a steady rate, and some events of the other keys make messages. The benchmark reports the ages of
//! these messages.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use ordain_servers::Rabbit;
use tokio::time::sleep;

use crate::CommonArgs;
use crate::amqp::case::{Case, CaseOptions, STREAM};
use crate::amqp::load::Load;
use crate::amqp::side::{RunningSide, SideProgram};
use crate::amqp::{SETTLE_DELAY, admin, cpu, until};
use crate::instances::watch::Watch;
use crate::process::peak;
use crate::report::{Figure, Report, Row};
use crate::sides::{Sides, medians};

/// The key whose event is missing.
const GAP_KEY: u32 = 0;
/// Keys whose events make messages: a tenth of the keys other than [`GAP_KEY`].
const EMITTING_KEYS: std::ops::Range<u32> = 1..101;
/// Seconds at the start of a steady load that are not measured.
const WARMUP_S: f64 = 2.0;
/// Time limit until all events have taken effect, and until the last messages have arrived.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);
/// Interval between two requests for the metrics of the host.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Settings of the stream. The host searches for the missing event in up to 1,000 rounds, so it does not give up during
/// a run. The host holds all later events, because none of them is too far ahead.
const SETTINGS: &str = "gap = { attempts = 1000, backoff = \"200ms..1s\", max_width = 1000000 }";

#[derive(Debug, Args)]
pub(crate) struct IsolationArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of events of the key whose first event is missing
    #[arg(long, default_value_t = 100_000)]
    followers: usize,
    /// Number of events of the 1,000 other keys together
    #[arg(long, default_value_t = 200_000)]
    events: usize,
    /// Number of events of all keys per second, while the benchmark measures the ages of messages
    #[arg(long, default_value_t = 8_000.0)]
    rate: f64,
}

/// A side: its name, and true if the first event of [`GAP_KEY`] is missing.
type Side = (&'static str, bool);

const SIDES: [Side; 2] = [("no_gap", false), ("gapped", true)];

pub(crate) fn bench(args: &IsolationArgs) -> Result<Report> {
    let sides = args.sides.of(&SIDES, |side| side.0)?;
    ensure!(args.rate >= 1.0 && args.followers > 0, "--rate and --followers must be 1 or more");
    eprintln!("starting RabbitMQ");
    let rabbit = Rabbit::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measure = |side| runtime.block_on(measure(args, &rabbit, side));
    let rows = medians(args.common.runs, &sides, |side| side.0, measure)?;
    let rate: Figure = |row| Some(row.events_per_s);
    let p99: Figure = |row| row.p99_ms;
    let report = Report::new("isolation", rows)
        .ratio_of("throughput/gapped", ("gapped", rate), ("no_gap", rate))
        .ratio_of("p99/gapped", ("gapped", p99), ("no_gap", p99));
    Ok(report.note(format!(
        "{} events of 1,000 keys, with {} events of one key evenly between them. In `gapped` the first event of this \
         key arrives last. Redis has appendfsync everysec; one quorum queue; default settings except `gap`, so that \
         the host does not give up the gap and holds all later events. events/s: events of the 1,000 keys, from a \
         full queue. CPU: host, RabbitMQ and Redis until these events took effect, per event of any key. Ages: from \
         the publication of an event until the benchmark receives its message, for a tenth of the 1,000 keys, at {} \
         events/s of all keys. drained: held events of the one key per second after its missing event has arrived; \
         the benchmark checked that each event follows the previous one. The memory is the maximum before the \
         missing event arrives.",
        args.events, args.followers, args.rate
    )))
}

async fn measure(args: &IsolationArgs, rabbit: &Rabbit, side: Side) -> Result<Row> {
    let full = throughput(args, rabbit, side).await?;
    let (p50_ms, p99_ms) = ages(args, rabbit, side).await?;
    Ok(Row { p50_ms: Some(p50_ms), p99_ms: Some(p99_ms), ..full })
}

async fn case(args: &IsolationArgs, rabbit: &Rabbit, emits: bool) -> Result<Case> {
    let options = CaseOptions {
        plugins: args.common.plugins.canonicalize()?,
        partitions: 1,
        prefetch: None,
        fsync: "everysec".to_owned(),
        embedded: false,
        emits,
        stream: SETTINGS,
    };
    Case::new(&options, rabbit).await
}

/// Measures the rate at which the host executes the events of a queue that contains all events at the start, except the
/// missing event.
async fn throughput(args: &IsolationArgs, rabbit: &Rabbit, (name, is_gapped): Side) -> Result<Row> {
    let case = case(args, rabbit, false).await?;
    let mut load = Load::beside_one(args.events, args.followers, 0..0);
    let missing = if is_gapped { load.lose_first(GAP_KEY) } else { None };
    case.fill(&load).await?;
    sleep(SETTLE_DELAY).await;
    let total = load.deliveries.len() as u64;
    let counts = (total as usize, 0);
    let mut running = RunningSide::start(SideProgram::Host, &args.common.ordain, &case, counts)?;
    eprintln!("{name}: {total} deliveries for the process {}", running.id());
    let first = until(&mut running, &case, total, 1).await?;
    let started = Instant::now();
    let before = cpu(&running, rabbit, &case)?;
    let held = if is_gapped { args.followers as u64 } else { 0 };
    settled(&mut running, &case, load.distinct() - held).await?;
    let seconds = started.elapsed().as_secs_f64();
    let after = cpu(&running, rabbit, &case)?;
    let events = (total - first) as f64;
    let [host, rabbitmq, redis] =
        [0, 1, 2].map(|at| Some((after[at] - before[at]) / (events / 1e6)));
    // The host acknowledges spilled events, too, so all deliveries leave the queue.
    until(&mut running, &case, total, total).await?;
    let peak_mib = peak(running.id());
    let mut drained_per_s = None;
    if let Some(missing) = missing {
        let started = Instant::now();
        case.pace(&load, &[missing], args.rate).await?;
        settled(&mut running, &case, load.distinct()).await?;
        drained_per_s = Some(held as f64 / started.elapsed().as_secs_f64());
    }
    sleep(SETTLE_DELAY).await;
    let printed = running.finish()?;
    SideProgram::Host.check(&case, &load, &printed).await?;
    case.end().await?;
    Ok(Row {
        side: name.to_owned(),
        events_per_s: events * args.events as f64 / total as f64 / seconds,
        consumer_cpu_s_per_million: host,
        rabbitmq_cpu_s_per_million: rabbitmq,
        redis_cpu_s_per_million: redis,
        drained_per_s,
        peak_mib,
        ..Row::default()
    })
}

/// Waits until `count` events have taken effect. Returns an error if more than `count` events have taken effect.
async fn settled(running: &mut RunningSide, case: &Case, count: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let settled = admin::effects(case.admin, STREAM).await?;
        ensure!(settled <= count, "{settled} events have taken effect, more than {count}");
        if settled == count {
            return Ok(());
        }
        running.check()?;
        ensure!(
            started.elapsed() < DRAIN_TIMEOUT,
            "only {settled} of {count} events have taken effect"
        );
        sleep(POLL_INTERVAL).await;
    }
}

/// Measures the ages of the events of the keys [`EMITTING_KEYS`] at a steady rate. Returns the median and the 99th
/// percentile, in ms.
async fn ages(
    args: &IsolationArgs,
    rabbit: &Rabbit,
    (name, is_gapped): Side,
) -> Result<(f64, f64)> {
    let case = case(args, rabbit, true).await?;
    let mut load = Load::beside_one(args.events, args.followers, EMITTING_KEYS);
    let missing = if is_gapped { load.lose_first(GAP_KEY) } else { None };
    let mut running = RunningSide::on(&args.common.ordain, case.home.path())?;
    while !case.is_consumed().await? {
        running.check()?;
        sleep(POLL_INTERVAL).await;
    }
    let watch = Watch::start(rabbit).await?;
    let (cold, warm) = load.split((args.rate * WARMUP_S) as usize);
    case.pace(&load, cold, args.rate).await?;
    watch.begin();
    let reached = case.pace(&load, warm, args.rate).await?;
    // The age of an event begins at its publication, so the ages do not show whether the benchmark published the load
    // too slowly.
    ensure!(reached > 0.95 * args.rate, "{name}: only {reached:.0} events/s were published");
    watch.until(load.messages(), DRAIN_TIMEOUT).await?;
    let ages = watch.end()?;
    if let Some(missing) = missing {
        case.pace(&load, &[missing], args.rate).await?;
    }
    settled(&mut running, &case, load.distinct()).await?;
    running.finish()?;
    case.end().await?;
    let ms = |part: f64| ages[((ages.len() - 1) as f64 * part) as usize] / 1_000.0;
    Ok((ms(0.50), ms(0.99)))
}
