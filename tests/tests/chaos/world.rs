//! The broker, the store, the host, and what befalls them.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Rabbit, Redis};
use ordain_tests::amqp::{Client, Outgoing, from_line};
use ordain_tests::host::Home;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::plan::Plan;

/// How the host says that something it needs was not there in time: whoever runs it starts it
/// again.
const TEMPFAIL: i32 = 75;
/// For the broker to come back and to take what is sent.
const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) struct World {
    redis: Option<Redis>,
    rig: Rig,
    host: Service,
    /// How often what has happened.
    told: BTreeMap<&'static str, u32>,
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
        let rig = Rig::with(
            &format!("{store}[runtime]\nmax_active_keys = {active}\n"),
            &format!(
                "lane_buffer = {buffer}\nspill_after = \"1s\"\n\
                 gap = {{ timeout = \"500ms\", attempts = 2, backoff = \"100ms..500ms\" }}"
            ),
            &format!("partitions = {partitions}, prefetch = {prefetch}"),
        )?;
        let host = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        Ok(Self { redis, rig, host, told: BTreeMap::new() })
    }

    /// Sends what is planned, and disturbs all as long as something is to be sent, and a while
    /// beyond.
    pub(crate) fn play(&mut self, plan: &Plan, random: &mut ChaCha8Rng) -> Result<()> {
        self.told.clear();
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
        self.count("publications tried again", sent);
        Ok(())
    }

    fn count(&mut self, what: &'static str, times: u32) {
        *self.told.entry(what).or_default() += times;
    }

    /// Waits for a moment and kills something, or two things.
    fn disturb(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        sleep(Duration::from_millis(random.random_range(0..1_500)));
        self.look_after_host()?;
        let whom = random.random_range(0..100);
        if whom < 25 {
            self.count("kills of the broker", 1);
            // What is committed now cannot be published.
            self.pile_up(random, || self.rig.rabbit.kill())?;
            if random.random() {
                self.kill_host(random)?;
            }
            if random.random() {
                self.kill_store(random)?;
            }
            self.rig.rabbit.restart()?;
        } else if whom < 45 {
            self.kill_store(random)?;
        } else {
            self.kill_host(random)?;
        }
        Ok(())
    }

    /// Does something, half the time while the host stands still, which then goes on for a moment
    /// with what has piled up: one that is nearly always done is hardly ever killed between a
    /// commit and what follows it.
    fn pile_up(
        &self,
        random: &mut ChaCha8Rng,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if random.random() {
            return meanwhile();
        }
        self.host.signal("STOP")?;
        sleep(Duration::from_millis(random.random_range(0..500)));
        meanwhile()?;
        self.host.signal("CONT")?;
        sleep(Duration::from_millis(random.random_range(0..100)));
        Ok(())
    }

    fn kill_host(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        self.count("kills of the host", 1);
        self.pile_up(random, || Ok(()))?;
        self.host.kill()?;
        sleep(Duration::from_millis(random.random_range(0..300)));
        self.start_host()
    }

    fn kill_store(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let Some(redis) = &self.redis else { return Ok(()) };
        redis.kill()?;
        sleep(Duration::from_millis(random.random_range(0..1_000)));
        redis.restart()?;
        self.count("kills of Redis", 1);
        Ok(())
    }

    fn start_host(&mut self) -> Result<()> {
        self.host = Service::start(&self.rig.home, &["run"])?;
        Ok(())
    }

    /// Starts the host again where it gave up because the broker was away for too long.
    pub(crate) fn look_after_host(&mut self) -> Result<()> {
        if self.host.is_running()? {
            return Ok(());
        }
        let status = self.host.wait()?;
        ensure!(status.code() == Some(TEMPFAIL), "the host ended ({status})");
        self.count("ends for want of a server", 1);
        self.start_host()
    }

    /// Ends the host in order.
    pub(crate) fn stop_host(&mut self) -> Result<()> {
        self.host.end()
    }

    /// Goes on behind [`Self::stop_host`].
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.start_host()
    }

    /// The messages that have come to the queue behind the sink, until none comes for a while.
    pub(crate) fn take(&mut self) -> Result<Vec<Delivery>> {
        // A kill of the broker has cut off the client before.
        self.rig.reconnect()?;
        self.rig.client.take_all("out")
    }

    pub(crate) fn home(&self) -> &Home {
        &self.rig.home
    }

    pub(crate) fn rabbit(&self) -> &Rabbit {
        &self.rig.rabbit
    }

    pub(crate) fn told(&self) -> String {
        let told: Vec<_> =
            self.told.iter().map(|(what, times)| format!("{times} {what}")).collect();
        told.join(", ")
    }

    /// What the host and the broker said last.
    pub(crate) fn logs(&self) -> String {
        let host = self.host.stderr();
        let lines: Vec<&str> = host.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("{:?}\n{tail}\n{}", self.rig.rabbit.queues(), self.rig.rabbit.log_tail())
    }
}

/// Publishes all bursts, each until it is confirmed; how often that took another try.
fn produce(url: &str, plan: &Plan) -> Result<u32> {
    let (mut client, mut again) = (Client::connect(url), 0);
    for (pause, burst) in &plan.bursts {
        sleep(*pause);
        let messages: Vec<Outgoing> =
            burst.iter().map(|it| message(plan, it)).collect::<Result<_>>()?;
        let started = Instant::now();
        loop {
            let published = client.as_ref().ok().map(|it| it.publish("cases", &messages));
            if let Some(Ok(())) = published {
                break;
            }
            ensure!(started.elapsed() < PATIENCE, "nothing can be published: {published:?}");
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
