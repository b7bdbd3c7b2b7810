//! A round in which the servers lose their last seconds repeatedly, while events arrive over HTTP.
//!
//! Each event that was accepted while no writes were lost must take effect once, and in the order of its key. Other
//! accepted events may be without effect; a `fifo` host that is alone and never killed must have counted exactly these
//! as lost. The events of a `sequenced` stream are sent once more at the end, as their producer would, and then all
//! must have taken effect.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ordain_tests::service::wait_until;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::events::{Demands, Producer, Sent, count_taken, effects, send_again, while_producing};
use super::lossy::Servers;
use super::receiver::{Kind, Receiver};

/// How long the round waits for late effects before it counts the lost events: longer than any poll or retry of the
/// host.
pub(crate) const SETTLES: Duration = Duration::from_secs(4);

/// The settings of a round.
#[derive(Debug)]
struct Settings {
    is_fifo: bool,
    /// True if the host is slow and the producer sends at a high rate until a loss, so that many events wait in the
    /// store.
    has_backlog: bool,
    /// True if the host is killed between losses.
    is_killed: bool,
    hosts: usize,
    losses: usize,
}

/// The event counts of a round.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: usize,
    pub(crate) safe: usize,
    pub(crate) lost: usize,
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
    let kind = Kind {
        is_fifo: settings.is_fifo,
        has_backlog: settings.has_backlog,
        store: redis(&servers.url()),
        ..Kind::default()
    };
    let hosts = (0..settings.hosts).map(|_| Receiver::start(&kind));
    let mut hosts: Vec<Receiver> = hosts.collect::<Result<_>>()?;
    let producer = Producer {
        addresses: hosts.iter().map(|host| host.address).collect(),
        has_bursts: settings.has_backlog,
        ..Producer::default()
    };
    let seed = random.random();
    let mut sent = Sent::new();
    let played = while_producing(&producer, &mut sent, seed, |_| {
        disturb(&mut servers, &mut hosts, &settings, &producer.phase, random)
    });
    played.with_context(|| explain(&settings, &hosts))?;
    let counted = check(&mut hosts, &settings, &sent);
    let counts = counted.with_context(|| explain(&settings, &hosts))?;
    hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{counts}; {settings:?}"))
}

/// Returns the section of a store in Redis.
pub(crate) fn redis(url: &str) -> String {
    format!("kind = \"redis\"\nurl = \"{url}\"\nshards = 4")
}

/// Formats the settings of a round and the logs of its hosts.
pub(crate) fn explain(settings: &impl fmt::Debug, hosts: &[Receiver]) -> String {
    let logs: Vec<String> = hosts.iter().map(|host| host.service.stderr()).collect();
    format!("{settings:?}\n{}", logs.join("\n----\n"))
}

/// Makes the servers lose writes repeatedly.
fn disturb(
    servers: &mut Servers,
    hosts: &mut [Receiver],
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

/// Waits until every accepted event has taken effect or is lost. Returns the counts.
fn check(hosts: &mut [Receiver], settings: &Settings, sent: &Sent) -> Result<Counts> {
    if !settings.is_fifo {
        send_again(hosts[0].address, sent)?;
    }
    let demands = Demands { wants_all: !settings.is_fifo, resets: 0, is_exact: false };
    until_taken(hosts, sent, demands)?;
    sleep(SETTLES);
    let counts = Counts::of(sent, taken(hosts, sent, demands)?);
    // Only the process that accepted an event counts its loss, and a killed process forgets the events that it
    // accepted.
    if settings.hosts == 1 && !settings.is_killed && settings.is_fifo {
        hosts[0].check_lost(counts.lost)?;
    }
    Ok(counts)
}

/// Returns how many events took effect. Returns an error if an event has not taken effect although it must.
pub(crate) fn taken(hosts: &[Receiver], sent: &Sent, demands: Demands) -> Result<usize> {
    let outputs: Vec<String> = hosts.iter().map(Receiver::output).collect();
    count_taken(sent, &effects(outputs.iter().map(String::as_str))?, demands)
}

/// Waits until every event that must take effect has done so.
pub(crate) fn until_taken(hosts: &[Receiver], sent: &Sent, demands: Demands) -> Result<()> {
    let mut last = None;
    let arrived = wait_until("effects of all safe events", || {
        last = Some(taken(hosts, sent, demands));
        Ok(matches!(last, Some(Ok(_))))
    });
    arrived.with_context(|| format!("{last:?}"))
}

impl Counts {
    /// Makes the counts of a round with this number of effects.
    pub(crate) fn of(sent: &Sent, taken: usize) -> Self {
        let all = sent.values().flatten();
        let accepted = all.clone().count();
        Self { accepted, safe: all.filter(|event| event.is_safe).count(), lost: accepted - taken }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, safe, lost } = self;
        write!(
            f,
            "{accepted} events accepted, {safe} of them while no writes were lost, {lost} lost"
        )
    }
}
