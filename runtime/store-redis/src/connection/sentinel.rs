//! Finds the master that Sentinels name.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value, cmd};
use tokio::time::{Instant, timeout_at};

use super::super::value::{array, number, text};
use super::connect::{NodeAddress, config_error, is_login_error, mode, open, retryable_error};
use ordain_store::RedisAddress;

/// The time to wait for the other Sentinels after the first Sentinel has answered. The time is short, because some
/// Sentinels possibly do not answer at all: a Sentinel often runs on the machine of the failed master.
const OTHER_SENTINELS_TIMEOUT: Duration = Duration::from_millis(300);

/// The master that the Sentinels name. If the Sentinels disagree, this answer comes from the Sentinels that know of the
/// newest election.
pub(super) struct SentinelAnswer {
    /// The epoch of the newest election that the Sentinels report; 0 if there was no election, or if the Sentinels do
    /// not report the epoch.
    pub(super) epoch: u64,
    pub(super) master: NodeAddress,
    /// The addresses that the other Sentinels with the same epoch report. These addresses can differ from `master` if
    /// the Sentinels spell the address differently, for example as a name and as an IP address.
    pub(super) other_addresses: Vec<NodeAddress>,
    /// True if all Sentinels of the URL have answered.
    pub(super) is_complete: bool,
}

impl SentinelAnswer {
    pub(super) fn names(&self, master: &NodeAddress) -> bool {
        self.master == *master || self.other_addresses.contains(master)
    }
}

/// Queries all Sentinels of the URL. The answer of one Sentinel is not enough: a Sentinel that is cut off from the
/// others does not learn of an election, and names the old master.
pub(super) async fn query_sentinels(
    address: &RedisAddress,
    name: &str,
) -> RedisResult<SentinelAnswer> {
    let requests =
        address.hosts.iter().map(|(host, port)| query_sentinel(address, host, *port, name));
    let mut requests: FuturesUnordered<_> = requests.collect();
    let mut newest = 0;
    let mut masters = Vec::new();
    let mut failed = None;
    let mut until = None;
    loop {
        let answer = match until {
            None => requests.next().await,
            Some(at) => timeout_at(at, requests.next()).await.unwrap_or(None),
        };
        match answer {
            Some(Ok((epoch, master))) => {
                until.get_or_insert_with(|| Instant::now() + OTHER_SENTINELS_TIMEOUT);
                if epoch > newest {
                    masters.clear();
                }
                if epoch >= newest {
                    newest = epoch;
                    masters.push(master);
                }
            }
            Some(Err(error)) => failed = Some(error),
            None => break,
        }
    }
    let is_complete = failed.is_none() && requests.is_empty();
    let mut addresses = masters.into_iter();
    match (addresses.next(), failed) {
        (Some(master), _) => {
            let other_addresses = addresses.collect();
            Ok(SentinelAnswer { epoch: newest, master, other_addresses, is_complete })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(config_error("the URL names no host".to_owned())),
    }
}

/// Returns one Sentinel's answer: the epoch of the election, and the address of the master.
async fn query_sentinel(
    address: &RedisAddress,
    host: &str,
    port: u16,
    name: &str,
) -> RedisResult<(u64, NodeAddress)> {
    let mut sentinel = match open(address, host, port, true).await {
        Err(error) if is_login_error(&error) && address.password.is_some() => {
            open(address, host, port, false).await?
        }
        opened => opened?,
    };
    let unknown = || {
        // A process whose URL names no master keeps the name that it has found at its start.
        config_error(format!(
            "the Sentinels monitor no master {name:?}. If the master has another name now, correct the name at the \
             end of the URL; if the URL names no master, start Ordain again"
        ))
    };
    match cmd("SENTINEL").arg("MASTER").arg(name).query_async(&mut sentinel).await {
        Ok(answer) => parse_master(answer).ok_or_else(unknown),
        // The user has no right to `SENTINEL MASTER`, but may have the right to the command that returns only the
        // address.
        Err(error) if is_forbidden(&error) => {
            let mut request = cmd("SENTINEL");
            request.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
            let answer: Value = request.query_async(&mut sentinel).await?;
            let master = array(answer, "SENTINEL").ok().and_then(|fields| {
                let mut fields = fields.into_iter();
                let host = text(fields.next()?)?;
                let port = number(&fields.next()?)?;
                Some(NodeAddress { host, port: u16::try_from(port).ok()? })
            });
            master.map(|master| (0, master)).ok_or_else(unknown)
        }
        Err(error) if error.to_string().contains("No such master") => Err(unknown()),
        Err(error) if error.to_string().contains("unknown command") => {
            Err(config_error(format!("{host}:{port} is not a Sentinel: {error}")))
        }
        Err(error) => Err(error),
    }
}

fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// Decodes the answer to `SENTINEL MASTER`: a map, or an array of alternating names and values.
fn parse_master(answer: Value) -> Option<(u64, NodeAddress)> {
    let mut host = None;
    let mut port = None;
    let mut epoch = 0;
    let pairs: Vec<(Value, Value)> = match answer {
        Value::Map(pairs) => pairs,
        answer => {
            let mut fields = array(answer, "SENTINEL").ok()?.into_iter();
            std::iter::from_fn(|| Some((fields.next()?, fields.next()?))).collect()
        }
    };
    for (field, value) in pairs {
        match &*text(field)? {
            "ip" => host = text(value),
            "port" => port = number(&value).and_then(|port| u16::try_from(port).ok()),
            "config-epoch" => epoch = number(&value).unwrap_or(0),
            _ => {}
        }
    }
    Some((epoch, NodeAddress { host: host?, port: port? }))
}

/// Connects to a master that Sentinels name. Returns a temporary error if the server does not act as a master.
pub(super) async fn open_master(
    address: &RedisAddress,
    node: &NodeAddress,
) -> RedisResult<MultiplexedConnection> {
    let mut master = open(address, &node.host, node.port, true).await?;
    let role: Value = cmd("ROLE").query_async(&mut master).await?;
    let role = array(role, "ROLE").ok().and_then(|parts| text(parts.into_iter().next()?));
    match role.as_deref() {
        Some("master") => Ok(master),
        _ => Err(retryable_error(format!("{node}, which the Sentinels name, is not a master"))),
    }
}

/// Connects to a Sentinel without a login, because most Sentinels have no password and refuse a login. Returns `None`
/// if the connection fails, or if the server is not a Sentinel.
pub(super) async fn without_login(
    address: &RedisAddress,
    host: &str,
    port: u16,
) -> Option<MultiplexedConnection> {
    let mut connection = open(address, host, port, false).await.ok()?;
    is_sentinel(&mut connection).await.then_some(connection)
}

async fn is_sentinel(connection: &mut MultiplexedConnection) -> bool {
    mode(connection).await.is_ok_and(|mode| mode == "sentinel")
}

pub(super) async fn master_name(
    sentinel: &mut MultiplexedConnection,
    address: &RedisAddress,
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
        (None, _) => Err(config_error(format!("the Sentinels at {address} monitor no master"))),
        (Some(one), Some(other)) => Err(config_error(format!(
            "the Sentinels at {address} monitor several masters ({one}, {other}, …): name one at the \
             end of the URL, as in redis://{address}/{one}"
        ))),
    }
}
