//! `instances`: what several hosts cost that share four partitions, and how long events wait while one
//! of two goes away, and while both are restarted.
//!
//! All runs on one machine, so that more hosts are no faster: what counts is the processor time of an
//! event. Events come at a steady rate, each makes a message, and the age of each message when it
//! arrives is what is measured. A hand-over takes as long as the oldest of them was old.

mod fleet;
mod watch;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::Rabbit;

use crate::Common;
use crate::amqp::load::{Keys, Load};
use crate::report::{Report, Row};
use fleet::Fleet;
use watch::Watch;

/// Events a second: far from what the machine can do, so that nothing waits for a processor.
const RATE: f64 = 4_000.0;
/// What does not count, and what does, of a load that nothing disturbs.
const COLD: f64 = 2.0;
const WARM: f64 = 5.0;
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

/// One side: its name, how many hosts there are, and what befalls one of them.
const SIDES: [(&str, usize, Option<Loss>); 7] = [
    ("1 instance", 1, None),
    ("2 instances", 2, None),
    ("4 instances", 4, None),
    ("one of 2 leaves", 2, Some(Loss::Leave)),
    ("one of 2: kill -9", 2, Some(Loss::Kill)),
    ("one of 2: SIGSTOP", 2, Some(Loss::Stop)),
    ("2 restarted in turn", 2, Some(Loss::Restart)),
];

pub(crate) fn bench(common: &Common) -> Result<Report> {
    eprintln!("starting RabbitMQ");
    let rabbit = Rabbit::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); SIDES.len()];
    for run in 1..=common.runs {
        for ((name, hosts, loss), rows) in SIDES.into_iter().zip(&mut rows) {
            let what = format!("run {run} of {}: {name}", common.runs);
            eprintln!("{what}");
            let row =
                runtime.block_on(measure(common, &rabbit, name, hosts, loss)).context(what)?;
            rows.push(row);
        }
    }
    let report = Report::new("instances", rows.iter().map(|runs| Row::median(runs)).collect());
    Ok(report.note(format!(
        "Four partitions, {RATE} events/s of 10,000 keys, a message for each; Redis with appendfsync \
         everysec; lease 10 s. CPU is of the hosts, RabbitMQ and Redis. Ages are from publishing an event \
         until its message is back, from the moment on that something befalls a host, for {AFTER} s; the \
         longest is how long events waited for the hand-over."
    )))
}

async fn measure(
    common: &Common,
    rabbit: &Rabbit,
    name: &str,
    hosts: usize,
    loss: Option<Loss>,
) -> Result<Row> {
    let case = fleet::case(common, rabbit).await?;
    let mut fleet = Fleet::start(common, &case, hosts).await?;
    let seconds = COLD + if loss.is_some() { AFTER } else { WARM };
    let load = Load::new(Keys::Many, (RATE * seconds) as usize, "emit");
    let watch = Watch::start(rabbit).await?;
    let (cold, warm) = load.split((RATE * COLD) as usize);
    case.pace(&load, cold, RATE).await?;
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
    let (reached, ()) = tokio::try_join!(case.pace(&load, warm, RATE), disturb)?;
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
