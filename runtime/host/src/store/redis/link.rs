//! The connections: to one server, to the master that Sentinels name, or to all masters of a
//! Cluster.
//!
//! A connection that breaks is made anew with the next call, at most one at a time. A call is sent
//! once, except where a Cluster redirects it; whether to send it again is its caller's affair,
//! since only the caller knows whether that is harmless.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    Value, cmd,
};

use super::address::Address;
use super::value::{array, bytes, number, text};

/// For a connection with its TLS and login: more than a few lost packets take.
const CONNECT: Duration = Duration::from_secs(3);
/// For an answer: more than a commit of some MiB takes on a slow network and a slow disk. After it
/// the connection counts as broken.
const ANSWER: Duration = Duration::from_secs(10);
/// Redirections and refused tries of one call in a Cluster before its caller hears of them.
const CLUSTER_TRIES: u32 = 6;
/// Between such tries, in ms.
const CLUSTER_WAIT: (u64, u64) = (20, 500);

/// A way to the server, or servers.
pub(super) struct Link {
    to: To,
    /// How often it broke.
    breaks: AtomicU64,
}

#[allow(clippy::large_enum_variant, reason = "a store has a few")]
enum To {
    Single(Single),
    Cluster(ClusterConnection),
}

/// One server at a time.
struct Single {
    address: Address,
    /// The master's name, where Sentinels are to be asked for it.
    master: Option<String>,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// How many there were before it.
    generation: u64,
}

impl Link {
    /// Connects, and finds out what is there.
    pub(super) async fn connect(address: &Address) -> RedisResult<Self> {
        if address.tls {
            // Fails where one is installed already, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut first = any(address).await?;
        let mode = mode(&mut first).await?;
        if mode == "cluster" {
            return Ok(Self::new(To::Cluster(cluster(address).await?)));
        }
        let master = if mode == "sentinel" {
            Some(master_name(&mut first, address).await?)
        } else {
            if address.path.parse::<u32>().is_err() && !address.path.is_empty() {
                return Err(wrong(format!(
                    "{address} is a single server, and {:?} is not the number of a database",
                    address.path
                )));
            }
            None
        };
        let (current, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        let single = Single { address: address.clone(), master, current, connecting };
        single.connection().await?;
        Ok(Self::new(To::Single(single)))
    }

    fn new(to: To) -> Self {
        Self { to, breaks: AtomicU64::new(0) }
    }

    /// How often it broke. After each time the servers may have other data than before.
    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::SeqCst)
    }

    /// What it is connected to, in words.
    pub(super) fn kind(&self) -> &'static str {
        match &self.to {
            To::Single(Single { master: None, .. }) => "Redis",
            To::Single(_) => "Redis under Sentinel",
            To::Cluster(_) => "Redis Cluster",
        }
    }

    /// Sends a command to the node that has its key.
    pub(super) async fn call(&self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = match &self.to {
            To::Cluster(cluster) => cmd.query_async(&mut cluster.clone()).await,
            To::Single(single) => {
                let (mut connection, generation) = single.connection().await?;
                let answer = cmd.query_async(&mut connection).await;
                return self.look_at(single, generation, answer);
            }
        };
        self.count(&answer);
        answer
    }

    /// Sends a command, unless the link broke more often than so: then there is no answer.
    pub(super) async fn call_unless_broken(
        &self,
        cmd: &Cmd,
        breaks: u64,
    ) -> RedisResult<Option<Value>> {
        let To::Single(single) = &self.to else {
            return if self.breaks() > breaks { Ok(None) } else { self.call(cmd).await.map(Some) };
        };
        // A break is counted before its connection is let go of. So what is sent over a later one is
        // sent after the count was looked at.
        let (mut connection, generation) = single.connection().await?;
        if self.breaks() > breaks {
            return Ok(None);
        }
        let answer = cmd.query_async(&mut connection).await;
        self.look_at(single, generation, answer).map(Some)
    }

    /// Sends commands of one node's keys, one right behind the other on one connection.
    pub(super) async fn pipe(&self, pipe: &Pipeline) -> RedisResult<Vec<Value>> {
        let answer = match &self.to {
            To::Cluster(cluster) => pipe.query_async(&mut cluster.clone()).await,
            To::Single(single) => {
                let (mut connection, generation) = single.connection().await?;
                let answer = pipe.query_async(&mut connection).await;
                return self.look_at(single, generation, answer);
            }
        };
        self.count(&answer);
        answer
    }

    /// Lets go of a connection over which nothing good will come any more.
    fn look_at<T>(
        &self,
        single: &Single,
        generation: u64,
        answer: RedisResult<T>,
    ) -> RedisResult<T> {
        if self.count(&answer) {
            single.let_go(generation);
        }
        answer
    }

    /// Counts a break.
    fn count<T>(&self, answer: &RedisResult<T>) -> bool {
        let broken = answer.as_ref().is_err_and(is_broken);
        if broken {
            self.breaks.fetch_add(1, Ordering::SeqCst);
        }
        broken
    }

    /// Sends a command to every master.
    pub(super) async fn ask_all(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        let To::Cluster(cluster) = &self.to else { return Ok(vec![self.call(cmd).await?]) };
        let to_all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match cluster.clone().route_command(cmd.clone(), to_all).await?.extract_error()? {
            Value::Map(answers) => Ok(answers.into_iter().map(|(_, answer)| answer).collect()),
            answer => Ok(vec![answer]),
        }
    }
}

impl Single {
    async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.present() {
            return Ok(connection);
        }
        let connection = match &self.master {
            None => any(&self.address).await?,
            Some(name) => self.ask_for_master(name).await?,
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.generation += 1;
        current.connection = Some(connection.clone());
        Ok((connection, current.generation))
    }

    fn present(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.connection.clone().map(|connection| (connection, current.generation))
    }

    fn let_go(&self, generation: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.generation == generation {
            current.connection = None;
        }
    }

    async fn ask_for_master(&self, name: &str) -> RedisResult<MultiplexedConnection> {
        let mut sentinel = any_sentinel(&self.address).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer: Value = question.query_async(&mut sentinel).await?;
        let place = array(answer, "SENTINEL").ok().map(Vec::into_iter);
        let place = place.and_then(|mut it| {
            Some((text(it.next()?)?, u16::try_from(number(&it.next()?)?).ok()?))
        });
        let Some((host, port)) = place else {
            return Err(wrong(format!("the Sentinels know no master {name:?}")));
        };
        let mut master = open(&self.address, &host, port, true).await?;
        let role: Value = cmd("ROLE").query_async(&mut master).await?;
        let role = array(role, "ROLE").ok().and_then(|it| text(it.into_iter().next()?));
        match role.as_deref() {
            Some("master") => Ok(master),
            _ => Err(not_yet(format!("{host}:{port}, which the Sentinels name, is no master"))),
        }
    }
}

/// Whether a new connection may do better.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// The first host that answers; else why the last one did not.
async fn any(address: &Address) -> RedisResult<MultiplexedConnection> {
    let mut last = None;
    for (host, port) in &address.hosts {
        match open(address, host, *port, true).await {
            Ok(connection) => return Ok(connection),
            Err(error) if is_login(&error) && address.password.is_some() => {
                match without_login(address, host, *port).await {
                    Some(sentinel) => return Ok(sentinel),
                    None => last = Some(error),
                }
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| wrong("no host is named".to_owned())))
}

/// A Sentinel: they mostly have no password, and refuse one.
async fn without_login(address: &Address, host: &str, port: u16) -> Option<MultiplexedConnection> {
    let mut connection = open(address, host, port, false).await.ok()?;
    is_sentinel(&mut connection).await.then_some(connection)
}

async fn any_sentinel(address: &Address) -> RedisResult<MultiplexedConnection> {
    let mut sentinel = any(address).await?;
    if is_sentinel(&mut sentinel).await {
        return Ok(sentinel);
    }
    Err(wrong(format!("{address} is no Sentinel any more")))
}

async fn is_sentinel(connection: &mut MultiplexedConnection) -> bool {
    mode(connection).await.is_ok_and(|mode| mode == "sentinel")
}

fn is_login(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// `standalone`, `cluster` or `sentinel`.
async fn mode(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let info: Value = cmd("INFO").arg("server").query_async(connection).await?;
    let info = bytes(info).unwrap_or_default();
    let mode = info_field(&String::from_utf8_lossy(&info), "redis_mode").map(str::to_owned);
    Ok(mode.unwrap_or_else(|| "standalone".to_owned()))
}

/// A field of what `INFO` answers.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

async fn master_name(
    sentinel: &mut MultiplexedConnection,
    address: &Address,
) -> RedisResult<String> {
    if !address.path.is_empty() {
        return Ok(address.path.clone());
    }
    let masters: Value = cmd("SENTINEL").arg("MASTERS").query_async(sentinel).await?;
    let masters = array(masters, "SENTINEL").unwrap_or_default();
    let mut names = masters.into_iter().filter_map(|master| {
        let fields = array(master, "SENTINEL").ok()?;
        text(fields.into_iter().nth(1)?)
    });
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        (None, _) => Err(wrong(format!("the Sentinels at {address} watch no master"))),
        (Some(one), Some(other)) => Err(wrong(format!(
            "the Sentinels at {address} watch several masters ({one}, {other}, …): name one at the \
             end of the URL, as in redis://{address}/{one}"
        ))),
    }
}

async fn cluster(address: &Address) -> RedisResult<ClusterConnection> {
    if !matches!(&*address.path, "" | "0") {
        return Err(wrong(format!(
            "{address} is a Cluster, which has no databases: leave {:?} out",
            address.path
        )));
    }
    let nodes = address.hosts.iter().map(|(host, port)| info(address, host, *port, true));
    let mut client = ClusterClient::builder(nodes)
        .retries(CLUSTER_TRIES)
        .min_retry_wait(CLUSTER_WAIT.0)
        .max_retry_wait(CLUSTER_WAIT.1)
        .connection_timeout(CONNECT)
        .response_timeout(ANSWER)
        .max_connection_attempts(NonZeroUsize::MIN);
    if let Some(user) = &address.user {
        client = client.username(user);
    }
    if let Some(password) = &address.password {
        client = client.password(password);
    }
    client.build()?.get_async_connection().await
}

async fn open(
    address: &Address,
    host: &str,
    port: u16,
    login: bool,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(ANSWER));
    let client = Client::open(info(address, host, port, login))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn info(address: &Address, host: &str, port: u16, login: bool) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut settings = RedisConnectionInfo::default();
    if login {
        // Sentinels and Clusters have no databases.
        settings = settings.set_db(address.path.parse().unwrap_or(0));
        if let Some(user) = &address.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &address.password {
            settings = settings.set_password(password);
        }
    }
    // An address and nothing else is always one.
    let info = addr.into_connection_info().expect("an address of host and port");
    info.set_redis_settings(settings)
}

fn wrong(words: String) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "not what the URL says", words))
}

/// What another try may find otherwise.
fn not_yet(words: String) -> RedisError {
    RedisError::from((ErrorKind::Io, "not yet", words))
}
