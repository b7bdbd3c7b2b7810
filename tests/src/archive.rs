//! An HTTP server that serves events for replay, like the servers that users of Ordain run. A given proportion of the
//! requests fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// An HTTP server that serves events for replay. The server runs until the process of the test ends.
pub struct Archive {
    address: SocketAddr,
    shared: Arc<ArchiveState>,
}

struct ArchiveState {
    /// The CloudEvents in JSON, by URL path (`/KEY/SEQUENCE`).
    events: Mutex<BTreeMap<String, String>>,
    /// The average number of failures in 1,000 requests.
    failing: u32,
    random: Mutex<ChaCha8Rng>,
    token: Option<String>,
    /// The answer to a request for an event that the server does not have.
    absent: &'static str,
    requests: AtomicU64,
    unauthorized_requests: AtomicU64,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Archive {
    /// Starts a server with events, each given as a CloudEvent in one line of JSON. The path of an event is
    /// `/KEY/SEQUENCE`. On average, `failing` of 1,000 requests fail: the server closes the connection, or responds
    /// with an error, a redirect, another event or no event. If `token` is given, the server accepts only requests with
    /// this value in the header `Authorization`.
    pub fn start(lines: &[String], failing: u32, token: Option<&str>) -> Result<Self> {
        Self::with(lines, failing, token, "404 Not Found")
    }

    /// Starts a server as [`Self::start`] does, without failures and without a token. `absent` is the status code and
    /// the reason phrase of the response to a request for an event that the server does not have.
    pub fn refusing(lines: &[String], absent: &'static str) -> Result<Self> {
        Self::with(lines, 0, None, absent)
    }

    fn with(
        lines: &[String],
        failing: u32,
        token: Option<&str>,
        absent: &'static str,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ArchiveState {
            events: Mutex::default(),
            failing,
            random: Mutex::new(ChaCha8Rng::seed_from_u64(9)),
            token: token.map(str::to_owned),
            absent,
            requests: AtomicU64::new(0),
            unauthorized_requests: AtomicU64::new(0),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // Ignore an error: the client may have closed the connection already.
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        let archive = Self { address, shared };
        archive.keep(lines)?;
        Ok(archive)
    }

    /// Adds events, which the server serves from now on.
    pub fn keep<'a>(&self, lines: impl IntoIterator<Item = &'a String>) -> Result<()> {
        let mut events = self.shared.events.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            let event: Value = serde_json::from_str(line)?;
            let key = event["subject"].as_str().context("a key")?;
            let sequence = match &event["sequence"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            events.insert(format!("/{key}/{sequence}"), line.clone());
        }
        Ok(())
    }

    /// Returns the URL template of the events, for the setting `replay` of a stream.
    pub fn url(&self) -> String {
        format!("http://{}/{{key}}/{{sequence}}", self.address)
    }

    /// Returns the number of requests that the server has received.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that the server rejected because they lacked the token.
    pub fn unauthorized_requests(&self) -> u64 {
        self.shared.unauthorized_requests.load(Ordering::Relaxed)
    }

    /// Returns the largest number of requests that the server has handled at the same time.
    pub fn max_concurrency(&self) -> usize {
        self.shared.most.load(Ordering::Relaxed)
    }
}

impl ArchiveState {
    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let mut head = String::new();
            reader.read_line(&mut head)?;
            let Some(path) = head.split(' ').nth(1).map(str::to_owned) else { return Ok(()) };
            let mut is_known = self.token.is_none();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let line = line.trim_end();
                if line.is_empty() {
                    break;
                }
                let Some((name, value)) = line.split_once(": ") else { continue };
                is_known |= name.eq_ignore_ascii_case("authorization")
                    && self.token.as_deref() == Some(value);
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
            let answer = self.answer(&path, is_known);
            self.now.fetch_sub(1, Ordering::Relaxed);
            let Some((status, body)) = answer else { return Ok(()) };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/cloudevents+json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            )?;
        }
    }

    /// `None` means that the server closes the connection without a response.
    fn answer(&self, path: &str, is_known: bool) -> Option<(&'static str, String)> {
        if !is_known {
            self.unauthorized_requests.fetch_add(1, Ordering::Relaxed);
            return Some(("401 Unauthorized", String::new()));
        }
        let events = self.events.lock().ok()?;
        let event = events.get(path);
        let mut random = self.random.lock().ok()?;
        let (status, body) = if random.random_range(0..1_000) < self.failing {
            // An event that the client did not request, for a wrong response.
            let other = events.values().next().filter(|found| Some(*found) != event);
            match random.random_range(0..5) {
                0 => return None,
                1 => ("200 OK", "no event"),
                2 if other.is_some() => ("200 OK", other.map_or("", String::as_str)),
                3 => ("302 Found", ""),
                _ => ("503 Service Unavailable", ""),
            }
        } else {
            event.map_or((self.absent, ""), |event| ("200 OK", event))
        };
        Some((status, body.to_owned()))
    }
}
