//! A round in which the master is split from the Sentinel and its replica repeatedly, while the hosts still reach it and
//! events arrive on one of several ways.
//!
//! The Sentinel makes the replica master. The hosts write to the replaced master until they find that it was replaced.
//! When they have left it, it becomes a replica, and discards what they wrote. The demands on the events are those of
//! `rewinds.rs`.
//!
//! In some rounds, a master without a replica refuses writes (`min-replicas-to-write`). From the first refusal on, the
//! replaced master must not accept any event, so each event that a host accepts from then on must take effect.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Connection, CutOff, Options, Reply, Sentinel, wait_until};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::effects::Counts;
use super::events::{Producer, Producing, Sent, while_producing};
use super::outlet::Outlet;
use super::receiver::explain;
use super::stage::{Setup, Stage, pause};

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

/// The settings of a round.
#[derive(Debug, Clone, Copy)]
struct Settings {
    /// If hosts are killed, this happens during the splits, and they start again after them.
    setup: Setup,
    /// True if a master refuses writes while its replica is silent for more than a second.
    needs_replica: bool,
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

struct Round {
    group: Sentinel,
    settings: Settings,
    stage: Stage,
    done: SplitResults,
}

/// Plays a round.
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
    // A lease outlasts a split. Otherwise two hosts would take over the partitions of each other in two masters, and
    // one of them would end. After a kill, a lease should end soon.
    let lease = (!is_killed).then_some("30s");
    let (stage, producer) = Stage::start(settings.setup, &group.url(), lease)?;
    let mut round = Round { group, settings, stage, done: SplitResults::default() };
    let seed = random.random();
    let mut sent = Sent::new();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        (0..settings.splits).try_for_each(|_| round.split(&producer, producing, random))
    });
    let counted = played.and_then(|()| round.check(&producer.outlet, &sent));
    let Round { stage: Stage { fleet, .. }, done, .. } = &mut round;
    let counts = counted.with_context(|| explain(&(settings, &*done), &fleet.hosts))?;
    fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
    Ok(format!("{counts}; {done:?}; {settings:?}"))
}

impl Round {
    /// Waits until every accepted event has taken effect or is lost. Returns the counts.
    fn check(&mut self, outlet: &Outlet, sent: &Sent) -> Result<Counts> {
        let counts = self.stage.check(outlet, sent)?;
        let has_ended = self.stage.fleet.has_ended;
        ensure!(!has_ended || self.settings.setup.is_killed, "a host ended by itself");
        Ok(counts)
    }

    /// Splits the group, and reunites it.
    fn split(
        &mut self,
        producer: &Producer,
        producing: &Producing<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        let Settings { setup, needs_replica, .. } = self.settings;
        let is_silent = random.random();
        pause(random, 1_500);
        let gate = self.stage.before_loss(producer, producing.sent)?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        drop(gate);
        if setup.way.is_file() {
            // A command that begins after the split does not reach the replaced master.
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
        self.stage.fleet.kill(&victims)?;
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
            // No host writes to the replaced master any more.
            producer.phase.fetch_add(1, Ordering::SeqCst);
        }
        pause(random, 1_000);
        self.group.reunite()?;
        self.stage.fleet.restart(&victims)?;
        pause(random, 1_000);
        self.stage.fleet.until_ready()
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
