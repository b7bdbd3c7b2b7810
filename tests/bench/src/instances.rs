//! `instances`: measures the cost of several hosts that share four partitions. Also measures the delay of events while
//! one of two hosts leaves or fails, or while both are restarted.
//!
//! All hosts run on one machine, so more hosts do not process more events per second. The benchmark therefore compares
//! the processor time per event. Events arrive at a steady rate, and each event makes a message. The benchmark measures
//! the age of each event when the message of the event arrives. The highest age after a disturbance shows how long
//! events waited for the hand-over.

pub(crate) mod fleet;
pub(crate) mod watch;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use ordain_servers::Rabbit;

use crate::CommonArgs;
use crate::amqp::load::{Keys, Load};
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};
use fleet::Fleet;
use watch::Watch;

/// Seconds at the start of a load that the benchmark does not measure. If no disturbance follows, the benchmark then
/// measures for [`MEASURED_S`] seconds.
const WARMUP_S: f64 = 2.0;
const MEASURED_S: f64 = 10.0;
/// Seconds of measured load from the start of the disturbance: longer than the lease and the following hand-over
/// together.
const LOAD_AFTER_S: f64 = 18.0;
/// Time limit for the arrival of the last messages.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The disturbance in a side with two hosts.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// One host gets `SIGTERM`.
    Leave,
    /// One host gets `kill -9`.
    Kill,
    /// One host gets `SIGSTOP`.
    Stop,
    /// Each of the two hosts in turn gets `SIGTERM`, and a new host starts in its place.
    Restart,
}

#[derive(Debug, Args)]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of events that the benchmark publishes per second
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
}

/// A side: its name, its number of hosts, and its disturbance.
type Side = (&'static str, usize, Option<Loss>);

const SIDES: [Side; 7] = [
    ("one", 1, None),
    ("two", 2, None),
    ("four", 4, None),
    ("leave", 2, Some(Loss::Leave)),
    ("kill_9", 2, Some(Loss::Kill)),
    ("sigstop", 2, Some(Loss::Stop)),
    ("restart", 2, Some(Loss::Restart)),
];

pub(crate) fn bench(args: &InstancesArgs) -> Result<Report> {
    let sides = args.sides.of(&SIDES, |side| side.0)?;
    ensure!(args.rate >= 1.0, "--rate must be 1 or more");
    eprintln!("starting RabbitMQ");
    let rabbit = Rabbit::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measure = |side| runtime.block_on(measure(args, &rabbit, side));
    let rows = medians(args.common.runs, &sides, |side| side.0, measure)?;
    Ok(Report::new("instances", rows).note(format!(
        "one, two, four: number of instances, measured for {MEASURED_S} s. leave, kill_9, sigstop: a disturbance of one \
         of two instances; restart: of both, in turn; measured for {LOAD_AFTER_S} s from the disturbance on. Four \
         partitions, {} events/s of 10,000 keys, one message per event; Redis with appendfsync everysec; lease 10 s. \
         CPU: hosts, RabbitMQ and Redis, including their CPU without events. Ages: from the publication of an event \
         until the benchmark receives its message. After a disturbance, the longest age is the time that events \
         waited for the hand-over. The memory is the sum of the hosts' maximums.",
        args.rate
    )))
}

async fn measure(
    InstancesArgs { common, rate, .. }: &InstancesArgs,
    rabbit: &Rabbit,
    (name, hosts, loss): Side,
) -> Result<Row> {
    let rate = *rate;
    let case = fleet::case(&common.plugins, rabbit).await?;
    let mut fleet = Fleet::start(common, &case, hosts).await?;
    let seconds = WARMUP_S + if loss.is_some() { LOAD_AFTER_S } else { MEASURED_S };
    let load = Load::new(Keys::Many, (rate * seconds) as usize, "emit");
    let watch = Watch::start(rabbit).await?;
    let (cold, warm) = load.split((rate * WARMUP_S) as usize);
    case.pace(&load, cold, rate).await?;
    let before = fleet.cpu(&case, rabbit)?;
    watch.begin();
    let disturb = async {
        match loss {
            None => Ok(()),
            Some(Loss::Leave) => fleet.signal("TERM"),
            Some(Loss::Kill) => fleet.signal("KILL"),
            Some(Loss::Stop) => fleet.signal("STOP"),
            Some(Loss::Restart) => fleet.restart(&case).await,
        }
    };
    let started = Instant::now();
    let disturb = async { disturb.await.map(|()| started.elapsed()) };
    let (reached, disturbed) = tokio::try_join!(case.pace(&load, warm, rate), disturb)?;
    ensure!(
        disturbed.as_secs_f64() < LOAD_AFTER_S,
        "{name}: the disturbance took {disturbed:?}, longer than the load"
    );
    // The age of an event begins at its publication, so the ages do not show whether the benchmark published the load
    // too slowly.
    ensure!(reached > 0.95 * rate, "{name}: only {reached:.0} events/s were published");
    watch.until(load.deliveries.len(), DRAIN_TIMEOUT).await?;
    // The processor time of a host that has ended cannot be read.
    let used = if loss.is_some() { None } else { Some(fleet.cpu(&case, rabbit)?) };
    let peak_mib = fleet.peak();
    let ages = watch.end()?;
    ensure!(
        ages.len() >= warm.len(),
        "{name}: the benchmark measured the ages of {} events instead of at least {}",
        ages.len(),
        warm.len()
    );
    if let Some(Loss::Stop) = loss {
        fleet.signal("CONT")?;
    }
    fleet.end()?;
    case.end().await?;
    let per_million = |at: usize| Some((used?[at] - before[at]) / (warm.len() as f64 / 1e6));
    let ms = |part: f64| Some(ages[((ages.len() - 1) as f64 * part) as usize] / 1_000.0);
    Ok(Row {
        side: name.to_owned(),
        events_per_s: reached,
        cpu_s_per_million: per_million(0)
            .zip(per_million(1))
            .zip(per_million(2))
            .map(|((hosts, rabbit), redis)| hosts + rabbit + redis),
        consumer_cpu_s_per_million: per_million(0),
        rabbitmq_cpu_s_per_million: per_million(1),
        redis_cpu_s_per_million: per_million(2),
        p50_ms: ms(0.50),
        p99_ms: ms(0.99),
        longest_ms: ms(1.0),
        peak_mib,
        ..Row::default()
    })
}
