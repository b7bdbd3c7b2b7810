//! Opens connections to the broker, and classifies their errors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionBuilder, ConnectionProperties, ErrorKind, runtime};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::topology::has_default_delivery_limit;

use ordain_config::{ConfigError, LoadedConfig};
use ordain_util::text::{escape_invisible, truncated};

/// Time limit for opening a connection, including TLS handshake and login: longer than the delay of a few lost packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of AMQP heartbeat intervals in a lease (the time for which a process may own a partition without renewal).
/// The broker notices a hung process after two to three heartbeat intervals. The broker must notice it before the lease
/// expires. Otherwise the next owner would have to wait for the broker after the lease has expired.
const HEARTBEATS_PER_LEASE: u64 = 5;
/// Maximum size of the broker's own text in an error, in bytes.
const ERROR_TEXT_LIMIT: usize = 400;

/// Texts by which this module recognises a refusal that may be temporary. The broker has not started a known queue yet,
/// or a delivery was not acknowledged within the broker's `consumer_timeout`.
const TEMPORARY_REFUSALS: [&str; 2] =
    ["down or inaccessible", "delivery acknowledgement on channel"];

/// The reason why a broker cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The broker refused the request; a retry will not help.
    #[error("{0}")]
    Refused(String),
    /// The broker is unreachable or cannot respond; a retry may help.
    #[error("{0}")]
    Unavailable(String),
}

/// The address of a broker, with its login and connection settings.
#[derive(Clone)]
pub struct BrokerEndpoint {
    uri: AMQPUri,
    /// True if the broker sets a delivery limit on queues by default. Empty until a declaration has tested this.
    has_default_delivery_limit: Arc<OnceCell<bool>>,
}

impl BrokerEndpoint {
    /// Creates the address of a broker from a URL. The error does not contain the password.
    pub fn new(url: &str, heartbeat: Duration) -> Result<Self, String> {
        let mut uri = ordain_config::broker_url::parse(url)?;
        let seconds = heartbeat.as_secs().max(1);
        uri.query.heartbeat = Some(u16::try_from(seconds).unwrap_or(u16::MAX));
        Ok(Self { uri, has_default_delivery_limit: Arc::default() })
    }

    /// Returns the broker of a configuration; `None` if the configuration has no broker.
    pub fn of(loaded: &LoadedConfig) -> Result<Option<Arc<Self>>, ConfigError> {
        let Some(config) = &loaded.config.broker else { return Ok(None) };
        let heartbeat = config
            .heartbeat
            .map_or(loaded.config.runtime.lease.0 / HEARTBEATS_PER_LEASE, |heartbeat| heartbeat.0);
        let broker = Self::new(config.url.0.expose(), Duration::from_millis(heartbeat));
        let broker = broker.map_err(|words| loaded.setting_error("broker.url", words))?;
        Ok(Some(Arc::new(broker)))
    }

    /// Returns whether the broker sets a default delivery limit on each queue whose declaration does not exclude a
    /// limit. Only the first call tests this, because the queues of a running process keep the form in which the
    /// process declared them. The test declares an exchange for a moment; the name of the exchange begins with `queue`.
    pub(super) async fn has_default_delivery_limit(
        &self,
        queue: &str,
    ) -> Result<bool, BrokerError> {
        let find_out = || has_default_delivery_limit(self, queue);
        self.has_default_delivery_limit.get_or_try_init(find_out).await.copied()
    }

    /// Opens a connection with a name that identifies it in the broker's list of connections.
    pub async fn connect(&self, name: &str) -> Result<Connection, BrokerError> {
        if self.uri.scheme == AMQPScheme::AMQPS {
            // An error means that a provider is already installed, which serves as well.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let failed = |error| self.error(&error);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let builder =
            ConnectionBuilder::new_with_runtime(runtime::default_runtime().map_err(failed)?)
                .with_uri(self.uri.clone())
                .with_properties(properties);
        match timeout(CONNECT_TIMEOUT, builder.connect()).await {
            Ok(connection) => connection.map_err(failed),
            Err(_) => Err(BrokerError::Unavailable(format!(
                "{self} does not answer within {CONNECT_TIMEOUT:?}"
            ))),
        }
    }

    /// Classifies an error of the library, and adds the broker's address and user.
    pub(super) fn error(&self, error: &lapin::Error) -> BrokerError {
        use AMQPHardError::{COMMANDINVALID, NOTALLOWED};
        use AMQPSoftError::{ACCESSREFUSED, NOTFOUND, PRECONDITIONFAILED};

        let words = match error.kind() {
            ErrorKind::ProtocolError(error) => error.get_message().to_string(),
            _ => error.to_string(),
        };
        let user = &self.uri.authority.userinfo.username;
        let words = format!(
            "{self} (user {user:?}): {}",
            escape_invisible(&truncated(words, ERROR_TEXT_LIMIT))
        );
        let refused = match error.kind() {
            ErrorKind::ProtocolError(error) => {
                matches!(
                    error.kind(),
                    AMQPErrorKind::Soft(ACCESSREFUSED | NOTFOUND | PRECONDITIONFAILED)
                        | AMQPErrorKind::Hard(COMMANDINVALID | NOTALLOWED)
                ) && !TEMPORARY_REFUSALS.iter().any(|text| words.contains(text))
            }
            ErrorKind::InvalidProtocolVersion(_) | ErrorKind::AuthProviderError(_) => true,
            _ => false,
        };
        if refused { BrokerError::Refused(words) } else { BrokerError::Unavailable(words) }
    }
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
        let AMQPUri { authority, vhost, .. } = &self.uri;
        let tls = if self.uri.scheme == AMQPScheme::AMQPS { "s" } else { "" };
        write!(f, "amqp{tls}://{}:{}", authority.host, authority.port)?;
        if vhost == "/" { Ok(()) } else { write!(f, "/{vhost}") }
    }
}

impl fmt::Debug for BrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broker({self})")
    }
}
