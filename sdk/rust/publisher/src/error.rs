//! Errors of publishing.

use ordain_amqp::BrokerError;
use ordain_config::ConfigError;
use ordain_store::StoreError;

/// The reason why a publisher could not publish all events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An event is invalid, or the store refuses it, for example because it conflicts with a published event. The
    /// events that precede this event in the list are published. If the store refused the event, later events of other
    /// keys may be published too.
    #[error("event {at}: {words}")]
    Event {
        /// Index of the event in the given list.
        at: usize,
        /// The fault of the event, and the valid form.
        words: String,
    },
    /// The data of an event cannot be written as JSON.
    #[error("the data: {0}")]
    Data(String),
    /// The configuration is invalid, or its store, broker or stream cannot be used for publishing.
    #[error("{0}")]
    Configuration(String),
    /// The store or the broker is unavailable, or the queue of the stream is full. The same call may succeed later.
    #[error("{0}")]
    Away(String),
    /// The store has failed or contains a damaged value. Or it lost events of the publisher, and refuses to number one
    /// of them when the publisher repeats them.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn configuration(error: impl std::fmt::Display) -> Self {
        Self::Configuration(error.to_string())
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        let words = error.to_string();
        if error.is_temporary() { Self::Away(words) } else { Self::Configuration(words) }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let words = error.to_string();
        match error {
            StoreError::Unusable(_) => Self::Configuration(words),
            StoreError::Unavailable(_) | StoreError::InUse(_) | StoreError::RolledBack => {
                Self::Away(words)
            }
            StoreError::Failed(_) | StoreError::Corrupt(_) | StoreError::Cursor(_) => {
                Self::Failed(words)
            }
        }
    }
}

impl From<BrokerError> for Error {
    fn from(error: BrokerError) -> Self {
        let words = error.to_string();
        if error.may_pass() { Self::Away(words) } else { Self::Configuration(words) }
    }
}
