//! A real Redis Sentinel over a master and its replica. It never decides who is master: the
//! Sentinel does, and is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::proxy::Proxy;
use crate::redis::{Options, Redis};
use crate::resp::Reply;
use crate::wait::wait_until;

/// What the Sentinel calls the group.
const NAME: &str = "ordain";
/// How long a master may be silent while nothing is to happen: on a busy machine half a second is
/// soon over, and a failover that no test expects loses writes.
const CALM: Duration = Duration::from_secs(20);
/// How long it may be silent when it is to be replaced.
const DOWN_AFTER: Duration = Duration::from_millis(500);
/// How long a failover may stand still, in milliseconds. Twice that passes before another try.
const FAILOVER_TIMEOUT_MS: u32 = 3_000;

/// Two servers, of which one follows the other, and one Sentinel that may fail over alone.
#[derive(Debug)]
pub struct Sentinel {
    /// Before the servers, so that it does not see them end.
    watcher: Redis,
    servers: [Redis; 2],
    /// None, or one before each server.
    proxies: Vec<Proxy>,
    master: AtomicUsize,
}

impl Sentinel {
    /// Starts all three, and waits until the Sentinel knows the replica. It calls a master down
    /// after 20 seconds of silence, so that nothing happens before [`failover`](Self::failover) or
    /// [`down_after`](Self::down_after).
    pub fn start() -> Result<Self> {
        Self::with(&Options::new())
    }

    /// The same with options for both servers. The Sentinel itself asks for no password.
    pub fn with(options: &Options) -> Result<Self> {
        Self::of(servers(options)?, Vec::new())
    }

    /// The same with a proxy before each server, which the Sentinel names and asks through. A mode
    /// in which a proxy does not pass is to the Sentinel a server that is down.
    pub fn behind_proxies(options: &Options) -> Result<Self> {
        let servers = servers(options)?;
        let mut proxies = Vec::new();
        for server in &servers {
            let proxy = Proxy::start(server.port())?;
            server.configure("replica-announce-port", &proxy.port().to_string())?;
            proxies.push(proxy);
        }
        // A replica names its port when it connects, and so it must once more.
        let [master, replica] = &servers;
        replica.command(&["REPLICAOF", "NO", "ONE"])?;
        replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
        replica.until_in_step()?;
        Self::of(servers, proxies)
    }

    fn of(servers: [Redis; 2], proxies: Vec<Proxy>) -> Result<Self> {
        let master = proxies.first().map_or(servers[0].port(), Proxy::port);
        let mut watcher = Options::sentinel()
            .line(&format!("sentinel monitor {NAME} 127.0.0.1 {master} 1"))
            .line(&format!("sentinel down-after-milliseconds {NAME} {}", CALM.as_millis()))
            .line(&format!("sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}"));
        if let Some(password) = servers[0].password() {
            watcher = watcher.line(&format!("sentinel auth-pass {NAME} {password}"));
        }
        let watcher = Redis::with(&watcher)?;
        let group = Self { watcher, servers, proxies, master: AtomicUsize::new(0) };
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

    /// The proxies before the servers, in the same order; none where that was not asked for.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// The port by which the Sentinel names a server.
    fn port(&self, number: usize) -> u16 {
        self.proxies.get(number).map_or_else(|| self.servers[number].port(), Proxy::port)
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

    /// Sets how long a master may be silent before the Sentinel calls it down and replaces it. With
    /// less than a second it may do so at any time on a busy machine.
    pub fn down_after(&self, silence: Duration) -> Result<()> {
        let silence = silence.as_millis().to_string();
        let set = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &silence];
        self.watcher.command(&set).map(drop)
    }

    /// Lets the replica fall behind: until the next [`failover`](Self::failover) it receives none of the master's
    /// writes. That must come within 4 seconds, or the Sentinel does not take the replica.
    pub fn let_replica_lag(&self) -> Result<()> {
        self.replica().fall_behind(self.master())
    }

    /// Kills the master, and waits until the Sentinel names the other and that is master. Returns
    /// how long it took: a fraction of a second to 3 seconds. Afterwards 20 seconds of silence are
    /// allowed again.
    pub fn failover(&self) -> Result<Duration> {
        let started = Instant::now();
        self.master().kill()?;
        // One that lags.
        self.replica().resume()?;
        // Not before, or it may happen on a busy machine to a master that runs.
        self.down_after(DOWN_AFTER)?;
        let (number, next) = (1 - self.number(), self.replica());
        wait_until("another master", || {
            let is_named = self.named()? == self.port(number);
            // The Sentinel closes the connections of a server to which it gives another role.
            let info = next.info("replication").unwrap_or_default();
            Ok(is_named && info.get("role").is_some_and(|role| role == "master"))
        })
        .with_context(|| format!("the Sentinel's log ends:\n{}", self.watcher.log_tail()))?;
        let took = started.elapsed();
        self.down_after(CALM)?;
        self.master.store(number, Ordering::SeqCst);
        Ok(took)
    }

    /// Starts the old master again as a replica from its first moment, and waits until it is in
    /// step and the Sentinel knows it: then the next failover can come. Started by `restart`
    /// instead, it takes itself for a master until the Sentinel tells it otherwise.
    pub fn rejoin(&self) -> Result<()> {
        let port = self.port(self.number());
        self.replica().configure_later(&format!("replicaof 127.0.0.1 {port}"))?;
        self.replica().restart()?;
        self.replica().until_in_step()?;
        self.until_replica_known()
    }

    /// Waits until the Sentinel could make the replica a master.
    fn until_replica_known(&self) -> Result<()> {
        let port = self.port(1 - self.number()).to_string();
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

/// A master, and a replica in step with it.
fn servers(options: &Options) -> Result<[Redis; 2]> {
    let master = Redis::with(options)?;
    let replica = Redis::with(&options.clone().replica_of(&master))?;
    Ok([master, replica])
}
