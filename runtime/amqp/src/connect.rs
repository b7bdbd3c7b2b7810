//! Connections, and what their errors mean.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionBuilder, ConnectionProperties, ErrorKind, runtime};
use tokio::time::timeout;

use ordain_config::{ConfigError, Loaded};
use ordain_util::text::{clean, cut};

/// For a connection with its TLS and login: more than a few lost packets take.
const CONNECT: Duration = Duration::from_secs(5);
/// The heartbeat as a part of the lease. The broker notices a process that hangs after two to three
/// heartbeats. That must be before the lease has expired, or the successor would wait longer than for
/// the lease.
const LEASE_PARTS: u64 = 5;
/// Bytes of what the broker says that are shown.
const LONGEST: usize = 400;

/// What a broker says with the code of a refusal where trying again helps: of a queue that it knows
/// and has not got yet, and of a delivery that was not acknowledged within its `consumer_timeout`.
const NO_REFUSAL: [&str; 2] = ["down or inaccessible", "delivery acknowledgement on channel"];

/// Why a broker cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// What is asked for is refused, and asking again will not help.
    #[error("{0}")]
    Refused(String),
    /// It is not there, or not able to; trying again may help.
    #[error("{0}")]
    Away(String),
}

/// Where the broker is, and how it is spoken to.
#[derive(Clone)]
pub struct Broker {
    uri: AMQPUri,
}

impl Broker {
    /// A broker by its URL; the error does not show the password.
    pub fn new(url: &str, heartbeat: Duration) -> Result<Self, String> {
        let mut uri = ordain_config::broker_url::parse(url)?;
        let seconds = heartbeat.as_secs().max(1);
        uri.query.heartbeat = Some(u16::try_from(seconds).unwrap_or(u16::MAX));
        Ok(Self { uri })
    }

    /// The broker of a configuration, if it names one.
    pub fn of(loaded: &Loaded) -> Result<Option<Arc<Self>>, ConfigError> {
        let Some(config) = &loaded.config.broker else { return Ok(None) };
        let heartbeat =
            config.heartbeat.map_or(loaded.config.runtime.lease.0 / LEASE_PARTS, |it| it.0);
        let broker = Self::new(config.url.0.expose(), Duration::from_millis(heartbeat));
        let broker = broker.map_err(|words| loaded.error("broker.url", words))?;
        Ok(Some(Arc::new(broker)))
    }

    /// Opens a connection, named so that people who look at the broker know it.
    pub async fn connect(&self, name: &str) -> Result<Connection, BrokerError> {
        if self.uri.scheme == AMQPScheme::AMQPS {
            // Fails where one is installed already, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let failed = |error| self.error(&error);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let builder =
            ConnectionBuilder::new_with_runtime(runtime::default_runtime().map_err(failed)?)
                .with_uri(self.uri.clone())
                .with_properties(properties);
        match timeout(CONNECT, builder.connect()).await {
            Ok(connection) => connection.map_err(failed),
            Err(_) => Err(BrokerError::Away(format!("{self}: no answer within {CONNECT:?}"))),
        }
    }

    /// What an error of the library means, with where.
    pub(super) fn error(&self, error: &lapin::Error) -> BrokerError {
        use AMQPHardError::{COMMANDINVALID, NOTALLOWED};
        use AMQPSoftError::{ACCESSREFUSED, NOTFOUND, PRECONDITIONFAILED};

        let words = match error.kind() {
            ErrorKind::ProtocolError(error) => error.get_message().to_string(),
            _ => error.to_string(),
        };
        let user = &self.uri.authority.userinfo.username;
        let words = format!("{self} (user {user:?}): {}", clean(&cut(words, LONGEST)));
        let refused = match error.kind() {
            ErrorKind::ProtocolError(error) => {
                matches!(
                    error.kind(),
                    AMQPErrorKind::Soft(ACCESSREFUSED | NOTFOUND | PRECONDITIONFAILED)
                        | AMQPErrorKind::Hard(COMMANDINVALID | NOTALLOWED)
                ) && !NO_REFUSAL.iter().any(|it| words.contains(it))
            }
            ErrorKind::InvalidProtocolVersion(_) | ErrorKind::AuthProviderError(_) => true,
            _ => false,
        };
        if refused { BrokerError::Refused(words) } else { BrokerError::Away(words) }
    }
}

/// Whether the broker has closed a channel or a connection, perhaps because of the one message that
/// it was given: not where the exchange is not there, or where somebody has closed it by hand.
pub(super) fn is_of_a_message(error: &lapin::Error) -> bool {
    use AMQPHardError::{FRAMEERROR, INTERNALERROR, NOTIMPLEMENTED, SYNTAXERROR};
    use AMQPSoftError::{ACCESSREFUSED, CONTENTTOOLARGE, PRECONDITIONFAILED};

    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(
        error.kind(),
        AMQPErrorKind::Soft(ACCESSREFUSED | CONTENTTOOLARGE | PRECONDITIONFAILED)
            | AMQPErrorKind::Hard(FRAMEERROR | INTERNALERROR | NOTIMPLEMENTED | SYNTAXERROR)
    )
}

/// Where it is, as it is named in messages.
impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AMQPUri { authority, vhost, .. } = &self.uri;
        let tls = if self.uri.scheme == AMQPScheme::AMQPS { "s" } else { "" };
        write!(f, "amqp{tls}://{}:{}", authority.host, authority.port)?;
        if vhost == "/" { Ok(()) } else { write!(f, "/{vhost}") }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broker({self})")
    }
}
