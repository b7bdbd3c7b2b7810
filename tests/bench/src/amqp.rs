//! `amqp`: measures the host on RabbitMQ, and compares the host with handwritten consumers and with a consumer that
//! only acknowledges.
//!
//! Each side of the comparison (the host with certain settings, or one of these consumers) runs in a process of its
//! own. In the first measurement, the queues contain all events at the start. The clock starts when the broker first
//! reports that deliveries are processed, and stops when the broker reports that all deliveries are processed. The
//! start-up time of the process therefore does not count. In the second measurement, the events arrive at a steady
//! rate: half of the measured rate, but at most [`STEADY_RATE_LIMIT`]. The second measurement records the age of each
//! event at the time when the side is done with the event.

pub(crate) mod admin;
pub(crate) mod case;
mod consumer;
pub(crate) mod latency;
pub(crate) mod load;
mod metrics;
pub(crate) mod side;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ordain_servers::Rabbit;

use crate::CommonArgs;
use crate::process::{cpu_seconds, machine_cpu_seconds, peak};
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};
use case::{Case, CaseOptions};
pub(crate) use consumer::Consumer;
use consumer::Kind;
use latency::Latency;
use load::{Keys, Load};
use metrics::Histogram;
use side::{RunningSide, SideProgram};

#[derive(Debug, Args)]
pub(crate) struct AmqpArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of queues among which the broker divides the events
    #[arg(long, default_value_t = 1)]
    partitions: u32,
    /// Maximum number of unacknowledged deliveries of the host and of the sides `B0`, `unordered` and `B0_publish`.
    /// Default: the default of the host
    #[arg(long)]
    prefetch: Option<u16>,
    /// Setting `appendfsync` of Redis, on all sides: when Redis syncs its append-only file to the disk
    #[arg(long, default_value = "everysec", value_parser = ["always", "everysec", "no"])]
    fsync: String,
    /// Factor by which the benchmark multiplies the number of events in each measurement of throughput, for example to
    /// record a longer profile
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Do not measure the latency
    #[arg(long)]
    no_latency: bool,
}

/// A side of the comparison.
#[derive(Debug, Clone, Copy)]
struct Side {
    name: &'static str,
    who: SideProgram,
    keys: Keys,
    /// Number of events in a throughput measurement: enough for some seconds.
    events: u32,
    emits: bool,
    embedded: bool,
}

const fn side(name: &'static str, who: SideProgram, events: u32) -> Side {
    Side { name, who, keys: Keys::Many, events, emits: false, embedded: false }
}

/// All sides. `B0` to `B2_ahead` and `B0_publish` are the baselines: consumers without the host ([`Kind`]).
const SIDES: [Side; 12] = [
    side("B0", SideProgram::Consumer(Kind::Bare), 300_000),
    side("B1", SideProgram::Consumer(Kind::Tasks), 80_000),
    side("B2", SideProgram::Consumer(Kind::Single), 5_000),
    side("B2_ahead", SideProgram::Consumer(Kind::Serial), 40_000),
    side("many_keys", SideProgram::Host, 200_000),
    Side { keys: Keys::Zipf, ..side("zipf_keys", SideProgram::Host, 200_000) },
    Side { keys: Keys::One, ..side("one_key", SideProgram::Host, 200_000) },
    Side { keys: Keys::Disturbed, ..side("disturbed", SideProgram::Host, 200_000) },
    side("unordered", SideProgram::Consumer(Kind::Unordered), 200_000),
    Side { embedded: true, ..side("embedded", SideProgram::Host, 200_000) },
    Side { emits: true, ..side("B0_publish", SideProgram::Consumer(Kind::BarePublish), 100_000) },
    Side { emits: true, ..side("emit", SideProgram::Host, 100_000) },
];

/// The pairs of sides whose rates the report compares: the rate of the first side divided by the rate of the second.
const RATE_RATIOS: [(&str, &str); 10] = [
    ("many_keys", "B0"),
    ("many_keys", "B1"),
    ("many_keys", "B2"),
    ("many_keys", "B2_ahead"),
    ("one_key", "many_keys"),
    ("zipf_keys", "many_keys"),
    ("disturbed", "many_keys"),
    ("many_keys", "unordered"),
    ("embedded", "B0"),
    ("emit", "B0_publish"),
];

/// Interval between two requests for the state of the queues: a hundredth of the duration of the shortest measurement.
/// A request costs the broker a hundredth of a millisecond.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time without any progress after which the benchmark fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// The length of two pauses: after the publication of a load, and after the last event of the load. The broker is still
/// busy at these times.
pub(crate) const SETTLE_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of events that the benchmark publishes per second while it measures latency. The rate is limited
/// because the broker, which accepts and delivers the events, uses the same processors as the side.
const STEADY_RATE_LIMIT: f64 = 8_000.0;
/// Seconds at the start of a steady load that the benchmark does not measure. Then it measures for [`MEASURED_S`]
/// seconds.
const WARMUP_S: f64 = 1.0;
const MEASURED_S: f64 = 4.0;

pub(crate) fn bench(args: &AmqpArgs) -> Result<Report> {
    let sides = args.sides.of(&SIDES, |side| side.name)?;
    ensure!(args.partitions > 0, "--partitions must be 1 or more");
    eprintln!("starting RabbitMQ");
    let rabbit = Rabbit::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measure = |side| runtime.block_on(measure(args, &side, &rabbit));
    let rows = medians(args.common.runs, &sides, |side| side.name, measure)?;
    let mut report = Report::new("amqp", rows);
    for (over, under) in RATE_RATIOS {
        report = report.ratio(over, under);
    }
    Ok(report.note(format!(
        "256 bytes of data per event; {} quorum queues; Redis with appendonly yes and appendfsync {}. CPU: all \
         processes together, then each of them. Latency: from the publication to the commit, or to the step that \
         replaces the commit in a side, at half of the side's rate, but at most {STEADY_RATE_LIMIT} events/s.",
        args.partitions, args.fsync
    )))
}

async fn measure(args: &AmqpArgs, side: &Side, rabbit: &Rabbit) -> Result<Row> {
    let options = CaseOptions {
        plugins: args.common.plugins.canonicalize()?,
        partitions: args.partitions,
        prefetch: args.prefetch,
        fsync: args.fsync.clone(),
        embedded: side.embedded,
        emits: side.emits,
        stream: "",
    };
    let load = side.load(f64::from(side.events) * args.scale);
    let case = Case::new(&options, rabbit).await?;
    let mut row = throughput(args, side, rabbit, &case, &load).await?;
    case.end().await?;
    if args.no_latency {
        return Ok(row);
    }
    let rate = (row.events_per_s / 2.0).min(STEADY_RATE_LIMIT);
    let case = Case::new(&options, rabbit).await?;
    let latency = latency(args, side, &case, rate).await?;
    (row.p50_ms, row.p99_ms) = latency.map(|latency| (latency.p50_ms, latency.p99_ms)).unzip();
    case.end().await?;
    Ok(row)
}

impl Side {
    fn load(&self, events: f64) -> Load {
        Load::new(self.keys, events as usize, if self.emits { "emit" } else { "put" })
    }
}

/// Measures the rate and the processor times from the first delivery to the last, and checks the result of the side.
async fn throughput(
    args: &AmqpArgs,
    side: &Side,
    rabbit: &Rabbit,
    case: &Case,
    load: &Load,
) -> Result<Row> {
    case.fill(load).await?;
    tokio::time::sleep(SETTLE_DELAY).await;
    let deliveries = load.deliveries.len();
    let mut running = RunningSide::start(side.who, &args.common.ordain, case, (deliveries, 0))?;
    eprintln!("{}: {deliveries} deliveries for the process {}", side.name, running.id());
    let total = deliveries as u64;
    let first = until(&mut running, case, total, 1).await?;
    let started = Instant::now();
    let before = cpu(&running, rabbit, case)?;
    until(&mut running, case, total, total).await?;
    let seconds = started.elapsed().as_secs_f64();
    let used = cpu(&running, rabbit, case)?;
    let peak_mib = peak(running.id());
    tokio::time::sleep(SETTLE_DELAY).await;
    if side.emits {
        // Waits until the queue of the messages answers.
        let messages = until(&mut running, case, total, 1).await?;
        ensure!(
            messages == load.distinct(),
            "the side published {messages} messages instead of {}",
            load.distinct()
        );
    }
    let printed = running.finish()?;
    side.who.check(case, load, &printed).await?;
    // A repeated delivery does not count as another event.
    let events = (total - first) as f64 * load.distinct() as f64 / total as f64;
    let used = [0, 1, 2, 3].map(|at| used[at] - before[at]);
    print_busy_processors(side, seconds, used);
    let [consumer, rabbitmq, redis, _] = used.map(|used| Some(used / (events / 1e6)));
    Ok(Row {
        side: side.name.to_owned(),
        events_per_s: events / seconds,
        cpu_s_per_million: Some([consumer, rabbitmq, redis].into_iter().flatten().sum()),
        consumer_cpu_s_per_million: consumer,
        rabbitmq_cpu_s_per_million: rabbitmq,
        redis_cpu_s_per_million: redis,
        peak_mib,
        ..Row::default()
    })
}

/// Returns the processor time, in seconds, that four parts have used: the side's process, RabbitMQ, Redis, and all
/// processes of the machine together.
pub(crate) fn cpu(running: &RunningSide, rabbit: &Rabbit, case: &Case) -> Result<[f64; 4]> {
    let all = machine_cpu_seconds()?;
    let rabbit = cpu_seconds(rabbit.id().context("RabbitMQ is not running")?)?;
    Ok([cpu_seconds(running.id())?, rabbit, case.redis.cpu()?, all])
}

/// Prints the number of processors that each process kept busy. If other programs kept the machine busy, the figures of
/// the run are not valid.
fn print_busy_processors(side: &Side, seconds: f64, used: [f64; 4]) {
    let [consumer, rabbitmq, redis, all] = used.map(|used| used / seconds);
    let others = (all - consumer - rabbitmq - redis).max(0.0);
    eprintln!(
        "{}: busy processors: consumer {consumer:.2}, RabbitMQ {rabbitmq:.2}, Redis {redis:.2}, \
         others {others:.2}",
        side.name
    );
}

/// Waits until at least `enough` of `total` deliveries are done. Returns the number of deliveries that are done.
pub(crate) async fn until(
    running: &mut RunningSide,
    case: &Case,
    total: u64,
    enough: u64,
) -> Result<u64> {
    let mut last = 0;
    let mut moved = Instant::now();
    loop {
        let done = case.done(total).await?;
        if let Some(done) = done.filter(|done| *done >= enough) {
            return Ok(done);
        }
        if let Some(done) = done.filter(|done| *done > last) {
            last = done;
            moved = Instant::now();
        }
        running.check()?;
        ensure!(
            moved.elapsed() < PROGRESS_TIMEOUT,
            "no progress for {PROGRESS_TIMEOUT:?}: {last} of {total} deliveries are done"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Measures the latency of events that arrive at a steady rate. The events of the first [`WARMUP_S`] seconds do not
/// count. Returns `None` if the side reports no latency.
async fn latency(args: &AmqpArgs, side: &Side, case: &Case, rate: f64) -> Result<Option<Latency>> {
    let load = side.load(rate * (WARMUP_S + MEASURED_S));
    let deliveries = load.deliveries.len();
    let cold = (rate * WARMUP_S) as usize;
    let mut running = RunningSide::start(side.who, &args.common.ordain, case, (deliveries, cold))?;
    while !case.is_consumed().await? {
        running.check()?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let (first, rest) = load.split(cold);
    case.pace(&load, first, rate).await?;
    let before = match side.who {
        SideProgram::Host => Histogram::scrape(case.admin).await?,
        SideProgram::Consumer(_) => Histogram::default(),
    };
    let reached = case.pace(&load, rest, rate).await?;
    if reached < rate * 0.95 {
        eprintln!("{}: latency measured at {reached:.0} instead of {rate:.0} events/s", side.name);
    }
    until(&mut running, case, deliveries as u64, deliveries as u64).await?;
    tokio::time::sleep(SETTLE_DELAY).await;
    match side.who {
        SideProgram::Consumer(_) => running.finish_with_latency(),
        SideProgram::Host => {
            let latency = Histogram::scrape(case.admin).await?.latency_since(&before);
            running.finish()?;
            Ok(latency)
        }
    }
}
