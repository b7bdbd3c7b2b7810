//! A client of the host's listeners that sends what it is told to, right or wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::service::Service;

/// How long an answer may take. Only a failing test waits so long.
const DEADLINE: Duration = Duration::from_mins(1);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {self:?}"))
    }

    /// The detail of an error, which must be problem details of its status.
    pub fn problem(&self) -> Result<String> {
        let problem = self.json()?;
        let form = self.head.contains("content-type: application/problem+json");
        ensure!(form && problem["status"] == self.status, "no problem details: {self:?}");
        problem["detail"].as_str().map(str::to_owned).context("a detail")
    }
}

/// Where a host's operators are served, as its log says.
pub fn admin(service: &mut Service) -> Result<SocketAddr> {
    const SAID: &str = "admin listening on http://";
    let mut address = None;
    let log = service.stderr_path();
    service.until("the address of the listener", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let said = log.split_once(SAID).and_then(|(_, rest)| rest.split_once('\n'));
        address = said.and_then(|(address, _)| address.trim().parse().ok());
        address.is_some()
    })?;
    address.context("it was said")
}

/// Waits until a host is ready; where its operators are served.
pub fn ready(service: &mut Service) -> Result<SocketAddr> {
    let address = admin(service)?;
    service.until("readiness", || get(address, "/readyz").is_ok_and(|it| it.status == 200))?;
    Ok(address)
}

/// Asks for a path.
pub fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    get_with(address, path, &[])
}

/// The same with headers.
pub fn get_with(address: SocketAddr, path: &str, headers: &[&str]) -> Result<Answer> {
    let host = format!("Host: {address}");
    let all = [&[&*host, "Connection: close"], headers].concat().join("\r\n");
    send(address, format!("GET {path} HTTP/1.1\r\n{all}\r\n\r\n").as_bytes())
}

/// Sends bytes, and reads what is answered until the other side closes.
pub fn send(address: SocketAddr, request: &[u8]) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    // What is refused early may not be read to its end.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        ensure!(!answer.is_empty(), "no answer: {error}");
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.with_context(|| format!("no answer in HTTP: {answer:?}"))?,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    })
}
