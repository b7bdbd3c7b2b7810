//! A round in which the test removes keys of a Redis server, one by one or all together, as an operator or an eviction
//! would do. Meanwhile, events arrive over HTTP, through the inbox, through a chain, or from RabbitMQ.
//!
//! The consequences of a removal depend on the data of the Redis key (`docs/guide/redis.md`). If a queue is removed,
//! its waiting events are lost, and the host counts them. If the key records of a shard are removed, the stream stops
//! with an error, and the keys of the shard begin anew after the next start. Without the Redis key `store`, the next
//! start is refused. The removal of other Redis keys loses no event. All events that are accepted after a
//! removal and its consequences take effect once and in order.
//!
//! If all Redis keys are removed (`FLUSHALL`), each host must stop accepting events within [`ACCEPT_LIMIT`], name the
//! loss, and end. The test then starts the hosts again, which is the step that the guide describes if no copy of the
//! data exists. The hosts must create a new store. All keys begin anew. The events that a host accepted after the
//! removal are in the new store, so they must take effect even if the host accepted them before its end.
//!
//! In rounds with a `sequenced` stream, the test compares the reports of the hosts with the events of each shard
//! (`losses.rs`) before it sends any event again. This comparison needs all key records and all processes, so it is
//! absent in rounds in which a key record was removed or a host ended.
//!
//! In a third of the rounds, the handler is slow, so that keys have spilled events in the store. In these rounds, the
//! test does not remove the due index: without the index, these keys would wait for their next event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ordain_servers::Redis;
use ordain_tests::http;
use ordain_tests::rig::Rig;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

use super::effects::{Counts, Demands, EffectsWait, RECOUNT_INTERVAL, taken};
use super::event_target::EventTarget;
use super::events::{Producer, SentEvents, now, while_producing};
use super::losses::{ExactReports, ReportedLosses, stored_fates};
use super::receiver::{Backlog, Kind, Receiver, WENT_BACK, explain, redis};
use super::routes::Route;

const CHAIN: Route = Route::Chain { is_numbered: false };
/// The Redis key `store`, which records the shape of the store: the schema and the number of shards.
const STORE_KEY: &str = "ordain:{0}:store";
const REFUSAL_WORDS: &str = "which has the number of shards, is missing";
/// A part of the error of a host that takes over a partition without the Redis key [`STORE_KEY`].
const LOST_RECORD: &str = "the store lost everything, or another program removed";
const EVERYTHING: &str = "everything";
/// The probability that a removal concerns all Redis keys.
const EVERYTHING_PROBABILITY: f64 = 0.15;
const NEW_STORE: &str = "created a new store at ";
/// The time within which hosts must stop accepting events over HTTP after the removal of all Redis keys. The documented
/// limit is one second. The test allows two more seconds for a busy machine.
const ACCEPT_LIMIT: Duration = Duration::from_secs(3);
/// How long the effects of the sent events may take. With a slow handler, the events of the last removal may wait for
/// half a minute.
const EFFECTS_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The interval between two checks that run a command.
const COMMAND_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Settings {
    route: Route,
    is_fifo: bool,
    backlog: Backlog,
    hosts: usize,
}

/// The possible consequences of the removals so far.
#[derive(Debug, Default)]
struct Consequences {
    /// The number of removed Redis keys that held key records, plus the number of removals of all Redis keys. After
    /// each such removal, each key of the shard, or each key of the store, may begin anew once.
    resets: u32,
    /// True if hosts may have ended and restarted, so that their counters are incomplete.
    was_restarted: bool,
    /// True if waiting events may be lost.
    is_lossy: bool,
    /// True if the test has sent all events again, so that lost events may have taken effect.
    was_sent_again: bool,
    removed: Vec<String>,
}

struct Round {
    redis: Redis,
    kind: Kind,
    /// The broker, if the events pass through one.
    rig: Option<Arc<Rig>>,
    /// The record of the store's shape: schema and number of shards.
    shape: [String; 2],
    hosts: Vec<Receiver>,
    settings: Settings,
    sent: SentEvents,
    done: Consequences,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    // After the removal of a Redis key of the kind `log`, the store would assign the numbers of messages and of a
    // file's lines a second time. The routes that need these numbers are therefore absent.
    let route = match Route::draw_without_file(random) {
        Route::Chain { .. } => CHAIN,
        other => other,
    };
    let settings = Settings {
        route,
        // With a `sequenced` stream, the test sends all events again. If the first stage of a chain no longer knows an
        // event, it executes the repeat of the event. The repeat then takes effect in the second stage too. The streams
        // of a chain are therefore `fifo`. Restarts may change the order in which RabbitMQ delivers events; a
        // `sequenced` stream restores this order.
        is_fifo: route == CHAIN || !route.uses_broker() && random.random_bool(0.6),
        backlog: match random.random_range(0..3) {
            0 => Backlog::LowPrefetch,
            1 => Backlog::SlowHandler,
            _ => Backlog::None,
        },
        hosts: if random.random_bool(0.3) { 2 } else { 1 },
    };
    let server = Redis::start(&[])?;
    let rig = route.start_broker()?;
    let kind = Kind {
        route,
        is_fifo: settings.is_fifo,
        backlog: settings.backlog,
        store: redis(&server.url()),
        broker: rig.as_ref().map(|rig| rig.rabbit.url()),
        // These settings produce Redis keys of all kinds.
        stream: "spill_after = \"1ms\"\nkey_ttl = \"1h\"".to_owned(),
        ..Kind::default()
    };
    let hosts = (0..settings.hosts).map(|_| Receiver::start(&kind)).collect::<Result<_>>()?;
    if let Some(rig) = &rig {
        rig.until_declared()?;
    }
    let found = server.command(&["HMGET", STORE_KEY, "schema", "shards"])?;
    let [schema, shards] = found.parts() else {
        bail!("the store lacks the record of its shape: {found:?}")
    };
    let shape = [schema, shards].map(|value| value.text().unwrap_or_default().to_owned());
    let sent = SentEvents::new();
    let done = Consequences::default();
    let mut round = Round { redis: server, kind, rig, shape, hosts, settings, sent, done };
    let played = (0..random.random_range(1..5)).try_for_each(|_| round.remove_one(random));
    let counted = played.and_then(|()| round.check());
    let Round { hosts, settings, done, .. } = &mut round;
    let counts = counted.with_context(|| format!("{done:?} {}", explain(&*settings, hosts)))?;
    for host in hosts {
        let ended = host.service.end();
        // A host detects by a commit that a shard has lost its key records. If the shard had no event since the
        // removal, the first such commit is the empty commit that the host makes at its end.
        let log = host.service.stderr();
        let mut lost_shards = done.removed.iter().filter_map(|name| {
            let (shard, kind) = name.strip_prefix("ordain:{")?.split_once('}')?;
            kind.starts_with(":data:").then(|| format!("{WENT_BACK} in shard {shard}:"))
        });
        let is_expected = lost_shards.any(|words| log.contains(&words));
        ended.or_else(|error| if is_expected { Ok(()) } else { Err(error) })?;
    }
    Ok(format!("{counts}; {settings:?}; removed {}", done.removed.join(", ")))
}

impl Round {
    fn remove_one(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let calm = Duration::from_millis(random.random_range(100..1_500));
        self.produce(0, random.random(), |round, _| round.watch(calm))?;
        let is_quiet = random.random_bool(0.4);
        if is_quiet {
            self.until_settled()?;
            if let Some(rig) = &self.rig {
                // If a host ended, the broker would deliver unacknowledged events again. Without their key records,
                // these events would take effect again.
                rig.until_empty()?;
            }
        }
        let (kind, name) = self.choose(random)?;
        let words = if is_quiet { "at rest" } else { "under load" };
        self.done.removed.push(format!("{name} {words}"));
        let is_lossy = ["data", "log", EVERYTHING].contains(&&*kind);
        let takes_waiting = is_lossy && !is_quiet;
        let before = Duration::from_millis(random.random_range(0..1_000));
        let after = Duration::from_millis(random.random_range(200..2_000));
        let mut removed_at = i64::MAX;
        self.produce(u32::from(is_lossy), random.random(), |round, producer| {
            if !is_quiet {
                round.watch(before)?;
            }
            round.done.is_lossy |= is_lossy;
            if kind == EVERYTHING {
                round.done.resets += 1;
                round.redis.command(&["FLUSHALL"])?;
                let flushed_at = Instant::now();
                removed_at = now();
                // The servers lose none of the events that arrive from now on.
                producer.phase.fetch_add(1, Ordering::SeqCst);
                round.until_ended(producer, flushed_at)?;
                round.start_new_store()?;
            } else {
                round.redis.command(&["DEL", &name])?;
                round.done.resets += u32::from(kind == "data");
            }
            round.watch(after)?;
            // If the memberships change on a busy machine, a host accepts no more events without this record.
            if kind == "store" { mend_shape(&round.redis, &round.shape) } else { Ok(()) }
        })?;
        if takes_waiting {
            // Each event that was sent until `removed_at`, or its message, may have been waiting in the removed Redis
            // key. If only one Redis key was removed, `removed_at` is a time after all events that were sent so far.
            let earlier = self.sent.values_mut().flatten();
            for event in earlier.filter(|event| event.sent_at <= removed_at) {
                event.is_safe = false;
                event.is_at_risk = true;
            }
        }
        if kind == "store" {
            self.redis.command(&["DEL", &name])?;
            self.refuse_start()?;
        }
        Ok(())
    }

    /// Sends events while `meanwhile` runs. In an odd phase, the events may be lost.
    fn produce(
        &mut self,
        phase: u32,
        seed: u64,
        meanwhile: impl FnOnce(&mut Self, &Producer) -> Result<()>,
    ) -> Result<()> {
        let producer = Producer {
            target: self.target()?,
            route: self.settings.route,
            phase: AtomicU32::new(phase),
            backlog: self.settings.backlog,
            has_gaps: !self.settings.is_fifo,
            ..Producer::default()
        };
        let mut sent = std::mem::take(&mut self.sent);
        let done = while_producing(&producer, &mut sent, seed, |producing| {
            let done = meanwhile(self, &producer);
            producing.end();
            // Only `watch` restarts hosts that end. Without this call, the producer could wait for a host that never
            // starts.
            while !producing.is_finished() {
                self.watch(POLL_INTERVAL)?;
            }
            done
        });
        self.sent = sent;
        done
    }

    fn target(&self) -> Result<EventTarget> {
        EventTarget::new(&self.kind, self.rig.as_ref(), &self.hosts)
    }

    /// Draws a Redis key of a random kind, or the removal of all Redis keys. Returns the kind and the name of the Redis
    /// key.
    fn choose(&self, random: &mut ChaCha8Rng) -> Result<(String, String)> {
        // Before its end, a host sends lost messages of a chain again from memory. After the removal of all Redis keys,
        // the second stage no longer knows these messages, so they could take effect again.
        if self.settings.route != CHAIN && random.random_bool(EVERYTHING_PROBABILITY) {
            return Ok((EVERYTHING.to_owned(), EVERYTHING.to_owned()));
        }
        let reply = self.redis.command(&["KEYS", "*"])?;
        let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let is_chain = self.settings.route == CHAIN;
        let is_slow = self.settings.backlog == Backlog::SlowHandler;
        for name in reply.parts().iter().filter_map(ordain_servers::Reply::text) {
            // These Redis keys contain the key records of a chain's first stage. Without them, the first stage would
            // begin anew, and emit its messages again under other ids.
            if is_chain && name.ends_with(":data:cases") {
                continue;
            }
            let kind = name.split(':').nth(2).context("a kind")?;
            // With a slow handler, many keys have spilled events that could be executed immediately. After the removal
            // of the due index, these keys would wait for their next event (docs/internals/storage.md).
            if is_slow && kind == "due" {
                continue;
            }
            kinds.entry(kind.to_owned()).or_default().insert(name.to_owned());
        }
        let kinds: Vec<(String, Vec<String>)> =
            kinds.into_iter().map(|(kind, names)| (kind, names.into_iter().collect())).collect();
        let (kind, names) = kinds.choose(random).context("a key")?;
        Ok((kind.clone(), names.choose(random).context("a key")?.clone()))
    }

    /// Watches the hosts for a while. Restarts hosts that end because the store went back in time, or because the Redis
    /// key [`STORE_KEY`] is missing.
    fn watch(&mut self, time: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            for host in &mut self.hosts {
                if host.service.is_running()? {
                    continue;
                }
                let log = host.service.stderr();
                let has_reset = self.done.resets > 0 && log.contains(WENT_BACK);
                ensure!(has_reset || log.contains(LOST_RECORD), "a host ended: {log}");
                self.done.was_restarted = true;
                host.begin_again()?;
                if let Err(error) = http::ready(&mut host.service) {
                    ensure!(host.service.stderr().contains(REFUSAL_WORDS), "{error:?}");
                    mend_shape(&self.redis, &self.shape)?;
                    host.start_again()?;
                }
            }
            if started.elapsed() >= time {
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Waits until all hosts have ended after the removal of all Redis keys at `flushed_at`. Checks that each host has
    /// named the loss, and that the hosts accepted no events after [`ACCEPT_LIMIT`].
    fn until_ended(&mut self, producer: &Producer, flushed_at: Instant) -> Result<()> {
        for host in &mut self.hosts {
            let status = host.service.wait()?;
            let log = host.service.stderr();
            let is_named = log.contains(WENT_BACK) || log.contains(LOST_RECORD);
            ensure!(!status.success() && is_named, "a host ended with {status}: {log}");
        }
        // On this route, the broker accepts the events.
        if self.settings.route != Route::Exchange
            && let Some(accepted_at) = producer.accepted_at()
        {
            let after = accepted_at.saturating_duration_since(flushed_at);
            ensure!(after < ACCEPT_LIMIT, "a host accepted events {after:?} after the loss");
        }
        Ok(())
    }

    fn start_new_store(&mut self) -> Result<()> {
        self.done.was_restarted = true;
        self.hosts.iter_mut().try_for_each(Receiver::begin_again)?;
        for host in &mut self.hosts {
            http::ready(&mut host.service)?;
        }
        let creates = |host: &Receiver| host.service.stderr().contains(NEW_STORE);
        ensure!(self.hosts.iter().any(creates), "no host has created a new store");
        Ok(())
    }

    /// Checks that the host refuses to start without the record of the store's shape. Then writes the record, and
    /// starts the host.
    fn refuse_start(&mut self) -> Result<()> {
        let host = &mut self.hosts[0];
        if host.service.is_running()? {
            host.service.kill()?;
        }
        self.done.was_restarted = true;
        host.begin_again()?;
        if self.redis.command(&["EXISTS", "ordain:{0}:partitions"])?.int() == Some(0) {
            // No remaining Redis key shows that the store was used, so the start makes a new store.
            return http::ready(&mut host.service).map(drop);
        }
        let status = host.service.wait()?;
        let log = host.service.stderr();
        ensure!(
            !status.success() && log.contains(REFUSAL_WORDS),
            "the start ended with {status}: {log}"
        );
        mend_shape(&self.redis, &self.shape)?;
        host.start_again()
    }

    fn until_settled(&mut self) -> Result<()> {
        if !self.settings.is_fifo {
            self.until_explained()?;
            self.watch(RECOUNT_INTERVAL)?;
            self.until_explained()?;
            if self.done.is_lossy {
                self.send_again()?;
            }
        }
        let started = Instant::now();
        loop {
            self.watch(POLL_INTERVAL)?;
            match taken(&self.hosts, &self.sent, self.demands()) {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > EFFECTS_TIMEOUT => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Waits until each accepted event of a `sequenced` stream is explained: the event has taken effect, waits in the
    /// store for a missing event of its key, or is reported as lost. Returns immediately if the reports cannot be
    /// compared any more: after a reset of a key, after the end of a host, and after the events were sent again.
    fn until_explained(&mut self) -> Result<()> {
        let started = Instant::now();
        loop {
            self.watch(COMMAND_INTERVAL)?;
            let Consequences { resets, was_restarted, was_sent_again, .. } = self.done;
            if resets > 0 || was_restarted || was_sent_again {
                return Ok(());
            }
            match self.check_reports() {
                Ok(()) => return Ok(()),
                Err(error) if started.elapsed() > EFFECTS_TIMEOUT => return Err(error),
                Err(_) => {}
            }
        }
    }

    fn check_reports(&self) -> Result<()> {
        let exact = match (self.settings.route, self.hosts.len()) {
            (Route::Http, 1) => ExactReports::All,
            _ => ExactReports::None,
        };
        let fates = stored_fates(&self.hosts[0].home)?;
        let balances = ReportedLosses::of(&self.hosts)?.balances(&self.sent, &fates, None)?;
        balances.iter().try_for_each(|balance| balance.check(exact))
    }

    fn demands(&self) -> Demands {
        let Consequences { resets, is_lossy, .. } = self.done;
        Demands {
            wants_all: !self.settings.is_fifo,
            resets,
            is_exact: !is_lossy,
            route: self.settings.route,
        }
    }

    fn send_again(&mut self) -> Result<()> {
        self.done.was_sent_again = true;
        let target = self.target()?;
        let route = self.settings.route;
        let sent = std::mem::take(&mut self.sent);
        let done = std::thread::scope(|scope| {
            let sending = scope.spawn(|| target.send_again(route, &sent));
            while !sending.is_finished() {
                self.watch(POLL_INTERVAL)?;
            }
            sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        self.sent = sent;
        done
    }

    fn check(&mut self) -> Result<Counts> {
        self.until_settled()?;
        let mut wait = EffectsWait::start();
        loop {
            self.watch(RECOUNT_INTERVAL)?;
            let effect_counts = taken(&self.hosts, &self.sent, self.demands())?;
            let counts = Counts::of(&self.sent, &effect_counts);
            let Settings { is_fifo, hosts, .. } = self.settings;
            let has_exact_counter = is_fifo && hosts == 1 && !self.done.was_restarted;
            let check_lost =
                || if has_exact_counter { self.hosts[0].check_lost(counts.lost) } else { Ok(()) };
            if wait.is_over(&effect_counts, check_lost)? {
                // After a reset of a key, a host may end at any time.
                if self.done.resets == 0 {
                    self.hosts.iter_mut().try_for_each(Receiver::check_counters)?;
                }
                return Ok(counts);
            }
        }
    }
}

/// Writes the record of the store's shape, as the error of the start advises.
fn mend_shape(redis: &Redis, [schema, shards]: &[String; 2]) -> Result<()> {
    redis.command(&["HSET", STORE_KEY, "schema", schema, "shards", shards]).map(drop)
}
