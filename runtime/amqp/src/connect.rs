//! Opens connections to the broker, and classifies their errors.

use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::TLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, ErrorKind, runtime};
use tokio::time::timeout;

use super::connect_attempt::ConnectAttempt;
use super::greeting::BrokerGreeting;
use super::topology::has_default_delivery_limit;

use ordain_config::{BrokerUrl, LoadedConfig};
use ordain_util::text::{escape_invisible, truncated};

/// Time limit for opening a connection, including TLS handshake and login: longer than the delay that a few lost
/// packets cause.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of AMQP heartbeat intervals in the duration of a lease (the right of a process to a partition). The broker
/// notices a hung process after two to three heartbeat intervals, and then returns the deliveries of the process to the
/// queues. The broker must return these deliveries before the lease expires. Otherwise the next owner would have to
/// wait for them.
const HEARTBEATS_PER_LEASE: u64 = 5;
/// Maximum size of the broker's own text in an error, in bytes.
const ERROR_TEXT_LIMIT: usize = 400;

/// Parts of the broker's texts about refusals that may be temporary: the broker has not started an existing queue yet,
/// or a consumer did not acknowledge a delivery within the broker's `consumer_timeout`.
const TEMPORARY_REFUSALS: [&str; 2] =
    ["down or inaccessible", "delivery acknowledgement on channel"];

/// The beginning of the broker's text if a queue or exchange does not exist, or if a queue cannot be used now.
const NOT_FOUND_CODE: &str = "NOT_FOUND - ";
/// The beginning of the broker's text if a queue or exchange does not exist.
const NOT_FOUND_PREFIX: &str = "NOT_FOUND - no ";
/// The beginning of RabbitMQ's text about a refused login. RabbitMQ sends this text to clients that are not logged in
/// yet, so the text contains neither names nor addresses.
const LOGIN_REFUSAL_PREFIX: &str = "ACCESS_REFUSED - Login was refused";
const OTHER_EXCHANGE_TYPE: &str = "inequivalent arg 'type' for exchange";
/// The texts by which this module recognises that the broker does not support the type of an exchange. The broker sends
/// the second text if a client declares a type that the broker supported before. It sends the third text if a client
/// publishes to an exchange of such a type.
const UNSUPPORTED_EXCHANGE_TYPES: [&str; 3] =
    ["unknown exchange type", "invalid exchange type", "Cannot route message through exchange"];
/// The beginnings of the broker's texts if a limit of queues or exchanges is reached, such as `cannot declare queue
/// 'q': queue limit in vhost '/' (100) is reached`. If the name is long, the broker cuts off the rest of the text.
const REACHED_LIMIT_PREFIXES: [&str; 2] = [
    "PRECONDITION_FAILED - cannot declare queue '",
    "PRECONDITION_FAILED - cannot declare exchange '",
];
/// A part of the broker's text if a client opens more channels than the limit allows. The broker then also closes the
/// connection.
const CHANNEL_LIMIT: &str = "number of channels opened";

/// The reason why a request to the broker failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The broker refused the request.
    #[error("{reason}")]
    Refused {
        /// The cause of the refusal.
        cause: RefusalCause,
        /// The description of the refusal, with the broker's own words.
        reason: String,
    },
    /// The broker refuses the login. An operator of the broker can allow the login at any time, so a retry may help.
    #[error("{reason}")]
    LoginRefused {
        /// The broker's own words, without names and addresses. Empty if the broker's words may contain names or
        /// addresses.
        words: String,
        /// The description of the refusal, with the address of the broker and the name of the user.
        reason: String,
    },
    /// The broker is unreachable or cannot respond; a retry may help.
    #[error("{0}")]
    Unavailable(String),
}

/// The cause of a refusal, derived from the reply code of AMQP 0-9-1, the broker's text and the refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// The broker accepts the login, but refuses to open a connection or a channel: a limit of connections or channels
    /// is reached, or the virtual host does not exist. An operator of the broker can remove each of these causes at any
    /// time, so a retry may help.
    Connection,
    /// The broker has as many queues or exchanges as a limit allows. An operator of the broker can raise the limit at
    /// any time, so a retry may help.
    Limit,
    /// A permission is missing, or the virtual host was removed. An operator of the broker can restore the permission
    /// or the virtual host at any time, so a retry may help.
    Access,
    /// The queue or exchange does not exist.
    NotFound,
    /// The queue or exchange does not exist, and Ordain never declares it. Ordain never declares an exchange of a sink
    /// or of `bind`. With `declare = false`, it does not declare the queues and the exchange of the stream either.
    /// Another program may declare the missing queue or exchange at any time, for example after the broker was rebuilt,
    /// so a retry may help.
    ForeignNotFound,
    /// The broker refuses a new stream or a sink of this process, while other processes run with the same store. The
    /// process can start when the other processes have ended, so a retry may help.
    WhileOthersRun,
    /// The queue or exchange exists in another form: it has another type or other arguments.
    OtherForm,
    /// The broker or the client library does not support the request, for example the type of an exchange.
    Unsupported,
}

impl BrokerError {
    /// Returns whether a retry may succeed without a change of the configuration.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::LoginRefused { .. } | Self::Unavailable(_) => true,
            Self::Refused { cause, .. } => {
                use RefusalCause::{Access, Connection, ForeignNotFound, Limit, WhileOthersRun};
                matches!(cause, Connection | Limit | Access | ForeignNotFound | WhileOthersRun)
            }
        }
    }

    pub(super) fn is_connection_refused(&self) -> bool {
        matches!(
            self,
            Self::LoginRefused { .. } | Self::Refused { cause: RefusalCause::Connection, .. }
        )
    }

    /// Returns the broker's own words, without names and addresses, if the broker refuses the login. The words are
    /// empty if the broker's words may contain names or addresses.
    pub fn login_refusal(&self) -> Option<&str> {
        match self {
            Self::LoginRefused { words, .. } => Some(words),
            Self::Refused { .. } | Self::Unavailable(_) => None,
        }
    }

    /// Returns whether the user lacks a right to a queue or an exchange. The broker may accept the same request of
    /// another user.
    pub fn is_access_refused(&self) -> bool {
        matches!(self, Self::Refused { cause: RefusalCause::Access, .. })
    }

    /// Returns whether the broker lacks the queue or exchange.
    pub(super) fn is_not_found(&self) -> bool {
        use RefusalCause::{ForeignNotFound, NotFound};
        matches!(self, Self::Refused { cause: NotFound | ForeignNotFound, .. })
    }

    /// Returns whether the broker refused the declaration of an exchange because of its type. The exchange exists with
    /// another type, or the broker does not support the type. For example, a plugin may be missing since an upgrade of
    /// the broker. An exchange of a type that the broker does not support routes no messages.
    pub(super) fn is_other_exchange_type(&self) -> bool {
        let Self::Refused { cause, reason } = self else { return false };
        match cause {
            RefusalCause::OtherForm => reason.contains(OTHER_EXCHANGE_TYPE),
            RefusalCause::Unsupported => names_unsupported_exchange_type(reason),
            _ => false,
        }
    }

    /// Returns whether the broker has the queue, but cannot use it now, for example because the node of the queue has
    /// stopped.
    pub(super) fn is_queue_unavailable(&self) -> bool {
        // The error about a missing queue or exchange is `Refused`.
        matches!(self, Self::Unavailable(reason) if reason.contains(NOT_FOUND_CODE))
    }

    /// Changes the cause `NotFound` to `ForeignNotFound`. The caller uses this method if Ordain never declares the
    /// missing queue or exchange.
    pub(super) fn into_foreign(self) -> Self {
        match self {
            Self::Refused { cause: RefusalCause::NotFound, reason } => {
                Self::Refused { cause: RefusalCause::ForeignNotFound, reason }
            }
            other => other,
        }
    }

    /// Changes the cause of a refused request to `WhileOthersRun`. Returns any other error unchanged.
    #[must_use]
    pub fn into_refusal_while_others_run(self) -> Self {
        match self {
            Self::Refused { reason, .. } => {
                let reason = format!(
                    "{reason}. Other processes run with the same store, so this process does not start without this \
                     stream or sink: it would take partitions from them"
                );
                Self::Refused { cause: RefusalCause::WhileOthersRun, reason }
            }
            other => other,
        }
    }

    /// Replaces the reason of a refused request by the result of `describe`. Returns any other error unchanged.
    pub(super) fn map_refusal(self, describe: impl FnOnce(RefusalCause, String) -> String) -> Self {
        match self {
            Self::Refused { cause, reason } => {
                Self::Refused { cause, reason: describe(cause, reason) }
            }
            other => other,
        }
    }
}

/// The address of a broker, with its login and connection settings.
#[derive(Clone)]
pub struct BrokerEndpoint {
    url: BrokerUrl,
    /// Time between two AMQP heartbeats, in seconds.
    heartbeat: u16,
    /// `None` until [`Self::has_default_delivery_limit`] has tested the broker, and after [`Self::forget_version`].
    has_default_delivery_limit: Arc<tokio::sync::Mutex<Option<bool>>>,
}

/// The login of a process at the broker.
pub struct BrokerLogin {
    /// The name of the user.
    pub user: String,
    /// The password of the user. Never print it.
    pub password: String,
    /// The name of the virtual host.
    pub virtual_host: String,
}

/// Does nothing if the URI needs no TLS.
pub(super) fn install_tls_provider(uri: &AMQPUri) {
    if uri.scheme == AMQPScheme::AMQPS {
        // An error means that a provider is already installed. The installed provider is sufficient.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

impl BrokerEndpoint {
    /// Creates the address of a broker from a URL. `heartbeat` is the time between two AMQP heartbeats. This function
    /// rounds the time down to whole seconds, and limits it to the range from 1 to 65,535 seconds.
    pub fn new(url: BrokerUrl, heartbeat: Duration) -> Self {
        let heartbeat = u16::try_from(heartbeat.as_secs().max(1)).unwrap_or(u16::MAX);
        Self { url, heartbeat, has_default_delivery_limit: Arc::default() }
    }

    /// Returns the broker of a configuration; `None` if the configuration has no broker.
    pub fn of(loaded: &LoadedConfig) -> Option<Arc<Self>> {
        let config = loaded.config.broker.as_ref()?;
        let heartbeat = config
            .heartbeat
            .map_or(loaded.config.runtime.lease.0 / HEARTBEATS_PER_LEASE, |heartbeat| heartbeat.0);
        Some(Arc::new(Self::new(config.url.clone(), Duration::from_millis(heartbeat))))
    }

    /// Replaces variables such as `${file:/path}` by the present content of their files. If a file is unreadable or the
    /// resulting URL is invalid, returns the newest valid parts.
    fn current_uri(&self) -> AMQPUri {
        let mut uri = self.url.refresh().uri;
        uri.query.heartbeat = Some(self.heartbeat);
        uri
    }

    /// Returns whether the broker has a default delivery limit, which it applies to a queue whose declaration lacks the
    /// argument `x-delivery-limit`. To find out, the first call declares an exchange of a type that exists only from
    /// RabbitMQ 4.0 on, and then deletes this exchange. The name of the exchange begins with `queue`. Later calls
    /// return the same answer, until [`Self::forget_version`] is called.
    pub(super) async fn has_default_delivery_limit(
        &self,
        queue: &str,
    ) -> Result<bool, BrokerError> {
        let mut known = self.has_default_delivery_limit.lock().await;
        if let Some(has_limit) = *known {
            return Ok(has_limit);
        }
        let has_limit = has_default_delivery_limit(self, queue).await?;
        *known = Some(has_limit);
        Ok(has_limit)
    }

    /// Forgets whether the broker has a default delivery limit, because the default depends on the version of the
    /// broker. The caller must call this method when the broker may have been upgraded: after a lost connection, and
    /// before the declaration of a missing queue.
    pub fn forget_version(&self) {
        // If the lock is taken, a test of the broker is in progress. This test determines the default anew, so this
        // method has nothing to forget.
        if let Ok(mut known) = self.has_default_delivery_limit.try_lock() {
            *known = None;
        }
    }

    /// Opens a connection. `name` identifies the connection in the broker's list of connections. Resolves the host name
    /// at each call. If the attempt fails, or if the caller drops the future, no socket stays open.
    pub async fn connect(&self, name: &str) -> Result<Connection, BrokerError> {
        let uri = self.current_uri();
        install_tls_provider(&uri);
        let runtime = runtime::default_runtime().map_err(|error| self.error(&error))?;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let attempt = ConnectAttempt::new();
        let opener = attempt.opener();
        let connecting = Connection::connector(
            uri,
            runtime,
            async move |uri, runtime| {
                let host = &uri.authority.host;
                let steps = async {
                    let address = runtime.to_socket_addrs((host.clone(), uri.authority.port));
                    let stream = AsyncTcpStream::connect(&runtime, address).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        opener.keep(plain.get_ref().as_fd())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_tls(host, TLSConfig::default()).await,
                    }
                };
                opener.run(steps).await.map_err(lapin::Error::from)
            },
            properties,
        );
        // This future is on the heap, because it is large and a part of many other futures.
        let connected =
            Box::pin(async { connecting.await.map_err(|error| self.connect_error(&error)) });
        let connection = self.within(CONNECT_TIMEOUT, connected).await?;
        attempt.succeed();
        Ok(connection)
    }

    /// Limits the time of requests to the broker. After the time limit, returns [`BrokerError::Unavailable`].
    pub async fn within<T, E: From<BrokerError>>(
        &self,
        limit: Duration,
        requests: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        timeout(limit, requests).await.unwrap_or_else(|_| Err(self.no_answer(limit).into()))
    }

    /// Returns the error of a broker that has not answered within `limit`.
    pub(super) fn no_answer(&self, limit: Duration) -> BrokerError {
        BrokerError::Unavailable(format!("{self} does not answer within {limit:?}"))
    }

    /// Reads the properties that the broker sends before the login.
    pub(super) async fn greeting(&self) -> Result<BrokerGreeting, BrokerError> {
        let failed = |error| BrokerError::Unavailable(format!("{self}: {error}"));
        BrokerGreeting::read(&self.current_uri()).await.map_err(failed)
    }

    /// Returns the present login. Rereads the files that the variables of the URL name, as [`Self::connect`] does.
    pub fn login(&self) -> BrokerLogin {
        let AMQPUri { authority, vhost, .. } = self.url.refresh().uri.clone();
        let AMQPUserInfo { username, password } = authority.userinfo;
        BrokerLogin { user: username, password, virtual_host: vhost }
    }

    pub(super) fn virtual_host(&self) -> String {
        self.url.newest().uri.vhost
    }

    /// Describes the login of a connection, without the password.
    pub(super) fn describe_login(&self) -> String {
        let AMQPUri { authority, vhost, .. } = self.url.newest().uri;
        format!("logged in as user {:?} to the virtual host {vhost:?}", authority.userinfo.username)
    }

    /// Converts the error of a connection attempt. RabbitMQ refuses a login with the code `ACCESS_REFUSED`. If the
    /// virtual host is missing, or if a limit of connections is reached, RabbitMQ refuses the connection with the code
    /// `NOT_ALLOWED`.
    fn connect_error(&self, error: &lapin::Error) -> BrokerError {
        let is_login = matches!(
            error.kind(),
            ErrorKind::ProtocolError(error)
                if matches!(error.kind(), AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED))
        );
        match self.error(error) {
            BrokerError::Refused { cause: RefusalCause::Access, reason } if is_login => {
                let words = error_words(error);
                let is_public = words.starts_with(LOGIN_REFUSAL_PREFIX);
                let reason = match self.url.refused_login_hint() {
                    Some(hint) => format!("{}. {hint}", reason.trim_end_matches('.')),
                    None => reason,
                };
                BrokerError::LoginRefused {
                    words: if is_public { words } else { String::new() },
                    reason,
                }
            }
            BrokerError::Refused { cause: RefusalCause::Access, reason } => {
                BrokerError::Refused { cause: RefusalCause::Connection, reason }
            }
            other => other,
        }
    }

    /// Converts an error of the client library, and adds the broker's address and the name of the user.
    pub(super) fn error(&self, error: &lapin::Error) -> BrokerError {
        use AMQPHardError::{COMMANDINVALID, NOTALLOWED};
        use AMQPSoftError::{ACCESSREFUSED, NOTFOUND, PRECONDITIONFAILED};

        let user = self.url.newest().uri.authority.userinfo.username;
        let reason = format!("{self} (user {user:?}): {}", error_words(error));
        let cause = match error.kind() {
            ErrorKind::ProtocolError(_)
                if TEMPORARY_REFUSALS.iter().any(|text| reason.contains(text)) =>
            {
                None
            }
            ErrorKind::ProtocolError(error) => match error.kind() {
                AMQPErrorKind::Hard(NOTALLOWED) if reason.contains(CHANNEL_LIMIT) => {
                    Some(RefusalCause::Connection)
                }
                AMQPErrorKind::Soft(ACCESSREFUSED) | AMQPErrorKind::Hard(NOTALLOWED) => {
                    Some(RefusalCause::Access)
                }
                // With any other text, `NOT_FOUND` concerns a queue that exists and cannot be used now.
                AMQPErrorKind::Soft(NOTFOUND)
                    if error.get_message().as_str().starts_with(NOT_FOUND_PREFIX) =>
                {
                    Some(RefusalCause::NotFound)
                }
                // RabbitMQ 4 reports an unsupported exchange type with the general code `PRECONDITION_FAILED`.
                AMQPErrorKind::Soft(PRECONDITIONFAILED)
                    if names_unsupported_exchange_type(&reason) =>
                {
                    Some(RefusalCause::Unsupported)
                }
                AMQPErrorKind::Soft(PRECONDITIONFAILED)
                    if names_reached_limit(error.get_message().as_str()) =>
                {
                    Some(RefusalCause::Limit)
                }
                AMQPErrorKind::Soft(PRECONDITIONFAILED) => Some(RefusalCause::OtherForm),
                AMQPErrorKind::Hard(COMMANDINVALID) => Some(RefusalCause::Unsupported),
                _ => None,
            },
            ErrorKind::InvalidProtocolVersion(_) | ErrorKind::AuthProviderError(_) => {
                Some(RefusalCause::Unsupported)
            }
            _ => None,
        };
        match cause {
            Some(cause) => BrokerError::Refused { cause, reason },
            None => BrokerError::Unavailable(reason),
        }
    }
}

/// Returns the broker's text, or the library's text if the broker sent none, limited in length and on one line.
fn error_words(error: &lapin::Error) -> String {
    let words = match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    };
    escape_invisible(&truncated(words, ERROR_TEXT_LIMIT)).into_owned()
}

/// Returns whether the broker's words state that it does not support the type of an exchange.
fn names_unsupported_exchange_type(words: &str) -> bool {
    UNSUPPORTED_EXCHANGE_TYPES.iter().any(|text| words.contains(text))
}

/// Returns whether the broker's words state that it has as many queues or exchanges as a limit allows.
fn names_reached_limit(words: &str) -> bool {
    REACHED_LIMIT_PREFIXES.iter().any(|prefix| words.starts_with(prefix))
}

/// Returns whether the library refused an action only because the channel or connection is closed. The cause is then in
/// another error: the error that closed the channel or connection.
pub(super) fn is_state_error(error: &lapin::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_)
    )
}

/// Returns whether the broker may have closed a channel or connection because of a message. Returns `false` if, for
/// example, the exchange does not exist or an operator closed the connection.
pub(super) fn is_caused_by_message(error: &lapin::Error) -> bool {
    use AMQPHardError::{FRAMEERROR, INTERNALERROR, NOTIMPLEMENTED, SYNTAXERROR};
    use AMQPSoftError::{ACCESSREFUSED, CONTENTTOOLARGE, PRECONDITIONFAILED};

    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(
        error.kind(),
        AMQPErrorKind::Soft(ACCESSREFUSED | CONTENTTOOLARGE | PRECONDITIONFAILED)
            | AMQPErrorKind::Hard(FRAMEERROR | INTERNALERROR | NOTIMPLEMENTED | SYNTAXERROR)
    )
}

/// Formats the broker's address without its credentials.
impl fmt::Display for BrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for BrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broker({self})")
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;
    use ordain_config::BrokerAddress;

    use super::*;

    fn endpoint() -> BrokerEndpoint {
        let url = BrokerAddress::parse("amqp://localhost").expect("a URL");
        BrokerEndpoint::new(url, Duration::from_secs(1))
    }

    fn soft_error(kind: AMQPSoftError, words: &str) -> lapin::Error {
        protocol_error(AMQPErrorKind::Soft(kind), words)
    }

    fn protocol_error(kind: AMQPErrorKind, words: &str) -> lapin::Error {
        ErrorKind::ProtocolError(AMQPError::new(kind, words.into())).into()
    }

    /// A broker that has lost the plugin of an exchange type refuses the declaration of an exchange of this type.
    /// RabbitMQ 3 and 4 use different codes.
    #[test]
    fn unsupported_exchange_type_is_a_fault_of_the_type() {
        for (kind, words, is_fault) in [
            (
                AMQPErrorKind::Hard(AMQPHardError::COMMANDINVALID),
                "COMMAND_INVALID - invalid exchange type 'x-modulus-hash'",
                true,
            ),
            (
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED),
                "PRECONDITION_FAILED - invalid exchange type 'x-modulus-hash'",
                true,
            ),
            (
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED),
                "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but \
                 current is 'topic'",
                true,
            ),
            (
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED),
                "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'true' but \
                 current is 'false'",
                false,
            ),
        ] {
            let error = endpoint().error(&protocol_error(kind, words));
            assert_eq!(error.is_other_exchange_type(), is_fault, "{error}");
        }
    }

    /// RabbitMQ reports a reached limit with reply codes that usually mean another cause. The texts come from RabbitMQ
    /// 3.10.8 and 4.0.
    #[test]
    fn reached_limit_is_no_other_form_and_no_missing_right() {
        let precondition = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
        let not_allowed = AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED);
        // RabbitMQ cuts each text after 252 bytes.
        let long = format!("PRECONDITION_FAILED - cannot declare queue '{}", "q".repeat(255));
        let long = format!("{}...", &long[..252]);
        for (kind, words, expected) in [
            (precondition.clone(), long.as_str(), RefusalCause::Limit),
            (
                precondition.clone(),
                "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost '/' (2) is reached",
                RefusalCause::Limit,
            ),
            (
                precondition.clone(),
                "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in cluster (10,000) is reached",
                RefusalCause::Limit,
            ),
            (
                precondition.clone(),
                "PRECONDITION_FAILED - cannot declare exchange 'x' in vhost '/': exchange limit of 10 is reached",
                RefusalCause::Limit,
            ),
            (
                precondition,
                "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': received none but \
                 current is the value '1000' of type 'signedint'",
                RefusalCause::OtherForm,
            ),
            (
                not_allowed.clone(),
                "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of \
                 (1)",
                RefusalCause::Connection,
            ),
            (not_allowed, "NOT_ALLOWED - vhost / not found", RefusalCause::Access),
        ] {
            match endpoint().error(&protocol_error(kind, words)) {
                BrokerError::Refused { cause, .. } => assert_eq!(cause, expected, "{words}"),
                error => panic!("{error}"),
            }
        }
    }

    /// RabbitMQ's usual words about a refused login are public, because they contain no names. The words of another
    /// broker, or of a proxy, may contain the name of the user.
    #[test]
    fn only_the_usual_words_about_a_refused_login_are_public() {
        let usual = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.";
        let other = "ACCESS_REFUSED - user 'shop' is unknown";
        for (words, public) in [(usual, usual), (other, "")] {
            let error = endpoint().connect_error(&soft_error(AMQPSoftError::ACCESSREFUSED, words));
            assert_eq!(error.login_refusal(), Some(public));
            assert!(error.to_string().ends_with(words), "{error}");
        }
    }

    /// RabbitMQ uses the code `NOT_FOUND` for missing queues, and also for queues whose node has stopped.
    #[test]
    fn queue_on_a_stopped_node_is_distinguished_from_a_missing_queue() {
        for (words, is_missing) in [
            ("NOT_FOUND - no queue 'cases' in vhost '/'", true),
            ("NOT_FOUND - queue 'cases' in vhost '/' process is stopped by supervisor", false),
            (
                "NOT_FOUND - home node 'a@b' of durable queue 'cases' in vhost '/' is down or inaccessible",
                false,
            ),
        ] {
            let error = endpoint().error(&soft_error(AMQPSoftError::NOTFOUND, words));
            let found = (error.is_not_found(), error.is_queue_unavailable());
            assert_eq!(found, (is_missing, !is_missing), "{words}");
        }
    }
}
