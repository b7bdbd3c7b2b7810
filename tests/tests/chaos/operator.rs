//! A round in which the operator of RabbitMQ makes several mistakes (mishaps) while events arrive. After each mishap,
//! the test applies the remedy in the guide (`docs/guide/rabbitmq.md`), and waits until the stream consumes all its
//! queues again.
//!
//! The producer publishes with confirms and with the flag `mandatory`, which makes the broker return an event that no
//! queue receives. An event counts as accepted only if the broker has confirmed the event and has not returned it.
//!
//! - Some mishaps destroy accepted events that wait in the broker: the operator removes a queue or the virtual host, or
//!   sets a policy that makes queues expire or drop messages. Shortly before such a mishap, the producer pauses until
//!   the hosts have acknowledged all events, so that all earlier events are safe. The events that the producer then
//!   publishes until the end of the remedy are at risk.
//! - All other mishaps must lose nothing, so the events that are accepted meanwhile are safe. The hosts must not report
//!   the loss of a queue.
//!
//! Each safe event must take effect once, and in the order of its key. In a `fifo` stream, an event at risk may remain
//! without an effect. In a `sequenced` stream, the later events of a key wait in the store for a lost event. At the
//! end, the test sends all events of a `sequenced` stream again, and then all of them must take effect.
//!
//! After each loss of a queue, the log of a host must name the queue. If the queue `cases.dropped` has messages, the
//! log must report them. If the broker has lost no queue, the number of lost events must not exceed the number of
//! messages in `cases.dropped`.
//!
//! If the exchange divides the messages among several queues, a mishap of the queues or of the exchange moves keys to
//! other queues for a while. A `fifo` stream then has no defined order within such a key. During such a mishap of a
//! `fifo` stream, the producer therefore pauses until the end of the remedy.
//!
//! An operator can also empty a queue (`purge_queue`). As the guide states, Ordain cannot detect this loss. The rounds
//! therefore do not contain this mishap.

mod check;
mod mishap;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_servers::{Rabbit, Redis, wait_for_command, wait_until};
use ordain_tests::http;
use ordain_tests::rig::Rig;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

use super::effects::Counts;
use super::event_target::{DisturbedExchange, EventTarget};
use super::events::{Producer, RunningProducer, SentEvents, while_producing};
use super::fleet::Fleet;
use super::receiver::{Backlog, Kind, Receiver, explain, redis};
use super::round_hosts::{SHORT_GAPS, pause};
use super::routes::{PARTITIONS, Route};
use mishap::{Mishap, Refusal, USER};

const ROUTE: Route = Route::Exchange;
const EXCHANGE: &str = "cases";
/// The queue that collects the messages that the broker drops from the queues of the stream.
const DROPPED_QUEUE: &str = "cases.dropped";
/// A regular expression for the queues of the stream, without the queue [`DROPPED_QUEUE`].
const STREAM_QUEUES: &str = r"^cases(\.[0-9]+)?$";
/// The lease of the hosts. The lease is longer than any pause of a host on a busy machine, so no partition changes its
/// owner.
const LEASE: &str = "10s";
const MEMORY_PART: f64 = 0.4;
const TOO_LITTLE_MEMORY: f64 = 0.000_01;

/// A part of the log line of a `sequenced` stream that has lost a queue. The line also names the queue.
const QUEUE_LOST: &str = "the events of the old queue are lost";
/// The beginning of the log line of a `fifo` stream that has lost a queue. The line also names the queue.
const STREAM_STOPPED: &str = "stream stopped: the queue";
/// Parts of the two log lines about an exchange that was removed. The second line reports that another program has
/// declared the exchange again.
const EXCHANGE_REMOVED: [&str; 2] =
    ["exchange missing: declared again", "exchange removed and declared again by another program"];
const OTHER_TYPE: &str = "inequivalent arg 'type' for exchange 'cases'";
/// A part of the log line about a queue whose messages another program receives. The line also names the queue.
const NOTHING_DELIVERED: &str = "and delivers none to this process";
/// The policy with which the broker deletes a queue that no program has consumed for half a second.
const EXPIRY: &str = r#"{"expires":500}"#;
/// The policy with which the broker drops a message that it has delivered twice without an acknowledgement.
const REDELIVERY_LIMIT: &str = r#"{"delivery-limit":1}"#;
/// The number of times that the operator closes all connections while [`REDELIVERY_LIMIT`] applies.
const REDELIVERIES: usize = 4;
const SMALL_PREFETCH: u16 = 1;
/// The beginning of the log line about the messages in the queue [`DROPPED_QUEUE`].
const MESSAGES_DROPPED: &str = "broker has dropped messages of this stream";

#[derive(Debug)]
struct Settings {
    is_fifo: bool,
    partitions: u32,
    hosts: usize,
    backlog: Backlog,
    mishaps: Vec<Mishap>,
}

impl Settings {
    fn draw(random: &mut ChaCha8Rng) -> Result<Self> {
        let is_fifo: bool = random.random();
        Ok(Self {
            is_fifo,
            partitions: if random.random() { 1 } else { PARTITIONS },
            // RabbitMQ also keeps the order of a `fifo` stream with two hosts. The queues have a single active
            // consumer, and both hosts have the same `prefetch`, so a subscription receives all returned events.
            hosts: if random.random_bool(0.4) { 2 } else { 1 },
            backlog: Backlog::draw(random),
            mishaps: Mishap::draw(random)?,
        })
    }

    fn queues(&self) -> Vec<String> {
        if self.partitions == 1 {
            return vec!["cases".to_owned()];
        }
        (0..self.partitions).map(|number| format!("cases.{number}")).collect()
    }

    fn exchange_kind(&self) -> ExchangeKind {
        if self.partitions == 1 {
            ExchangeKind::Fanout
        } else {
            ExchangeKind::Custom("x-modulus-hash".to_owned())
        }
    }

    fn prefetch(&self) -> Result<u16> {
        Ok(self.backlog.prefetch(ROUTE).try_into()?)
    }

    /// Returns the words of the log line that names a lost queue.
    fn loss_words(&self) -> &'static str {
        if self.is_fifo { STREAM_STOPPED } else { QUEUE_LOST }
    }

    /// Returns the properties of the hosts, with the URLs of their servers.
    fn kind(&self, store: &str, broker: &str) -> Kind {
        Kind {
            route: ROUTE,
            is_fifo: self.is_fifo,
            backlog: self.backlog,
            store: redis(store),
            broker: Some(broker.replace("guest:guest", &format!("{USER}:{USER}"))),
            stream: if self.is_fifo { String::new() } else { SHORT_GAPS.to_owned() },
            partitions: Some(self.partitions),
            has_short_waits: true,
            lease: Some(LEASE),
            ..Kind::default()
        }
    }
}

struct Round {
    fleet: Fleet,
    /// The rig that runs the broker. The round does not use the home and the client of the rig.
    rig: Arc<Rig>,
    settings: Settings,
    /// True if the broker has lost a queue. The hosts have named each lost queue.
    has_lost_queue: bool,
    _redis: Redis,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings::draw(random)?;
    let redis = Redis::start(&[])?;
    let rig = Arc::new(Rig::with_private_broker("", "", "")?);
    rig.rabbit.add_user(USER, USER, ".*")?;
    let kind = settings.kind(&redis.url(), &rig.rabbit.url());
    let fleet = Fleet::start(&kind, settings.hosts)?;
    let target = EventTarget::DisturbedExchange(Box::new(DisturbedExchange::new(Arc::clone(&rig))));
    let producer = Producer {
        target,
        route: ROUTE,
        backlog: settings.backlog,
        is_one_by_one: settings.is_fifo,
        ..Producer::default()
    };
    let mut round = Round { fleet, rig, settings, has_lost_queue: false, _redis: redis };
    let mut sent = SentEvents::new();
    let seed = random.random();
    let played = while_producing(&producer, &mut sent, seed, |producing| {
        round.disturb(&producer, producing, random)
    });
    let counted = played.and_then(|()| round.check(&producer.target, &sent));
    let Round { fleet, rig, settings, .. } = &round;
    let Counts { accepted, safe, lost } = counted.with_context(|| {
        format!("{}\n---- broker ----\n{}", explain(settings, &fleet.hosts), rig.rabbit.log_tail())
    })?;
    Ok(format!("{accepted} events accepted, {safe} of them safe, {lost} lost; {settings:?}"))
}

impl Round {
    fn disturb(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        self.until_whole()?;
        for mishap in self.settings.mishaps.clone() {
            pause(random, 600);
            let played = self.play_mishap(mishap, producer, producing, random);
            played.with_context(|| format!("{mishap:?}"))?;
        }
        pause(random, 600);
        Ok(())
    }

    /// Plays a mishap, applies its remedy, and waits until the stream consumes all its queues again.
    fn play_mishap(
        &mut self,
        mishap: Mishap,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        random: &mut ChaCha8Rng,
    ) -> Result<()> {
        if mishap.is_destructive() {
            self.begin_risk(producer, producing)?;
            pause(random, 800);
        }
        let reports = self.loss_reports();
        let is_paused =
            self.settings.is_fifo && self.settings.partitions > 1 && mishap.moves_keys();
        let gate = if is_paused { Some(producing.stop(|| Ok(()))?) } else { None };
        self.perform(mishap, random)?;
        self.until_whole()?;
        drop(gate);
        if mishap.is_destructive() {
            producer.phase.fetch_add(1, Ordering::SeqCst);
        } else {
            ensure!(self.loss_reports() == reports, "a host reports a loss that did not happen");
        }
        Ok(())
    }

    /// Begins a phase whose events the broker may lose. First waits until the hosts have acknowledged all earlier
    /// events, so that the broker cannot lose them.
    fn begin_risk(&self, producer: &Producer, producing: &RunningProducer<'_>) -> Result<()> {
        let _gate = producing.stop(|| Ok(()))?;
        self.rig.until_empty()?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn perform(&mut self, mishap: Mishap, random: &mut ChaCha8Rng) -> Result<()> {
        match mishap {
            Mishap::ExchangeReplaced => self.replace_exchange(),
            Mishap::ExchangeRetyped => self.retype_exchange(),
            Mishap::ConsumerAdded => self.add_consumer(random),
            Mishap::QueuesExpired => {
                let queues = self.settings.queues();
                self.lose(&queues, |rig| expire(rig, &queues))
            }
            Mishap::RedeliveriesLimited => self.limit_redeliveries(random),
            Mishap::BindingRemoved => {
                let queues = self.settings.queues();
                let queue = queues.choose(random).context("a queue")?;
                self.rig.connect()?.unbind(queue, EXCHANGE, "")
            }
            Mishap::QueuesDeleted => {
                let queues = self.draw_queues(random);
                self.lose(&queues, |rig| delete(rig, &queues))
            }
            Mishap::QueuesReplaced => self.replace_queues(random),
            Mishap::VirtualHostReplaced => {
                let queues = self.settings.queues();
                self.lose(&queues, |rig| {
                    rig.rabbit.recreate_virtual_host()?;
                    rig.rabbit.set_access(USER, true)
                })
            }
            Mishap::HostsRefused(refusal) => {
                refusal.begin(&self.rig.rabbit)?;
                self.rig.rabbit.close_connections()?;
                pause(random, 1_500);
                refusal.end(&self.rig.rabbit)
            }
            Mishap::ConnectionsClosed => self.rig.rabbit.close_connections(),
            Mishap::MessagesDropped(definition) => self.drop_messages(definition, random),
            Mishap::MemoryExhausted => {
                self.rig.rabbit.limit_memory(TOO_LITTLE_MEMORY)?;
                pause(random, 2_000);
                self.rig.rabbit.limit_memory(MEMORY_PART)
            }
            Mishap::BrokerStopped => {
                self.rig.rabbit.stop()?;
                pause(random, 1_000);
                self.rig.rabbit.restart()
            }
            Mishap::BrokerKilled => {
                // `until_whole` has waited until the declarations of all queues are on the disk.
                self.rig.rabbit.kill()?;
                pause(random, 1_000);
                self.rig.rabbit.restart()
            }
        }
    }

    /// Deletes the exchange, and declares it again as a producer does. Waits until a host has reported the removal.
    fn replace_exchange(&self) -> Result<()> {
        let reports =
            || -> usize { EXCHANGE_REMOVED.iter().map(|words| self.lines_with(words, "")).sum() };
        let before = reports();
        let client = self.rig.connect()?;
        client.delete_exchange(EXCHANGE)?;
        client.exchange(EXCHANGE, self.settings.exchange_kind())?;
        wait_for_command("a report of the removed exchange", || Ok(reports() > before))
    }

    /// Deletes the exchange, and declares it with another type. Waits until a host has reported the type, and until no
    /// partition of any host counts as consuming. Then deletes the exchange, as the guide advises.
    fn retype_exchange(&mut self) -> Result<()> {
        let before = self.lines_with(OTHER_TYPE, "");
        // A host may declare the exchange again between the two steps.
        wait_until("an exchange of another type", || {
            let client = self.rig.connect()?;
            client.delete_exchange(EXCHANGE)?;
            Ok(client.exchange(EXCHANGE, ExchangeKind::Topic).is_ok())
        })?;
        wait_for_command("a report of the other type", || {
            Ok(self.lines_with(OTHER_TYPE, "") > before)
        })?;
        let hosts = &mut self.fleet.hosts;
        wait_for_command("partitions that do not count as consuming", || {
            Ok(consumed_queues(hosts)? == 0)
        })?;
        self.rig.connect()?.delete_exchange(EXCHANGE)
    }

    /// Lets another program consume one of the queues. When the test closes the connection of the host, the broker
    /// makes the program the only active consumer of the queue. Waits until a host has reported that the queue delivers
    /// no messages to it, and then ends the program.
    fn add_consumer(&self, random: &mut ChaCha8Rng) -> Result<()> {
        let queues = self.settings.queues();
        let number = random.random_range(0..queues.len());
        let name = format!("{:?}", queues[number]);
        let before = self.lines_with(NOTHING_DELIVERED, &name);
        // The broker puts the messages of an ended consumer behind other returned messages. A consumer with the
        // prefetch of the host receives all messages that the host has returned, so the queue of a `fifo` stream keeps
        // its order.
        let prefetch =
            if self.settings.is_fifo { self.settings.prefetch()? } else { SMALL_PREFETCH };
        let client = self.rig.connect()?;
        let program = client.hold_up_to(&queues[number], prefetch)?;
        self.rig.rabbit.close_connection(&format!("ordain cases {number}"))?;
        wait_for_command("a report of the other consumer", || {
            Ok(self.lines_with(NOTHING_DELIVERED, &name) > before)
        })?;
        client.release(program)
    }

    /// Replaces some queues by classic queues, and lets the stream use the classic queues for a while. Then deletes the
    /// classic queues, as the error of the hosts advises.
    fn replace_queues(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let queues = self.draw_queues(random);
        self.lose(&queues, |rig| queues.iter().try_for_each(|queue| replace_queue(rig, queue)))?;
        pause(random, 600);
        self.lose(&queues, |rig| delete(rig, &queues))
    }

    fn draw_queues(&self, random: &mut ChaCha8Rng) -> Vec<String> {
        let queues = self.settings.queues();
        let first = random.random_range(0..queues.len());
        let is_drawn = |(number, _): &(usize, String)| *number == first || random.random_bool(0.3);
        queues.into_iter().enumerate().filter(is_drawn).map(|(_, queue)| queue).collect()
    }

    /// Calls `lose`, which makes the broker lose these queues, and waits until the hosts have named each queue. Then
    /// resumes a `fifo` stream, as the log advises, and waits until the stream consumes all its queues.
    fn lose(&mut self, queues: &[String], lose: impl FnOnce(&Rig) -> Result<()>) -> Result<()> {
        let earlier: Vec<usize> = queues.iter().map(|queue| self.reports_of(queue)).collect();
        lose(&self.rig)?;
        for (queue, before) in queues.iter().zip(earlier) {
            let words = format!("a report of the lost queue {queue}");
            wait_for_command(&words, || Ok(self.reports_of(queue) > before))?;
        }
        self.has_lost_queue = true;
        if self.settings.is_fifo {
            self.resume()?;
        }
        self.until_whole()
    }

    fn resume(&mut self) -> Result<()> {
        let host = self.fleet.hosts.first_mut().context("a host")?;
        let address = format!("http://{}", http::admin(&mut host.service)?);
        let output = host.home.output(&["streams", "resume", "cases", "--admin", &address])?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ordain streams resume` failed: {log}");
        Ok(())
    }

    /// Sets a policy that makes the queues drop messages. Meanwhile the hosts consume nothing, so that events wait in
    /// the queues. Waits until a host has reported the dropped messages.
    fn drop_messages(&mut self, definition: &str, random: &mut ChaCha8Rng) -> Result<()> {
        let dropped = self.dropped()?;
        let reports = self.lines_with(MESSAGES_DROPPED, "");
        let rabbit = &self.rig.rabbit;
        rabbit.set_policy(STREAM_QUEUES, definition)?;
        Refusal::Limit.begin(rabbit)?;
        rabbit.close_connections()?;
        pause(random, 1_500);
        rabbit.clear_policy()?;
        Refusal::Limit.end(rabbit)?;
        self.until_drops_are_reported(dropped, reports)
    }

    /// Sets a policy that makes the queues drop messages that were delivered several times, and closes all connections
    /// repeatedly. Waits until a host has reported the dropped messages.
    fn limit_redeliveries(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let dropped = self.dropped()?;
        let reports = self.lines_with(MESSAGES_DROPPED, "");
        self.rig.rabbit.set_policy(STREAM_QUEUES, REDELIVERY_LIMIT)?;
        for _ in 0..REDELIVERIES {
            self.rig.rabbit.close_connections()?;
            pause(random, 600);
        }
        self.rig.rabbit.clear_policy()?;
        self.until_drops_are_reported(dropped, reports)
    }

    /// Waits until the hosts consume all queues, and until a host has reported the dropped messages if the broker has
    /// dropped messages. `dropped` and `reports` are the numbers of dropped messages and of reports before the mishap.
    fn until_drops_are_reported(&mut self, dropped: u64, reports: usize) -> Result<()> {
        self.until_whole()?;
        if self.dropped()? > dropped {
            wait_for_command("a report of the dropped messages", || {
                Ok(self.lines_with(MESSAGES_DROPPED, "") > reports)
            })?;
        }
        Ok(())
    }

    fn dropped(&self) -> Result<u64> {
        let mut dropped = 0;
        wait_until("the number of dropped messages", || {
            let queues = self.rig.rabbit.queues()?;
            dropped = queues.get(DROPPED_QUEUE).map_or(0, |(ready, _)| *ready);
            // The queue does not reply if it has no leader yet.
            Ok(dropped != u64::MAX)
        })?;
        Ok(dropped)
    }

    /// Returns the number of log lines of all hosts that contain both `words` and `name`.
    fn lines_with(&self, words: &str, name: &str) -> usize {
        let is_counted = |line: &&str| line.contains(words) && line.contains(name);
        let of_host = |host: &Receiver| host.log().lines().filter(is_counted).count();
        self.fleet.hosts.iter().map(of_host).sum()
    }

    /// Returns how often the hosts have reported the loss of this queue.
    fn reports_of(&self, queue: &str) -> usize {
        self.lines_with(self.settings.loss_words(), &format!("{queue:?}"))
    }

    fn loss_reports(&self) -> usize {
        self.lines_with(self.settings.loss_words(), "")
    }

    /// Waits until the broker has the exchange, the queues, their bindings and their markers (see [`is_whole`]), and
    /// has written all of them to its disk. Then waits until the hosts consume all queues.
    fn until_whole(&mut self) -> Result<()> {
        let queues = self.settings.queues();
        wait_for_command("the exchange, the queues and their markers", || {
            is_whole(&self.rig.rabbit, &queues)
        })?;
        self.rig.rabbit.sync()?;
        let hosts = &mut self.fleet.hosts;
        wait_for_command("the consumption of all queues", || {
            let consumed = consumed_queues(hosts)?;
            Ok(consumed == queues.len() as u64)
        })?;
        self.fleet.until_ready()
    }
}

/// Makes the broker delete the queues because no program consumes them. Meanwhile the broker refuses the hosts.
fn expire(rig: &Rig, queues: &[String]) -> Result<()> {
    let rabbit = &rig.rabbit;
    rabbit.set_policy(STREAM_QUEUES, EXPIRY)?;
    Refusal::Limit.begin(rabbit)?;
    rabbit.close_connections()?;
    // A queue checks every five seconds whether it has expired.
    wait_for_command("the end of the queues", || {
        let left = rabbit.queues()?;
        Ok(!queues.iter().any(|queue| left.contains_key(queue)))
    })?;
    rabbit.clear_policy()?;
    Refusal::Limit.end(rabbit)
}

fn delete(rig: &Rig, queues: &[String]) -> Result<()> {
    let client = rig.connect()?;
    queues.iter().try_for_each(|queue| client.delete_queue(queue))
}

/// Deletes a queue, and declares a classic queue with the same name. Tries again if a host has declared its own queue
/// after the deletion.
fn replace_queue(rig: &Rig, queue: &str) -> Result<()> {
    wait_until("a classic queue", || {
        let client = rig.connect()?;
        client.delete_queue(queue)?;
        Ok(client.queue_with(queue, FieldTable::default()).is_ok())
    })
}

/// Returns whether all queues are bound to the exchange, and the exchange and all queues have their markers. A marker
/// is an exchange that the broker deletes together with the marked queue or exchange.
fn is_whole(rabbit: &Rabbit, queues: &[String]) -> Result<bool> {
    let bound = rabbit.bound(EXCHANGE)?;
    let are_bound = queues.iter().all(|queue| bound.contains(queue));
    if !are_bound || rabbit.bound_to_exchange(EXCHANGE)?.is_empty() {
        return Ok(false);
    }
    for queue in queues {
        if !rabbit.bound(&format!("{queue}.marker"))?.contains(queue) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn consumed_queues(hosts: &mut [Receiver]) -> Result<u64> {
    let mut consumed = 0;
    for host in hosts {
        let address = http::admin(&mut host.service)?;
        consumed += http::metric(address, "ordain_stream_consuming")?.unwrap_or(0);
    }
    Ok(consumed)
}
