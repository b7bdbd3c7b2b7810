//! A server that is asked for missing events, one request for each.
//!
//! It is asked by its URL alone: no redirect is followed, no proxy of the environment is used, and an
//! answer counts only if it is the event that was asked for.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ordain_core::{Event, Key, Ordering};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::{FOUND_BYTES, Found};
use crate::cloudevents::{Decoder, HEADERS_SIZE_LIMIT, decode_http};
use crate::config::{Name, ReplayServer};
use crate::https;

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

/// A server.
pub(super) struct Server {
    agent: ureq::Agent,
    /// Requests to its host, and in all.
    permits: [Arc<Semaphore>; 2],
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
        permits: [Arc<Semaphore>; 2],
        event_size: usize,
    ) -> Self {
        let agent = https::agent(&config.url.0)
            .timeout_global(Some(Duration::from_millis(config.timeout.0)))
            .max_idle_connections_per_host(config.concurrency)
            .max_response_header_size(2 * HEADERS_SIZE_LIMIT)
            .build()
            .into();
        let decoder = Decoder { ordering: Ordering::Sequenced, event_size };
        let questions = Semaphore::new(QUESTIONS);
        Self { agent, permits, questions, stream: stream.shared(), config: config.clone(), decoder }
    }

    /// Asks for each of the missing sequences, as far as it comes in some time: a host that does not answer
    /// must not keep what waits for it from its end.
    pub(super) async fn ask(self: &Arc<Self>, key: &Key, missing: &[RangeInclusive<u64>]) -> Found {
        let time = 2 * Duration::from_millis(self.config.timeout.0).max(QUESTION / 2);
        let deadline = Instant::now() + time;
        match timeout_at(deadline, self.questions.acquire()).await {
            Ok(_place) => self.ask_until(deadline, key, missing).await,
            Err(_) => Found::failed(BUSY),
        }
    }

    async fn ask_until(
        self: &Arc<Self>,
        deadline: Instant,
        key: &Key,
        missing: &[RangeInclusive<u64>],
    ) -> Found {
        let (mut found, mut bytes, mut failures) = (Found::of_all(Vec::new()), 0, 0);
        let mut answered = None;
        let wanted = missing.iter().cloned().flatten();
        let requests = wanted.map(|sequence| {
            let (server, key) = (Arc::clone(self), key.clone());
            async move { (sequence, server.request(key, sequence).await) }
        });
        let mut answers = stream::iter(requests).buffered(TOGETHER);
        loop {
            let (sequence, answer) = match timeout_at(deadline, answers.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => {
                    found.failed = Some(BUSY.into());
                    found.through = answered.unwrap_or(u64::MAX);
                    break;
                }
            };
            if answer.is_ok() {
                (answered, failures) = (Some(sequence), 0);
            } else {
                failures += 1;
            }
            match answer {
                Ok(Some(event)) => {
                    bytes += event.memory();
                    found.events.push((sequence, Arc::new(event)));
                }
                Ok(None) => {}
                Err(words) => found.failed = Some(words.into()),
            }
            if failures >= FAILURES {
                // One that has only failed is away: for all that was to be asked.
                if answered.is_some() {
                    found.through = sequence;
                }
                break;
            }
            if bytes >= FOUND_BYTES {
                found.through = sequence;
                break;
            }
        }
        found
    }

    /// Asks for one; `None`: it is not there. An error says why to ask again.
    async fn request(self: Arc<Self>, key: Key, sequence: u64) -> Result<Option<Event>, String> {
        let [host, all] = self.permits.clone();
        let permits = (host.acquire_owned().await, all.acquire_owned().await);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = self.call(&key, sequence);
            drop(permits);
            answer
        });
        asked.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn call(&self, key: &str, sequence: u64) -> Result<Option<Event>, String> {
        if matches!(key, "." | "..") {
            return Err("its key is a step in a path, and cannot be asked for".to_owned());
        }
        let mut request = self.agent.get(self.url(key, sequence));
        if let Some(authorization) = &self.config.authorization {
            request = request.header("authorization", authorization.expose());
        }
        request = request.header("accept", "application/cloudevents+json, */*;q=0.5");
        let mut answer = request.call().map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 => {}
            404 | 410 => return Ok(None),
            _ => return Err(answer.status().to_string()),
        }
        let limit = self.decoder.event_size;
        let body = answer.body_mut().with_config().limit(limit as u64 + 1).read_to_vec();
        let body = body.map_err(|error| error.to_string())?;
        let event = decode_http(&self.decoder, answer.headers(), &body.into())
            .map_err(|error| format!("its answer is no event: {error}"))?;
        if event.key() != key || event.sequence() != Some(sequence) {
            let number = event.sequence().map_or("none".to_owned(), |it| it.to_string());
            let key = event.key();
            return Err(format!("it answered with another event: key {key:?}, sequence {number}"));
        }
        Ok(Some(event))
    }

    fn url(&self, key: &str, sequence: u64) -> String {
        let segment = |text: &str| utf8_percent_encode(text, ESCAPED).to_string();
        let url = self.config.url.0.replace("{sequence}", &sequence.to_string());
        url.replace("{stream}", &segment(&self.stream)).replace("{key}", &segment(key))
    }
}
