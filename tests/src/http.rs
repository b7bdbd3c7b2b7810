//! An HTTP client for the host's listeners. The client sends the bytes of a request unchanged, so a test can also send
//! an invalid request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::service::Service;

/// The time limit for each read and each write on a connection. Only a failing test waits for the whole time.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// The content type of a body with one event per line.
pub const LINES_TYPE: &str = "application/x-ndjson";

/// The response to one HTTP request.
#[derive(Debug)]
pub struct Answer {
    /// The status code, such as 202.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body as text, in which U+FFFD replaces bytes that are not UTF-8.
    pub body: String,
}

impl Answer {
    /// Parses the body as JSON. If this fails, the error contains the whole response.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("the body is not JSON: {self:?}"))
    }

    /// Returns the `detail` of an error response. The body must be problem details (JSON), with the same status as the
    /// response.
    pub fn problem(&self) -> Result<String> {
        let problem = self.json()?;
        let form = self.head.contains("content-type: application/problem+json");
        ensure!(
            form && problem["status"] == self.status,
            "the response has no problem details: {self:?}"
        );
        problem["detail"].as_str().map(str::to_owned).context("a detail")
    }
}

/// Waits until a host has logged the address of its admin listener. Returns the address.
pub fn admin(service: &mut Service) -> Result<SocketAddr> {
    listener(service, "admin listening on http://")
}

/// Waits until a host has logged the address of its listener for events. Returns the address.
pub fn ingress(service: &mut Service) -> Result<SocketAddr> {
    listener(service, "ingress listening on http://")
}

fn listener(service: &mut Service, prefix: &str) -> Result<SocketAddr> {
    let mut address = None;
    let log = service.stderr_path();
    service.until("the address of the listener", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let rest_of_line = log.split_once(prefix).and_then(|(_, rest)| rest.split_once('\n'));
        address = rest_of_line.and_then(|(address, _)| address.trim().parse().ok());
        address.is_some()
    })?;
    address.context("the log contains no address of the listener")
}

/// Waits until a host reports at `/readyz` that it is ready. Returns the address of its admin listener.
pub fn ready(service: &mut Service) -> Result<SocketAddr> {
    let address = admin(service)?;
    service.until("readiness", || {
        get(address, "/readyz").is_ok_and(|response| response.status == 200)
    })?;
    Ok(address)
}

/// Sends a GET request for a path.
pub fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    get_with(address, path, &[])
}

/// Sends a GET request with headers for a path.
pub fn get_with(address: SocketAddr, path: &str, headers: &[&str]) -> Result<Answer> {
    let host = format!("Host: {address}");
    let all = [&[&*host, "Connection: close"], headers].concat().join("\r\n");
    send(address, format!("GET {path} HTTP/1.1\r\n{all}\r\n\r\n").as_bytes())
}

/// Returns the sum of the samples of a metric; `None` if there is no sample. Ignores samples that are not whole
/// numbers. `name` may end with all labels of a sample, in the form `{label="value"}`.
pub fn metric(address: SocketAddr, name: &str) -> Result<Option<u64>> {
    let metrics = get(address, "/metrics")?.body;
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let samples = samples.filter(|sample| sample.starts_with(['{', ' ']));
    let values = samples.filter_map(|sample| sample.rsplit_once(' ')?.1.parse::<u64>().ok());
    Ok(values.reduce(|sum, value| sum + value))
}

/// Posts a body of this content type to the stream `cases`.
pub fn post(address: SocketAddr, kind: &str, body: &str) -> Result<Answer> {
    post_with(address, "/v1/streams/cases/events", &[&format!("content-type: {kind}")], body)
}

/// Posts a body with headers to a path.
pub fn post_with(address: SocketAddr, path: &str, headers: &[&str], body: &str) -> Result<Answer> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for header in headers {
        request += &format!("{header}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    send(address, request.as_bytes())
}

/// Sends bytes, and reads the response until the server closes the connection.
pub fn send(address: SocketAddr, request: &[u8]) -> Result<Answer> {
    let mut stream = connect(address)?;
    // Ignore an error: the server may reject a request before it has read all of it.
    let _ = stream.write_all(request);
    receive(stream)
}

/// Sends bytes and reads the response, as many simple clients do: the client does not read before it has sent the whole
/// request, and fails if it cannot send the whole request.
pub fn send_whole(address: SocketAddr, request: &[u8]) -> Result<Answer> {
    let mut stream = connect(address)?;
    stream.write_all(request).context("the server did not read the whole request")?;
    receive(stream)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

/// Sends the headers of a request that posts `bytes` bytes of [`LINES_TYPE`] to the stream `cases`, and waits until the
/// server requests the body. The request is then in progress. The caller sends the body, and then calls [`receive`].
pub fn begin_post(address: SocketAddr, bytes: usize) -> Result<TcpStream> {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut stream = connect(address)?;
    let head = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: {LINES_TYPE}\r\n\
         content-length: {bytes}\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut interim = vec![0; CONTINUE.len()];
    stream.read_exact(&mut interim).context("the server did not request the body")?;
    ensure!(interim == CONTINUE, "{}", String::from_utf8_lossy(&interim));
    Ok(stream)
}

/// Reads a response until the server closes the connection.
pub fn receive(mut stream: TcpStream) -> Result<Answer> {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        ensure!(!answer.is_empty(), "the server sent no response: {error}");
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.with_context(|| format!("the response is not HTTP: {answer:?}"))?,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    })
}
