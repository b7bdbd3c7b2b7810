//! Logs warnings at intervals while requests to the store fail. Logs one message when each failed request has
//! succeeded, or its caller has given it up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordain_store::RedisUrl;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

pub(super) const WARN_INTERVAL: Duration = Duration::from_secs(5);
/// The time for which the reason of a failed request is returned. The store repeats a failed request after at most a
/// second, and each try takes at most 13 seconds: 3 seconds to connect and 10 seconds for the response. An older reason
/// therefore usually belongs to an earlier failure.
const REASON_AGE_LIMIT: Duration = Duration::from_secs(15);
/// If the newest failure of a request is older than this time, the caller has probably given up the request, for
/// example because the process has lost the partition. While the caller repeats a request, at most 18 seconds lie
/// between two of its failures. One try takes at most 13 seconds. The sequencer sends a failed commit again after at
/// most 5 seconds, and callers repeat all other requests sooner. The rest is a reserve for a busy process.
const GIVE_UP_DELAY: Duration = Duration::from_secs(20);
/// The failure of a request counts as lasting if this time, or more, lies between its first and its newest failure. A
/// reconnection takes less time. A request of an admin page does not count, because the page waits no longer than this
/// time.
const LASTING_FAILURE: Duration = Duration::from_secs(10);
/// Texts by which this module recognises that the server has closed a connection.
const CLOSED_CONNECTION_WORDS: [&str; 3] = ["broken pipe", "reset by peer", "end of file"];

pub(super) struct RetryWarnings {
    address: RedisUrl,
    /// `true` if `retrying` contains requests. A successful request takes the lock only in this case.
    has_retrying: AtomicBool,
    retrying: Mutex<RetryingRequests>,
    next_number: AtomicU64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RequestId {
    /// The number of a request that the store itself repeats: other requests in progress can have the same name. `None`
    /// if the caller repeats the request under the same name.
    number: Option<u64>,
    name: String,
}

/// The failures of a request that has not succeeded since its first failure.
struct RequestFailures {
    first: Instant,
    newest: Instant,
}

struct RetryingRequests {
    /// The failures of each request that has failed and has not succeeded since.
    failures: HashMap<RequestId, RequestFailures>,
    throttle: LogThrottle,
    newest: Option<(Instant, String)>,
}

impl RetryingRequests {
    fn new() -> Self {
        let throttle = LogThrottle::new(WARN_INTERVAL);
        Self { failures: HashMap::new(), throttle, newest: None }
    }

    /// Records that a request failed at `now`. Returns whether a warning may be logged; in this case, also removes the
    /// requests that their callers have given up.
    fn report(&mut self, request: RequestId, reason: &str, now: Instant) -> bool {
        let failures = self.failures.entry(request);
        let failures = failures.or_insert(RequestFailures { first: now, newest: now });
        if now.duration_since(failures.newest) >= GIVE_UP_DELAY {
            // The caller gave up the earlier request. This failure belongs to a later request with the same id.
            failures.first = now;
        }
        failures.newest = now;
        self.newest = Some((now, reason.to_owned()));
        let may_warn = self.throttle.allow_at(now);
        if may_warn {
            self.remove_given_up(now);
        }
        may_warn
    }

    fn remove_given_up(&mut self, now: Instant) {
        self.failures.retain(|_, failures| now.duration_since(failures.newest) < GIVE_UP_DELAY);
    }

    /// Returns the reason of the newest failure; `None` if this failure is older than [`REASON_AGE_LIMIT`].
    fn newest_reason(&self, now: Instant) -> Option<&str> {
        let (failed_at, reason) = self.newest.as_ref()?;
        (now.duration_since(*failed_at) < REASON_AGE_LIMIT).then_some(reason.as_str())
    }

    /// Returns the time since the first failure of the request whose failure has lasted longest. Counts only requests
    /// with [`LASTING_FAILURE`] or more between the first and the newest failure. Ignores a request whose newest
    /// failure is older than [`GIVE_UP_DELAY`], because its caller has probably given it up.
    fn lasting(&self, now: Instant) -> Option<Duration> {
        let is_lasting = |failures: &&RequestFailures| {
            now.duration_since(failures.newest) < GIVE_UP_DELAY
                && failures.newest.duration_since(failures.first) >= shortened(LASTING_FAILURE)
        };
        let lasting = self.failures.values().filter(is_lasting);
        lasting.map(|failures| now.duration_since(failures.first)).max()
    }

    /// Records that a request succeeded at `now`. Also removes the requests that their callers have given up. Returns
    /// `true` if no failed request remains, and then forgets the earlier failures.
    fn resolve(&mut self, request: &RequestId, now: Instant) -> bool {
        if self.failures.is_empty() {
            return false;
        }
        self.failures.remove(request);
        self.remove_given_up(now);
        let is_recovered = self.failures.is_empty();
        if is_recovered {
            *self = Self::new();
        }
        is_recovered
    }
}

impl RetryWarnings {
    pub(super) fn new(address: &RedisUrl) -> Self {
        Self {
            address: address.clone(),
            has_retrying: AtomicBool::new(false),
            retrying: Mutex::new(RetryingRequests::new()),
            next_number: AtomicU64::new(0),
        }
    }

    /// Returns a number for a request that the store itself repeats.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Records a request that failed, and that will be repeated. `number` is `None` if the caller repeats the request.
    pub(super) fn report(&self, number: Option<u64>, name: &str, reason: &str) {
        let request = RequestId { number, name: name.to_owned() };
        let mut open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if open.report(request, reason, now) {
            let hint =
                if open.lasting(now).is_some() { closed_connection_hint(reason) } else { "" };
            tracing::warn!(
                "the store at {} did not complete a request ({name}): \
                 {reason}; retrying{hint}",
                self.address
            );
        }
        self.has_retrying.store(true, Ordering::Relaxed);
    }

    /// Returns the reason of the newest failure; `None` if no failed request remains, or if the newest failure is older
    /// than [`REASON_AGE_LIMIT`].
    pub(super) fn newest_reason(&self) -> Option<String> {
        let open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        open.newest_reason(Instant::now()).map(str::to_owned)
    }

    /// Returns the time for which a request has failed at each try; `None` without a lasting failure.
    pub(super) fn lasting(&self) -> Option<Duration> {
        if !self.has_retrying.load(Ordering::Relaxed) {
            return None;
        }
        let open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        open.lasting(Instant::now())
    }

    /// Records that a request succeeded. If no failed request remains, logs that the store completes requests again.
    pub(super) fn resolve(&self, number: Option<u64>, name: impl FnOnce() -> String) {
        if !self.has_retrying.load(Ordering::Relaxed) {
            return;
        }
        let mut open = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        if open.resolve(&RequestId { number, name: name() }, Instant::now()) {
            self.has_retrying.store(false, Ordering::Relaxed);
            tracing::info!("the store at {} completes requests again", self.address);
        }
    }
}

/// Returns the next step for a request at which the server closes the connection again and again; an empty text for any
/// other reason. The server itself sends no reason.
fn closed_connection_hint(reason: &str) -> &'static str {
    let is_closed = CLOSED_CONNECTION_WORDS.iter().any(|words| reason.contains(words));
    if !is_closed {
        return "";
    }
    ". If the server answers other requests, it may close the connection because of one of its limits: compare \
     client-output-buffer-limit, client-query-buffer-limit, proto-max-bulk-len and maxmemory-clients with their \
     defaults"
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "commit of stream \"s\", partition 0, shard 0";
    const HEARTBEAT: &str = "heartbeat of {ordain:0}:instances";
    const MOMENT: Duration = Duration::from_millis(1);

    fn id(name: &str) -> RequestId {
        RequestId { number: None, name: name.to_owned() }
    }

    fn fail(requests: &mut RetryingRequests, name: &str, now: Instant) {
        requests.report(id(name), "connection refused", now);
    }

    #[test]
    fn success_of_the_failed_request_is_a_recovery_at_once() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        assert!(!requests.resolve(&id(COMMIT), start), "no request has failed");
        fail(&mut requests, COMMIT, start);
        fail(&mut requests, HEARTBEAT, start);
        assert!(!requests.resolve(&id(COMMIT), start), "the heartbeat still fails");
        assert_eq!(requests.newest_reason(start), Some("connection refused"));
        assert!(requests.resolve(&id(HEARTBEAT), start));
        assert_eq!(requests.newest_reason(start), None);
        assert!(!requests.resolve(&id(HEARTBEAT), start), "the recovery is reported once");
    }

    #[test]
    fn request_without_repeats_delays_the_recovery_for_a_limited_time() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        fail(&mut requests, COMMIT, start);
        fail(&mut requests, HEARTBEAT, start);
        assert!(!requests.resolve(&id(HEARTBEAT), start + MOMENT));
        assert!(!requests.resolve(&id(HEARTBEAT), start + GIVE_UP_DELAY.saturating_sub(MOMENT)));
        assert!(requests.resolve(&id(HEARTBEAT), start + GIVE_UP_DELAY));
    }

    #[test]
    fn request_without_repeats_does_not_hide_a_request_that_still_fails() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        fail(&mut requests, "checkpoint of stream \"s\"", start);
        let repeated_at = start + GIVE_UP_DELAY.saturating_sub(MOMENT);
        fail(&mut requests, COMMIT, repeated_at);
        assert!(!requests.resolve(&id(HEARTBEAT), start + GIVE_UP_DELAY));
        assert!(requests.resolve(&id(COMMIT), start + GIVE_UP_DELAY));
    }

    /// One try takes at most 13 seconds, and the sequencer sends a commit again after at most 5 seconds.
    #[test]
    fn commit_that_always_fails_is_never_a_recovery() {
        let mut requests = RetryingRequests::new();
        let mut now = Instant::now();
        for _ in 0..10 {
            fail(&mut requests, COMMIT, now);
            for _ in 0..18 {
                now += Duration::from_secs(1);
                assert!(!requests.resolve(&id(HEARTBEAT), now));
            }
        }
    }

    #[test]
    fn reason_is_returned_for_a_limited_time() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        fail(&mut requests, COMMIT, start);
        let before_end = start + REASON_AGE_LIMIT.saturating_sub(MOMENT);
        assert_eq!(requests.newest_reason(before_end), Some("connection refused"));
        assert_eq!(requests.newest_reason(start + REASON_AGE_LIMIT), None);
    }

    #[test]
    fn failure_is_lasting_until_the_request_succeeds_or_is_given_up() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        fail(&mut requests, COMMIT, start);
        let earlier = start + LASTING_FAILURE.saturating_sub(MOMENT);
        fail(&mut requests, COMMIT, earlier);
        assert_eq!(requests.lasting(earlier), None);
        let later = start + LASTING_FAILURE;
        fail(&mut requests, COMMIT, later);
        assert_eq!(requests.lasting(later), Some(LASTING_FAILURE));
        // The success of another request changes nothing.
        requests.resolve(&id(HEARTBEAT), later);
        assert_eq!(requests.lasting(later), Some(LASTING_FAILURE));
        let before_end = later + GIVE_UP_DELAY.saturating_sub(MOMENT);
        assert!(requests.lasting(before_end).is_some(), "the next try may still run");
        assert_eq!(requests.lasting(later + GIVE_UP_DELAY), None, "given up");
        // A later request of the same name starts anew.
        fail(&mut requests, COMMIT, later + GIVE_UP_DELAY);
        assert_eq!(requests.lasting(later + GIVE_UP_DELAY + MOMENT), None);
        fail(&mut requests, COMMIT, later + GIVE_UP_DELAY + LASTING_FAILURE);
        assert!(requests.lasting(later + GIVE_UP_DELAY + LASTING_FAILURE).is_some());
        requests.resolve(&id(COMMIT), later + GIVE_UP_DELAY + LASTING_FAILURE);
        assert_eq!(requests.lasting(later + GIVE_UP_DELAY + LASTING_FAILURE), None);
    }

    /// For example, the records of one key exceed a limit of the server, and another load of the shard succeeds.
    #[test]
    fn failure_lasts_although_another_request_of_the_same_name_succeeds() {
        let url = ordain_store::RedisAddress::parse("redis://localhost").expect("a URL");
        let warnings = RetryWarnings::new(&url);
        let [large, small] = [warnings.next_number(), warnings.next_number()].map(Some);
        let name = || "load of {ordain:0}:data:s".to_owned();
        warnings.report(large, &name(), "broken pipe");
        warnings.report(small, &name(), "broken pipe");
        warnings.resolve(small, name);
        assert!(warnings.newest_reason().is_some(), "the other load still fails");
        warnings.resolve(large, name);
        assert_eq!(warnings.newest_reason(), None);
    }

    #[test]
    fn requests_that_are_given_up_do_not_accumulate() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        for number in 0..1000_u32 {
            let request = RequestId { number: Some(number.into()), name: COMMIT.to_owned() };
            requests.report(request, "connection refused", start + number * WARN_INTERVAL);
        }
        assert!(requests.failures.len() < 10, "{}", requests.failures.len());
    }

    /// For example, the process has lost the partition, or an admin page has not waited longer for the store.
    #[test]
    fn failures_of_a_request_that_is_given_up_early_are_never_lasting() {
        for given_up_after in [Duration::ZERO, LASTING_FAILURE.saturating_sub(MOMENT)] {
            let mut requests = RetryingRequests::new();
            let start = Instant::now();
            fail(&mut requests, COMMIT, start);
            fail(&mut requests, COMMIT, start + given_up_after);
            for second in 10..40 {
                assert_eq!(requests.lasting(start + Duration::from_secs(second)), None, "{second}");
            }
        }
    }

    /// One try takes at most 13 seconds, and the sequencer sends a commit again after at most 5 seconds.
    #[test]
    fn slow_tries_leave_no_break_in_a_lasting_failure() {
        let mut requests = RetryingRequests::new();
        let mut now = Instant::now();
        fail(&mut requests, COMMIT, now);
        for _ in 0..3 {
            now += Duration::from_secs(18);
            fail(&mut requests, COMMIT, now);
            for second in 0..18 {
                assert!(requests.lasting(now + Duration::from_secs(second)).is_some(), "{second}");
            }
        }
    }

    #[test]
    fn only_a_closed_connection_suggests_a_limit() {
        for reason in ["broken pipe", "Connection reset by peer (os error 104)"] {
            assert!(closed_connection_hint(reason).contains("client-output-buffer-limit"));
        }
        for reason in ["Connection refused (os error 111)", "timed out", "OOM command not allowed"]
        {
            assert_eq!(closed_connection_hint(reason), "", "{reason}");
        }
    }

    #[test]
    fn warnings_are_throttled_until_the_recovery() {
        let mut requests = RetryingRequests::new();
        let start = Instant::now();
        let report = |requests: &mut RetryingRequests, now| {
            requests.report(id(COMMIT), "connection refused", now)
        };
        assert!(report(&mut requests, start));
        assert!(!report(&mut requests, start + MOMENT));
        assert!(report(&mut requests, start + WARN_INTERVAL));
        assert!(requests.resolve(&id(COMMIT), start + WARN_INTERVAL));
        assert!(report(&mut requests, start + WARN_INTERVAL));
    }
}
