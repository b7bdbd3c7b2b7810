//! Hosts that share the partitions of the stream in one measurement ([`Case`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::open::open_store;
use anyhow::{Context, Result, ensure};
use ordain_servers::{Rabbit, send_signal};
use tokio::task::spawn_blocking;

use crate::CommonArgs;
use crate::amqp::case::{Case, CaseOptions};
use crate::amqp::side::RunningSide;
use crate::process::{cpu_seconds, peak};

const PARTITIONS: u32 = 4;
/// Time limit until each host owns its share of the partitions.
const SHARE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the benchmark checks the shares of the hosts.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates the queues, the Redis and the configuration of one measurement. The stream has the number of partitions that
/// the hosts share.
pub(crate) async fn case(plugins: &Path, rabbit: &Rabbit) -> Result<Case> {
    let options = CaseOptions {
        plugins: plugins.canonicalize()?,
        partitions: PARTITIONS,
        prefetch: None,
        fsync: "everysec".to_owned(),
        embedded: false,
        emits: true,
        stream: "",
    };
    Case::new(&options, rabbit).await
}

pub(crate) struct Fleet {
    ordain: PathBuf,
    hosts: Vec<RunningSide>,
    started: usize,
}

impl Fleet {
    /// Starts `hosts` hosts, and waits until they share the partitions evenly.
    pub(crate) async fn start(common: &CommonArgs, case: &Case, hosts: usize) -> Result<Self> {
        let mut fleet = Self { ordain: common.ordain.clone(), hosts: Vec::new(), started: 0 };
        for _ in 0..hosts {
            fleet.add(case)?;
        }
        fleet.until_shared(case).await?;
        Ok(fleet)
    }

    fn add(&mut self, case: &Case) -> Result<()> {
        self.started += 1;
        self.hosts.push(RunningSide::host(&self.ordain, case, self.started)?);
        Ok(())
    }

    async fn until_shared(&mut self, case: &Case) -> Result<()> {
        let store = open_store(&case.loaded, Some(SHARE_TIMEOUT)).await?;
        let started = Instant::now();
        loop {
            let table = store.table().await?;
            let owned = |id| {
                table.leases.keys().filter(|partition| table.holder(partition) == Some(id)).count()
            };
            let shares: Vec<usize> = table.members.keys().map(|id| owned(*id)).collect();
            let even = PARTITIONS as usize / self.hosts.len();
            if shares.len() == self.hosts.len() && shares.iter().all(|share| *share == even) {
                break;
            }
            for host in &mut self.hosts {
                host.check()?;
            }
            ensure!(
                started.elapsed() < SHARE_TIMEOUT,
                "the hosts do not own equal shares of the partitions: {shares:?}"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        while !case.is_consumed().await? {
            ensure!(started.elapsed() < SHARE_TIMEOUT, "not all queues have a consumer");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Replaces the hosts by new hosts, one after the other.
    pub(crate) async fn restart(&mut self, case: &Case) -> Result<()> {
        for _ in 0..self.hosts.len() {
            let oldest = self.hosts.remove(0);
            spawn_blocking(|| oldest.finish()).await??;
            self.add(case)?;
            self.until_shared(case).await?;
        }
        Ok(())
    }

    /// Returns the processor time so far, in seconds, of all running hosts together, of RabbitMQ, and of Redis.
    pub(crate) fn cpu(&self, case: &Case, rabbit: &Rabbit) -> Result<[f64; 3]> {
        let hosts = self.hosts.iter().map(|host| cpu_seconds(host.id()));
        let rabbit = cpu_seconds(rabbit.id().context("RabbitMQ is not running")?)?;
        Ok([hosts.sum::<Result<f64>>()?, rabbit, case.redis.cpu()?])
    }

    /// Returns the sum of the peak memory of all hosts, in MiB; `None` if a host has ended.
    pub(crate) fn peak(&self) -> Option<f64> {
        self.hosts.iter().map(|host| peak(host.id())).sum()
    }

    /// Sends a signal to the first host. `name` is the name of the signal without `SIG`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        send_signal(self.hosts[0].id(), name)
    }

    /// Ends all hosts that still run.
    pub(crate) fn end(self) -> Result<()> {
        for mut host in self.hosts {
            if host.runs()? {
                host.finish()?;
            }
        }
        Ok(())
    }
}
