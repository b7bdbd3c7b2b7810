//! Why something was not published.

use ordain_amqp::BrokerError;
use ordain_store::StoreError;

/// Why something was not published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An event is wrong, or is in conflict with one that was published before. Those before it are published.
    #[error("event {at}: {words}")]
    Event {
        /// Which of the events that were given.
        at: usize,
        /// What is wrong, and what would be right.
        words: String,
    },
    /// JSON cannot hold what was given as an event's data.
    #[error("the data: {0}")]
    Data(String),
    /// The configuration is wrong, or what it names cannot be used so.
    #[error("{0}")]
    Configuration(String),
    /// Something that is needed was not there in time: the same may work later.
    #[error("{0}")]
    Away(String),
    /// The store has failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn configuration(error: impl std::fmt::Display) -> Self {
        Self::Configuration(error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let words = error.to_string();
        match error {
            StoreError::Unusable(_) => Self::Configuration(words),
            StoreError::Unavailable(_) | StoreError::InUse(_) | StoreError::WentBack => {
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
        match error {
            BrokerError::Refused(_) => Self::Configuration(words),
            BrokerError::Away(_) => Self::Away(words),
        }
    }
}
