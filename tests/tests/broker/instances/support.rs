//! Helpers that start a broker, a store in Redis, and any number of hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use ordain_servers::{Proxy, Rabbit, Redis, wait_for_command};
use ordain_tests::amqp::{Client, from_line};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;

pub(super) const PARTITIONS: usize = 4;

pub(super) struct Fleet {
    pub(super) redis: Redis,
    pub(super) rig: Rig,
    sections: String,
    stream: String,
}

/// A host with its own proxies to the servers.
pub(super) struct Host {
    /// Keeps the folder of the host until the host is dropped.
    _home: Home,
    pub(super) service: Service,
    pub(super) to_redis: Proxy,
    pub(super) to_rabbit: Proxy,
}

impl Fleet {
    /// Starts the servers of a fleet, on a broker that other tests share. `runtime` has settings of the section
    /// `[runtime]`, and `stream` has settings of the stream.
    pub(super) fn new(runtime: &str, stream: &str) -> Result<Self> {
        Self::on(Rabbit::shared()?, runtime, stream)
    }

    /// Starts the servers of a fleet as [`Self::new`] does, on the broker `rabbit`.
    pub(super) fn on(rabbit: Rabbit, runtime: &str, stream: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let sections = format!("[runtime]\n{runtime}\n");
        let store = format!("{sections}[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        // No host runs in the home of the rig. The tests run commands there.
        let rig = Rig::on(rabbit, &store, stream, &source())?;
        Ok(Self { redis, rig, sections, stream: stream.to_owned() })
    }

    /// Starts one more host with the configuration of the fleet.
    pub(super) fn start(&self) -> Result<Host> {
        self.start_with(|config| config)
    }

    /// Starts one more host with a changed configuration.
    pub(super) fn start_with(&self, change: impl FnOnce(String) -> String) -> Result<Host> {
        let to_redis = Proxy::start(self.redis.port())?;
        let to_rabbit = Proxy::start(self.rig.rabbit.port())?;
        let store =
            format!("[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\n", to_redis.port());
        let broker = self.rig.rabbit.url_at(to_rabbit.port());
        let sections = format!("{}{store}", self.sections);
        let text = config(&broker, &sections, &self.stream, &source());
        let home = Home::new(&["tally", "faulty"], &change(text))?;
        let service = Service::start(&home, &["run"])?;
        Ok(Host { _home: home, service, to_redis, to_rabbit })
    }

    /// Returns the partitions that each process owns according to the store, by process id.
    pub(super) fn owners(&self) -> Result<BTreeMap<u32, Vec<u64>>> {
        let mut owners = BTreeMap::new();
        for row in self.rig.home.rows(&["instances", "--json"])? {
            let partitions = row["partitions"].as_array().context("partitions")?;
            let numbers =
                partitions.iter().filter_map(|partition| partition["partition"].as_u64()).collect();
            let name = row["name"].as_str().unwrap_or("/0");
            let process = name.rsplit_once('/').context("a name")?.1.parse()?;
            owners.insert(process, numbers);
        }
        Ok(owners)
    }

    /// Waits until these hosts own all partitions in even shares.
    pub(super) fn until_shared(&self, hosts: &[&Host]) -> Result<()> {
        let even = PARTITIONS / hosts.len()..=PARTITIONS.div_ceil(hosts.len());
        let mut owners = BTreeMap::new();
        let shared = wait_for_command("even shares", || {
            owners = self.owners()?;
            let has = |host: &&Host| owners.get(&host.service.id()).map_or(0, Vec::len);
            let all: usize = hosts.iter().map(has).sum();
            Ok(all == PARTITIONS && hosts.iter().all(|host| even.contains(&has(host))))
        });
        shared.with_context(|| format!("{owners:?}"))
    }
}

/// Publishes events in small batches, with a pause after each, while `meanwhile` runs.
pub(super) fn while_published<T>(
    fleet: &Fleet,
    lines: &[String],
    pause: Duration,
    meanwhile: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let url = fleet.rig.rabbit.url_at(fleet.rig.rabbit.port());
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| -> Result<()> {
            let client = Client::connect(&url)?;
            for part in lines.chunks(50) {
                let messages: Vec<_> =
                    part.iter().map(|line| from_line(line)).collect::<Result<_>>()?;
                client.publish("cases", &messages)?;
                std::thread::sleep(pause);
            }
            Ok(())
        });
        let done = meanwhile();
        let published = publishing.join();
        let published = published.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        published.and(done)
    })
}

fn source() -> String {
    format!("partitions = {PARTITIONS}")
}

impl Host {
    /// Sends a request to the host's HTTP listener for operators. Returns the response.
    pub(super) fn get(&mut self, path: &str) -> Result<http::Answer> {
        http::get(http::admin(&mut self.service)?, path)
    }
}
