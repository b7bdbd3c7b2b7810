//! Sentinels, and the master that they name.

use std::fmt;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value, cmd};
use tokio::time::{Instant, timeout_at};

use super::super::value::{array, number, text};
use super::connect::{is_login, mode, not_yet, open, wrong};
use ordain_store::RedisAddress as Address;

/// Where a master is, as Sentinels name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    host: String,
    port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How long other Sentinels are waited for once one has answered: the host of one often dies with the master.
const OTHERS: Duration = Duration::from_millis(300);

/// The places of the master of this name that was elected last, of all Sentinels that answer: one that is cut
/// off from the others does not hear of an election. There are several if Sentinels spell one place
/// differently.
pub(super) async fn newest(address: &Address, name: &str) -> RedisResult<Vec<Place>> {
    let asked = address.hosts.iter().map(|(host, port)| ask(address, host, *port, name));
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut newest, mut places, mut failed, mut until) = (0, Vec::new(), None, None);
    loop {
        let answer = match until {
            None => asked.next().await,
            Some(at) => timeout_at(at, asked.next()).await.unwrap_or(None),
        };
        match answer {
            Some(Ok((epoch, place))) => {
                until.get_or_insert_with(|| Instant::now() + OTHERS);
                if epoch > newest {
                    places.clear();
                }
                if epoch >= newest {
                    newest = epoch;
                    places.push(place);
                }
            }
            Some(Err(error)) => failed = Some(error),
            None => break,
        }
    }
    match failed {
        _ if !places.is_empty() => Ok(places),
        Some(error) => Err(error),
        None => Err(wrong("no host is named".to_owned())),
    }
}

/// What one Sentinel says: the epoch of the election, and the place.
async fn ask(address: &Address, host: &str, port: u16, name: &str) -> RedisResult<(u64, Place)> {
    let mut sentinel = match open(address, host, port, true).await {
        Err(error) if is_login(&error) && address.password.is_some() => {
            open(address, host, port, false).await?
        }
        opened => opened?,
    };
    let unknown = || wrong(format!("the Sentinels know no master {name:?}"));
    match cmd("SENTINEL").arg("MASTER").arg(name).query_async(&mut sentinel).await {
        Ok(answer) => elected(answer).ok_or_else(unknown),
        // One that may not say more than where the master is.
        Err(error) if is_forbidden(&error) => {
            let mut question = cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
            let answer: Value = question.query_async(&mut sentinel).await?;
            let place = array(answer, "SENTINEL").ok().and_then(|place| {
                let mut place = place.into_iter();
                let (host, port) = (text(place.next()?)?, number(&place.next()?)?);
                Some(Place { host, port: u16::try_from(port).ok()? })
            });
            place.map(|place| (0, place)).ok_or_else(unknown)
        }
        Err(error) if error.is_io_error() => Err(error),
        Err(error) if error.to_string().contains("No such master") => Err(unknown()),
        Err(error) => Err(wrong(format!("{host}:{port} is no Sentinel any more: {error}"))),
    }
}

fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// The fields of `SENTINEL MASTER`: names and values in turn.
fn elected(answer: Value) -> Option<(u64, Place)> {
    let (mut host, mut port, mut epoch) = (None, None, 0);
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
            "port" => port = number(&value).and_then(|it| u16::try_from(it).ok()),
            "config-epoch" => epoch = number(&value).unwrap_or(0),
            _ => {}
        }
    }
    Some((epoch, Place { host: host?, port: port? }))
}

/// A connection to a master that Sentinels name.
pub(super) async fn open_master(
    address: &Address,
    place: &Place,
) -> RedisResult<MultiplexedConnection> {
    let mut master = open(address, &place.host, place.port, true).await?;
    let role: Value = cmd("ROLE").query_async(&mut master).await?;
    let role = array(role, "ROLE").ok().and_then(|it| text(it.into_iter().next()?));
    match role.as_deref() {
        Some("master") => Ok(master),
        _ => Err(not_yet(format!("{place}, which the Sentinels name, is no master"))),
    }
}

/// A Sentinel: they mostly have no password, and refuse one.
pub(super) async fn without_login(
    address: &Address,
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
