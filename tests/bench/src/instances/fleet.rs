//! Hosts that share the partitions of a case.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain::run::open_store;
use ordain_servers::Rabbit;

use crate::Common;
use crate::amqp::case::{Case, CaseOptions};
use crate::amqp::side::Running;
use crate::process::{cpu_seconds, peak};

const PARTITIONS: u32 = 4;
/// For all to have their share.
const SHARE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Fleet {
    pub(super) case: Case,
    hosts: Vec<Running>,
    /// Those that were killed or asked to end.
    gone: Vec<usize>,
}

impl Fleet {
    /// Starts so many, and waits until they share the partitions evenly.
    pub(super) async fn start(common: &Common, rabbit: &Rabbit, hosts: usize) -> Result<Self> {
        let options = CaseOptions {
            plugins: common.plugins.canonicalize()?,
            partitions: PARTITIONS,
            prefetch: None,
            fsync: "everysec".to_owned(),
            embedded: false,
            emits: true,
        };
        let case = Case::new(&options, rabbit).await?;
        let start = |number| Running::host(&common.ordain, &case, number);
        let hosts = (0..hosts).map(start).collect::<Result<Vec<_>>>()?;
        let mut fleet = Self { case, hosts, gone: Vec::new() };
        fleet.until_shared().await?;
        Ok(fleet)
    }

    async fn until_shared(&mut self) -> Result<()> {
        let store = open_store(&self.case.loaded, Some(SHARE)).await?;
        let started = Instant::now();
        loop {
            let table = store.table().await?;
            let owned = |id| table.leases.keys().filter(|it| table.holder(it) == Some(id)).count();
            let shares: Vec<usize> = table.members.keys().map(|id| owned(*id)).collect();
            let even = PARTITIONS as usize / self.hosts.len();
            if shares.len() == self.hosts.len() && shares.iter().all(|it| *it == even) {
                break;
            }
            for host in &mut self.hosts {
                host.check()?;
            }
            ensure!(started.elapsed() < SHARE, "the shares are {shares:?}");
            tokio::time::sleep(LOOK).await;
        }
        while !self.case.is_consumed().await? {
            ensure!(started.elapsed() < SHARE, "not all queues are consumed");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Processor time so far of all hosts that run, of RabbitMQ, and of Redis.
    pub(super) fn cpu(&self, rabbit: &Rabbit) -> Result<[f64; 3]> {
        let hosts = self.hosts.iter().map(|host| cpu_seconds(host.id()));
        let rabbit = cpu_seconds(rabbit.id().context("RabbitMQ does not run")?)?;
        Ok([hosts.sum::<Result<f64>>()?, rabbit, self.case.redis.cpu()?])
    }

    /// The most memory that all had together.
    pub(super) fn peak(&self) -> Option<f64> {
        self.hosts.iter().map(|host| peak(host.id())).sum()
    }

    pub(super) fn signal(&mut self, host: usize, name: &str) -> Result<()> {
        let id = self.hosts[host].id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status()?;
        ensure!(status.success(), "`kill -s {name} {id}` failed");
        if ["TERM", "KILL"].contains(&name) {
            self.gone.push(host);
        }
        Ok(())
    }

    /// Ends all.
    pub(super) async fn end(self) -> Result<()> {
        for (number, host) in self.hosts.into_iter().enumerate() {
            if !self.gone.contains(&number) {
                host.finish()?;
            }
        }
        self.case.end().await
    }
}
