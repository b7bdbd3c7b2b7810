//! A way in, and what is posted there.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use ordain_tests::http::{self, Answer};
use ordain_tests::service::Service;

/// Where the ingress listens.
pub(super) fn ingress(service: &mut Service) -> Result<SocketAddr> {
    const WORDS: &str = "ingress listening on http://";
    service.until_says(WORDS)?;
    let log = service.stderr();
    let rest = log.split_once(WORDS).context("it says so")?.1;
    Ok(rest.split_whitespace().next().context("an address")?.parse()?)
}

/// Posts a body.
pub(super) fn post(address: SocketAddr, kind: &str, body: &str) -> Result<Answer> {
    post_with(address, "/v1/streams/cases/events", &[&format!("content-type: {kind}")], body)
}

pub(super) fn post_with(
    address: SocketAddr,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Result<Answer> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n");
    for header in headers {
        request += &format!("{header}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    http::send(address, request.as_bytes())
}

pub(super) const LINES: &str = "application/x-ndjson";
pub(super) const ONE: &str = "application/cloudevents+json";
pub(super) const BATCH: &str = "application/cloudevents-batch+json";
