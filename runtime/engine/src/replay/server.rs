//! A server that is asked for missing events, one request for each.
//!
//! It is asked by its URL alone: no redirect is followed, no proxy of the environment is used, and an
//! answer counts only if it is the event that was asked for.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue};
use ordain_core::{Event, Key, Ordering};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};

use super::{FOUND_BYTES, Found};
use crate::https;
use ordain_cloudevents::{Decoder, HEADERS_SIZE_LIMIT, decode_http};
use ordain_config::{Name, ReplayServer};

/// Requests of one question at one time.
const TOGETHER: usize = 4;
/// Failures in a row after which the rest of a question waits for the next round.
const FAILURES: usize = 4;
/// Questions of a partition under way at one time.
const QUESTIONS: usize = 64;
/// For a question, with the time that it waits for others; longer where an answer may take longer.
const QUESTION: Duration = Duration::from_secs(30);
/// Why a question is not asked to its end.
const BUSY: &str = "it has too much to answer";
/// What a path takes as it is (RFC 3986, unreserved).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What all that ask one host share.
#[derive(Debug)]
pub(super) struct Host {
    /// Requests under way.
    permits: Arc<Semaphore>,
    /// When it has answered last, whatever that was.
    answered: Mutex<Option<Instant>>,
}

impl Host {
    /// One that is asked so much at one time.
    pub(super) fn new(requests: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(requests)), answered: Mutex::default() }
    }

    fn answered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server.
pub(super) struct Server {
    agent: ureq::Agent,
    host: Arc<Host>,
    /// Requests in all.
    all: Arc<Semaphore>,
    /// Questions under way: each may have found much.
    questions: Semaphore,
    stream: Arc<str>,
    config: ReplayServer,
    decoder: Decoder,
}

impl Server {
    pub(super) fn new(
        stream: &Name,
        config: &ReplayServer,
        host: Arc<Host>,
        all: Arc<Semaphore>,
        event_size: usize,
    ) -> Self {
        let agent = https::agent(&config.url.0)
            .timeout_global(Some(Duration::from_millis(config.timeout.0)))
            .max_idle_connections_per_host(config.concurrency)
            .max_response_header_size(2 * HEADERS_SIZE_LIMIT)
            .build()
            .into();
        let decoder = Decoder { ordering: Ordering::Sequenced, event_size };
        Self {
            agent,
            host,
            all,
            questions: Semaphore::new(QUESTIONS),
            stream: stream.shared(),
            config: config.clone(),
            decoder,
        }
    }

    /// Asks for each of the missing sequences, as far as it comes in some time: a host that does not answer
    /// must not keep what waits for it from its end.
    pub(super) async fn ask(self: &Arc<Self>, key: &Key, missing: &[RangeInclusive<u64>]) -> Found {
        let time = 2 * Duration::from_millis(self.config.timeout.0).max(QUESTION / 2);
        let since = Instant::now();
        let deadline = since + time;
        match timeout_at(deadline, self.questions.acquire()).await {
            Ok(_place) => self.ask_until(since, deadline, key, missing).await,
            Err(_) => self.not_asked(since, missing),
        }
    }

    /// What a question comes to that nobody had the time for. It counts where that is because the server is
    /// away.
    fn not_asked(&self, since: Instant, missing: &[RangeInclusive<u64>]) -> Found {
        let first = missing.first().map_or(0, |range| *range.start());
        let until = if self.has_answered_since(since) { first } else { u64::MAX };
        Found { until, ..Found::failed(BUSY) }
    }

    async fn ask_until(
        self: &Arc<Self>,
        since: Instant,
        deadline: Instant,
        key: &Key,
        missing: &[RangeInclusive<u64>],
    ) -> Found {
        let (mut found, mut bytes, mut failures) = (Found::of_all(Vec::new()), 0, 0);
        let mut until = None;
        let wanted = missing.iter().cloned().flatten();
        let requests = wanted.map(|sequence| {
            let (server, key) = (Arc::clone(self), key.clone());
            async move { (sequence, server.request(key, sequence).await) }
        });
        let mut answers = stream::iter(requests).buffered(TOGETHER);
        loop {
            // Its permits last until it is dealt with.
            let (sequence, (answer, permits)) = match timeout_at(deadline, answers.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => {
                    found.failed = Some(BUSY.into());
                    found.until = until.unwrap_or(self.not_asked(since, missing).until);
                    break;
                }
            };
            let behind = sequence.saturating_add(1);
            until = Some(behind);
            failures = if matches!(answer, Err(Failed::Away(_))) { failures + 1 } else { 0 };
            match answer {
                Ok(Some(event)) => {
                    bytes += event.memory();
                    found.events.push((sequence, Arc::new(event)));
                }
                Ok(None) => {}
                Err(Failed::Away(words) | Failed::Strange(words)) => {
                    found.failed = Some(words.into());
                }
            }
            if failures >= FAILURES && sequence < last(missing) {
                if !self.has_answered_since(since) {
                    // What is held here is not to be waited for.
                    drop((permits, answers));
                    // Perhaps it fails for these alone.
                    let other = self.request(key.clone(), last(missing));
                    let _ = timeout_at(deadline, other).await;
                }
                // One that answers nobody is away, for all that was to be asked.
                found.until = if self.has_answered_since(since) { behind } else { u64::MAX };
                break;
            }
            if bytes >= FOUND_BYTES {
                found.until = behind;
                break;
            }
        }
        found
    }

    fn has_answered_since(&self, since: Instant) -> bool {
        self.host.answered().is_some_and(|at| at >= since)
    }

    /// Asks for one. With the answer come the permits for the memory that it takes.
    async fn request(self: &Arc<Self>, key: Key, sequence: u64) -> (Answer, Option<Permits>) {
        const OPEN: &str = "nobody closes it";
        let (host, all) = (Arc::clone(&self.host.permits), Arc::clone(&self.all));
        let host = host.acquire_owned().await.expect(OPEN);
        let permits = [host, all.acquire_owned().await.expect(OPEN)];
        let server = Arc::clone(self);
        // They go with the request, also where nobody waits for it any more.
        let asked =
            tokio::task::spawn_blocking(move || (server.call(&key, sequence), Some(permits)));
        let panicked = |error: JoinError| (Err(Failed::Away(error.to_string())), None);
        let (answer, permits) = asked.await.unwrap_or_else(panicked);
        if !matches!(answer, Err(Failed::Away(_))) {
            *self.host.answered() = Some(Instant::now());
        }
        (answer, permits)
    }

    fn call(&self, key: &str, sequence: u64) -> Answer {
        let strange = |words: String| Err(Failed::Strange(words));
        if matches!(key, "." | "..") {
            return strange("its key is a step in a path, and cannot be asked for".to_owned());
        }
        let mut request = self.agent.get(self.url(key, sequence));
        if let Some(authorization) = &self.config.authorization {
            request = request.header("authorization", authorization.expose());
        }
        request = request.header("accept", "application/cloudevents+json, */*;q=0.5");
        let mut answer = request.call().map_err(|error| Failed::Away(error.to_string()))?;
        match answer.status().as_u16() {
            200 => {}
            404 | 410 => return Ok(None),
            429 | 500.. => return Err(Failed::Away(answer.status().to_string())),
            _ => return strange(answer.status().to_string()),
        }
        // Where neither is said, a body that is cut is as good as one that has ended.
        if !has_an_end(answer.headers()) {
            return strange("its answer has no length".to_owned());
        }
        let limit = self.decoder.event_size;
        let body = answer.body_mut().with_config().limit(limit as u64 + 1).read_to_vec();
        let body = body.map_err(|error| Failed::Away(error.to_string()))?;
        let event = decode_http(&self.decoder, answer.headers(), &body.into())
            .map_err(|error| Failed::Strange(format!("its answer is no event: {error}")))?;
        if event.key() != key || event.sequence() != Some(sequence) {
            let number = event.sequence().map_or("none".to_owned(), |it| it.to_string());
            let key = event.key();
            return strange(format!(
                "it answered with another event: key {key:?}, sequence {number}"
            ));
        }
        Ok(Some(event))
    }

    fn url(&self, key: &str, sequence: u64) -> String {
        let segment = |text: &str| utf8_percent_encode(text, ESCAPED).to_string();
        let url = self.config.url.0.replace("{sequence}", &sequence.to_string());
        url.replace("{stream}", &segment(&self.stream)).replace("{key}", &segment(key))
    }
}

/// What a request brought; `None`: it is not there. An error says why to ask again.
type Answer = Result<Option<Event>, Failed>;

/// Of its host, and of all.
type Permits = [OwnedSemaphorePermit; 2];

/// Why a request brought no event, and may another time.
enum Failed {
    /// Nobody has answered, or one who cannot answer now.
    Away(String),
    /// What was answered is no event, or another one.
    Strange(String),
}

/// Whether it can be seen that a body is whole.
fn has_an_end(headers: &HeaderMap) -> bool {
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    headers.contains_key(CONTENT_LENGTH)
        || headers.get_all(TRANSFER_ENCODING).iter().next_back().is_some_and(is_chunked)
}

/// The last of what is missing.
fn last(missing: &[RangeInclusive<u64>]) -> u64 {
    missing.last().map_or(0, |range| *range.end())
}
