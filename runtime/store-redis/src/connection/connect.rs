//! Opens a connection to one host, for any kind of server.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, Value, cmd,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::error::{error_text, without_arguments};
use super::super::value::bytes;
use super::sentinel;
use ordain_store::RedisAddress;

/// The timeout for opening a connection, including TLS and login. The timeout is long enough for TCP to repeat a few
/// lost packets.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout for an answer. If no answer arrives within this time, the connection counts as broken. The timeout is
/// longer than a commit of some MiB takes on a slow network and a slow disk.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait for the reason why a server refuses connections. The server sends the reason immediately.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(300);
/// The maximum size, in bytes, of the text with the reason why a server refuses connections.
const REFUSAL_LIMIT_BYTES: u64 = 1 << 10;

/// The number of characters at the start of a password by which this module recognises the password in a server's text.
/// The text may contain only the start of a long password.
const PASSWORD_START_CHARS: usize = 16;

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

/// Connects to the first host of the URL that accepts the connection and the login. If a host refuses the login, but is
/// a Sentinel, connects to this host without a login. Returns the connection and the host. If no connection succeeds,
/// returns the error of the last host.
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
    Ok(mode_in(&String::from_utf8_lossy(&info)).to_owned())
}

/// Returns the mode of a server from its answer to `INFO`.
fn mode_in(info: &str) -> &str {
    let mode = info_field(info, "redis_mode").or_else(|| info_field(info, "server_mode"));
    mode.unwrap_or("standalone")
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

/// Connects to one host. If `login` is `true`, also logs in if the URL has a password, and selects the database if the
/// URL names one.
///
/// If the server refuses the connection or the login, the error contains the server's own words, unless they contain
/// the password.
pub(super) async fn open(
    address: &RedisAddress,
    host: &str,
    port: u16,
    login: bool,
) -> RedisResult<MultiplexedConnection> {
    let opening = async {
        let opened = open_with_login(address, host, port, login).await;
        match opened {
            Err(error) if is_closed_by_server(&error) && !address.tls => {
                Err(read_refusal(host, port).await.unwrap_or(error))
            }
            opened => opened,
        }
    };
    timeout(CONNECT_TIMEOUT, opening)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn open_with_login(
    address: &RedisAddress,
    host: &str,
    port: u16,
    login: bool,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    let host = host.to_owned();
    let addr = if address.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    // The library can log in by itself, but its error would not contain the server's words. By default, the library
    // also sends CLIENT SETINFO. `set_skip_set_lib_name` prevents this command: if the user has no right to the
    // command, the server adds an entry to its ACL log at each connection.
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let client = Client::open(addr.into_connection_info()?.set_redis_settings(settings))?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    match address.password.as_ref().filter(|_| login) {
        Some(password) => {
            let mut auth = cmd("AUTH");
            auth.arg(address.user.as_ref()).arg(password);
            let answer = auth.query_async::<()>(&mut connection).await;
            let hint = address.refused_login_hint.as_deref();
            answer.map_err(|error| login_error(error, password, hint))?;
        }
        // HELLO checks whether the server accepts the connection: every user may send HELLO, but a server that refuses
        // the connection also refuses HELLO.
        None => match cmd("HELLO").query_async::<Value>(&mut connection).await {
            // A server that requires a login refuses every request. Without this check, the server could close the
            // connection at the first large request, and the error would not state the reason. The refusal of PING is
            // clearer than the refusal of HELLO.
            Err(error) if login && is_login_error(&error) => {
                cmd("PING").query_async::<()>(&mut connection).await?;
            }
            Err(error) if !is_refusal_of_hello(&error) => return Err(error),
            _ => {}
        },
    }
    // In the URL of a single server, the path is the number of a database. Clusters have only database 0.
    let database = address.path.parse::<u32>().ok().filter(|number| login && *number != 0);
    if let Some(database) = database {
        cmd("SELECT").arg(database).query_async::<()>(&mut connection).await?;
    }
    Ok(connection)
}

/// Converts the error of a login that the server refused. An I/O error is no refusal, and stays unchanged. If the text
/// of the server contains the password, the new error does not contain this text. The error ends with `hint`, the next
/// step.
fn login_error(error: RedisError, password: &str, hint: Option<&str>) -> RedisError {
    if error.is_io_error() {
        return error;
    }
    let start: String = password.chars().take(PASSWORD_START_CHARS).collect();
    let is_shown = without_arguments(&error.to_string()).contains(&start);
    let words = if is_shown && !start.is_empty() {
        "the server refused the login; the server's text is not shown, because it contains the password".to_owned()
    } else {
        error_text(&error)
    };
    let words = match hint {
        Some(hint) => format!("{}. {hint}", words.trim_end_matches('.')),
        None => words,
    };
    RedisError::from((ErrorKind::AuthenticationFailed, "login refused", words))
}

/// Returns whether a server that accepts the connection refused `HELLO`: the server needs a login, or is a proxy that
/// does not know the command.
fn is_refusal_of_hello(error: &RedisError) -> bool {
    is_login_error(error) || error.detail().is_some_and(|words| words.contains("unknown command"))
}

fn is_closed_by_server(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// Connects once more, and reads the reason why a server refuses connections, for example because it has the maximum
/// number of clients. The server sends the reason immediately, and closes the connection. If the client has sent a
/// request before it reads the reason, the client library reports only the end of the connection.
async fn read_refusal(host: &str, port: u16) -> Option<RedisError> {
    let reading = async {
        let mut line = String::new();
        let stream = TcpStream::connect((host, port)).await.ok()?;
        BufReader::new(stream.take(REFUSAL_LIMIT_BYTES)).read_line(&mut line).await.ok()?;
        let words = line.trim_end().strip_prefix('-')?.to_owned();
        Some(RedisError::from((ErrorKind::AuthenticationFailed, "connection refused", words)))
    };
    timeout(REFUSAL_TIMEOUT, reading).await.ok()?
}

pub(super) fn config_error(words: String) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "the URL does not match the server", words))
}

/// Returns an error for a temporary failure, so that the caller tries again.
pub(super) fn retryable_error(words: String) -> RedisError {
    RedisError::from((ErrorKind::Io, "not yet", words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_of_redis_and_of_valkey_is_recognised() {
        for mode in ["standalone", "cluster", "sentinel"] {
            for field in ["redis_mode", "server_mode"] {
                let info =
                    format!("# Server\r\nredis_version:7.2.4\r\n{field}:{mode}\r\nos:Linux\r\n");
                assert_eq!(mode_in(&info), mode, "{info}");
            }
        }
        assert_eq!(mode_in("# Server\r\n"), "standalone");
    }

    /// A server or a proxy may repeat the password in any form.
    #[test]
    fn server_text_with_the_password_is_not_shown() {
        let long = "hunter2-".repeat(20);
        for (password, text, is_shown) in [
            ("hunter2", "invalid user or password", true),
            (
                "hunter2",
                "unknown command 'AUTH', with args beginning with: 'shop' 'hunter2' ",
                true,
            ),
            ("", "invalid user or password", true),
            ("hunter2", "no such login: shop:hunter2", false),
            (&*long, "no such login: shop:hunter2-hunter2-hun…", false),
        ] {
            let refusal = (ErrorKind::AuthenticationFailed, "refused", text.to_owned());
            let error = login_error(RedisError::from(refusal), password, None);
            let words = error_text(&error);
            let (shown, _) = text.split_once(',').unwrap_or((text, ""));
            assert_eq!(words == shown, is_shown, "{words}");
            assert!(!words.contains("hunter2"), "{words}");
        }
    }
}
