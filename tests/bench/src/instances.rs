//! `instances`: what several hosts cost that share four partitions, and how long events wait while one
//! of two goes away, and while both are restarted.
//!
//! All runs on one machine, so that more hosts are no faster: what counts is the processor time of an
//! event. Events come at a steady rate, each makes a message, and the age of each message when it
//! arrives is what is measured. A hand-over takes as long as the oldest of them was old.

pub(crate) mod fleet;
pub(crate) mod watch;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use ordain_servers::Rabbit;

use crate::Common;
use crate::amqp::load::{Keys, Load};
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};
use fleet::Fleet;
use watch::Watch;

/// What does not count, and what does, of a load that nothing disturbs.
const COLD: f64 = 2.0;
const WARM: f64 = 10.0;
/// From the disturbance on: longer than the lease and all that may follow it.
const AFTER: f64 = 18.0;
/// For the last messages.
const PATIENCE: Duration = Duration::from_secs(30);

/// What befalls two hosts.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// One is asked to end.
    Leave,
    /// `kill -9` of one.
    Kill,
    /// `SIGSTOP` of one.
    Stop,
    /// One is asked to end and another started in its place, and then the same of the other one.
    Restart,
}

#[derive(Debug, Args)]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    sides: Sides,
    /// Events a second.
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
}

/// One side: its name, how many hosts there are, and what befalls them.
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
        "one, two, four: so many instances for {WARM} s. leave, kill_9, sigstop: what befalls one of two; \
         restart: both, in turn; for {AFTER} s from that moment on. Four partitions, {} events/s of 10,000 \
         keys, a message for each; Redis with appendfsync everysec; lease 10 s. CPU is of the hosts, RabbitMQ \
         and Redis, with what each needs when nothing comes. Ages are from publishing an event until its \
         message is back: where something befalls a host, the longest is how long events waited for the \
         hand-over. The memory is the sum of each host's most.",
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
    let seconds = COLD + if loss.is_some() { AFTER } else { WARM };
    let load = Load::new(Keys::Many, (rate * seconds) as usize, "emit");
    let watch = Watch::start(rabbit).await?;
    let (cold, warm) = load.split((rate * COLD) as usize);
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
    ensure!(disturbed.as_secs_f64() < AFTER, "{name}: it took {disturbed:?}, longer than the load");
    // What is published later than it is due has waited, and no age says so.
    ensure!(reached > 0.95 * rate, "{name}: only {reached:.0} events/s were published");
    watch.until(load.deliveries.len(), PATIENCE).await?;
    // Of one that has ended nobody knows any more what it used.
    let used = if loss.is_some() { None } else { Some(fleet.cpu(&case, rabbit)?) };
    let peak_mib = fleet.peak();
    let ages = watch.end()?;
    ensure!(ages.len() >= warm.len(), "{name}: {} messages of {}", ages.len(), warm.len());
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
