//! Sentinels, and the master that they name.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value, cmd};

use super::super::value::{array, number, text};
use super::connect::{any, mode, not_yet, open, wrong};
use ordain_store::RedisAddress as Address;

/// A connection to the master of this name.
pub(super) async fn master(address: &Address, name: &str) -> RedisResult<MultiplexedConnection> {
    let mut sentinel = any_sentinel(address).await?;
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer: Value = question.query_async(&mut sentinel).await?;
    let place = array(answer, "SENTINEL").ok().map(Vec::into_iter);
    let place = place
        .and_then(|mut it| Some((text(it.next()?)?, u16::try_from(number(&it.next()?)?).ok()?)));
    let Some((host, port)) = place else {
        return Err(wrong(format!("the Sentinels know no master {name:?}")));
    };
    let mut master = open(address, &host, port, true).await?;
    let role: Value = cmd("ROLE").query_async(&mut master).await?;
    let role = array(role, "ROLE").ok().and_then(|it| text(it.into_iter().next()?));
    match role.as_deref() {
        Some("master") => Ok(master),
        _ => Err(not_yet(format!("{host}:{port}, which the Sentinels name, is no master"))),
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
