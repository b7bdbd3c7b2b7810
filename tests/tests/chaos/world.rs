//! The broker, the store and the hosts of a round, and the code that disturbs them.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Mode, Proxy, Rabbit, Redis, wait_for_command};
use ordain_tests::amqp::{Client, Outgoing, from_line};
use ordain_tests::archive::Archive;
use ordain_tests::host::Home;
use ordain_tests::rig::{Rig, config};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::host::{Host, HostFault};
use super::plan::Plan;

/// The time limit for the broker to accept messages again after a kill.
const PUBLISH_TIMEOUT: Duration = Duration::from_mins(3);
/// The setting `runtime.lease`: a host without heartbeats keeps its partitions for this time.
const LEASE: Duration = Duration::from_secs(2);
/// The number of hosts at the start, if the store is in Redis. Hosts join and leave during a round, but at least this
/// number of hosts remains. Some of them may be paused or killed for a while. With an embedded store, one host runs.
const HOSTS: usize = 3;
/// The largest number of hosts at one time, if the store is in Redis.
const HOST_LIMIT: usize = 5;
/// How many of 1,000 requests to the archive of dropped events fail. It is very unlikely that all `ROUNDS` replay
/// rounds of a gap fail, so a host still finds each event.
const FAILING_PER_MILLE: u32 = 333;
/// The setting `gap.attempts`: the largest number of replay rounds for a gap.
const ROUNDS: u32 = 20;

pub(crate) struct World {
    redis: Option<Redis>,
    /// The server from which hosts fetch, by replay, the events that the producer drops.
    archive: Archive,
    /// The broker and its client. The rig's home contains the configuration with which the test runs commands.
    rig: Rig,
    /// Three parts of a host's configuration: the section `[runtime]`, the settings of the stream, and the settings of
    /// its source.
    settings: [String; 3],
    hosts: Vec<Host>,
    partitions: usize,
    /// The highest version of the handler so far; 0 is the handler without a version.
    version: u32,
    /// The number of occurrences of each disturbance.
    disturbances: BTreeMap<&'static str, u32>,
}

impl World {
    pub(crate) fn new(with_redis: bool, random: &mut ChaCha8Rng) -> Result<Self> {
        let redis = if with_redis { Some(Redis::start(&[])?) } else { None };
        let store = redis.as_ref().map_or(String::new(), |redis| {
            format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url())
        });
        let partitions = [1, 4][random.random_range(0..2)];
        let prefetch = random.random_range(50..1_000);
        let active = random.random_range(50..1_000);
        let buffer = random.random_range(2..64);
        println!(
            "{partitions} partitions, prefetch {prefetch}, {active} active keys, lanes of {buffer}"
        );
        let archive = Archive::start(&[], FAILING_PER_MILLE, None)?;
        let settings = [
            format!("[runtime]\nmax_active_keys = {active}\nlease = \"{}ms\"\n", LEASE.as_millis()),
            format!(
                "lane_buffer = {buffer}\nspill_after = \"1s\"\n\
                 gap = {{ timeout = \"500ms\", attempts = {ROUNDS}, backoff = \"20ms..100ms\", \
                 replay = [\"store\", \"{}\"] }}",
                archive.url()
            ),
            format!("partitions = {partitions}, prefetch = {prefetch}"),
        ];
        let [runtime, stream, source] = &settings;
        let rig = Rig::with_private_broker(&format!("{store}{runtime}"), stream, source)?;
        let hosts = Vec::new();
        let disturbances = BTreeMap::new();
        let mut world =
            Self { redis, archive, rig, settings, hosts, partitions, version: 0, disturbances };
        for _ in 0..if with_redis { HOSTS } else { 1 } {
            world.join()?;
        }
        world.rig.until_declared()?;
        Ok(world)
    }

    fn join(&mut self) -> Result<()> {
        let to_broker = Proxy::start(self.rig.rabbit.port())?;
        let to_store = self.redis.as_ref().map(|redis| Proxy::start(redis.port())).transpose()?;
        let store = to_store.as_ref().map_or(String::new(), |proxy| {
            format!("[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\n", proxy.port())
        });
        let [runtime, stream, source] = &self.settings;
        let url = self.rig.rabbit.url_at(to_broker.port());
        let text = config(&url, &format!("{store}{runtime}"), stream, source);
        // The table of the sink is at the end of the text, so this line becomes a setting of the sink.
        let home = Home::new(&["tally"], &format!("{text}sequenced = true\n"))?;
        self.hosts.push(Host::start(home, to_store, to_broker)?);
        Ok(())
    }

    /// Sends the planned events. Disturbs the system while the producer sends, and up to two more times afterwards.
    pub(crate) fn play(&mut self, plan: &Plan, random: &mut ChaCha8Rng) -> Result<()> {
        self.disturbances.clear();
        self.archive.keep(&plan.dropped)?;
        let url = self.rig.rabbit.url();
        let sent = std::thread::scope(|scope| {
            let producer = scope.spawn(|| produce(&url, plan));
            let mut disturb = || -> Result<()> {
                while !producer.is_finished() {
                    self.disturb(random)?;
                }
                for _ in 0..random.random_range(0..3) {
                    self.disturb(random)?;
                }
                Ok(())
            };
            let disturbed = disturb();
            let sent = producer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            disturbed.and(sent)
        })?;
        self.count("repeated publications", sent);
        self.restore()
    }

    fn count(&mut self, what: &'static str, times: u32) {
        *self.disturbances.entry(what).or_default() += times;
    }

    fn disturb(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        sleep(Duration::from_millis(random.random_range(0..1_500)));
        self.recover_hosts()?;
        match random.random_range(0..100) {
            0..18 => self.kill_broker(random),
            18..30 => self.kill_store(random),
            30..38 if self.redis.is_some() => self.add_or_stop_host(random),
            38..50 => self.swap(random),
            _ => self.disturb_host(random),
        }
    }

    fn kill_broker(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        self.count("kills of the broker", 1);
        let mut kill = || {
            sleep(Duration::from_millis(random.random_range(0..500)));
            self.rig.rabbit.kill()
        };
        // A kill of the broker rarely falls between a commit and the publication of its messages if the host keeps up
        // with the events. So the test pauses a host until the broker is dead. Meanwhile events accumulate in the
        // host's connection; the host then commits them, but cannot publish their messages.
        match self.hosts.iter().find(|host| host.is_undisturbed()) {
            Some(host) => host.while_paused(kill)?,
            None => kill()?,
        }
        sleep(Duration::from_millis(random.random_range(0..100)));
        if random.random() {
            self.disturb_host(random)?;
        }
        if random.random() {
            self.kill_store(random)?;
        }
        self.rig.rabbit.restart()
    }

    fn kill_store(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let Some(redis) = &self.redis else { return self.disturb_host(random) };
        redis.kill()?;
        sleep(Duration::from_millis(random.random_range(0..1_000)));
        redis.restart()?;
        self.count("kills of Redis", 1);
        Ok(())
    }

    fn add_or_stop_host(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        if self.hosts.len() < HOST_LIMIT && random.random() {
            self.count("joins", 1);
            return self.join();
        }
        if self.hosts.len() > HOSTS {
            let at = random.random_range(0..self.hosts.len());
            if self.hosts[at].is_undisturbed() {
                self.count("leaves", 1);
                let mut host = self.hosts.swap_remove(at);
                return host.end();
            }
        }
        Ok(())
    }

    /// Puts a new version of the handler into the folder of one host, or removes the newest version from this folder.
    /// At the end of the round, every host gets the newest version.
    fn swap(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let at = random.random_range(0..self.hosts.len());
        if random.random_bool(0.3) {
            self.count("versions removed", 1);
            return self.hosts[at].remove(self.version);
        }
        self.version += 1;
        self.count("new versions", 1);
        self.hosts[at].put(self.version)
    }

    /// Disturbs a host for a random time, which may be longer than the lease.
    fn disturb_host(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let at = random.random_range(0..self.hosts.len());
        let longest = if random.random_bool(0.3) { 2 * LEASE } else { LEASE / 4 };
        let lasts = longest.mul_f64(random.random());
        let mode = match random.random_range(0..4) {
            0 => Mode::Refuse,
            1 => Mode::HalfOpen,
            2 => Mode::Delay(LEASE.mul_f64(random.random_range(0.0..0.2))),
            _ => Mode::CutReplies,
        };
        let (fault, what) = match random.random_range(0..100) {
            0..35 => (HostFault::Killed, "kills of a host"),
            35..60 => (HostFault::Paused, "pauses of a host"),
            60..75 => (HostFault::Store(mode), "links to the store disturbed"),
            75..90 => (HostFault::Broker(mode), "links to the broker disturbed"),
            _ => (HostFault::Stopped, "clean restarts"),
        };
        let host = &mut self.hosts[at];
        if host.is_undisturbed() && host.disturb(fault, lasts)? {
            self.count(what, 1);
            if lasts > LEASE {
                self.count("disturbances longer than the lease", 1);
            }
        }
        Ok(())
    }

    /// Puts the newest version of the handler into the folder of every host, and ends all disturbances of hosts.
    fn restore(&mut self) -> Result<()> {
        let after_all_faults = Instant::now() + 10 * LEASE;
        self.hosts.iter().try_for_each(|host| host.put(self.version))?;
        self.hosts.iter_mut().try_for_each(|host| host.end_expired_disturbance(after_all_faults))
    }

    /// Ends the disturbances whose time has passed. Restarts hosts that ended because a server was unavailable for too
    /// long.
    pub(crate) fn recover_hosts(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut revived = 0;
        for host in &mut self.hosts {
            host.end_expired_disturbance(now)?;
            revived += u32::from(host.revive()?);
        }
        if revived > 0 {
            self.count("ends because a server was unavailable", revived);
        }
        Ok(())
    }

    /// Waits until each host owns an even share of the partitions. Does nothing with an embedded store.
    pub(crate) fn until_shared(&self) -> Result<()> {
        if self.redis.is_none() {
            return Ok(());
        }
        let mut rows = Vec::new();
        let shared = wait_for_command("even shares", || {
            rows = self.home().rows(&["instances", "--json"])?;
            let shares: Vec<usize> = rows
                .iter()
                .filter(|row| !row["instance"].is_null())
                .filter_map(|row| row["owns"].as_u64()?.try_into().ok())
                .collect();
            let even = self.partitions / self.hosts.len();
            let is_even = |share: &usize| *share == even || *share == even + 1;
            Ok(shares.len() == self.hosts.len()
                && shares.iter().sum::<usize>() == self.partitions
                && shares.iter().all(is_even))
        });
        shared.with_context(|| format!("{rows:?}"))
    }

    pub(crate) fn stop_hosts(&mut self) -> Result<()> {
        self.hosts.iter_mut().try_for_each(Host::end)
    }

    pub(crate) fn restart_hosts(&mut self) -> Result<()> {
        self.hosts.iter_mut().try_for_each(Host::start_again)
    }

    /// Receives messages from the queue that the sink feeds, until no message arrives for a while.
    pub(crate) fn take(&mut self) -> Result<Vec<Delivery>> {
        // A kill of the broker has closed the client's connection.
        self.rig.reconnect()?;
        self.rig.client.take_all("out")
    }

    /// Returns a home whose commands use the store of this world: with an embedded store, the home of the only host.
    pub(crate) fn home(&self) -> &Home {
        match &self.hosts[..] {
            [host] if self.redis.is_none() => host.home(),
            _ => &self.rig.home,
        }
    }

    pub(crate) fn rabbit(&self) -> &Rabbit {
        &self.rig.rabbit
    }

    pub(crate) fn disturbance_summary(&self) -> String {
        let disturbances: Vec<_> =
            self.disturbances.iter().map(|(what, times)| format!("{times} {what}")).collect();
        disturbances.join(", ")
    }

    pub(crate) fn logs(&self) -> String {
        let logs: Vec<String> = self.hosts.iter().map(Host::log).collect();
        let logs = logs.join("\n----\n");
        format!("{:?}\n{logs}\n{}", self.rig.rabbit.queues(), self.rig.rabbit.log_tail())
    }
}

/// Publishes each burst repeatedly until the broker confirms it. Returns the number of repetitions.
fn produce(url: &str, plan: &Plan) -> Result<u32> {
    let mut client = Client::connect(url);
    let mut again = 0;
    for (pause, burst) in &plan.bursts {
        sleep(*pause);
        let messages: Vec<Outgoing> =
            burst.iter().map(|line| message(plan, line)).collect::<Result<_>>()?;
        let started = Instant::now();
        loop {
            let published = client.as_ref().ok().map(|client| client.publish("cases", &messages));
            if let Some(Ok(())) = published {
                break;
            }
            ensure!(
                started.elapsed() < PUBLISH_TIMEOUT,
                "the broker accepts no message: {published:?}"
            );
            again += 1;
            sleep(Duration::from_millis(200));
            client = Client::connect(url);
        }
    }
    Ok(again)
}

fn message(plan: &Plan, line: &str) -> Result<Outgoing> {
    let Some(is_readable) = plan.broken.get(line) else {
        return from_line(line);
    };
    let mut headers = FieldTable::default();
    if !is_readable {
        headers.insert("X-End-Of-Sequence".into(), AMQPValue::LongString("perhaps".into()));
    }
    Ok(Outgoing {
        routing_key: "broken".to_owned(),
        properties: BasicProperties::default().with_headers(headers),
        body: line.as_bytes().to_vec(),
    })
}
