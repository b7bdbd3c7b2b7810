//! The failures of a handler, and the conversion of other errors into them.

use std::error::Error;
use std::fmt::{self, Display, Write as _};

/// The result of a handler, usually `Result<Outcome<State>>`.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why a call of the handler has no effect. The host discards the state and the messages of the failed call.
///
/// `?` converts any standard error to [`Failure::Reject`]; the crate's documentation explains why. `Failure` itself
/// does not implement [`std::error::Error`], because the compiler would then reject this conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A later try may succeed: the host retries the event, and the later events of the key wait.
    Retry {
        /// The reason, as text for people.
        reason: String,
        /// Delay before the retry, in ms; the longest delay of the stream's `retry.backoff` limits this delay. With
        /// `None`, the host's backoff determines the delay.
        after_ms: Option<u64>,
    },
    /// The event is rejected for good, with this reason. The host dead-letters the event and continues with the next
    /// event of the key.
    Reject(String),
}

impl Failure {
    /// Creates a failure after which the host retries the event; the backoff of the host determines the delay.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after_ms: None }
    }

    /// Creates a failure after which the host retries the event. The delay is `ms` milliseconds, but at most the
    /// longest delay of the stream's `retry.backoff`.
    pub fn retry_after(ms: u64, reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after_ms: Some(ms) }
    }

    /// Creates a failure that rejects the event for good.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject(reason.into())
    }

    /// Returns the reason.
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
            write!(reason, ": {error}").expect("writing to a string cannot fail");
            source = error.source();
        }
        Self::Reject(reason)
    }
}

/// A conversion of an `Err` or a `None` into a [`Failure`] of a chosen kind.
///
/// The argument `what` of each method becomes the beginning of the reason, before the text of the error. For a `None`,
/// the argument is the whole reason. The methods format the argument only on failure, so `format_args!` costs nothing
/// on success:
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
    /// Returns the value, or a failure that rejects the event for good.
    fn or_reject(self, what: impl Display) -> Result<T>;
    /// Returns the value, or a failure after which the host retries the event; the backoff of the host determines the
    /// delay.
    fn or_retry(self, what: impl Display) -> Result<T>;
    /// Returns the value, or a failure after which the host retries the event in `ms` milliseconds. The delay has the
    /// same limit as in [`Failure::retry_after`].
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
    fn question_mark_rejects_with_all_causes() {
        assert_eq!(number("7"), Ok(7));
        assert_eq!(number("x"), Err(Failure::reject("invalid digit found in string")));

        let error = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(Failure::from(error).reason(), "no amount: invalid digit found in string");
    }

    #[test]
    fn text_precedes_the_error() {
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
    fn failure_can_change_its_kind() {
        assert_eq!(number("x").or_retry("odd").unwrap_err(), {
            Failure::retry("odd: invalid digit found in string")
        });
    }
}
