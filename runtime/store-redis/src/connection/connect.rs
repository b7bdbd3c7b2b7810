//! Opens a connection to one host, for any kind of server.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, Value, cmd,
};

use super::super::value::bytes;
use super::sentinel;
use ordain_store::RedisAddress;

/// The timeout for opening a connection, including TLS and login. The timeout is long enough for TCP to repeat a few
/// lost packets.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout for an answer. If no answer arrives within this time, the connection counts as broken. The timeout is
/// longer than a commit of some MiB takes on a slow network and a slow disk.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a server, as Sentinels or the nodes of a Cluster report it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Connects to the first host that answers. Returns the connection and the host. If no host answers, returns the error
/// of the last host.
pub(super) async fn connect_any(
    address: &RedisAddress,
) -> RedisResult<(MultiplexedConnection, &str)> {
    let mut last = None;
    for (host, port) in &address.hosts {
        match open(address, host, *port, true).await {
            Ok(connection) => return Ok((connection, host)),
            Err(error) if is_login_error(&error) && address.password.is_some() => {
                match sentinel::without_login(address, host, *port).await {
                    Some(sentinel) => return Ok((sentinel, host)),
                    None => last = Some(error),
                }
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| config_error("the URL names no host".to_owned())))
}

pub(super) fn is_login_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

/// Returns the mode of a server: `standalone`, `cluster` or `sentinel`. Redis reports the mode in the field
/// `redis_mode`, and Valkey in the field `server_mode`.
pub(super) async fn mode(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let info: Value = cmd("INFO").arg("server").query_async(connection).await?;
    let info = bytes(info).unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    let mode = info_field(&info, "redis_mode").or_else(|| info_field(&info, "server_mode"));
    Ok(mode.unwrap_or("standalone").to_owned())
}

/// Connects to a replica, and returns its answer to `INFO`.
pub(in super::super) async fn replica_info(
    address: &RedisAddress,
    host: &str,
    port: u16,
) -> RedisResult<String> {
    let mut connection = open(address, host, port, true).await?;
    let info: Value = cmd("INFO").arg("everything").query_async(&mut connection).await?;
    Ok(String::from_utf8_lossy(&bytes(info).unwrap_or_default()).into_owned())
}

/// Returns a field of the answer to `INFO`.
pub(in super::super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

pub(super) async fn open(
    address: &RedisAddress,
    host: &str,
    port: u16,
    login: bool,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    let client = Client::open(connection_info(address, host, port, login))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn connection_info(address: &RedisAddress, host: &str, port: u16, login: bool) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    // By default, the library sends CLIENT SETINFO. A user without the right to this command would cause an entry in
    // the server's ACL log at each connection.
    let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    if login {
        // In the URL of a single server, the path is the number of a database. Clusters have only database 0.
        settings = settings.set_db(address.path.parse().unwrap_or(0));
        if let Some(user) = &address.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &address.password {
            settings = settings.set_password(password);
        }
    }
    // The conversion cannot fail, because every host with a port is a valid address.
    let info = addr.into_connection_info().expect("an address of host and port");
    info.set_redis_settings(settings)
}

pub(super) fn config_error(words: String) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "the URL does not match the server", words))
}

/// Returns an error for a temporary failure, so that the caller tries again.
pub(super) fn retryable_error(words: String) -> RedisError {
    RedisError::from((ErrorKind::Io, "not yet", words))
}
