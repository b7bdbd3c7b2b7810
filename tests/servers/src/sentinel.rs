//! A real Redis Sentinel for a master and its replica. The Sentinel alone decides which server is the master; this
//! module only queries the decision.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::proxy::Proxy;
use crate::redis::{Options, Redis};
use crate::resp::{Connection, Reply};
use crate::wait::wait_until;

const NAME: &str = "ordain";
/// How long a master may be silent while the test expects no failover. The time is long, because on a busy machine, a
/// master can be silent for half a second, and an unexpected failover may lose writes.
const DOWN_AFTER_WITHOUT_FAILOVER: Duration = Duration::from_secs(20);
/// How long a master may be silent before the Sentinel replaces it, while the test expects a failover.
const DOWN_AFTER: Duration = Duration::from_millis(500);
/// The time in milliseconds after which a failover without progress fails. After a failed failover, the Sentinel waits
/// twice as long before it tries again.
const FAILOVER_TIMEOUT_MS: u32 = 3_000;
/// The password of a master that is cut off. Neither the Sentinel nor the replica has this password.
const CUT_OFF_PASSWORD: &str = "cut-off";

/// A group: a master, its replica, and one Sentinel, which needs no other Sentinel for a failover.
#[derive(Debug)]
pub struct Sentinel {
    /// Declared before the servers, so that the Sentinel ends before them.
    watcher: Redis,
    servers: [Redis; 2],
    /// The proxies: one in front of each server, or no proxies.
    proxies: Vec<Proxy>,
    master: AtomicUsize,
}

impl Sentinel {
    /// Starts a master, a replica and a Sentinel, and waits until the Sentinel knows the replica. The Sentinel
    /// considers a master down after 20 seconds of silence, so that no failover occurs before a test calls
    /// [`failover`](Self::failover), [`until_replaced`](Self::until_replaced) or [`down_after`](Self::down_after).
    pub fn start() -> Result<Self> {
        Self::with(&Options::new())
    }

    /// Starts a group with options for both servers. The Sentinel itself requires no password.
    pub fn with(options: &Options) -> Result<Self> {
        Self::of(servers(options)?, Vec::new())
    }

    /// Starts a group with a proxy in front of each server. The Sentinel announces the proxies and connects through
    /// them. If a proxy passes no bytes, the Sentinel considers the server behind the proxy down.
    pub fn behind_proxies(options: &Options) -> Result<Self> {
        let servers = servers(options)?;
        let mut proxies = Vec::new();
        for server in &servers {
            let proxy = Proxy::start(server.port())?;
            server.configure("replica-announce-port", &proxy.port().to_string())?;
            proxies.push(proxy);
        }
        // A replica announces its port when it connects to the master, so the replica must connect again.
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
            .line(&format!(
                "sentinel down-after-milliseconds {NAME} {}",
                DOWN_AFTER_WITHOUT_FAILOVER.as_millis()
            ))
            .line(&format!("sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}"));
        if let Some(password) = servers[0].password() {
            watcher = watcher.line(&format!("sentinel auth-pass {NAME} {password}"));
        }
        let watcher = Redis::with(&watcher)?;
        let group = Self { watcher, servers, proxies, master: AtomicUsize::new(0) };
        group.until_replica_known()?;
        Ok(group)
    }

    /// Returns the name of the group of servers in the configuration of the Sentinel.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Returns the Sentinel's URL.
    pub fn url(&self) -> String {
        self.watcher.url()
    }

    /// Returns the Sentinel, which a test may query, pause or kill.
    pub fn sentinel(&self) -> &Redis {
        &self.watcher
    }

    /// Returns both servers: first the server that was the master at the start, then the other server.
    pub fn servers(&self) -> &[Redis; 2] {
        &self.servers
    }

    /// Returns the proxies in front of the servers, in the order of the servers; none if the group was started without
    /// proxies.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Returns the port that the Sentinel announces for a server.
    fn port(&self, number: usize) -> u16 {
        self.proxies.get(number).map_or_else(|| self.servers[number].port(), Proxy::port)
    }

    /// Returns the master. Only [`failover`](Self::failover), [`until_replaced`](Self::until_replaced) and
    /// [`replace_master`](Self::replace_master) change the result: after a failover without them, `master` still
    /// returns the old master.
    pub fn master(&self) -> &Redis {
        &self.servers[self.number()]
    }

    /// Returns the server that is not the [`master`](Self::master).
    pub fn replica(&self) -> &Redis {
        &self.servers[1 - self.number()]
    }

    /// Returns the port that the Sentinel announces for the master now.
    pub fn named(&self) -> Result<u16> {
        let reply = self.watcher.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        let port =
            reply.parts().get(1).and_then(Reply::text).context("the Sentinel names no master")?;
        Ok(port.parse()?)
    }

    /// Sets how long a master may be silent before the Sentinel considers it down and replaces it. On a busy machine, a
    /// limit below a second may cause a failover at any time.
    pub fn down_after(&self, silence: Duration) -> Result<()> {
        let silence = silence.as_millis().to_string();
        let set = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &silence];
        self.watcher.command(&set).map(drop)
    }

    /// Makes the replica lag: from now on, the replica receives no write of the master. [`failover`](Self::failover)
    /// ends the lag. The test must call that method within 4 seconds. If the replica lags for longer, the Sentinel does
    /// not make it the new master.
    pub fn let_replica_lag(&self) -> Result<()> {
        self.replica().fall_behind(self.master())
    }

    /// Kills the master, and waits until the other server is the master and the Sentinel names this other server.
    /// Returns the duration of the failover, which is usually at most 3 seconds. Then sets the limit for a silent
    /// master to 20 seconds.
    pub fn failover(&self) -> Result<Duration> {
        let started = Instant::now();
        self.master().kill()?;
        // Resumes a lagging replica.
        self.replica().resume()?;
        self.until_replaced()?;
        Ok(started.elapsed())
    }

    /// Waits until the Sentinel has replaced a master that it cannot reach: the other server is the master, and the
    /// Sentinel names this other server. Then sets the limit for a silent master to 20 seconds.
    pub fn until_replaced(&self) -> Result<()> {
        // The limit becomes short only now, after the Sentinel has lost the master. With a short limit from the start,
        // the Sentinel could replace a master that is only slow on a busy machine.
        self.down_after(DOWN_AFTER)?;
        self.until_promoted()
    }

    /// Requests a failover by a command, and waits for its end as [`until_replaced`](Self::until_replaced) does. The
    /// test need not call this method soon after a split. The Sentinel still chooses a replica that has had no link to
    /// the master for up to ten times the limit of [`down_after`](Self::down_after).
    pub fn replace_master(&self) -> Result<()> {
        self.watcher.command(&["SENTINEL", "FAILOVER", NAME])?;
        self.until_promoted()
    }

    /// Waits until the other server is the master and the Sentinel names this server. Then sets the limit for a silent
    /// master to 20 seconds.
    fn until_promoted(&self) -> Result<()> {
        let number = 1 - self.number();
        let next = self.replica();
        let port = self.port(number).to_string();
        wait_until("another master", || {
            // Use this command, because other commands, such as `GET-MASTER-ADDR-BY-NAME`, name the new master before
            // the failover is complete.
            let reply = self.watcher.command(&["SENTINEL", "MASTER", NAME])?;
            let fields: Vec<&str> = reply.parts().iter().filter_map(Reply::text).collect();
            let is_named = fields.chunks(2).any(|field| field == ["port", &port]);
            // The Sentinel closes the connections of a server to which it assigns another role.
            let info = next.info("replication").unwrap_or_default();
            Ok(is_named && info.get("role").is_some_and(|role| role == "master"))
        })
        .with_context(|| format!("the Sentinel's log ends:\n{}", self.watcher.log_tail()))?;
        self.down_after(DOWN_AFTER_WITHOUT_FAILOVER)?;
        self.master.store(number, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until the replica has all writes that the master has now.
    pub fn until_replicated(&self) -> Result<()> {
        self.replica().until_caught_up(self.master())
    }

    /// Waits until the replica has all present writes of the master, and pauses the replica. The connection between the
    /// two servers stays open, as in a network that drops all packets. [`restart_replica`](Self::restart_replica) ends
    /// the pause.
    pub fn silence_replica(&self) -> Result<()> {
        self.until_replicated()?;
        self.replica().pause()
    }

    /// Kills the replica and starts it again, and waits until the Sentinel reaches it. After
    /// [`silence_replica`](Self::silence_replica), the replica loses the writes that arrived during the pause: the
    /// operating system had received these writes, but the replica had not read them.
    pub fn restart_replica(&self) -> Result<()> {
        self.replica().restart()?;
        self.until_replica("a Sentinel that reaches the replica", |is| is("flags", "slave"))
    }

    /// Splits the group: from now on, the master serves neither the Sentinel, nor the replica, nor new clients. The
    /// master still serves the other clients that are already connected. If the replica is not paused, it has all
    /// writes from before the split. Within 4 seconds, the test must call [`until_replaced`](Self::until_replaced).
    /// After more than 4 seconds, the test must call [`replace_master`](Self::replace_master) instead. Afterwards, the
    /// test may call [`heal_split`](Self::heal_split).
    pub fn cut_off(&self) -> Result<CutOff> {
        if !self.replica().is_paused() {
            self.until_replicated()?;
        }
        let mut connection = self.master().connect()?;
        connection.command(&["CONFIG", "SET", "requirepass", CUT_OFF_PASSWORD])?;
        connection.command(&["CLIENT", "KILL", "TYPE", "replica"])?;
        let own = connection.command(&["CLIENT", "ID"])?.int().context("an id")?.to_string();
        let list = connection.command(&["CLIENT", "LIST"])?;
        let mut clients = BTreeSet::new();
        for client in list.text().unwrap_or_default().lines() {
            let id = id_of(client).context("a line of CLIENT LIST has no id")?.to_owned();
            if client.contains(" name=sentinel") {
                connection.command(&["CLIENT", "KILL", "ID", &id])?;
            } else if id != own {
                clients.insert(id);
            }
        }
        Ok(CutOff { connection, clients })
    }

    /// Starts a new replica of a master that is cut off, after the Sentinel has replaced this master. The Sentinel does
    /// not know the new replica, so the replica stays with the old master.
    pub fn start_replica_of_cut_off(&self) -> Result<Redis> {
        let login = format!("masterauth {CUT_OFF_PASSWORD}");
        Redis::with(&Options::new().replica_of(self.replica()).line(&login))
    }

    /// Starts a new replica of the master. If the master has a proxy, the replica connects through the proxy.
    pub fn start_replica(&self) -> Result<Redis> {
        let port = self.port(self.number());
        let follow = format!("replicaof 127.0.0.1 {port}");
        Redis::with(&Options::new().replica_of(self.master()).line(&follow))
    }

    /// Ends a split after the Sentinel has replaced the master. The old master, which still runs, becomes a replica.
    /// This replica discards the writes that the new master lacks, and closes the connections of its clients. Without
    /// this method, the Sentinel would also make the old master a replica, but only eight seconds after it reaches the
    /// old master again. Waits until the old master is in step, and until the Sentinel considers it fit to become the
    /// master. After this call, the next failover or split can follow.
    pub fn heal_split(&self) -> Result<()> {
        let port = self.port(self.number()).to_string();
        let old = self.replica();
        let password = old.password().unwrap_or_default();
        let mut connection = Connection::open(old.port())?;
        connection.command(&["AUTH", CUT_OFF_PASSWORD])?;
        connection.command(&["REPLICAOF", "127.0.0.1", &port])?;
        connection.command(&["CONFIG", "SET", "requirepass", password])?;
        connection.command(&["CONFIG", "REWRITE"])?;
        connection.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
        old.until_in_step()?;
        self.until_replica_known()
    }

    /// Starts the killed old master as a replica. Waits until this replica is in step, and until the Sentinel considers
    /// the replica fit to become the master. After this call, the next failover can follow. With [`Redis::restart`]
    /// instead, the old master would start as a master, until the Sentinel reconfigures it.
    pub fn rejoin(&self) -> Result<()> {
        let port = self.port(self.number());
        self.replica().configure_later(&format!("replicaof 127.0.0.1 {port}"))?;
        self.replica().restart()?;
        self.replica().until_in_step()?;
        self.until_replica_known()
    }

    fn until_replica_known(&self) -> Result<()> {
        self.until_replica("a Sentinel that knows the replica", |is| {
            is("master-link-status", "ok") && is("flags", "slave")
        })
    }

    /// `is_right` receives a function that returns whether a field of the Sentinel's description of the replica has the
    /// given value.
    fn until_replica(
        &self,
        what: &str,
        is_right: impl Fn(&dyn Fn(&str, &str) -> bool) -> bool,
    ) -> Result<()> {
        let port = self.port(1 - self.number()).to_string();
        wait_until(what, || {
            let reply = self.watcher.command(&["SENTINEL", "REPLICAS", NAME])?;
            Ok(reply.parts().iter().any(|replica| {
                let fields: Vec<&str> = replica.parts().iter().filter_map(Reply::text).collect();
                let is =
                    |name: &str, value: &str| fields.chunks(2).any(|field| field == [name, value]);
                is("port", &port) && is_right(&is)
            }))
        })
    }

    fn number(&self) -> usize {
        self.master.load(Ordering::SeqCst)
    }
}

/// A running master that neither the Sentinel nor the replica reaches.
#[derive(Debug)]
pub struct CutOff {
    connection: Connection,
    clients: BTreeSet<String>,
}

impl CutOff {
    /// Returns a connection to the master. The connection was opened before the split, because the master now refuses
    /// the commands of new connections.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Returns whether a client that was connected before the split is still connected.
    pub fn has_clients(&mut self) -> Result<bool> {
        let list = self.connection.command(&["CLIENT", "LIST"])?;
        let mut ids = list.text().unwrap_or_default().lines().filter_map(id_of);
        Ok(ids.any(|id| self.clients.contains(id)))
    }
}

fn id_of(client: &str) -> Option<&str> {
    client.split(' ').find_map(|field| field.strip_prefix("id="))
}

/// Starts a master and a replica, and waits until the replica is in step with the master.
fn servers(options: &Options) -> Result<[Redis; 2]> {
    let master = Redis::with(options)?;
    let replica = Redis::with(&options.clone().replica_of(&master))?;
    Ok([master, replica])
}
