//! A producer that posts events over one connection.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::STREAM;

/// Size of an event's data, in bytes: eight zeros in place of a time, four bytes for the sequence, and zeros.
const DATA_BYTES: usize = 256;
/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Producer {
    port: u16,
    number: usize,
    keys: usize,
    together: usize,
    /// Number of events in the requests that the producer has created so far.
    events: usize,
}

/// The results of the requests of one producer, or of several producers together.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The duration of each accepted request, in ms.
    pub(super) accepted_ms: Vec<f64>,
    pub(super) rejected: usize,
    /// Number of requests without an answer.
    pub(super) lost: usize,
    /// The longest duration of a request, in ms. A request ends when its whole answer has arrived, or when the
    /// connection breaks.
    pub(super) longest: f64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Self) {
        self.accepted_ms.extend(other.accepted_ms);
        self.rejected += other.rejected;
        self.lost += other.lost;
        self.longest = self.longest.max(other.longest);
    }
}

impl Producer {
    /// Returns the producer with this number. The producer has `keys` keys, and puts `together` events into each
    /// request.
    pub(super) fn new(port: u16, number: usize, keys: usize, together: usize) -> Self {
        Self { port, number, keys, together, events: 0 }
    }

    /// Posts `requests` requests. Repeats each request that the host rejects or does not answer, until the host accepts
    /// the request.
    pub(super) async fn send(mut self, requests: usize) -> Result<Outcome> {
        let mut connection = self.connect().await?;
        let mut sent = Outcome::default();
        for _ in 0..requests {
            let request = self.next();
            loop {
                let started = Instant::now();
                let answer = timeout(ANSWER_TIMEOUT, exchange(&mut connection, &request)).await;
                let ms = started.elapsed().as_secs_f64() * 1_000.0;
                sent.longest = sent.longest.max(ms);
                let wait = match answer.context("the host does not answer")?? {
                    Some((202, _)) => {
                        sent.accepted_ms.push(ms);
                        break;
                    }
                    Some((429, Some(wait))) => {
                        sent.rejected += 1;
                        wait
                    }
                    None => {
                        sent.lost += 1;
                        1
                    }
                    other => bail!("unexpected answer: {other:?}"),
                };
                // Each producer waits for a different additional time, so that the producers do not all retry at the
                // same moment.
                let spread = (self.number * 7_919 % 1_000) as u64;
                sleep(Duration::from_secs(wait) + Duration::from_millis(spread)).await;
                // The host closes the connection if it rejects a request before it has read the whole body.
                connection = self.connect().await?;
            }
        }
        Ok(sent)
    }

    async fn connect(&self) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }

    /// Returns the next request.
    fn next(&mut self) -> String {
        let mut body = String::new();
        for _ in 0..self.together {
            let key = self.events % self.keys;
            let sequence = (self.events / self.keys + 1) as u32;
            self.events += 1;
            let mut data = [0; DATA_BYTES];
            data[8..12].copy_from_slice(&sequence.to_le_bytes());
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                body,
                "{{\"specversion\":\"1.0\",\"id\":\"{sequence}\",\"source\":\"/bench\",\"type\":\"follow\",\
                 \"subject\":\"{}-{key}\",\"sequence\":{sequence},\"data_base64\":\"{}\"}}",
                self.number,
                STANDARD.encode(data)
            );
        }
        format!(
            "POST /v1/streams/{STREAM}/events HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Sends a request, and reads the answer. Returns `None` if the connection broke before the whole answer arrived. For
/// example, the answer can be lost if the host answers before it has read the body of the request, and then closes the
/// connection.
async fn exchange(
    connection: &mut BufReader<TcpStream>,
    request: &str,
) -> Result<Option<(u16, Option<u64>)>> {
    let written = connection.get_mut().write_all(request.as_bytes()).await;
    match answer(connection).await {
        Err(error) if error.is::<std::io::Error>() => Ok(None),
        Err(_) if written.is_err() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Reads an answer. Returns its status, and its header `Retry-After` in seconds. A status other than 202 and 429 is an
/// error.
async fn answer(connection: &mut BufReader<TcpStream>) -> Result<(u16, Option<u64>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = connection.read_line(&mut head).await?;
        ensure!(read > 0, "the connection ended: {head:?}");
    }
    let head = head.to_ascii_lowercase();
    let header = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let length = header("content-length:").context("the answer has no `content-length`")?;
    let mut body = vec![0; usize::try_from(length)?];
    connection.read_exact(&mut body).await?;
    let status = head.split(' ').nth(1).context("the answer has no status")?.parse()?;
    if !matches!(status, 202 | 429) {
        bail!("{head}{}", String::from_utf8_lossy(&body));
    }
    Ok((status, header("retry-after:")))
}
