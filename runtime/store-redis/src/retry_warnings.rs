//! Logs warnings at intervals while requests to the store fail, and one message when all failed requests have
//! succeeded.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_store::RedisUrl;
use ordain_util::log_throttle::LogThrottle;

/// The minimum time between two warnings about a store that does not answer.
pub(super) const WARN_INTERVAL: Duration = Duration::from_secs(5);
/// The time for which the reason of a failed request is returned. The store repeats a failed request after at most a
/// second, and an attempt takes at most 13 seconds: 3 seconds to connect and 10 seconds for the response. An older
/// reason therefore usually belongs to an earlier failure.
const REASON_LIFETIME: Duration = Duration::from_secs(15);

/// The requests that failed and that their callers repeat, and the throttle for the warnings about them.
pub(super) struct RetryWarnings {
    address: RedisUrl,
    /// `true` if `retrying` contains requests. A successful request takes the lock only in this case.
    has_retrying: AtomicBool,
    retrying: Mutex<RetryingRequests>,
}

struct RetryingRequests {
    requests: HashSet<String>,
    throttle: LogThrottle,
    /// The time and the reason of the newest failure.
    newest: Option<(Instant, String)>,
}

impl RetryingRequests {
    fn new() -> Self {
        let throttle = LogThrottle::new(WARN_INTERVAL);
        Self { requests: HashSet::new(), throttle, newest: None }
    }
}

impl RetryWarnings {
    pub(super) fn new(address: &RedisUrl) -> Self {
        Self {
            address: address.clone(),
            has_retrying: AtomicBool::new(false),
            retrying: Mutex::new(RetryingRequests::new()),
        }
    }

    /// Records a request that failed and that its caller will repeat.
    pub(super) fn report(&self, question: String, reason: &str) {
        let mut open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        if open.throttle.allow() {
            tracing::warn!(
                "the store at {} did not complete a request ({question}): \
                 {reason}; retrying",
                self.address
            );
        }
        open.requests.insert(question);
        open.newest = Some((Instant::now(), reason.to_owned()));
        self.has_retrying.store(true, Ordering::Relaxed);
    }

    /// Returns the reason of the newest failed request. Returns `None` if all failed requests have succeeded, or if the
    /// newest failure is older than [`REASON_LIFETIME`].
    pub(super) fn newest_reason(&self) -> Option<String> {
        let open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, reason) = open.newest.as_ref()?;
        (at.elapsed() < REASON_LIFETIME).then(|| reason.clone())
    }

    /// Records that a request has succeeded.
    pub(super) fn resolve(&self, question: impl FnOnce() -> String) {
        if !self.has_retrying.load(Ordering::Relaxed) {
            return;
        }
        let mut open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        if open.requests.remove(&question()) && open.requests.is_empty() {
            self.has_retrying.store(false, Ordering::Relaxed);
            *open = RetryingRequests::new();
            tracing::info!("the store at {} completes requests again", self.address);
        }
    }
}
