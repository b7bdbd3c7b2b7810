//! A round in which the master is split from the Sentinel and its replica repeatedly, while the hosts still reach it and
//! events arrive over HTTP.
//!
//! The Sentinel makes the replica master. The hosts write to the replaced master until they find that it was replaced.
//! When they have left it, it becomes a replica, and discards what they wrote. The demands on the events are those of
//! `rewinds.rs`.
//!
//! In some rounds, a master without a replica refuses writes (`min-replicas-to-write`). From the first refusal on, the
//! replaced master must not accept any event, so each event that a host accepts from then on must take effect.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Connection, CutOff, Options, Reply, Sentinel, wait_until};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{Counts, Demands, SETTLE_TIME, taken, until_taken};
use super::events::{Producer, Sent, while_producing};
use super::outlet::Outlet;
use super::receiver::{Kind, Receiver, explain, redis};
use super::ways::Way;

/// How long a host may stay at a replaced master: it asks the Sentinels every five seconds.
const FOLLOWS_LIMIT: Duration = Duration::from_secs(30);
/// Reads how many entries the queues of the stream have had, from the ends of the queues.
const ENTRIES: &str = "local sum = 0 \
    for _, log in ipairs(KEYS) do \
        for partition = 0, 3 do \
            local ends = redis.call('HGET', log, 'q' .. partition) \
            if ends then sum = sum + struct.unpack('<I8', ends, 9) end \
        end \
    end \
    return sum";
/// The Redis keys of the queues, one for each shard.
const QUEUES: [&str; 4] = [
    "ordain:{0}:log:stream/cases",
    "ordain:{1}:log:stream/cases",
    "ordain:{2}:log:stream/cases",
    "ordain:{3}:log:stream/cases",
];

/// The hosts of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hosts {
    One,
    /// The host is killed during the splits, and started again after them.
    OneKilled,
    Two,
}

/// The settings of a round.
#[derive(Debug)]
struct Settings {
    is_fifo: bool,
    /// True if the host is slow and the producer sends at a high rate during a split, so that many events wait in the
    /// store.
    has_backlog: bool,
    /// True if a master refuses writes while its replica is silent for more than a second.
    needs_replica: bool,
    hosts: Hosts,
    splits: usize,
}

/// The results of the splits of a round.
#[derive(Debug, Default)]
struct SplitResults {
    /// The events that the hosts put into the queues of a master after its replacement.
    written_late: i64,
    /// The longest time from a replacement until all hosts had left the replaced master.
    longest: Duration,
}

/// Plays a round.
pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings {
        is_fifo: random.random_bool(0.7),
        has_backlog: random.random_bool(0.4),
        needs_replica: random.random_bool(0.4),
        hosts: match random.random_range(0..10) {
            0..3 => Hosts::Two,
            3..5 => Hosts::OneKilled,
            _ => Hosts::One,
        },
        splits: random.random_range(2..4),
    };
    let mut options = Options::new();
    if settings.needs_replica {
        options = options.line("min-replicas-to-write 1").line("min-replicas-max-lag 1");
    }
    let group = Sentinel::with(&options)?;
    let kind = Kind {
        is_fifo: settings.is_fifo,
        has_backlog: settings.has_backlog,
        store: redis(&group.url()),
        // A lease outlasts a split. Otherwise two hosts would take over the partitions of each other in two masters,
        // and one of them would end. After a kill, a lease should end soon.
        lease: (settings.hosts != Hosts::OneKilled).then_some("30s"),
        ..Kind::default()
    };
    let count = if settings.hosts == Hosts::Two { 2 } else { 1 };
    let hosts = (0..count).map(|_| Receiver::start(&kind));
    let mut hosts: Vec<Receiver> = hosts.collect::<Result<_>>()?;
    let producer = Producer {
        outlet: Outlet::Hosts(hosts.iter().map(|host| host.address).collect()),
        has_bursts: settings.has_backlog,
        ..Producer::default()
    };
    let seed = random.random();
    let mut sent = Sent::new();
    let mut done = SplitResults::default();
    let played = while_producing(&producer, &mut sent, seed, |_| {
        for _ in 0..settings.splits {
            let split = Split { group: &group, settings: &settings, phase: &producer.phase };
            split.play(&mut hosts, &mut done, random)?;
        }
        Ok(())
    });
    played.with_context(|| explain(&(&settings, &done), &hosts))?;
    let counted = check(&mut hosts, &settings, &producer.outlet, &sent);
    let counts = counted.with_context(|| explain(&(&settings, &done), &hosts))?;
    hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{counts}; {done:?}; {settings:?}"))
}

/// Waits until every accepted event has taken effect or is lost. Returns the counts.
fn check(
    hosts: &mut [Receiver],
    settings: &Settings,
    outlet: &Outlet,
    sent: &Sent,
) -> Result<Counts> {
    if !settings.is_fifo {
        outlet.send_again(Way::Http, sent)?;
    }
    let demands = Demands { wants_all: !settings.is_fifo, ..Demands::default() };
    until_taken(hosts, sent, demands)?;
    sleep(SETTLE_TIME);
    let counts = Counts::of(sent, taken(hosts, sent, demands)?);
    // A killed process forgets the events that it accepted.
    if settings.is_fifo && settings.hosts == Hosts::One {
        hosts[0].check_lost(counts.lost)?;
    }
    // Two hosts may also count events that the other host had read before the master lost them.
    if settings.is_fifo && settings.hosts == Hosts::Two {
        let counted: u64 = hosts.iter_mut().map(Receiver::lost_and_logged).sum::<Result<_>>()?;
        ensure!(counted >= counts.lost as u64, "{} are lost, {counted} counted", counts.lost);
    }
    Ok(counts)
}

/// A split.
struct Split<'a> {
    group: &'a Sentinel,
    settings: &'a Settings,
    /// An odd number while the master may accept events that it will lose.
    phase: &'a AtomicU32,
}

impl Split<'_> {
    fn play(
        &self,
        hosts: &mut [Receiver],
        done: &mut SplitResults,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let is_killed = self.settings.hosts == Hosts::OneKilled;
        let is_silent = random.random();
        let mut time = |most: u64| Duration::from_millis(random.random_range(100..most));
        sleep(time(1_500));
        self.phase.fetch_add(1, Ordering::SeqCst);
        let mut cut_off = if self.settings.needs_replica {
            let cut_off = self.cut_off_after_refusal(is_silent)?;
            self.phase.fetch_add(1, Ordering::SeqCst);
            cut_off
        } else {
            let cut_off = self.group.cut_off()?;
            sleep(time(1_500));
            cut_off
        };
        let refused = entries(cut_off.connection())?;
        if is_killed {
            hosts[0].service.kill()?;
        }
        self.group.until_replaced()?;
        let replaced = entries(cut_off.connection())?;
        let started = Instant::now();
        wait_until("hosts that have left the replaced master", || {
            Ok(!cut_off.has_clients()? || started.elapsed() > FOLLOWS_LIMIT)
        })?;
        ensure!(!cut_off.has_clients()?, "a host still uses the replaced master");
        done.longest = done.longest.max(started.elapsed());
        let left = entries(cut_off.connection())?;
        done.written_late += left - replaced;
        if self.settings.needs_replica {
            let written = left - refused;
            ensure!(written == 0, "{written} events were written after the master refused writes");
        } else {
            // No host writes to the replaced master any more.
            self.phase.fetch_add(1, Ordering::SeqCst);
        }
        sleep(time(1_000));
        self.group.reunite()?;
        if is_killed {
            hosts[0].start_again()?;
        }
        sleep(time(1_000));
        Ok(())
    }

    /// Cuts off a master that refuses writes without its replica. If `is_silent`, the replica first becomes silent, and
    /// the master accepts writes until it takes notice. The replica loses these writes. Otherwise, the master notices
    /// the closed connection of the replica at once.
    fn cut_off_after_refusal(&self, is_silent: bool) -> Result<CutOff> {
        if !is_silent {
            let mut cut_off = self.group.cut_off()?;
            until_refused(cut_off.connection())?;
            return Ok(cut_off);
        }
        self.group.silence_replica()?;
        until_refused(&mut self.group.master().connect()?)?;
        let cut_off = self.group.cut_off()?;
        self.group.restart_replica()?;
        Ok(cut_off)
    }
}

/// Waits until a master refuses writes because it has no replica.
fn until_refused(master: &mut Connection) -> Result<()> {
    wait_until("a master that refuses writes", || {
        let reply = master.attempt(&["DEL", "nothing"])?;
        Ok(matches!(reply, Reply::Error(error) if error.starts_with("NOREPLICAS")))
    })
}

/// Returns how many entries the queues of the stream have had.
fn entries(master: &mut Connection) -> Result<i64> {
    let count = QUEUES.len().to_string();
    let call = [&["EVAL_RO", ENTRIES, &count], &QUEUES[..]].concat();
    master.command(&call)?.int().context("a number of entries")
}
