//! A round of repeated network splits. In each split, the Sentinel and the replica do not reach the master, but the
//! hosts still reach it. Meanwhile events arrive on one of several routes.
//!
//! The Sentinel promotes the replica. The hosts continue to write to the old master until they find that it was
//! replaced. After all hosts have left the old master, the split ends: the old master becomes a replica, and discards
//! the writes since the split. The requirements on the events are those of `rollbacks.rs`.
//!
//! In some rounds, the setting `min-replicas-to-write` makes a master without a replica refuse writes. In these rounds,
//! no event may reach the old master after its first refusal. So each event that a host accepts after this refusal must
//! take effect.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Connection, CutOff, Options, Reply, Sentinel, wait_until};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::Counts;
use super::event_target::EventTarget;
use super::events::{Producer, RunningProducer, SentEvents, while_producing};
use super::receiver::explain;
use super::round_hosts::{RoundHosts, Setup, pause};

/// How long a host may stay connected to a replaced master. The host queries the Sentinels for the current master
/// every five seconds.
const FOLLOWS_LIMIT: Duration = Duration::from_secs(30);
/// A Lua script that returns how many entries the queues of the stream have had in total. The script adds up the
/// numbers of the last entries of all queues.
const ENTRIES: &str = "local sum = 0 \
    for _, log in ipairs(KEYS) do \
        for partition = 0, 3 do \
            local ends = redis.call('HGET', log, 'q' .. partition) \
            if ends then sum = sum + struct.unpack('<I8', ends, 9) end \
        end \
    end \
    return sum";
/// The Redis keys of the queues of the stream `cases`, one for each shard.
const QUEUES: [&str; 4] = [
    "ordain:{0}:log:stream/cases",
    "ordain:{1}:log:stream/cases",
    "ordain:{2}:log:stream/cases",
    "ordain:{3}:log:stream/cases",
];

#[derive(Debug, Clone, Copy)]
struct Settings {
    /// The settings of the hosts. If `setup.is_killed` is true, the round has one host: the test kills this host during
    /// each split, and restarts it after the split.
    setup: Setup,
    /// True if a master refuses writes while its replica is silent for more than a second.
    needs_replica: bool,
    splits: usize,
}

#[derive(Debug, Default)]
struct SplitResults {
    /// The number of events that the hosts put into the queues of a master after its replacement.
    written_late: i64,
    /// The longest time from a replacement until all hosts had left the replaced master.
    longest: Duration,
}

struct Round {
    group: Sentinel,
    settings: Settings,
    hosts: RoundHosts,
    done: SplitResults,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let (hosts, is_killed) = match random.random_range(0..10) {
        0..3 => (2, false),
        3..5 => (1, true),
        _ => (1, false),
    };
    let settings = Settings {
        setup: Setup::draw(hosts, is_killed, random),
        needs_replica: random.random_bool(0.4),
        splits: random.random_range(2..4),
    };
    let mut options = Options::new();
    if settings.needs_replica {
        options = options.line("min-replicas-to-write 1").line("min-replicas-max-lag 1");
    }
    let group = Sentinel::with(&options)?;
    // Without kills, the lease is longer than a split. With a shorter lease, the lease of each host would expire in the
    // master that the other host uses. Each host would then take over partitions of the other host, and one of the two
    // hosts would end. With kills, the lease is short, so that it expires soon after a kill.
    let lease = (!is_killed).then_some("30s");
    let (hosts, mut producer) = RoundHosts::start(settings.setup, &group.url(), lease)?;
    if settings.setup.is_fifo {
        // While the hosts use different masters, the events of a key have no common order if different hosts accept
        // them (docs/guide/redis.md).
        producer.target.use_first_host();
    }
    let mut round = Round { group, settings, hosts, done: SplitResults::default() };
    let seed = random.random();
    let mut sent = SentEvents::new();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        (0..settings.splits).try_for_each(|_| round.split(&producer, producing, random))
    });
    let counted = played.and_then(|()| round.check(&producer.target, &sent));
    let Round { hosts: RoundHosts { fleet, .. }, done, .. } = &mut round;
    let counts = counted.with_context(|| explain(&(settings, &*done), &fleet.hosts))?;
    fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{counts}; {done:?}; {settings:?}"))
}

impl Round {
    /// Waits until every accepted event has taken effect or is lost, and checks the results. Returns how many events
    /// were accepted, how many of them are safe (accepted while the servers could not lose writes), and how many are
    /// lost.
    fn check(&mut self, target: &EventTarget, sent: &SentEvents) -> Result<Counts> {
        let counts = self.hosts.check(target, sent)?;
        let has_ended = self.hosts.fleet.has_ended();
        ensure!(!has_ended || self.settings.setup.is_killed, "a host ended by itself");
        Ok(counts)
    }

    fn split(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let Settings { setup, needs_replica, .. } = self.settings;
        let is_silent = random.random();
        pause(random, 1_500);
        let gate = self.hosts.before_loss(producer, producing)?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        drop(gate);
        if setup.route.is_file() {
            // The pause lets a run of `ordain publish` begin before the split, because a command that begins later does
            // not reach the old master.
            pause(random, 1_500);
        }
        let mut cut_off = if needs_replica {
            let cut_off = self.cut_off_after_refusal(is_silent)?;
            producer.phase.fetch_add(1, Ordering::SeqCst);
            cut_off
        } else {
            let cut_off = self.group.cut_off()?;
            pause(random, 1_500);
            cut_off
        };
        let refused = entries(cut_off.connection())?;
        let victims = if setup.is_killed { vec![0] } else { Vec::new() };
        self.hosts.fleet.kill(&victims)?;
        self.group.until_replaced()?;
        let replaced = entries(cut_off.connection())?;
        let started = Instant::now();
        wait_until("hosts that have left the replaced master", || {
            Ok(!cut_off.has_clients()? || started.elapsed() > FOLLOWS_LIMIT)
        })?;
        ensure!(!cut_off.has_clients()?, "a host still uses the replaced master");
        self.done.longest = self.done.longest.max(started.elapsed());
        let left = entries(cut_off.connection())?;
        self.done.written_late += left - replaced;
        if needs_replica {
            let written = left - refused;
            ensure!(written == 0, "{written} events were written after the master refused writes");
        } else {
            // From now on, no write is lost, because no host writes to the old master.
            producer.phase.fetch_add(1, Ordering::SeqCst);
        }
        pause(random, 1_000);
        self.group.heal_split()?;
        self.hosts.fleet.restart(&victims)?;
        pause(random, 1_000);
        self.hosts.fleet.until_ready()
    }

    /// Splits off a master that refuses writes without its replica, and returns when the master refuses writes. If
    /// `is_silent` is true, the replica first stops answering. The master then accepts writes until it notices the
    /// silence, and these writes are lost. If `is_silent` is false, the master notices the closed connection of the
    /// replica immediately.
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
