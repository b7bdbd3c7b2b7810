//! A real Redis Sentinel over a master and its replica. It never decides who is master: the
//! Sentinel does, and is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::redis::{Options, Redis};
use crate::resp::Reply;
use crate::wait::wait_until;

/// What the Sentinel calls the group.
const NAME: &str = "ordain";
/// How long a master may be silent, in milliseconds.
const DOWN_AFTER_MS: u32 = 500;
/// How long a failover may stand still, in milliseconds. Twice that passes before another try.
const FAILOVER_TIMEOUT_MS: u32 = 3_000;

/// Two servers, of which one follows the other, and one Sentinel that may fail over alone.
#[derive(Debug)]
pub struct Sentinel {
    /// Before the servers, so that it does not see them end.
    watcher: Redis,
    servers: [Redis; 2],
    master: AtomicUsize,
}

impl Sentinel {
    /// Starts all three, and waits until the Sentinel knows the replica. It calls a master down
    /// after 500 ms of silence.
    pub fn start() -> Result<Self> {
        Self::with(&Options::new())
    }

    /// The same with options for both servers. The Sentinel itself asks for no password.
    pub fn with(options: &Options) -> Result<Self> {
        let master = Redis::with(options)?;
        let replica = Redis::with(&options.clone().replica_of(&master))?;
        let mut watcher = Options::sentinel()
            .line(&format!("sentinel monitor {NAME} 127.0.0.1 {} 1", master.port()))
            .line(&format!("sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}"))
            .line(&format!("sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}"));
        if let Some(password) = master.password() {
            watcher = watcher.line(&format!("sentinel auth-pass {NAME} {password}"));
        }
        let watcher = Redis::with(&watcher)?;
        let servers = [master, replica];
        let group = Self { watcher, servers, master: AtomicUsize::new(0) };
        group.until_replica_known()?;
        Ok(group)
    }

    /// What the Sentinel calls the group of servers.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The Sentinel's address.
    pub fn url(&self) -> String {
        self.watcher.url()
    }

    /// The Sentinel itself, to be asked, paused or killed.
    pub fn sentinel(&self) -> &Redis {
        &self.watcher
    }

    /// Both servers, the first master before the first replica.
    pub fn servers(&self) -> &[Redis; 2] {
        &self.servers
    }

    /// The master since the last [`failover`](Self::failover).
    pub fn master(&self) -> &Redis {
        &self.servers[self.number()]
    }

    /// The other one.
    pub fn replica(&self) -> &Redis {
        &self.servers[1 - self.number()]
    }

    /// The port of the master as the Sentinel names it now.
    pub fn named(&self) -> Result<u16> {
        let reply = self.watcher.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        let port = reply.parts().get(1).and_then(Reply::text).context("it names no master")?;
        Ok(port.parse()?)
    }

    /// Kills the master, and waits until the Sentinel names the other and that is master. Returns
    /// how long it took; between 1 and 3 seconds are usual.
    pub fn failover(&self) -> Result<Duration> {
        let started = Instant::now();
        self.master().kill()?;
        let next = self.replica();
        wait_until("another master", || {
            let is_named = self.named()? == next.port();
            let role = next.info("replication")?.remove("role");
            Ok(is_named && role.is_some_and(|role| role == "master"))
        })?;
        self.master.store(1 - self.number(), Ordering::SeqCst);
        Ok(started.elapsed())
    }

    /// Starts the old master again as a replica from its first moment, and waits until it is in
    /// step and the Sentinel knows it: then the next failover can come. Started by `restart`
    /// instead, it takes itself for a master until the Sentinel tells it otherwise.
    pub fn rejoin(&self) -> Result<()> {
        let port = self.master().port();
        self.replica().append_config(&format!("replicaof 127.0.0.1 {port}"))?;
        self.replica().restart()?;
        self.replica().until_in_step()?;
        self.until_replica_known()
    }

    /// Waits until the Sentinel could make the replica a master.
    fn until_replica_known(&self) -> Result<()> {
        let port = self.replica().port().to_string();
        wait_until("a Sentinel that knows the replica", || {
            let reply = self.watcher.command(&["SENTINEL", "REPLICAS", NAME])?;
            Ok(reply.parts().iter().any(|replica| {
                let fields: Vec<&str> = replica.parts().iter().filter_map(Reply::text).collect();
                let is = |name, value| fields.chunks(2).any(|field| field == [name, value]);
                is("port", &port) && is("master-link-status", "ok") && is("flags", "slave")
            }))
        })
    }

    fn number(&self) -> usize {
        self.master.load(Ordering::SeqCst)
    }
}
