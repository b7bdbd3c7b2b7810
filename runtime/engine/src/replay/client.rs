//! The client of a replay server, which sends a separate HTTP request for each missing event.
//!
//! Requests go to the configured URL only: the client follows no redirects and uses no proxy of the environment. The
//! client accepts an answer only if the answer is the requested event.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue};
use ordain_core::{Event, Key};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};

use super::{ANSWER_BYTES, ReplayAnswer};
use crate::https;
use ordain_cloudevents::{EventDecoder, HEADERS_SIZE_LIMIT, decode_http};
use ordain_config::{ReplayServer, ResourceName};

/// Maximum number of concurrent requests of one query (a search for the missing events of one key).
const QUERY_CONCURRENCY: usize = 4;
/// A query stops after this number of consecutive results [`FetchError::Unavailable`]. A later round requests the
/// events that are still missing.
const FAILURE_LIMIT: usize = 4;
/// Maximum number of concurrent queries of a partition to one server.
const QUERY_LIMIT: usize = 64;
/// The answer of a query that reached its time limit has this reason.
const OVERLOADED_REASON: &str = "the server is overloaded";
/// In the placeholders of the URL, all characters except the unreserved characters of RFC 3986 are percent-encoded.
const ESCAPED_CHARACTERS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The data that all queries to one host share. A host is the origin of a replay server's URL.
#[derive(Debug)]
pub(super) struct ReplayHost {
    /// Permits for requests to this host.
    permits: Arc<Semaphore>,
    /// The newest result other than `FetchError::Unavailable`, which counts as an answer of the host.
    last_answer_at: Mutex<Option<Instant>>,
}

impl ReplayHost {
    pub(super) fn new(requests: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(requests)), last_answer_at: Mutex::default() }
    }

    fn lock_last_answer(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_answer_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client of one replay server, for the events of one partition.
pub(super) struct ReplayClient {
    agent: ureq::Agent,
    host: Arc<ReplayHost>,
    /// Permits for the requests of the whole process.
    process_permits: Arc<Semaphore>,
    /// Permits for queries. The number of queries is limited, because each query may have many found events in memory.
    query_permits: Semaphore,
    stream: Arc<str>,
    config: ReplayServer,
    decoder: EventDecoder,
}

impl ReplayClient {
    pub(super) fn new(
        stream: &ResourceName,
        config: &ReplayServer,
        host: Arc<ReplayHost>,
        process_permits: Arc<Semaphore>,
        decoder: EventDecoder,
    ) -> Self {
        let agent = https::agent(&config.url.0)
            .timeout_global(Some(Duration::from_millis(config.timeout.0)))
            .max_idle_connections_per_host(config.concurrency)
            .max_response_header_size(2 * HEADERS_SIZE_LIMIT)
            .build()
            .into();
        Self {
            agent,
            host,
            process_permits,
            query_permits: Semaphore::new(QUERY_LIMIT),
            stream: stream.shared(),
            config: config.clone(),
            decoder,
        }
    }

    /// Requests the missing events of a key. A host that does not answer must not delay the caller beyond the time
    /// limit.
    pub(super) async fn query(
        self: &Arc<Self>,
        key: &Key,
        missing: &[RangeInclusive<u64>],
    ) -> ReplayAnswer {
        if matches!(&**key, "." | "..") {
            return ReplayAnswer::failed(
                "the key is `.` or `..`, which cannot be part of a URL's path",
            );
        }
        let started_at = Instant::now();
        let deadline = started_at + self.config.query_timeout();
        let Ok(_place) = timeout_at(deadline, self.query_permits.acquire()).await else {
            let until = self.end_of_answer(started_at, first_missing(missing));
            return ReplayAnswer { until, ..ReplayAnswer::failed(OVERLOADED_REASON) };
        };
        self.query_until(started_at, deadline, key, missing).await
    }

    /// Returns [`ReplayAnswer::until`] for a query that ends before the sequence `next`. If the host has answered no
    /// request since `started_at`, the start of the query, the value is `u64::MAX`: the host counts as queried and
    /// unavailable for all sequences.
    fn end_of_answer(&self, started_at: Instant, next: u64) -> u64 {
        if self.has_answered_since(started_at) { next } else { u64::MAX }
    }

    async fn query_until(
        self: &Arc<Self>,
        started_at: Instant,
        deadline: Instant,
        key: &Key,
        missing: &[RangeInclusive<u64>],
    ) -> ReplayAnswer {
        let mut collected = ReplayAnswer::complete(Vec::new());
        let mut bytes = 0;
        let mut failures = 0;
        let mut next_sequence = first_missing(missing);
        let wanted = missing.iter().cloned().flatten();
        let requests = wanted.map(|sequence| {
            let client = Arc::clone(self);
            let key = key.clone();
            async move { (sequence, client.request(key, sequence).await) }
        });
        let mut answers = stream::iter(requests).buffered(QUERY_CONCURRENCY);
        loop {
            // The permits of a request are held until this loop has processed the answer.
            let (sequence, (result, permits)) = match timeout_at(deadline, answers.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => {
                    collected.failed = Some(OVERLOADED_REASON.into());
                    collected.until = self.end_of_answer(started_at, next_sequence);
                    break;
                }
            };
            next_sequence = sequence.saturating_add(1);
            failures =
                if matches!(result, Err(FetchError::Unavailable(_))) { failures + 1 } else { 0 };
            match result {
                Ok(Some(event)) => {
                    bytes += event.memory();
                    collected.events.push((sequence, Arc::new(event)));
                }
                Ok(None) => {}
                Err(FetchError::Unavailable(words) | FetchError::InvalidAnswer(words)) => {
                    collected.failed = Some(words.into());
                }
            }
            if failures >= FAILURE_LIMIT && sequence < last_missing(missing) {
                if !self.has_answered_since(started_at) {
                    // The request below must not wait for the permits that this answer and the buffered answers hold.
                    drop((permits, answers));
                    // Perhaps the server fails only for the first sequences. A request for the last missing sequence
                    // shows whether the server answers at all.
                    let other = self.request(key.clone(), last_missing(missing));
                    let _ = timeout_at(deadline, other).await;
                }
                collected.until = self.end_of_answer(started_at, next_sequence);
                break;
            }
            if bytes >= ANSWER_BYTES {
                collected.until = next_sequence;
                break;
            }
        }
        collected
    }

    fn has_answered_since(&self, started_at: Instant) -> bool {
        self.host.lock_last_answer().is_some_and(|at| at >= started_at)
    }

    /// Requests one event. Also returns the permits of the request, which the caller keeps while the answer takes
    /// memory.
    async fn request(
        self: &Arc<Self>,
        key: Key,
        sequence: u64,
    ) -> (FetchResult, Option<RequestPermits>) {
        const SEMAPHORE_MESSAGE: &str = "the semaphore is never closed";
        let host = Arc::clone(&self.host.permits);
        let process_permits = Arc::clone(&self.process_permits);
        let host = host.acquire_owned().await.expect(SEMAPHORE_MESSAGE);
        let permits = [host, process_permits.acquire_owned().await.expect(SEMAPHORE_MESSAGE)];
        let client = Arc::clone(self);
        // The thread keeps the permits until the end of the request, even if no task waits for the result.
        let fetch =
            tokio::task::spawn_blocking(move || (client.fetch(&key, sequence), Some(permits)));
        let panicked = |error: JoinError| (Err(FetchError::Unavailable(error.to_string())), None);
        let (answer, permits) = fetch.await.unwrap_or_else(panicked);
        if !matches!(answer, Err(FetchError::Unavailable(_))) {
            *self.host.lock_last_answer() = Some(Instant::now());
        }
        (answer, permits)
    }

    fn fetch(&self, key: &str, sequence: u64) -> FetchResult {
        let invalid = |words: String| Err(FetchError::InvalidAnswer(words));
        let mut request = self.agent.get(self.url(key, sequence));
        if let Some(authorization) = &self.config.authorization {
            request = request.header("authorization", authorization.expose());
        }
        request = request.header("accept", "application/cloudevents+json, */*;q=0.5");
        let mut answer =
            request.call().map_err(|error| FetchError::Unavailable(error.to_string()))?;
        match answer.status().as_u16() {
            200 => {}
            404 | 410 => return Ok(None),
            429 | 500.. => return Err(FetchError::Unavailable(answer.status().to_string())),
            _ => return invalid(answer.status().to_string()),
        }
        // If the answer declares no length and has no chunks, a truncated body looks like a complete body.
        if !declares_body_end(answer.headers()) {
            let fault =
                "the answer has neither the header `content-length` nor the encoding `chunked`";
            return invalid(fault.to_owned());
        }
        let limit = self.decoder.event_size;
        let body = answer.body_mut().with_config().limit(limit as u64 + 1).read_to_vec();
        let body = body.map_err(|error| FetchError::Unavailable(error.to_string()))?;
        let event =
            decode_http(&self.decoder, answer.headers(), &body.into()).map_err(|error| {
                FetchError::InvalidAnswer(format!("the answer is not an event: {error}"))
            })?;
        if event.key() != key || event.sequence() != Some(sequence) {
            let number =
                event.sequence().map_or("none".to_owned(), |sequence| sequence.to_string());
            let key = event.key();
            return invalid(format!(
                "the answer contains another event: key {key:?}, sequence {number}"
            ));
        }
        Ok(Some(event))
    }

    fn url(&self, key: &str, sequence: u64) -> String {
        let segment = |text: &str| utf8_percent_encode(text, ESCAPED_CHARACTERS).to_string();
        let url = self.config.url.0.replace("{sequence}", &sequence.to_string());
        url.replace("{stream}", &segment(&self.stream)).replace("{key}", &segment(key))
    }
}

/// `None` if the server does not have the event. After an error, a repeated request may succeed.
type FetchResult = Result<Option<Event>, FetchError>;

/// One permit of the host, and one of the process.
type RequestPermits = [OwnedSemaphorePermit; 2];

/// The reason why a request failed. A second request may return the event.
enum FetchError {
    /// The server did not answer completely, or cannot answer now.
    Unavailable(String),
    /// The answer has an unexpected status or form, is not an event, or is not the requested event.
    InvalidAnswer(String),
}

fn declares_body_end(headers: &HeaderMap) -> bool {
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    headers.contains_key(CONTENT_LENGTH)
        || headers.get_all(TRANSFER_ENCODING).iter().next_back().is_some_and(is_chunked)
}

fn first_missing(missing: &[RangeInclusive<u64>]) -> u64 {
    missing.first().map_or(0, |range| *range.start())
}

fn last_missing(missing: &[RangeInclusive<u64>]) -> u64 {
    missing.last().map_or(0, |range| *range.end())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use ordain_config::LoadedConfig;
    use ordain_core::OrderingMode;

    use super::*;

    /// Closes the first `closed` connections, and never answers on the later ones. Returns the address.
    fn start_silent_server(closed: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for (number, stream) in listener.incoming().flatten().enumerate() {
                if number >= closed {
                    open.push(stream);
                }
            }
        });
        address
    }

    /// The client sends one request at a time.
    fn client(address: SocketAddr) -> Arc<ReplayClient> {
        let text = format!(
            "[streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"file\", path = \"-\" }}\n\
             gap = {{ replay = [{{ url = \"http://{address}/{{key}}/{{sequence}}\", timeout = \"1s\" }}] }}\n"
        );
        let loaded = LoadedConfig::parse("ordain.toml".as_ref(), &text, &|_| None);
        let config = loaded.expect("a configuration").config;
        let (name, stream) = config.streams.first_key_value().expect("a stream");
        let server = stream.replay_servers().next().expect("a server");
        let permits = Arc::new(Semaphore::new(1));
        let host = Arc::new(ReplayHost::new(1));
        let decoder = EventDecoder::new(OrderingMode::Sequenced, 1 << 20);
        Arc::new(ReplayClient::new(name, server, host, permits, decoder))
    }

    /// The first two requests fail immediately. The third request gets no answer before the time limit of the query.
    #[tokio::test]
    async fn silent_host_counts_as_unavailable_for_all_sequences_at_the_time_limit() {
        let client = client(start_silent_server(2));
        let started_at = Instant::now();
        let deadline = started_at + Duration::from_millis(500);
        let answer = client.query_until(started_at, deadline, &"a".into(), &[1..=3]).await;
        assert_eq!((answer.until, answer.events.len()), (u64::MAX, 0));
        assert_eq!(answer.failed.as_deref(), Some(OVERLOADED_REASON));
    }

    #[tokio::test]
    async fn key_that_cannot_be_in_a_url_is_no_answer_of_the_host() {
        let client = client(start_silent_server(0));
        let started_at = Instant::now();
        for key in [".", ".."] {
            let answer = client.query(&key.into(), &[1..=3]).await;
            assert_eq!((answer.until, answer.events.len()), (u64::MAX, 0));
            let reason = answer.failed.unwrap_or_default();
            assert!(reason.contains("cannot be part of a URL's path"), "{reason}");
        }
        assert!(!client.has_answered_since(started_at), "the host has answered no request");
    }
}
