//! How a handler says no, and how other errors become that.

use std::error::Error;
use std::fmt::{self, Display, Write as _};

/// What a handler returns: mostly `Result<Outcome<State>>`.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why an event had no effect. Nothing of the failed call is kept.
///
/// Any standard error becomes [`Failure::Reject`] by `?`: see the table at the top of this crate
/// for why. As a consequence `Failure` itself is no [`std::error::Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Something may be different later: the event is to be tried again, its key waits.
    Retry {
        /// Why, for people.
        reason: String,
        /// When to try again, in ms; `None` leaves it to the host's backoff.
        after_ms: Option<u64>,
    },
    /// The event is refused for good, with the reason for people. It is dead-lettered and the
    /// key goes on.
    Reject(String),
}

impl Failure {
    /// To be tried again after the host's backoff.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after_ms: None }
    }

    /// To be tried again after this many ms, but no later than after the longest delay of the
    /// stream's `retry.backoff`.
    pub fn retry_after(ms: u64, reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after_ms: Some(ms) }
    }

    /// Refused for good.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject(reason.into())
    }

    /// Its reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Retry { reason, .. } | Self::Reject(reason) => reason,
        }
    }

    fn into_reason(self) -> String {
        match self {
            Self::Retry { reason, .. } | Self::Reject(reason) => reason,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { reason, after_ms: None } => write!(f, "to be retried: {reason}"),
            Self::Retry { reason, after_ms: Some(ms) } => {
                write!(f, "to be retried after {ms} ms: {reason}")
            }
            Self::Reject(reason) => write!(f, "rejected: {reason}"),
        }
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            write!(reason, ": {error}").expect("a string takes all text");
            source = error.source();
        }
        Self::Reject(reason)
    }
}

/// Says of a `Result` or an `Option` what its failing means for the event.
///
/// Each method takes the words that come before the error's own. They are written only on
/// failure, so `format_args!` costs nothing on success:
///
/// ```
/// # use ordain_sdk::prelude::*;
/// # fn main() -> Result<()> {
/// let cents: u64 = "12".parse().or_reject("the amount")?;
/// let rate = Some(3).or_retry_after(60_000, format_args!("no rate for {}", "EUR"))?;
/// # assert_eq!(cents * rate, 36);
/// # Ok(())
/// # }
/// ```
pub trait OrFail<T>: Sized {
    /// A failure refuses the event for good.
    fn or_reject(self, what: impl Display) -> Result<T>;
    /// A failure is to be tried again after the host's backoff.
    fn or_retry(self, what: impl Display) -> Result<T>;
    /// A failure is to be tried again after this many ms, bounded as in [`Failure::retry_after`].
    fn or_retry_after(self, ms: u64, what: impl Display) -> Result<T>;
}

impl<T, E: Into<Failure>> OrFail<T> for std::result::Result<T, E> {
    fn or_reject(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::Reject(words(&what, error)))
    }

    fn or_retry(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::retry(words(&what, error)))
    }

    fn or_retry_after(self, ms: u64, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::retry_after(ms, words(&what, error)))
    }
}

impl<T> OrFail<T> for Option<T> {
    fn or_reject(self, what: impl Display) -> Result<T> {
        self.ok_or_else(|| Failure::Reject(what.to_string()))
    }

    fn or_retry(self, what: impl Display) -> Result<T> {
        self.ok_or_else(|| Failure::retry(what.to_string()))
    }

    fn or_retry_after(self, ms: u64, what: impl Display) -> Result<T> {
        self.ok_or_else(|| Failure::retry_after(ms, what.to_string()))
    }
}

fn words(what: &impl Display, error: impl Into<Failure>) -> String {
    format!("{what}: {}", error.into().into_reason())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);

    impl Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no amount")
        }
    }
    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    fn number(text: &str) -> Result<u8> {
        Ok(text.parse::<u8>()?)
    }

    #[test]
    fn a_bare_question_mark_rejects_with_the_whole_chain() {
        assert_eq!(number("7"), Ok(7));
        assert_eq!(number("x"), Err(Failure::reject("invalid digit found in string")));

        let error = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(Failure::from(error).reason(), "no amount: invalid digit found in string");
    }

    #[test]
    fn words_come_before_the_error() {
        let failed = "300".parse::<u8>();
        assert_eq!(
            failed.clone().or_reject("the age"),
            Err(Failure::reject("the age: number too large to fit in target type"))
        );
        assert_eq!(
            failed.or_retry_after(5, "later"),
            Err(Failure::retry_after(5, "later: number too large to fit in target type"))
        );
        assert_eq!(None::<u8>.or_retry("no rate"), Err(Failure::retry("no rate")));
        assert_eq!(Some(1).or_reject("none"), Ok(1));
    }

    #[test]
    fn a_failure_can_change_its_class() {
        assert_eq!(number("x").or_retry("odd").unwrap_err(), {
            Failure::retry("odd: invalid digit found in string")
        });
    }
}
